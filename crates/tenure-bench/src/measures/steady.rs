//! A steady state: jobs arrive at a rate, whether or not earlier ones have ended. The time of a job
//! is from the call of enqueue to its result: its settlement is committed, and the worker reports
//! `job_succeeded`.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tenure::engine::clock::monotonic;
use tenure::{Event, Fact, JobId};
use tokio::task::JoinSet;

use super::{Reading, THROUGH};
use crate::jobs::{Goal, Noop};
use crate::stand::{Stand, within};
use crate::stats::{millis, whole};

/// 86,400 seconds for 40,000 jobs.
const DAY_GAP: Duration = Duration::from_millis(2_160);
/// In a quick run nobody waits that long.
const QUICK_GAP: Duration = Duration::from_millis(100);
const SECOND_GAP: Duration = Duration::from_micros(500);

/// A call that is later than this was held up by other work, and its delay counts: its time begins
/// when the call was due. A smaller delay comes from the precision of the runtime's timer, so it
/// does not count: the time begins when the timer fired.
const GRAIN: Duration = Duration::from_millis(2);

/// 40,000 jobs a day.
pub(super) async fn day(stand: &Stand) -> Result<Vec<Reading>> {
    let jobs = stand.size(50, 5);
    let gap = if jobs == 5 { QUICK_GAP } else { DAY_GAP };
    let times = arrive(stand, jobs, gap).await?;
    let parts = [("p50", 50.0), ("p99", 99.0)];
    let settings = format!("{jobs} jobs, one every {} s, concurrency 100", gap.as_secs_f64());
    Ok(Reading::latencies(&times, &parts, THROUGH, &settings))
}

/// 2,000 jobs a second.
pub(super) async fn second(stand: &Stand) -> Result<Vec<Reading>> {
    let jobs = stand.size(20_000, 500);
    let times = arrive(stand, jobs, SECOND_GAP).await?;
    let settings = format!("{} jobs, one every 0.5 ms, concurrency 100", whole(jobs));
    let parts = [("p50", 50.0), ("p99", 99.0), ("p99.9", 99.9)];
    Ok(Reading::latencies(&times, &parts, THROUGH, &settings))
}

/// When each job's settlement was reported.
#[derive(Default)]
struct Settled {
    at: Mutex<HashMap<JobId, Instant>>,
    count: Goal,
}

impl Settled {
    fn hear(&self, event: &Event) {
        if let (Fact::JobSucceeded { .. }, Some(job)) = (&event.fact, event.job()) {
            self.at.lock().unwrap_or_else(PoisonError::into_inner).insert(job, monotonic());
            self.count.add(1);
        }
    }
}

/// Lets jobs arrive, and returns how long each took.
async fn arrive(stand: &Stand, jobs: u64, gap: Duration) -> Result<Vec<f64>> {
    stand.warm_up().await?;
    let settled = Arc::new(Settled::default());
    let hear = Arc::clone(&settled);
    let worker = stand.worker().concurrency(100).observe(move |event| hear.hear(event));
    let running = worker.start().await?;
    let (first, mut calls) = (stand.runs.number(jobs), JoinSet::new());
    let begin = monotonic() + gap;
    for n in 0..jobs {
        let due = begin + gap * u32::try_from(n)?;
        tokio::time::sleep_until(due.into()).await;
        let woke = monotonic();
        let from = if woke > due + GRAIN { due } else { woke };
        let tenure = stand.tenure.clone();
        calls.spawn(async move {
            let handle = tenure.enqueue(Noop { n: first + n }).await?;
            anyhow::Ok((handle.id(), from))
        });
    }
    let mut sent = Vec::new();
    while let Some(call) = calls.join_next().await {
        sent.push(call??);
    }
    within("jobs to succeed", settled.count.reach(jobs)).await?;
    running.shut_down().await;
    let at = settled.at.lock().unwrap_or_else(PoisonError::into_inner);
    let took = |(job, from): &(JobId, Instant)| {
        let at = at.get(job).with_context(|| format!("job {job} has not succeeded"))?;
        Ok(millis(at.saturating_duration_since(*from)))
    };
    sent.iter().map(took).collect()
}
