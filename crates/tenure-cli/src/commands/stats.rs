//! `tenure stats`: all queues at a glance.

use std::collections::BTreeMap;

use anyhow::Result;
use tenure::engine::inspect::{Overview, OverviewLine};
use tenure::engine::job::{Name, Tenant};
use tenure::{Timestamp, json};

use crate::commands::{doctor, queues};
use crate::output::{Column, Table};
use crate::time::show_millis;
use crate::{Answer, Session};

/// Show all queues at a glance
#[derive(clap::Args)]
pub(crate) struct Args {}

pub(crate) fn run(_: &Args, session: &mut Session) -> Result<Answer> {
    let target = session.target()?;
    let mut store = target.open()?;
    let mut overview = store.overview()?;
    let settings = store.queues()?;
    let paused = queues::paused(&settings);
    add_paused_without_jobs(&mut overview, &paused);
    if session.out.is_json() {
        session.out.document(&json::overview(&overview, &settings))?;
    } else if overview.lines.is_empty() {
        session.out.say(&format!(
            "nothing is queued, running or dead in {}; enqueue a job with: \
             tenure enqueue hello '{{\"name\":\"you\"}}'",
            target.name()
        ))?;
    } else {
        session.out.table(&table(&overview, &paused))?;
    }
    if overview.lines.iter().any(|line| line.ready > 0)
        && let Some(unserved) = doctor::unserved(&target, store.as_mut(), &overview)?
    {
        session.out.say(&unserved)?;
    }
    Ok(Answer::Yes)
}

type Paused = BTreeMap<Name, Timestamp>;

/// The store counts jobs, so a queue without any is not in its overview. A paused queue is shown
/// nevertheless: its next job will wait.
fn add_paused_without_jobs(overview: &mut Overview, paused: &Paused) {
    let is_there = |queue: &Name| overview.lines.iter().any(|line| line.queue == *queue);
    let missing: Vec<&Name> = paused.keys().filter(|queue| !is_there(queue)).collect();
    let empty = |queue: &Name| OverviewLine::empty(queue.clone(), Tenant::default());
    overview.lines.extend(missing.into_iter().map(empty));
    overview.lines.sort_by(|a, b| (&a.queue, &a.tenant).cmp(&(&b.queue, &b.tenant)));
}

fn table(overview: &Overview, paused: &Paused) -> Table {
    use Column::{Number, Text};
    let mut table = Table::new(&[
        Text("QUEUE"),
        Text("STATE"),
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
            queues::state(paused.get(&line.queue).copied()).into(),
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
