//! `tenure jobs show`: everything known about one job, and its timeline.

use std::borrow::Cow;

use anyhow::Result;
use tenure::engine::inspect::{JobDetail, TimelineEntry};
use tenure::engine::job::{JobId, JobRecord, State};
use tenure::engine::lifecycle::Verb;
use tenure::{Timestamp, WorkerId, json};

use super::changes;
use crate::args;
use crate::commands::effects;
use crate::output::{Column, Output, Table};
use crate::time::{now, relative, show, show_millis};
use crate::{Answer, Session, retry};

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
        session.out.document(&json::detail(&detail, &effects, &store.identity()?))?;
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
            for line in effects::table(&effects, &mut *store)?.lines() {
                session.out.line(&format!("  {line}"))?;
            }
        }
    }
    Ok(Answer::Yes)
}

/// One fact on a line of its own; a text of several lines keeps its lines.
fn fact(name: &str, text: &str, out: &mut Output) -> Result<()> {
    let mut lines = text.lines();
    out.line(format!("{name:<14}{}", lines.next().unwrap_or_default()).trim_end())?;
    lines.try_for_each(|line| out.line(&format!("{:<14}{line}", "")))
}

/// The facts, in the order in which an operator asks for them. Missing values are left out.
fn facts(job: &JobRecord, now: Timestamp) -> Vec<(&'static str, String)> {
    let when = |at: Timestamp| format!("{}  ({at})", relative(at, now));
    let tags: Vec<&str> = job.extras.tags.iter().map(|tag| tag.as_str()).collect();
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
        ("retry", Some(retry::show(&job.retry))),
        ("crashes", Some(format!("{} of {}", job.crashes, job.max_crashes))),
        ("token", Some(job.token.to_string())),
        ("max runtime", job.max_runtime_ms.map(show_millis)),
        ("key", job.key.clone()),
        ("tags", Some(tags.join(" ")).filter(|tags| !tags.is_empty())),
        ("trace", job.extras.trace.clone()),
        ("parent", job.parent.map(|parent| parent.to_string())),
        ("enqueued", Some(when(job.enqueued_at))),
        ("due", queued.then(|| when(job.run_at))),
        ("started", job.started_at.map(when)),
        ("lease ends", job.lease_until.map(when)),
        ("finished", job.finished_at.map(when)),
        ("worker", job.worker.as_ref().map(|worker| worker.short().to_owned())),
        ("args", Some(job.args.to_string())),
        ("result", job.result.as_ref().map(ToString::to_string)),
    ];
    facts.into_iter().filter_map(|(name, text)| Some((name, text?))).collect()
}

/// The timeline as a table, and the whole note of each entry, of which the table shows the first
/// line. The store records no entry for what every job goes through, so the enqueue and a
/// successful end are taken from the job's own times.
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
    let mut notes = vec![String::new()]; // the heading has none
    for moment in story(job, timeline) {
        let Moment { at, event, attempt, became, from, worker, note } = moment;
        table.row(vec![
            at.to_string(),
            relative(at, now),
            event.to_owned(),
            attempt.map(|attempt| attempt.to_string()).unwrap_or_default(),
            became.to_string(),
            from.map(|from| show(at.since(from))).unwrap_or_default(),
            worker.map(WorkerId::short).unwrap_or_default().to_owned(),
            note.lines().next().unwrap_or_default().to_owned(),
        ]);
        notes.push(note.into_owned());
    }
    (table, notes)
}

/// One event.
struct Moment<'a> {
    at: Timestamp,
    event: &'static str,
    attempt: Option<u16>,
    became: State,
    from: Option<Timestamp>,
    worker: Option<&'a WorkerId>,
    note: Cow<'a, str>,
}

fn story<'a>(job: &'a JobRecord, timeline: &'a [TimelineEntry]) -> Vec<Moment<'a>> {
    let mut story = vec![Moment {
        at: job.enqueued_at,
        event: "enqueue",
        attempt: None,
        became: State::Queued,
        from: None,
        worker: None,
        note: "".into(),
    }];
    story.extend(timeline.iter().map(|entry| Moment {
        at: entry.at,
        event: entry.event(),
        // For a refusal the attempt is not always known.
        attempt: Some(entry.attempt).filter(|attempt| !entry.refused || *attempt > 0),
        became: entry.became,
        from: entry.from,
        worker: entry.worker.as_ref(),
        note: noted(entry, timeline),
    }));
    let last = |at, event, from| Moment {
        at,
        event,
        attempt: Some(job.attempt),
        became: job.state,
        from,
        worker: job.worker.as_ref(),
        note: "".into(),
    };
    let untold = match (job.state, job.started_at, job.finished_at) {
        (State::Running, Some(at), _) => Some(last(at, "claim", None)),
        (State::Succeeded, from, Some(at)) => Some(last(at, "complete", from)),
        _ => None,
    };
    if let Some(untold) = untold {
        // In the same millisecond, a refusal happened after the claim or completion, and any other
        // entry, such as a lapse, before it.
        let is_before =
            |line: &TimelineEntry| line.at < untold.at || line.at == untold.at && !line.refused;
        let place = timeline.iter().rposition(is_before).map_or(1, |last| last + 2);
        story.insert(place, untold);
    }
    story
}

/// The note of an entry; the first entry of its verb also says how many earlier ones were dropped.
fn noted<'a>(entry: &'a TimelineEntry, timeline: &'a [TimelineEntry]) -> Cow<'a, str> {
    let note = told(entry);
    let like =
        timeline.iter().filter(|line| line.verb == entry.verb && line.refused == entry.refused);
    let is_first = like.clone().next().is_some_and(|first| first.token == entry.token);
    match like.map(|line| line.earlier).max() {
        Some(dropped) if is_first && dropped > 0 => {
            let verb = entry.verb.name();
            let space = if note.is_empty() { "" } else { " " };
            Cow::Owned(format!(
                "(and {} more of {verb} before this one){space}{note}",
                grouped(dropped)
            ))
        }
        _ => note,
    }
}

/// The note of an entry; for a refusal also the verb, and its token.
fn told(entry: &TimelineEntry) -> Cow<'_, str> {
    let note = entry.note.as_deref().unwrap_or_default();
    if entry.refused && entry.verb != Verb::Follow {
        format!("{} with token {}: {note}", entry.verb, entry.token).into()
    } else {
        note.into()
    }
}

/// A number with a comma after each thousand.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tenure::Token;
    use tenure::engine::job::{Json, Name, NewJob};
    use tenure::engine::ledger::{Act, Entry};
    use tenure::engine::lifecycle::Outcome;
    use tenure::engine::store::{Claim, Look, Settlement, Store, Work};

    use super::*;

    fn snooze(token: i64, earlier: u64) -> TimelineEntry {
        TimelineEntry {
            job: JobId(1),
            at: Timestamp::from_millis(0),
            verb: Verb::Snooze,
            refused: false,
            token: Token(token),
            attempt: 1,
            worker: None,
            from: None,
            became: State::Queued,
            note: None,
            earlier,
        }
    }

    #[test]
    fn the_first_line_of_a_verb_says_how_many_are_not_there_any_more() {
        let lines = [snooze(1_205, 1_203), snooze(1_206, 1_204)];
        assert_eq!(noted(&lines[0], &lines), "(and 1,204 more of snooze before this one)");
        assert_eq!(noted(&lines[1], &lines), "");
        assert_eq!(noted(&snooze(1, 0), &[snooze(1, 0)]), "");
    }

    /// A job that `ann` claimed first. Then `bob` took it over at 2,000 ms and completed it at
    /// 3,000 ms. `ann` wrote too late at both times, and was refused.
    fn late() -> (JobRecord, Vec<TimelineEntry>) {
        let clock = tenure::engine::clock::Clock::manual(Timestamp::from_millis(0));
        let options = tenure::engine::store::sqlite::StoreOptions {
            clock: clock.clone(),
            ..Default::default()
        };
        let mut store = tenure::engine::store::sqlite::Sqlite::in_memory(&options).unwrap();
        let kind = Name::check("kind", "work").unwrap();
        store.enqueue(&[NewJob::new(kind, Json::check("args", "{}", 10).unwrap())]).unwrap();
        let take = |store: &mut dyn Store, who: &str| {
            let ask = Claim::new(WorkerId::check(who).unwrap(), 1, Duration::from_secs(2));
            store.claim(&ask).unwrap().attempts.remove(0).lease.fence()
        };
        let done = |fence| Settlement::new(fence, Outcome::Complete { result: None });
        let ann = take(&mut store, "ann");
        clock.advance(Duration::from_secs(2));
        let bob = take(&mut store, "bob");
        store.settle(&[done(ann)]).unwrap();
        clock.advance(Duration::from_secs(1));
        store.settle(&[done(bob)]).unwrap();
        store
            .ledger(&[Entry {
                fence: ann,
                name: Name::check("effect", "pay").unwrap(),
                act: Act::Open,
            }])
            .unwrap();
        let JobDetail { job, timeline } = store.job(ann.job).unwrap().unwrap();
        (job, timeline)
    }

    #[test]
    fn a_story_is_told_in_the_order_in_which_it_happened() {
        let (mut job, mut timeline) = late();
        let told = |job: &JobRecord, timeline: &[TimelineEntry]| {
            let line = |moment: &Moment<'_>| {
                let attempt = moment.attempt.map(|n| n.to_string()).unwrap_or_default();
                let worker = moment.worker.map(ToString::to_string).unwrap_or_default();
                format!("{} {} {attempt} {worker}", moment.at.as_millis(), moment.event)
            };
            story(job, timeline).iter().map(line).collect::<Vec<_>>()
        };
        let ended = [
            "0 enqueue  ",
            "2000 lapse 1 ann",
            "2000 stale_write_blocked 1 ann",
            "3000 complete 2 bob",
            "3000 stale_write_blocked 1 ann",
        ];
        assert_eq!(told(&job, &timeline), ended);
        // The same while it ran.
        (job.state, job.finished_at) = (State::Running, None);
        timeline.pop();
        let running = [
            "0 enqueue  ",
            "2000 lapse 1 ann",
            "2000 claim 2 bob",
            "2000 stale_write_blocked 1 ann",
        ];
        assert_eq!(told(&job, &timeline), running);
    }

    #[test]
    fn a_refusal_says_what_was_wanted_and_with_which_token() {
        let (_, timeline) = late();
        let notes: Vec<_> = timeline.iter().map(|line| noted(line, &timeline)).collect();
        let refused = [
            "complete with token 1: token_mismatch: the job's token is 3",
            "effect_open with token 1: token_mismatch: the job's token is 3",
        ];
        assert_eq!(notes[1..], refused);
    }

    #[test]
    fn numbers_are_grouped_by_thousands() {
        assert_eq!([0, 999, 1_000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
    }
}
