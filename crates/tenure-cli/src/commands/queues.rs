//! `tenure queues`: an operator's settings of a queue.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use clap::ArgGroup;
use tenure::engine::inspect::{OverviewLine, QueueSettings};
use tenure::engine::store::{Pause, QueueChange, Store};
use tenure::{Name, Timestamp, json};

use crate::output::{Column, Table};
use crate::time::{duration, now, relative, show_millis};
use crate::{Answer, Session, args};

/// See the queues, pause them, and set how long finished jobs are kept
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// List the queues that have jobs or settings
    List,
    /// Let no worker claim from a queue; jobs that are running go on
    Pause {
        /// The queue
        #[arg(value_parser = args::queue)]
        name: Name,
    },
    /// Let workers claim from a queue again
    Resume {
        /// The queue
        #[arg(value_parser = args::queue)]
        name: Name,
    },
    /// Set how long finished jobs are kept
    #[command(after_help = "Example:\n  tenure queues set mail --keep 1d --keep-dead 90d")]
    Set(Set),
}

#[derive(clap::Args)]
#[group(skip)]
#[command(group(settings()))]
pub(crate) struct Set {
    /// The queue
    #[arg(value_parser = args::queue)]
    name: Name,

    /// How long succeeded jobs are kept, such as 7d; 0s deletes them at once
    #[arg(long, value_name = "DURATION", value_parser = duration, allow_hyphen_values = true)]
    keep: Option<Duration>,

    /// How long dead and cancelled jobs are kept, such as 30d
    #[arg(long, value_name = "DURATION", value_parser = duration, allow_hyphen_values = true)]
    keep_dead: Option<Duration>,
}

/// At least one of them must be set.
fn settings() -> ArgGroup {
    ArgGroup::new("settings").required(true).multiple(true).args(["keep", "keep_dead"])
}

pub(crate) fn run(command: &Command, session: &mut Session) -> Result<Answer> {
    let change = |pause| QueueChange { pause: Some(pause), ..QueueChange::default() };
    match command {
        Command::List => list(session),
        Command::Pause { name } => configure(name, &change(Pause::Pause), session),
        Command::Resume { name } => configure(name, &change(Pause::Resume), session),
        Command::Set(Set { name, keep, keep_dead }) => {
            let change = QueueChange { pause: None, keep: *keep, keep_dead: *keep_dead };
            configure(name, &change, session)
        }
    }
}

fn configure(name: &Name, change: &QueueChange, session: &mut Session) -> Result<Answer> {
    let mut store = session.open()?;
    let settings = store.configure(name, change)?;
    if session.out.is_json() {
        session.out.document(&json::queue(&settings))?;
    } else {
        session.out.line(&describe(&settings))?;
    }
    // A setting for a queue without jobs is allowed, but it may also be a typo.
    if !store.overview()?.lines.iter().any(|line| line.queue == *name) {
        session.out.say(&format!("note: queue {name} has no jobs now"))?;
    }
    Ok(Answer::Yes)
}

/// All settings of a queue, on one line.
fn describe(settings: &QueueSettings) -> String {
    let QueueSettings { queue, paused_at, keep_ms, keep_dead_ms } = settings;
    let state = state(*paused_at);
    format!(
        "queue {queue} is {state}; succeeded jobs are kept {}, dead and cancelled ones {}",
        show_millis(*keep_ms),
        show_millis(*keep_dead_ms)
    )
}

fn list(session: &mut Session) -> Result<Answer> {
    let mut store = session.open()?;
    let queues = known(&mut *store)?;
    if session.out.is_json() {
        let views: Vec<_> = queues.values().map(|queue| json::queue(&queue.settings)).collect();
        session.out.document(&views)?;
    } else if queues.is_empty() {
        session.out.say(
            "no queue has jobs or settings; one begins with its first job: \
             tenure enqueue KIND --queue NAME",
        )?;
    } else {
        session.out.table(&table(&queues))?;
    }
    Ok(Answer::Yes)
}

/// The queues that are paused, and since when.
pub(crate) fn paused(settings: &[QueueSettings]) -> BTreeMap<Name, Timestamp> {
    settings.iter().filter_map(|queue| Some((queue.queue.clone(), queue.paused_at?))).collect()
}

/// The state of a queue, in a table.
pub(crate) fn state(paused_at: Option<Timestamp>) -> &'static str {
    if paused_at.is_some() { "paused" } else { "open" }
}

struct Queue {
    settings: QueueSettings,
    ready: u64,
    waiting: u64,
    running: u64,
}

impl Queue {
    fn new(settings: QueueSettings) -> Queue {
        Queue { settings, ready: 0, waiting: 0, running: 0 }
    }

    fn add(&mut self, line: &OverviewLine) {
        self.ready += line.ready;
        self.waiting += line.waiting;
        self.running += line.running;
    }
}

/// The queues with settings, and those with jobs.
fn known(store: &mut dyn Store) -> Result<BTreeMap<Name, Queue>> {
    let set = store.queues()?.into_iter();
    let mut queues: BTreeMap<Name, Queue> =
        set.map(|settings| (settings.queue.clone(), Queue::new(settings))).collect();
    for line in store.overview()?.lines {
        let default = || Queue::new(QueueSettings::default_for(line.queue.clone()));
        queues.entry(line.queue.clone()).or_insert_with(default).add(&line);
    }
    Ok(queues)
}

fn table(queues: &BTreeMap<Name, Queue>) -> Table {
    use Column::{Number, Text};
    let now = now();
    let mut table = Table::new(&[
        Text("QUEUE"),
        Text("STATE"),
        Number("READY"),
        Number("WAITING"),
        Number("RUNNING"),
        Number("KEEP"),
        Number("KEEP DEAD"),
        Text("PAUSED"),
    ]);
    for (name, queue) in queues {
        let QueueSettings { paused_at, keep_ms, keep_dead_ms, .. } = &queue.settings;
        table.row(vec![
            name.to_string(),
            state(*paused_at).into(),
            queue.ready.to_string(),
            queue.waiting.to_string(),
            queue.running.to_string(),
            show_millis(*keep_ms),
            show_millis(*keep_dead_ms),
            paused_at.map(|at| relative(at, now)).unwrap_or_default(),
        ]);
    }
    table
}
