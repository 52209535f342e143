//! `tenure doctor`: looks at a store and says of each thing that it is well, or what to do.

use anyhow::Result;
use serde::Serialize;
use tenure::clock::Timestamp;
use tenure::job::BATCH_LIMIT;
use tenure::store::Store;
use tenure::store::migrate::{Standing, Status};

use crate::output::{Column, Table};
use crate::time::{now, relative};
use crate::{Answer, Session};

/// Look at the store and say what is well and what to do
#[derive(clap::Args)]
#[command(after_help = "Exits with 0 if all is well, with 1 if there is something to do.")]
pub(crate) struct Args {}

/// One thing that was looked at.
#[derive(Serialize)]
pub(crate) struct Finding {
    pub(crate) check: &'static str,
    pub(crate) ok: bool,
    found: String,
    /// What to do, where it is not well.
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
}

pub(crate) fn run(_: &Args, session: &mut Session) -> Result<Answer> {
    let target = session.target()?;
    let mut store = target.open()?;
    let mut findings = vec![Finding::well("store", format!("{} opens", target.name()))];
    findings.extend(target.examine()?);
    findings.push(schema(&target.status()?));
    findings.push(queues(&mut *store, now())?);
    findings.push(leases(&mut *store)?);
    findings.push(dead(&mut *store)?);

    if session.out.is_json() {
        session.out.document(&findings)?;
    } else {
        session.out.table(&table(&findings))?;
    }
    let all_well = findings.iter().all(|finding| finding.ok);
    Ok(if all_well { Answer::Yes } else { Answer::NoAsSaid })
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

fn schema(status: &[Status]) -> Finding {
    let mut version = 0;
    for Status { version: number, name, standing } in status {
        match standing {
            Standing::Applied(_) => version = *number,
            Standing::Pending => {
                let found = format!("migration {number} ({name}) is pending");
                return Finding::ill("schema", found, "apply it with: tenure migrate up");
            }
            Standing::Differs(_) => {
                let found = format!("migration {number} ({name}) differs from this binary's");
                let next = "use the binary that this store was made with, or if this one is newer: \
                            tenure migrate up";
                return Finding::ill("schema", found, next);
            }
            Standing::Newer(_) | Standing::NeedsUpgrade(_) => {
                let found = format!("migration {number} ({name}) is newer than this binary");
                return Finding::ill("schema", found, "upgrade tenure here too");
            }
        }
    }
    Finding::well("schema", format!("version {version}, up to date"))
}

fn queues(store: &mut dyn Store, now: Timestamp) -> Result<Finding> {
    let queues = store.queues()?;
    let paused: Vec<_> =
        queues.iter().filter_map(|queue| Some((&queue.queue, queue.paused_at?))).collect();
    let Some((first, _)) = paused.first() else {
        return Ok(Finding::well("queues", "none is paused"));
    };
    let since = |(queue, at): &(_, Timestamp)| format!("{queue} (paused {})", relative(*at, now));
    let names: Vec<String> = paused.iter().map(since).collect();
    let next = format!("if that is over: tenure queues resume {first}");
    Ok(Finding::ill("queues", names.join(", "), next))
}

fn leases(store: &mut dyn Store) -> Result<Finding> {
    let overdue = store.overdue(BATCH_LIMIT)?;
    let Some(first) = overdue.first() else {
        return Ok(Finding::well("leases", "none is overdue"));
    };
    let found = match overdue.len() {
        1 => "1 lease is overdue".to_owned(),
        BATCH_LIMIT => format!("{BATCH_LIMIT} or more leases are overdue"),
        n => format!("{n} leases are overdue"),
    };
    let next = format!(
        "the next claim of any worker takes them back, so start one; the longest: tenure jobs show {}",
        first.job
    );
    Ok(Finding::ill("leases", found, next))
}

fn dead(store: &mut dyn Store) -> Result<Finding> {
    let count: u64 = store.overview()?.lines.iter().map(|line| line.dead).sum();
    Ok(match count {
        0 => Finding::well("dead", "no dead jobs"),
        1 => Finding::ill("dead", "1 dead job", "see why with: tenure dead list"),
        n => Finding::ill("dead", format!("{n} dead jobs"), "see why with: tenure dead list"),
    })
}
