//! `tenure jobs list`: a page of jobs, newest first.

use std::collections::BTreeMap;

use anyhow::Result;
use tenure::engine::job::{BATCH_LIMIT, JobId, JobRecord, Key, Name, State, shorten};
use tenure::engine::store::Store;
use tenure::{Filter, Timestamp, json};

use crate::args::{self, Only};
use crate::commands::queues;
use crate::output::{Column, Table};
use crate::time::{now, relative, show};
use crate::{Answer, Session};

/// List jobs, newest first
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  tenure jobs list --state running --queue mail
  tenure jobs list --tag monthly
  tenure jobs list --key welcome-7")]
pub(crate) struct Args {
    /// Only in this state
    #[arg(long, value_parser = args::state())]
    state: Option<State>,

    #[command(flatten)]
    only: Only,

    /// Only with this tag
    #[arg(long, value_name = "NAME", value_parser = args::tag)]
    tag: Option<Name>,

    /// Only those enqueued with this key
    #[arg(long, value_name = "TEXT", value_parser = args::key)]
    key: Option<Key>,

    #[command(flatten)]
    limit: Limit,

    /// Only jobs older than this one: the last of the page before
    #[arg(long, value_name = "ID", value_parser = args::job_id)]
    before: Option<JobId>,
}

/// How many jobs to show.
#[derive(clap::Args)]
pub(crate) struct Limit {
    /// How many at most
    #[arg(long, value_name = "N", default_value_t = 50)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
}

pub(crate) fn run(args: &Args, session: &mut Session) -> Result<Answer> {
    let filter = Filter {
        tag: args.tag.clone(),
        key: args.key.clone(),
        before: args.before,
        ..args.only.filter(args.state)
    };
    let is_everything = filter == Filter::default();
    let mut store = session.open()?;
    let (jobs, more) = newest(&mut *store, filter, &args.limit)?;
    if session.out.is_json() {
        session.out.document(&jobs.iter().map(json::job).collect::<Vec<_>>())?;
    } else if jobs.is_empty() && is_everything {
        session
            .out
            .say("no jobs yet; enqueue one with: tenure enqueue hello '{\"name\":\"you\"}'")?;
    } else if jobs.is_empty() {
        session.out.say("no such jobs; all of them: tenure jobs list")?;
    } else {
        session.out.table(&table(&jobs, &queues::paused(&store.queues()?)))?;
    }
    if let (Some(_), Some(last)) = (more, jobs.last()) {
        session.out.say(&format!(
            "there are more; see them with the same command and --before {}",
            last.id
        ))?;
    }
    Ok(Answer::Yes)
}

/// There are more jobs than were asked for.
pub(crate) struct More;

/// Up to a limit of the newest jobs, in as many pages as needed, and whether there are more.
pub(crate) fn newest(
    store: &mut dyn Store,
    mut filter: Filter,
    Limit { limit }: &Limit,
) -> Result<(Vec<JobRecord>, Option<More>)> {
    let limit = *limit as usize;
    let mut jobs: Vec<JobRecord> = Vec::new();
    // One more than asked for is read, because it shows whether there are more.
    while jobs.len() <= limit {
        let page = store.jobs(&filter, BATCH_LIMIT.min(limit + 1 - jobs.len()))?;
        let Some(last) = page.last() else { break };
        filter.before = Some(last.id);
        jobs.extend(page);
    }
    let more = (jobs.len() > limit).then_some(More);
    jobs.truncate(limit);
    Ok((jobs, more))
}

fn table(jobs: &[JobRecord], paused: &BTreeMap<Name, Timestamp>) -> Table {
    use Column::{Number, Text};
    let now = now();
    let mut table = Table::new(&[
        Number("ID"),
        Text("STATE"),
        Text("KIND"),
        Text("QUEUE"),
        Text("TENANT"),
        Number("ATTEMPT"),
        Text("ENQUEUED"),
        Text("NOTE"),
    ]);
    for job in jobs {
        table.row(vec![
            job.id.to_string(),
            job.state.to_string(),
            job.kind.to_string(),
            job.queue.to_string(),
            job.tenant.to_string(),
            format!("{}/{}", job.attempt, job.max_attempts),
            relative(job.enqueued_at, now),
            note(job, paused, now),
        ]);
    }
    table
}

/// The most useful next fact about a job in this state.
fn note(job: &JobRecord, paused: &BTreeMap<Name, Timestamp>, now: Timestamp) -> String {
    match job.state {
        State::Queued => {
            let due = (job.run_at > now).then(|| format!("due {}", relative(job.run_at, now)));
            match (due, paused.contains_key(&job.queue)) {
                (Some(due), false) => due,
                (Some(due), true) => format!("{due}, queue paused"),
                (None, false) => "due".to_owned(),
                (None, true) => "queue paused".to_owned(),
            }
        }
        State::Running => {
            let progress = job.progress.as_ref().map(|told| shorten(&told.to_string(), 80));
            match (progress, job.lease_until) {
                (Some(progress), Some(until)) if until > now => progress,
                (Some(progress), _) => format!("{progress}; lease is over"),
                (None, Some(until)) if until > now => {
                    format!("lease ends {}", relative(until, now))
                }
                (None, _) => "lease is over".to_owned(),
            }
        }
        State::Succeeded => match (job.started_at, job.finished_at) {
            (Some(from), Some(to)) => format!("took {}", show(to.since(from))),
            _ => String::new(),
        },
        State::Parked | State::Dead | State::Cancelled => {
            shorten(job.reason.as_deref().unwrap_or_default(), 80)
        }
    }
}
