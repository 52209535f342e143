//! Other jobs that are not due, or that have ended, must not make the due jobs slower.

use std::time::Duration;

use anyhow::Result;

use super::{Limit, Reading};
use crate::jobs::Noop;
use crate::stand::Stand;
use crate::stats::{rate, whole};

const WEEK: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// Beside jobs that are due next week. They stay.
pub(super) async fn waiting(stand: &Stand) -> Result<Vec<Reading>> {
    let crowd = stand.size(100_000, 1_000);
    stand.warm_up().await?;
    stand.fill_with(crowd, |n| stand.tenure.enqueue(Noop { n }).delay(WEEK)).await?;
    beside(stand, &format!("{} waiting", whole(crowd))).await
}

/// Beside jobs that have succeeded.
pub(super) async fn finished(stand: &Stand) -> Result<Vec<Reading>> {
    let crowd = stand.size(100_000, 1_000);
    stand.fill(crowd).await?;
    stand.drain(stand.worker().concurrency(1_000)).await?;
    beside(stand, &format!("{} succeeded", whole(crowd))).await
}

async fn beside(stand: &Stand, crowd: &str) -> Result<Vec<Reading>> {
    let jobs = stand.size(20_000, 500);
    stand.fill(jobs).await?;
    let took = stand.drain(stand.worker().concurrency(100)).await?;
    let settings = format!("{} jobs, {crowd}, concurrency 100", whole(jobs));
    Ok(Reading::rate(rate(jobs, took), Limit::Process, settings))
}
