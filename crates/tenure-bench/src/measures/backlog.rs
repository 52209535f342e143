//! Backlogs of different depths: the rate should not depend on how many jobs are due. At most
//! 20,000 of them run; the rest stays, and is counted as never started.

use anyhow::Result;

use super::{Limit, Reading};
use crate::stand::Stand;
use crate::stats::whole;

const MOST: u64 = 20_000;
const CONCURRENCY: usize = 100;

/// All of them run, so the start and the end of the worker weigh most here.
pub(super) async fn thousand(stand: &Stand) -> Result<Vec<Reading>> {
    out_of(stand, stand.size(1_000, 200)).await
}

/// All of them run.
pub(super) async fn ten_thousand(stand: &Stand) -> Result<Vec<Reading>> {
    out_of(stand, stand.size(10_000, 500)).await
}

/// A part of them runs.
pub(super) async fn hundred_thousand(stand: &Stand) -> Result<Vec<Reading>> {
    out_of(stand, stand.size(100_000, 1_000)).await
}

/// A small part of them runs.
pub(super) async fn million(stand: &Stand) -> Result<Vec<Reading>> {
    out_of(stand, stand.size(1_000_000, 2_000)).await
}

async fn out_of(stand: &Stand, backlog: u64) -> Result<Vec<Reading>> {
    stand.warm_up().await?;
    stand.fill(backlog).await?;
    let jobs = backlog.min(stand.size(MOST, 500));
    let rate = stand.process(jobs, CONCURRENCY).await?;
    let settings = format!("{} of {} jobs, concurrency {CONCURRENCY}", whole(jobs), whole(backlog));
    Ok(Reading::rate(rate, Limit::Process, settings))
}
