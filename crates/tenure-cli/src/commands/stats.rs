//! `tenure stats`: all queues at a glance.

use anyhow::Result;
use serde::Serialize;
use tenure::inspect::{Overview, OverviewLine};

use crate::commands::doctor;
use crate::output::{Column, Table};
use crate::time::show_millis;
use crate::view::Rfc3339;
use crate::{Answer, Session};

/// Show all queues at a glance
#[derive(clap::Args)]
pub(crate) struct Args {}

pub(crate) fn run(_: &Args, session: &mut Session) -> Result<Answer> {
    let target = session.target()?;
    let mut store = target.open()?;
    let overview = store.overview()?;
    if session.out.is_json() {
        session.out.document(&View { at: Rfc3339(overview.at), lines: &overview.lines })?;
    } else if overview.lines.is_empty() {
        session.out.say(&format!(
            "nothing is queued, running or dead in {}; enqueue a job with: \
             tenure enqueue hello '{{\"name\":\"you\"}}'",
            target.name()
        ))?;
    } else {
        session.out.table(&table(&overview))?;
    }
    if overview.lines.iter().any(|line| line.ready > 0)
        && let Some(unserved) = doctor::unserved(&target, store.as_mut(), &overview)?
    {
        session.out.say(&unserved)?;
    }
    Ok(Answer::Yes)
}

#[derive(Serialize)]
struct View<'a> {
    at: Rfc3339,
    lines: &'a [OverviewLine],
}

fn table(overview: &Overview) -> Table {
    use Column::{Number, Text};
    let mut table = Table::new(&[
        Text("QUEUE"),
        Text("TENANT"),
        Number("READY"),
        Number("WAITING"),
        Number("RUNNING"),
        Number("PARKED"),
        Number("DEAD"),
        Number("OLDEST WAIT"),
        Number("SUCCEEDED/MIN"),
        Number("DIED/MIN"),
    ]);
    for line in &overview.lines {
        table.row(vec![
            line.queue.to_string(),
            line.tenant.to_string(),
            line.ready.to_string(),
            line.waiting.to_string(),
            line.running.to_string(),
            line.parked.to_string(),
            line.dead.to_string(),
            line.oldest_wait_ms.map(show_millis).unwrap_or_default(),
            line.succeeded_last_minute.to_string(),
            line.died_last_minute.to_string(),
        ]);
    }
    table
}
