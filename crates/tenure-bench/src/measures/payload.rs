//! Large args: 64 KiB in each job. PostgreSQL stores them out of line, SQLite in a table of their
//! own.

use anyhow::Result;
use tenure::engine::clock::monotonic;

use super::{Limit, Reading};
use crate::jobs::Padded;
use crate::stand::Stand;
use crate::stats::{rate, whole};

const PAD: usize = 64 << 10;

/// In batches of a thousand.
pub(super) async fn enqueue(stand: &Stand) -> Result<Vec<Reading>> {
    let jobs = stand.size(2_000, 50);
    stand.warm_up().await?;
    let begin = monotonic();
    fill(stand, jobs).await?;
    let rate = rate(jobs, monotonic() - begin);
    stand.drain(stand.worker().concurrency(100)).await?;
    Ok(Reading::rate(rate, Limit::InsertLarge, format!("{} jobs", whole(jobs))))
}

/// One worker.
pub(super) async fn process(stand: &Stand) -> Result<Vec<Reading>> {
    let jobs = stand.size(2_000, 50);
    stand.warm_up().await?;
    fill(stand, jobs).await?;
    let took = stand.drain(stand.worker().concurrency(100)).await?;
    let settings = format!("{} jobs, concurrency 100", whole(jobs));
    Ok(Reading::rate(rate(jobs, took), Limit::ProcessLarge, settings))
}

async fn fill(stand: &Stand, jobs: u64) -> Result<()> {
    let job = |n| stand.tenure.enqueue(Padded { n, pad: "x".repeat(PAD) });
    stand.fill_with(jobs, job).await
}
