//! The report of a comparison: every line with what is needed to judge it, what went wrong, and the
//! targets.

use std::time::Duration;

use serde::Serialize;

use super::answer::{Answer, Run};
use super::table::{Mark, PEERS, Peer, Store, letters};
use super::targets::{self, Verdict};
use crate::machine::Machine;
use crate::measures::{Engine, Unit};
use crate::report::Conditions;
use crate::stats::{median, percentile, spread, whole};

/// What was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Work {
    /// Run jobs that do nothing.
    Process,
    /// Enqueue, a thousand in a call.
    EnqueueBulk,
    /// Enqueue one by one.
    EnqueueOne,
    /// The same by 16 callers.
    EnqueueSixteen,
    /// The same with keys.
    EnqueueSixteenKeys,
    /// From enqueue to start on an idle worker: the median.
    Pickup50,
    /// The same: the 99th percentile.
    Pickup99,
}

impl Work {
    /// Its name, in tables and in the answers of adapters.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Work::Process => "process",
            Work::EnqueueBulk => "enqueue_bulk",
            Work::EnqueueOne => "enqueue_1",
            Work::EnqueueSixteen => "enqueue_16",
            Work::EnqueueSixteenKeys => "enqueue_16_keys",
            Work::Pickup50 => "idle_pickup p50",
            Work::Pickup99 => "idle_pickup p99",
        }
    }

    /// In what it is counted.
    pub(crate) fn unit(self) -> Unit {
        match self {
            Work::Pickup50 | Work::Pickup99 => Unit::Millis,
            _ => Unit::Rate,
        }
    }
}

/// Who did it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Subject {
    /// Tenure with its default settings.
    Default,
    /// Tenure, concurrency 1,000.
    Tuned,
    /// The same, without history.
    NoHistory,
    /// Plain SQL by the driver alone.
    Raw,
    /// A peer, by its place in the table.
    Peer(usize),
}

impl Subject {
    pub(super) fn name(self) -> &'static str {
        match self {
            Subject::Default => "tenure",
            Subject::Tuned => "tenure, tuned",
            Subject::NoHistory => "tenure, no history",
            Subject::Raw => "plain SQL",
            Subject::Peer(at) => PEERS[at].name,
        }
    }

    fn marks(self) -> &'static [Mark] {
        match self {
            Subject::Default | Subject::Tuned => &[],
            Subject::NoHistory => &[Mark::Deletes],
            Subject::Raw => &[Mark::Unfenced],
            Subject::Peer(at) => PEERS[at].marks,
        }
    }
}

/// A value of one round.
pub(crate) struct Found {
    pub(super) work: Work,
    pub(super) store: Store,
    pub(super) subject: Subject,
    pub(super) value: f64,
    version: String,
    settings: String,
}

impl Found {
    /// A value of Tenure or of plain SQL.
    pub(super) fn own(
        subject: Subject,
        engine: Engine,
        work: Work,
        value: f64,
        settings: String,
    ) -> Found {
        let store = match engine {
            Engine::Postgres => Store::Postgres,
            Engine::Sqlite => Store::Sqlite,
        };
        let version = match subject {
            Subject::Raw => String::new(),
            _ => env!("CARGO_PKG_VERSION").to_owned(),
        };
        Found { work, store, subject, value, version, settings }
    }

    /// A made-up value.
    #[cfg(test)]
    pub(super) fn sample(subject: Subject, store: Store, work: Work, value: f64) -> Found {
        let (version, settings) = (String::new(), String::new());
        Found { work, store, subject, value, version, settings }
    }

    /// What an answer says.
    pub(super) fn of_peer(peer: &'static Peer, run: Run, answer: &Answer, jobs: u64) -> Vec<Found> {
        let Some(at) = PEERS.iter().position(|it| it.name == peer.name) else { return Vec::new() };
        let found = |work, value| Found {
            work,
            store: peer.store,
            subject: Subject::Peer(at),
            value,
            version: answer.version.clone(),
            settings: format!("{} jobs, {}", whole(jobs), answer.settings),
        };
        if run == Run::IdlePickup {
            let percent = |percent| percentile(&answer.pickups_ms, percent);
            return vec![
                found(Work::Pickup50, percent(50.0)),
                found(Work::Pickup99, percent(99.0)),
            ];
        }
        let works = [Work::Process, Work::EnqueueBulk, Work::EnqueueOne, Work::EnqueueSixteen];
        let timed =
            works.into_iter().filter_map(|work| Some((work, answer.seconds.get(work.name())?)));
        timed.map(|(work, seconds)| found(work, jobs as f64 / seconds)).collect()
    }
}

/// One line of the table.
#[derive(Debug, Serialize)]
pub struct Line {
    /// What was done.
    pub work: &'static str,
    /// By whom.
    pub subject: &'static str,
    /// On what.
    pub store: &'static str,
    /// Of the values.
    pub unit: Unit,
    /// One value for each round.
    pub values: Vec<f64>,
    /// The middle one.
    pub median: f64,
    /// From the smallest to the largest, as a fraction of the median.
    pub spread: f64,
    /// Of the subject.
    pub version: String,
    /// What the subject leaves out.
    pub marks: &'static [Mark],
    /// Sizes and options.
    pub settings: String,
    #[serde(skip)]
    pub(super) key: (Work, Store, Subject),
}

impl Line {
    /// The letters of the marks.
    pub fn letters(&self) -> String {
        letters(self.marks)
    }
}

/// What went wrong with a peer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Failure {
    /// Its name.
    pub peer: &'static str,
    /// While it was installed, or in which measure.
    pub doing: &'static str,
    /// What it said.
    pub why: String,
}

/// What was read so far.
#[derive(Default)]
pub(super) struct Rounds {
    found: Vec<Found>,
    failures: Vec<Failure>,
}

impl Rounds {
    pub(super) fn found(&mut self, found: Vec<Found>) {
        self.found.extend(found);
    }

    pub(super) fn failed(&mut self, peer: &Peer, doing: &'static str, error: &anyhow::Error) {
        self.failures.push(Failure { peer: peer.name, doing, why: format!("{error:#}") });
    }

    /// What has failed so far.
    #[cfg(test)]
    pub(super) fn failures(&self) -> &[Failure] {
        &self.failures
    }

    /// Whether this failed in an earlier round. Then it is not tried again: it may take minutes to
    /// fail.
    pub(super) fn has_failed(&self, peer: &Peer, doing: &str) -> bool {
        self.failures.iter().any(|failure| failure.peer == peer.name && failure.doing == doing)
    }

    /// One line for each work, store and subject. Of the lines for one work and store, the best
    /// comes first.
    pub(super) fn lines(&self) -> Vec<Line> {
        let mut lines: Vec<Line> = Vec::new();
        for found in &self.found {
            let key = (found.work, found.store, found.subject);
            if let Some(line) = lines.iter_mut().find(|line| line.key == key) {
                line.values.push(found.value);
                continue;
            }
            lines.push(Line {
                work: found.work.name(),
                subject: found.subject.name(),
                store: found.store.name(),
                unit: found.work.unit(),
                values: vec![found.value],
                median: 0.0,
                spread: 0.0,
                version: found.version.clone(),
                marks: found.subject.marks(),
                settings: found.settings.clone(),
                key,
            });
        }
        for line in &mut lines {
            (line.median, line.spread) = (median(&line.values), spread(&line.values));
        }
        let better = |a: &Line, b: &Line| {
            let by = a.median.total_cmp(&b.median);
            if a.unit.less_is_better() { by } else { by.reverse() }
        };
        // By the store's name, not by its value: two peers on Redis have different values, because
        // the settings of their servers differ.
        lines.sort_by(|a, b| (a.key.0, a.store).cmp(&(b.key.0, b.store)).then(better(a, b)));
        lines
    }
}

/// The result of a comparison. `tenure bench peers --json` prints it.
#[derive(Debug, Serialize)]
pub struct PeerReport {
    /// The version of Tenure.
    pub tenure: &'static str,
    /// PostgreSQL: the version, and when a commit counts as done.
    pub postgres: String,
    /// SQLite: the same.
    pub sqlite: String,
    /// The machine.
    pub machine: Machine,
    /// How often everything was measured.
    pub rounds: u32,
    /// Whether the sizes were so small that the figures mean nothing.
    pub quick: bool,
    /// How long the run took, in seconds.
    pub took_s: f64,
    /// All figures.
    pub lines: Vec<Line>,
    /// What could not be installed or measured.
    pub failures: Vec<Failure>,
    /// What this project wants to reach.
    pub targets: Vec<Verdict>,
}

impl PeerReport {
    pub(super) fn of(
        postgres: Conditions,
        sqlite: &Conditions,
        (rounds, quick): (u32, bool),
        read: Rounds,
        took: Duration,
    ) -> PeerReport {
        let terms = |on: &Conditions| format!("{} ({})", on.engine, on.durability);
        let lines = read.lines();
        PeerReport {
            tenure: env!("CARGO_PKG_VERSION"),
            postgres: terms(&postgres),
            sqlite: terms(sqlite),
            machine: postgres.machine,
            rounds,
            quick,
            took_s: took.as_secs_f64(),
            targets: targets::judge(&lines),
            lines,
            failures: read.failures,
        }
    }
}

/// A report with made-up values, for tests of what is drawn from it.
#[cfg(test)]
pub(crate) fn sample(machine: &Machine) -> PeerReport {
    let found = [
        Found::sample(Subject::Default, Store::Postgres, Work::Process, 2_000.0),
        Found::sample(Subject::Peer(0), Store::Postgres, Work::Process, 1_000.0),
        Found::sample(Subject::Peer(0), Store::Postgres, Work::Pickup50, 3.0),
    ];
    let mut read = Rounds::default();
    read.found(found.into());
    let conditions = |engine: &str| Conditions {
        engine: engine.to_owned(),
        durability: "WAL & FULL".to_owned(),
        machine: machine.clone(),
    };
    let (postgres, sqlite) = (conditions("PostgreSQL <1>"), conditions("SQLite <3>"));
    PeerReport::of(postgres, &sqlite, (3, false), read, Duration::from_secs(1))
}
