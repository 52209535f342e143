//! Running jobs that do nothing, as fast as one worker or four can. The backlog is there before the
//! time begins, and the time ends with the commit of the last settlement.

use anyhow::Result;
use tenure::Worker;
use tenure::engine::clock::monotonic;

use super::{Limit, Reading};
use crate::children::Child;
use crate::stand::Stand;
use crate::stats::{rate, whole};

const WORKERS: usize = 4;

/// As `Worker::new` is set up.
pub(super) async fn default(stand: &Stand) -> Result<Vec<Reading>> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let settings = format!("concurrency {}, the default here", cores.max(4));
    drain(stand, stand.size(20_000, 500), settings, |worker| worker).await
}

/// A hundred jobs at a time.
pub(super) async fn hundred(stand: &Stand) -> Result<Vec<Reading>> {
    let settings = "concurrency 100".to_owned();
    drain(stand, stand.size(50_000, 1_000), settings, |worker| worker.concurrency(100)).await
}

/// A thousand jobs at a time.
pub(super) async fn thousand(stand: &Stand) -> Result<Vec<Reading>> {
    let settings = "concurrency 1,000".to_owned();
    drain(stand, stand.size(100_000, 2_000), settings, |worker| worker.concurrency(1_000)).await
}

/// Four processes share the work. They have connected before the time begins.
pub(super) async fn four(stand: &Stand) -> Result<Vec<Reading>> {
    let jobs = stand.size(50_000, 1_000);
    stand.warm_up().await?;
    stand.fill(jobs).await?;
    let most = stand.runs.counts().len() as u64;
    let mut children = Vec::new();
    for _ in 0..WORKERS {
        children.push(Child::drain(&stand.program, &stand.site.url, 100, most).await?);
    }
    let begin = monotonic();
    for child in &mut children {
        child.go().await?;
    }
    let mut end = begin;
    for child in &mut children {
        end = end.max(child.drained().await?.unwrap_or(begin));
    }
    let rate = rate(jobs, end - begin);
    for child in &mut children {
        for n in child.ran().await? {
            // This fails only for a number that no job has. `Stand::account` then finds a wrong
            // count.
            let _ = stand.runs.ran(n);
        }
    }
    let settings = format!("{} jobs, {WORKERS} processes, concurrency 100", whole(jobs));
    Ok(Reading::rate(rate, Limit::Process, settings))
}

async fn drain(
    stand: &Stand,
    jobs: u64,
    settings: String,
    set: impl Fn(Worker) -> Worker,
) -> Result<Vec<Reading>> {
    stand.warm_up().await?;
    stand.fill(jobs).await?;
    let took = stand.drain(set(stand.worker())).await?;
    Ok(Reading::rate(rate(jobs, took), Limit::Process, format!("{} jobs, {settings}", whole(jobs))))
}
