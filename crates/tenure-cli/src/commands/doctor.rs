//! `tenure doctor`: examines a store, and reports for each part that it is well, or what to do.
//! [`crate::target`] examines the engine; the modules below examine the content.

mod check;
mod durability;
mod epoch;
mod guard_gap;
mod schema;
mod work;
mod workers;

use std::time::Duration;

use anyhow::Result;
use serde::Serialize;
use tenure::engine::inspect::{DueJobs, Overview};
use tenure::engine::store::{Error, Store};
use tenure::json;

use crate::output::{Column, Table};
use crate::target::Target;
use crate::time::now;
use crate::{Answer, Session};

/// Look at the store and say what is well and what to do
#[derive(clap::Args)]
#[command(after_help = "\
Exits with 0 if all is well, with 1 if there is something to do, with 3 if the store cannot be used.

After a backup was restored in a way that cannot be noticed:
  tenure doctor --raise-epoch --reason 'volume snapshot of Monday'")]
pub(crate) struct Args {
    /// Go through all jobs and hold what is stored against what must be true of it
    #[arg(long, conflicts_with_all = ["raise_epoch", "durability", "guard_gap"])]
    check: bool,

    /// Say that the store may have gone back in time: tokens and ids go on above all that were ever issued
    #[arg(long, conflicts_with_all = ["durability", "guard_gap"])]
    raise_epoch: bool,

    /// Why, for those who ask later
    #[arg(long, value_name = "TEXT", requires = "raise_epoch", value_parser = epoch::reason)]
    #[arg(default_value = "an operator said so", hide_default_value = true)]
    reason: String,

    /// On PostgreSQL, say for the installation whether commits wait for the disk whatever a session or role says
    #[arg(long, value_name = "HOW", conflicts_with = "guard_gap")]
    durability: Option<durability::How>,

    /// Say for the installation how long a worker's lock must have been free before its process counts as gone: 300ms to
    /// 60s. A worker whose connections are cut for longer loses its jobs
    #[arg(long, value_name = "LENGTH", value_parser = crate::time::duration)]
    guard_gap: Option<Duration>,
}

/// The result of one check.
#[derive(Debug)]
pub(crate) struct Finding {
    pub(crate) check: &'static str,
    pub(crate) ok: bool,
    pub(crate) found: String,
    /// What to do, if it is not well.
    next: Option<String>,
}

impl Finding {
    pub(crate) fn well(check: &'static str, found: impl Into<String>) -> Finding {
        Finding { check, ok: true, found: found.into(), next: None }
    }

    pub(crate) fn ill(
        check: &'static str,
        found: impl Into<String>,
        next: impl Into<String>,
    ) -> Finding {
        Finding { check, ok: false, found: found.into(), next: Some(next.into()) }
    }

    fn view(&self) -> impl Serialize {
        json::finding(self.check, &self.found, self.next.as_deref())
    }
}

/// What an engine reports about itself.
pub(crate) struct Examined {
    pub(crate) findings: Vec<Finding>,
    /// What is due, by queue and kind; none if this role may not read it.
    pub(crate) due: Option<Vec<DueJobs>>,
}

pub(crate) fn run(args: &Args, session: &mut Session) -> Result<Answer> {
    if args.check {
        return check::run(session);
    }
    if args.raise_epoch {
        return epoch::raise(&args.reason, session);
    }
    if let Some(how) = args.durability {
        return durability::set(how, session);
    }
    if let Some(gap) = args.guard_gap {
        return guard_gap::set(gap, session);
    }
    let findings = examine(session)?;
    if session.out.is_json() {
        session.out.document(&findings.iter().map(Finding::view).collect::<Vec<_>>())?;
    } else {
        session.out.table(&table(&findings))?;
    }
    let all_well = findings.iter().all(|finding| finding.ok);
    Ok(if all_well { Answer::Yes } else { Answer::NoAsSaid })
}

/// From the bottom up: the server or file, the schema, the workers, and the work.
fn examine(session: &Session) -> Result<Vec<Finding>> {
    let target = session.target()?;
    let mut store = target.open()?;
    let store = &mut *store;
    let mut findings = vec![Finding::well("store", format!("{} opens", target.name()))];
    let examined = target.examine()?;
    findings.extend(examined.findings);
    findings.push(schema::look(&target.status()?));
    findings.push(epoch::look(store, now())?);
    match allowed(look_at_work(store, examined.due))? {
        Some(more) => findings.extend(more),
        None => {
            let found = "not looked at: this role may not, one with the rights of a reader may";
            findings.push(Finding::well("work", found));
        }
    }
    Ok(findings)
}

fn look_at_work(store: &mut dyn Store, due: Option<Vec<DueJobs>>) -> Result<Vec<Finding>> {
    let overview = store.overview()?;
    let queues = store.queues()?;
    let workers = store.workers()?;
    let demand = workers::demand(due, &overview, &queues);
    Ok(vec![
        workers::look(&workers, now()),
        guard_gap::look(store)?,
        workers::kinds(&demand, &workers, &workers::holders(store)?),
        work::queues(&queues, now()),
        work::leases(store, now())?,
        work::effects(store)?,
        work::dead(&overview),
    ])
}

/// The result, or none if this role may not read it.
pub(crate) fn allowed<T>(found: Result<T>) -> Result<Option<T>> {
    match found {
        Err(error) if error.downcast_ref().is_some_and(Error::is_forbidden) => Ok(None),
        found => found.map(Some),
    }
}

/// Which due jobs no worker takes, and what to do; none if all are taken.
pub(crate) fn unserved(
    target: &Target,
    store: &mut dyn Store,
    overview: &Overview,
) -> Result<Option<String>> {
    let (queues, workers) = (store.queues()?, store.workers()?);
    let demand = workers::demand(target.due()?, overview, &queues);
    let Finding { ok, found, next, .. } =
        workers::kinds(&demand, &workers, &workers::holders(store)?);
    Ok((!ok).then(|| format!("{found}; {}", next.unwrap_or_default())))
}

fn table(findings: &[Finding]) -> Table {
    let mut table =
        Table::new(&[Column::Text("CHECK"), Column::Text("VERDICT"), Column::Text("FOUND")]);
    for Finding { check, ok, found, next } in findings {
        let verdict = if *ok { "ok" } else { "to do" };
        let found = match next {
            None => found.clone(),
            Some(next) => format!("{found}; {next}"),
        };
        table.row(vec![(*check).into(), verdict.into(), found]);
    }
    table
}

/// A number with the singular or plural of its noun.
fn count(n: usize, one: &str, many: &str) -> String {
    format!("{n} {}", if n == 1 { one } else { many })
}
