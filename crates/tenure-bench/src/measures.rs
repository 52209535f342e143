//! The table of all measures. `tenure bench --list` prints it, and a test compares it with
//! docs/benchmarks.md.
//!
//! Each measure gets a new store with nothing in it, and returns what it read in one round.

mod backlog;
mod command;
mod crowd;
mod enqueue;
mod horizon;
mod idle;
mod payload;
mod process;
mod recovery;
mod renewal;
mod steady;
mod tenants;

use std::future::Future;
use std::pin::Pin;

use anyhow::Result;
use serde::Serialize;

use crate::limit::Limit;
use crate::stand::Stand;

/// An engine, as the report names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Engine {
    /// The embedded store.
    Sqlite,
    /// A server.
    Postgres,
}

/// One line of the table.
pub struct Measure {
    /// The name, for `--only`.
    pub name: &'static str,
    /// What it measures, in one line.
    pub what: &'static str,
    /// On which engines it means anything.
    pub engines: &'static [Engine],
    /// The limits that its figures are compared with.
    pub(crate) limits: &'static [Limit],
    /// Whether it leaves jobs in the queue on purpose.
    pub(crate) leaves: bool,
    /// Measures once.
    pub(crate) run: for<'a> fn(&'a Stand) -> Reads<'a>,
}

type Reads<'a> = Pin<Box<dyn Future<Output = Result<Vec<Reading>>> + Send + 'a>>;

/// A value that was read in one round.
#[derive(Debug)]
pub(crate) struct Reading {
    /// What distinguishes it from the other figures of its measure, such as `p99`; or nothing.
    pub(crate) part: &'static str,
    pub(crate) unit: Unit,
    pub(crate) value: f64,
    /// What it is compared with, if anything compares.
    pub(crate) limit: Option<Limit>,
    /// Sizes and options, for people.
    pub(crate) settings: String,
}

/// What is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Unit {
    /// More is better.
    #[serde(rename = "jobs/s")]
    Rate,
    /// Less is better.
    #[serde(rename = "ms")]
    Millis,
    /// More is better; it has no limit.
    #[serde(rename = "renewals/s")]
    Renewals,
    /// Less is better; it has no limit, and may be zero.
    #[serde(rename = "jobs")]
    Jobs,
}

impl Unit {
    /// The unit's sign.
    pub fn sign(self) -> &'static str {
        match self {
            Unit::Rate => "jobs/s",
            Unit::Millis => "ms",
            Unit::Renewals => "renewals/s",
            Unit::Jobs => "jobs",
        }
    }

    /// Whether a smaller value is the better one.
    pub(crate) fn less_is_better(self) -> bool {
        matches!(self, Unit::Millis | Unit::Jobs)
    }
}

impl Reading {
    /// Jobs a second.
    pub(crate) fn rate(value: f64, limit: Limit, settings: String) -> Vec<Reading> {
        vec![Reading { part: "", unit: Unit::Rate, value, limit: Some(limit), settings }]
    }

    /// Percentiles of latencies. `p99` is compared with the limit whose name ends with `p99`, such
    /// as `start p99`. A part without such a limit is compared with nothing.
    pub(crate) fn latencies(
        times: &[f64],
        parts: &[(&'static str, f64)],
        limits: &[Limit],
        settings: &str,
    ) -> Vec<Reading> {
        // The name of such a limit ends with its percentile, as in `start p99`.
        let limit = |part| limits.iter().copied().find(|limit| limit.name().ends_with(part));
        let reading = |(part, percent): &(&'static str, f64)| Reading {
            part,
            unit: Unit::Millis,
            value: crate::stats::percentile(times, *percent),
            limit: limit(*part),
            settings: settings.to_owned(),
        };
        parts.iter().map(reading).collect()
    }
}

impl Measure {
    /// The measure of this name.
    pub fn named(name: &str) -> Option<&'static Measure> {
        ALL.iter().find(|measure| measure.name == name)
    }
}

const BOTH: &[Engine] = &[Engine::Sqlite, Engine::Postgres];
const SERVER: &[Engine] = &[Engine::Postgres];
const START: &[Limit] = &[Limit::Start50, Limit::Start99];
const THROUGH: &[Limit] = &[Limit::Through50, Limit::Through99];

/// One measure that leaves nothing.
macro_rules! measure {
    ($name:literal, $what:literal, $engines:expr, $limits:expr, $run:expr) => {
        Measure {
            name: $name,
            what: $what,
            engines: $engines,
            limits: $limits,
            leaves: false,
            run: |stand| Box::pin($run(stand)),
        }
    };
}

/// One measure that leaves jobs in the queue.
macro_rules! leaving {
    ($name:literal, $what:literal, $run:expr) => {
        Measure { leaves: true, ..measure!($name, $what, BOTH, &[Limit::Process], $run) }
    };
}

/// All measures, in the order in which they run.
pub static ALL: &[Measure] = &[
    measure!(
        "enqueue_bulk",
        "enqueue in batches of 1,000, one caller",
        BOTH,
        &[Limit::Insert],
        enqueue::bulk
    ),
    measure!(
        "enqueue_1",
        "enqueue one job at a time, one caller",
        BOTH,
        &[Limit::InsertSingly],
        enqueue::one
    ),
    measure!(
        "enqueue_16",
        "enqueue one job at a time, 16 callers at once",
        BOTH,
        &[Limit::Insert16],
        enqueue::sixteen
    ),
    measure!(
        "enqueue_16_keys",
        "the same, each job with a key",
        BOTH,
        &[Limit::Insert16],
        enqueue::sixteen_with_keys
    ),
    measure!(
        "process_default",
        "run no-op jobs, one worker with default settings",
        BOTH,
        &[Limit::Process],
        process::default
    ),
    measure!(
        "process_100",
        "run no-op jobs, one worker, concurrency 100",
        BOTH,
        &[Limit::Process],
        process::hundred
    ),
    measure!(
        "process_1000",
        "run no-op jobs, one worker, concurrency 1,000",
        BOTH,
        &[Limit::Process],
        process::thousand
    ),
    measure!(
        "process_4_workers",
        "run no-op jobs, four worker processes, concurrency 100 each",
        BOTH,
        &[Limit::Process],
        process::four
    ),
    measure!(
        "steady_day",
        "enqueue to result, jobs arrive one by one as 40,000 a day do",
        BOTH,
        THROUGH,
        steady::day
    ),
    measure!(
        "steady_2000",
        "enqueue to result, 2,000 jobs arrive each second",
        BOTH,
        THROUGH,
        steady::second
    ),
    measure!(
        "idle_pickup",
        "enqueue to start, on a worker with nothing to do",
        BOTH,
        START,
        idle::pickup
    ),
    measure!(
        "payload_enqueue",
        "enqueue in bulk, 64 KiB of args in each job",
        BOTH,
        &[Limit::InsertLarge],
        payload::enqueue
    ),
    measure!(
        "payload_process",
        "run jobs with 64 KiB of args",
        BOTH,
        &[Limit::ProcessLarge],
        payload::process
    ),
    measure!(
        "tenants_1000",
        "run jobs of 1,000 tenants in turn",
        BOTH,
        &[Limit::Process],
        tenants::thousand
    ),
    leaving!("waiting_jobs", "run jobs beside 100,000 that are due next week", crowd::waiting),
    measure!(
        "finished_jobs",
        "run jobs beside 100,000 that have succeeded",
        BOTH,
        &[Limit::Process],
        crowd::finished
    ),
    leaving!("backlog_1000", "run jobs out of a backlog of 1,000", backlog::thousand),
    leaving!("backlog_10000", "run jobs out of a backlog of 10,000", backlog::ten_thousand),
    leaving!("backlog_100000", "run jobs out of a backlog of 100,000", backlog::hundred_thousand),
    leaving!("backlog_1000000", "run jobs out of a backlog of 1,000,000", backlog::million),
    measure!(
        "horizon_busy",
        "run jobs after 60,000 others, while an old transaction is open",
        SERVER,
        &[Limit::Process],
        horizon::busy
    ),
    measure!(
        "horizon_idle",
        "enqueue to start, idle, after the same",
        SERVER,
        START,
        horizon::idle
    ),
    measure!(
        "renewal_10000",
        "run no-op jobs while 10,000 other jobs run and are renewed",
        BOTH,
        &[Limit::Process],
        renewal::ten_thousand
    ),
    measure!(
        "recovery_kill",
        "from kill -9 of a worker to the start of its job on another",
        BOTH,
        &[],
        recovery::kill
    ),
    measure!(
        "kill_reruns",
        "jobs that run again after kill -9 of a busy worker, concurrency 100",
        BOTH,
        &[],
        recovery::reruns
    ),
    measure!(
        "command_true",
        "run the command true for each job, one worker, concurrency 16",
        BOTH,
        &[Limit::SpawnTrue],
        command::truth
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_a_word_that_names_one_measure() {
        for (at, measure) in ALL.iter().enumerate() {
            let name = measure.name;
            let is_word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
            assert!(name.chars().all(is_word), "{name}");
            assert!(ALL[..at].iter().all(|before| before.name != name), "{name} is there twice");
            assert!(std::ptr::eq(Measure::named(name).unwrap(), measure));
            assert!(!measure.what.is_empty() && !measure.engines.is_empty(), "{name}");
        }
        assert!(Measure::named("nothing").is_none());
    }

    #[test]
    fn latencies_are_percentiles_of_all_times() {
        let times: Vec<f64> = (1..=100).map(f64::from).collect();
        let read = Reading::latencies(&times, &[("p50", 50.0), ("p90", 90.0)], THROUGH, "x");
        assert_eq!((read[0].value, read[0].limit), (50.0, Some(Limit::Through50)));
        assert_eq!((read[1].value, read[1].limit), (90.0, None));
    }
}
