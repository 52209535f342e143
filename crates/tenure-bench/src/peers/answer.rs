//! What an adapter is started for, and its answer: one line of JSON.
//!
//! The adapter counts the runs of each job by its number. If not every job ran exactly once, the
//! answer is an error, however good its times are.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

use super::report::Work;
use super::table::Peer;

/// What an adapter is started for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Run {
    /// Enqueues jobs in bulk, and then runs them.
    Process,
    /// Enqueues one job at a time.
    EnqueueOne,
    /// The same by 16 callers at once.
    EnqueueSixteen,
    /// Enqueues a job while the worker has nothing to do, again and again.
    IdlePickup,
}

/// All of them, in the order of a round.
pub(super) const RUNS: [Run; 4] =
    [Run::Process, Run::EnqueueOne, Run::EnqueueSixteen, Run::IdlePickup];

impl Run {
    /// Its name, as the adapters know it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Run::Process => "process",
            Run::EnqueueOne => "enqueue_1",
            Run::EnqueueSixteen => "enqueue_16",
            Run::IdlePickup => "idle_pickup",
        }
    }

    /// How many jobs are measured, and how many run before that. A slow peer gets a part of the
    /// jobs, because its rate does not depend on their number.
    pub(super) fn sizes(self, peer: &Peer, quick: bool) -> (u64, u64) {
        let (whole, small) = match self {
            Run::Process => (50_000 / peer.part, 1_000),
            Run::EnqueueOne => (2_000, 50),
            Run::EnqueueSixteen => (16_000 / peer.part, 160),
            Run::IdlePickup => (200, 10),
        };
        if quick { (small, 50) } else { (whole, 500) }
    }

    /// The works whose time the answer must have.
    fn needs(self) -> &'static [Work] {
        match self {
            Run::Process => &[Work::Process],
            Run::EnqueueOne => &[Work::EnqueueOne],
            Run::EnqueueSixteen => &[Work::EnqueueSixteen],
            Run::IdlePickup => &[],
        }
    }
}

/// The answer of an adapter.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Answer {
    /// The version that is really installed.
    pub(super) version: String,
    /// How the peer was set up, for people.
    pub(super) settings: String,
    /// How long each work took, by its name.
    pub(super) seconds: BTreeMap<String, f64>,
    /// How long each job took to start, if that was measured.
    pub(super) pickups_ms: Vec<f64>,
    enqueued: u64,
    /// How many ran exactly once.
    once: u64,
    /// How many ran more than once.
    again: u64,
}

/// Reads the last line of an adapter's output, which must account for so many jobs.
pub(super) fn read(said: &str, run: Run, jobs: u64) -> Result<Answer> {
    let line = said.lines().rfind(|line| !line.trim().is_empty());
    let line = line.context("it said nothing")?;
    let answer: Answer = serde_json::from_str(line)
        .with_context(|| format!("it said `{}`, which is no answer", shortened(line)))?;
    ensure!(
        answer.enqueued == jobs && answer.once == jobs && answer.again == 0,
        "of {jobs} jobs, it enqueued {}; {} ran exactly once, {} more than once, {} never",
        answer.enqueued,
        answer.once,
        answer.again,
        answer.enqueued.saturating_sub(answer.once + answer.again),
    );
    let names = run.needs().iter().map(|work| work.name());
    if let Some(missing) = names.into_iter().find(|name| !answer.seconds.contains_key(*name)) {
        bail!("its answer has no time of {missing}");
    }
    ensure!(
        run != Run::IdlePickup || !answer.pickups_ms.is_empty(),
        "its answer has no times of jobs that started"
    );
    let mut times = answer.seconds.values().chain(&answer.pickups_ms);
    ensure!(
        times.all(|time| time.is_finite() && *time > 0.0),
        "its answer has a time that is no time"
    );
    Ok(answer)
}

fn shortened(line: &str) -> String {
    line.chars().take(80).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"{"version":"1.2","settings":"x","seconds":{"process":0.5},"pickups_ms":[],
        "enqueued":7,"once":7,"again":0}"#;

    fn good() -> String {
        GOOD.split_whitespace().collect()
    }

    fn refused(said: &str, run: Run) -> String {
        format!("{:#}", read(said, run, 7).unwrap_err())
    }

    #[test]
    fn the_last_line_is_the_answer_whatever_a_library_printed_before() {
        let answer = read(&format!("hello\n{}\n\n", good()), Run::Process, 7).unwrap();
        assert_eq!((answer.version.as_str(), answer.seconds["process"]), ("1.2", 0.5));
    }

    #[test]
    fn what_is_no_answer_is_repeated() {
        assert_eq!(refused("", Run::Process), "it said nothing");
        let error = refused("panic!", Run::Process);
        assert!(error.starts_with("it said `panic!`, which is no answer"), "{error}");
        let error = refused(&good().replace("\"once\"", "\"one\""), Run::Process);
        assert!(error.contains("unknown field `one`"), "{error}");
    }

    #[test]
    fn every_job_must_have_run_exactly_once() {
        let lost = refused(&good().replace("\"once\":7", "\"once\":5"), Run::Process);
        let expected = "it enqueued 7; 5 ran exactly once, 0 more than once, 2 never";
        assert!(lost.ends_with(expected), "{lost}");
        let again = good().replace("\"once\":7,\"again\":0", "\"once\":6,\"again\":1");
        assert!(refused(&again, Run::Process).contains("6 ran exactly once, 1 more than once"));
        let few = good().replace(":7", ":6");
        assert!(refused(&few, Run::Process).contains("of 7 jobs, it enqueued 6"));
    }

    #[test]
    fn an_answer_has_the_times_that_were_asked_for() {
        assert_eq!(refused(&good(), Run::EnqueueOne), "its answer has no time of enqueue_1");
        assert!(refused(&good(), Run::IdlePickup).contains("no times of jobs"));
        let never = refused(&good().replace("0.5", "0"), Run::Process);
        assert_eq!(never, "its answer has a time that is no time");
    }
}
