//! `tenure dead`: the dead jobs, and what to do with them.
//!
//! Each command touches dead jobs only: an id of a job in another state is refused, so that a typo
//! deletes no result.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use tenure::engine::job::{BATCH_LIMIT, JobId, JobRecord, State, shorten};
use tenure::engine::store::{AsSeen, Changed, Store};
use tenure::{Filter, json};

use super::changes::{self, Operation};
use super::jobs::{Limit, newest};
use crate::args::{self, BadInput, Only, distinct};
use crate::output::{self, Column, Table};
use crate::time::{now, relative};
use crate::{Answer, Session};

/// List dead jobs with their reasons, queue them again, or delete them
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// List dead jobs and why they died, newest first
    List {
        #[command(flatten)]
        only: Only,
        #[command(flatten)]
        limit: Limit,
    },
    /// Queue dead jobs again, with their attempts and crashes counted from zero
    #[command(after_help = "Example:\n  tenure dead requeue --kind send_email")]
    Requeue(Which),
    /// Delete dead jobs and all that is known of them
    #[command(after_help = "Example:\n  tenure dead purge --queue mail --yes")]
    Purge {
        #[command(flatten)]
        which: Which,
        /// Yes, all of them, for good: needed unless the jobs are named by their ids
        #[arg(long)]
        yes: bool,
    },
}

/// Which dead jobs: by their ids, those that a filter leaves, or all.
#[derive(clap::Args)]
pub(crate) struct Which {
    /// The jobs
    #[arg(value_name = "ID", value_parser = args::job_id)]
    ids: Vec<JobId>,

    /// All dead jobs; not needed with --queue, --tenant or --kind
    #[arg(long, conflicts_with = "ids")]
    all: bool,

    #[command(flatten)]
    only: Only,
}

enum Chosen<'a> {
    Ids(&'a [JobId]),
    Matching(&'a Only),
}

impl Which {
    fn chosen(&self) -> Result<Chosen<'_>, BadInput> {
        let Which { ids, all, only } = self;
        match (ids.as_slice(), only.is_empty()) {
            ([], true) if !all => Err(BadInput(
                "which dead jobs? name their ids, narrow them down with --queue, --tenant or \
                 --kind, or say --all"
                    .into(),
            )),
            ([], _) => Ok(Chosen::Matching(only)),
            (ids, true) => Ok(Chosen::Ids(ids)),
            (_, false) => Err(BadInput(
                "--queue, --tenant and --kind choose among all dead jobs; use them without ids, or \
                 name ids alone"
                    .into(),
            )),
        }
    }
}

pub(crate) fn run(command: &Command, session: &mut Session) -> Result<Answer> {
    match command {
        Command::List { only, limit } => list(only, limit, session),
        Command::Requeue(which) => match which.chosen()? {
            Chosen::Ids(ids) => named(Operation::RequeueDead, ids, session),
            Chosen::Matching(only) => all(Operation::RequeueDead, only, session),
        },
        Command::Purge { which, yes } => match which.chosen()? {
            Chosen::Ids(ids) => named(Operation::PurgeDead, ids, session),
            Chosen::Matching(only) if *yes => all(Operation::PurgeDead, only, session),
            Chosen::Matching(only) => ask_first(only, session),
        },
    }
}

fn list(only: &Only, limit: &Limit, session: &mut Session) -> Result<Answer> {
    let (jobs, more) = newest(&mut *session.open()?, only.filter(Some(State::Dead)), limit)?;
    if session.out.is_json() {
        session.out.document(&jobs.iter().map(json::job).collect::<Vec<_>>())?;
        return Ok(Answer::Yes);
    }
    match jobs.as_slice() {
        [] => session.out.say("no dead jobs")?,
        [first, ..] => {
            session.out.table(&table(&jobs))?;
            if more.is_some() {
                session.out.say("there are more; see them with a higher --limit")?;
            }
            session.out.say(&format!("requeue one with: tenure dead requeue {}", first.id))?;
        }
    }
    Ok(Answer::Yes)
}

fn table(jobs: &[JobRecord]) -> Table {
    use Column::{Number, Text};
    let now = now();
    let mut table = Table::new(&[
        Number("ID"),
        Text("KIND"),
        Text("QUEUE"),
        Text("TENANT"),
        Number("ATTEMPTS"),
        Number("CRASHES"),
        Text("DIED"),
        Text("REASON"),
    ]);
    for job in jobs {
        table.row(vec![
            job.id.to_string(),
            job.kind.to_string(),
            job.queue.to_string(),
            job.tenant.to_string(),
            format!("{}/{}", job.attempt, job.max_attempts),
            format!("{}/{}", job.crashes, job.max_crashes),
            job.finished_at.map(|at| relative(at, now)).unwrap_or_default(),
            shorten(job.reason.as_deref().unwrap_or_default(), 120),
        ]);
    }
    table
}

/// Applies the operation to those of the named jobs that are dead.
fn named(operation: Operation, ids: &[JobId], session: &mut Session) -> Result<Answer> {
    let mut store = session.open()?;
    let ids = distinct(ids);
    let mut answers = BTreeMap::new();
    let mut dead = Vec::new();
    for id in &ids {
        match store.job(*id)? {
            None => drop(answers.insert(*id, Changed::NotFound)),
            Some(detail) if detail.job.state == State::Dead => dead.push(detail.job),
            Some(detail) => drop(answers.insert(*id, Changed::Refused(detail.job.state))),
        }
    }
    for part in dead.chunks(BATCH_LIMIT) {
        answers.extend(apply(operation, part, &mut *store)?);
    }
    let in_order: Vec<_> = ids.iter().map(|id| (*id, answers[id])).collect();
    changes::report(operation, &in_order, &mut session.out)
}

/// Each job is sent with the token that was read. If a job was requeued since then, its token has
/// changed, and the store leaves the job alone, whatever state it is in now.
fn apply(
    operation: Operation,
    jobs: &[JobRecord],
    store: &mut dyn Store,
) -> Result<Vec<(JobId, Changed)>> {
    let seen: Vec<_> = jobs.iter().map(|job| AsSeen::at(job.id, job.token)).collect();
    let answers = match operation {
        Operation::PurgeDead => store.purge(&seen)?,
        _ => store.requeue(&seen)?,
    };
    Ok(seen.into_iter().map(|seen| seen.job).zip(answers).collect())
}

/// Applies the operation to every dead job that passes the filter, in pages from the newest to the
/// oldest.
fn all(operation: Operation, only: &Only, session: &mut Session) -> Result<Answer> {
    let mut store = session.open()?;
    let bar = output::progress(None, operation.doing());
    let mut done = 0;
    let walked = each_page(&mut *store, only, |store, page| {
        let answers = apply(operation, page, store)?;
        done += answers.iter().filter(|(_, changed)| *changed == Changed::Applied).count() as u64;
        bar.set_position(done);
        Ok(())
    });
    bar.finish_and_clear();
    walked.with_context(|| format!("after {done} {} were {}", jobs(done), operation.done()))?;
    if session.out.is_json() {
        session.out.document(&json::tally(done))?;
    } else if done == 0 {
        session.out.say("no dead jobs")?;
    } else {
        session.out.line(&format!("{done} {} {}", jobs(done), operation.done()))?;
    }
    Ok(Answer::Yes)
}

/// What cannot be undone needs a confirmation.
fn ask_first(only: &Only, session: &mut Session) -> Result<Answer> {
    let mut count = 0;
    each_page(&mut *session.open()?, only, |_, page| {
        count += page.len() as u64;
        Ok(())
    })?;
    if count == 0 {
        session.out.say("no dead jobs")?;
        return Ok(Answer::Yes);
    }
    let why = format!(
        "this would delete {count} dead {} for good; if that is what you want, add --yes",
        jobs(count)
    );
    Err(BadInput(why).into())
}

/// Walks the dead jobs from the newest to the oldest. Each page begins after the last id of the
/// page before, so that a job that dies again meanwhile is not visited twice.
fn each_page(
    store: &mut dyn Store,
    only: &Only,
    mut visit: impl FnMut(&mut dyn Store, &[JobRecord]) -> Result<()>,
) -> Result<()> {
    let mut filter: Filter = only.filter(Some(State::Dead));
    loop {
        let page = store.jobs(&filter, BATCH_LIMIT)?;
        let Some(last) = page.last() else { return Ok(()) };
        filter.before = Some(last.id);
        visit(store, &page)?;
    }
}

fn jobs(count: u64) -> &'static str {
    if count == 1 { "job" } else { "jobs" }
}
