//! How soon a worker with nothing to do starts a job: from the call of enqueue to the call of its
//! handler. This time includes the commit of the enqueue.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tenure::engine::clock::monotonic;

use super::{Reading, START};
use crate::jobs::Noop;
use crate::stand::{Stand, within};
use crate::stats::millis;

/// The pause before each job. In it, the worker settles the job before, and becomes idle.
const PAUSE: Duration = Duration::from_millis(50);

const PARTS: [(&str, f64); 3] = [("p50", 50.0), ("p90", 90.0), ("p99", 99.0)];

/// On an empty store.
pub(super) async fn pickup(stand: &Stand) -> Result<Vec<Reading>> {
    let jobs = stand.size(200, 10);
    stand.warm_up().await?;
    let times = times(stand, jobs).await?;
    Ok(Reading::latencies(&times, &PARTS, START, &settings(jobs)))
}

/// What `times` does, for people.
pub(super) fn settings(jobs: u64) -> String {
    format!("{jobs} jobs, one every {} ms, default concurrency", PAUSE.as_millis())
}

/// How long each of so many jobs took to start.
pub(super) async fn times(stand: &Stand, jobs: u64) -> Result<Vec<f64>> {
    let mut started = stand.runs.listen();
    let running = stand.worker().start().await?;
    let first = stand.runs.number(jobs);
    let mut times = Vec::new();
    for n in first..first + jobs {
        tokio::time::sleep(PAUSE).await;
        let begin = monotonic();
        stand.tenure.enqueue(Noop { n }).await?;
        let told = within("a job to start", started.recv()).await?;
        let (job, at) = told.context("the worker has ended")?;
        ensure!(job == n, "job {job} started instead of {n}");
        times.push(millis(at - begin));
    }
    running.shut_down().await;
    Ok(times)
}
