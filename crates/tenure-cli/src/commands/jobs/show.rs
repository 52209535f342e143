//! `tenure jobs show`: all that is known of one job, and its story in order.

use anyhow::Result;
use tenure::clock::Timestamp;
use tenure::inspect::{JobDetail, TimelineEntry};
use tenure::job::{JobId, JobRecord, State};
use tenure::lease::WorkerId;

use super::changes;
use crate::args;
use crate::commands::effects;
use crate::output::{Column, Output, Table};
use crate::time::{now, relative, show, show_millis};
use crate::{Answer, Session, view};

/// Show all that is known of a job, with its timeline and its effects
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The job
    #[arg(value_parser = args::job_id)]
    id: JobId,
}

pub(crate) fn run(args: &Args, session: &mut Session) -> Result<Answer> {
    let mut store = session.open()?;
    let Some(detail) = store.job(args.id)? else {
        return Ok(Answer::No(changes::unknown(args.id)));
    };
    let effects = effects::of_job(&mut *store, args.id)?;
    if session.out.is_json() {
        let views = effects::views(&effects, &mut *store)?;
        session.out.document(&view::Detail::of(&detail, views))?;
    } else {
        for (name, text) in facts(&detail.job, now()) {
            fact(name, &text, &mut session.out)?;
        }
        session.out.line("")?;
        session.out.line("timeline")?;
        let (table, notes) = timeline(&detail, now());
        for (line, note) in table.lines().iter().zip(notes) {
            session.out.line(&format!("  {line}"))?;
            for further in note.lines().skip(1) {
                session.out.line(&format!("      {further}"))?;
            }
        }
        if !effects.is_empty() {
            session.out.line("")?;
            session.out.line("effects")?;
            for line in effects::table(&effects).lines() {
                session.out.line(&format!("  {line}"))?;
            }
        }
    }
    Ok(Answer::Yes)
}

/// One fact on a line of its own; a text of several lines keeps them, below each other.
fn fact(name: &str, text: &str, out: &mut Output) -> Result<()> {
    let mut lines = text.lines();
    out.line(format!("{name:<14}{}", lines.next().unwrap_or_default()).trim_end())?;
    lines.try_for_each(|line| out.line(&format!("{:<14}{line}", "")))
}

/// What there is to say, in the order in which one asks. What a job does not have is not said.
fn facts(job: &JobRecord, now: Timestamp) -> Vec<(&'static str, String)> {
    let when = |at: Timestamp| format!("{}  ({at})", relative(at, now));
    let tags: Vec<&str> = job.tags.iter().map(|tag| tag.as_str()).collect();
    let queued = job.state == State::Queued;
    let facts = [
        ("job", Some(job.id.to_string())),
        ("state", Some(job.state.to_string())),
        ("progress", job.progress.as_ref().map(ToString::to_string)),
        ("reason", job.reason.clone()),
        ("kind", Some(job.kind.to_string())),
        ("queue", Some(job.queue.to_string())),
        ("tenant", Some(job.tenant.to_string()).filter(|tenant| !tenant.is_empty())),
        ("priority", Some(job.priority.to_string())),
        ("attempts", Some(format!("{} of {}", job.attempt, job.max_attempts))),
        ("crashes", Some(format!("{} of {}", job.crashes, job.max_crashes))),
        ("token", Some(job.token.to_string())),
        ("max runtime", job.max_runtime_ms.map(show_millis)),
        ("key", job.key.clone()),
        ("tags", Some(tags.join(" ")).filter(|tags| !tags.is_empty())),
        ("trace", job.trace.clone()),
        ("parent", job.parent.map(|parent| parent.to_string())),
        ("enqueued", Some(when(job.enqueued_at))),
        ("due", queued.then(|| when(job.run_at))),
        ("started", job.started_at.map(when)),
        ("lease ends", job.lease_until.map(when)),
        ("finished", job.finished_at.map(when)),
        ("worker", job.worker.as_ref().map(ToString::to_string)),
        ("args", Some(job.args.to_string())),
        ("result", job.result.as_ref().map(ToString::to_string)),
    ];
    facts.into_iter().filter_map(|(name, text)| Some((name, text?))).collect()
}

/// The story, and the whole note to each of its lines, of which the table has the first line. The
/// store keeps nothing of what every job goes through, so its beginning, and an end that went well,
/// are told from the job's own times.
fn timeline(JobDetail { job, timeline }: &JobDetail, now: Timestamp) -> (Table, Vec<String>) {
    use Column::{Number, Text};
    let mut table = Table::new(&[
        Text("AT"),
        Text("WHEN"),
        Text("EVENT"),
        Number("ATTEMPT"),
        Text("BECAME"),
        Number("TOOK"),
        Text("WORKER"),
        Text("NOTE"),
    ]);
    let mut notes = vec![String::new()]; // the headings have none
    for moment in story(job, timeline) {
        let Moment { at, event, attempt, became, from, worker, note } = moment;
        table.row(vec![
            at.to_string(),
            relative(at, now),
            event.to_owned(),
            attempt.map(|attempt| attempt.to_string()).unwrap_or_default(),
            became.to_string(),
            from.map(|from| show(at.since(from))).unwrap_or_default(),
            worker.map(short).unwrap_or_default(),
            note.lines().next().unwrap_or_default().to_owned(),
        ]);
        notes.push(note.to_owned());
    }
    (table, notes)
}

/// One thing that happened.
struct Moment<'a> {
    at: Timestamp,
    event: &'static str,
    attempt: Option<u16>,
    became: State,
    from: Option<Timestamp>,
    worker: Option<&'a WorkerId>,
    note: &'a str,
}

fn story<'a>(job: &'a JobRecord, timeline: &'a [TimelineEntry]) -> Vec<Moment<'a>> {
    let mut story = vec![Moment {
        at: job.enqueued_at,
        event: "enqueue",
        attempt: None,
        became: State::Queued,
        from: None,
        worker: None,
        note: "",
    }];
    story.extend(timeline.iter().map(|entry| Moment {
        at: entry.at,
        event: entry.event(),
        attempt: Some(entry.attempt),
        became: entry.became,
        from: entry.from,
        worker: entry.worker.as_ref(),
        note: entry.note.as_deref().unwrap_or_default(),
    }));
    let last = |at, event, from| Moment {
        at,
        event,
        attempt: Some(job.attempt),
        became: job.state,
        from,
        worker: job.worker.as_ref(),
        note: "",
    };
    story.extend(match (job.state, job.started_at, job.finished_at) {
        (State::Running, Some(at), _) => Some(last(at, "claim", None)),
        (State::Succeeded, from, Some(at)) => Some(last(at, "complete", from)),
        _ => None,
    });
    story
}

/// Enough of a worker's identity to tell it from its neighbours. The whole stands among the facts,
/// and under `--json`.
fn short(worker: &WorkerId) -> String {
    worker.as_str().chars().take(8).collect()
}
