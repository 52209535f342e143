//! Enqueueing: in bulk, and one job at a time. The jobs run after the time has been taken, so that
//! their runs can be counted.

use anyhow::Result;
use tenure::engine::clock::{monotonic, unique};
use tokio::task::JoinSet;

use super::{Limit, Reading};
use crate::jobs::Noop;
use crate::stand::Stand;
use crate::stats::{rate, whole};

const CALLERS: u64 = 16;

/// In batches of a thousand, the most that one commit takes.
pub(super) async fn bulk(stand: &Stand) -> Result<Vec<Reading>> {
    let jobs = stand.size(50_000, 1_000);
    stand.warm_up().await?;
    let begin = monotonic();
    stand.fill(jobs).await?;
    let rate = rate(jobs, monotonic() - begin);
    stand.drain(stand.worker().concurrency(1_000)).await?;
    Ok(Reading::rate(rate, Limit::Insert, format!("{} jobs", whole(jobs))))
}

/// Each waits for the commit of the one before.
pub(super) async fn one(stand: &Stand) -> Result<Vec<Reading>> {
    singly(stand, 1, stand.size(2_000, 50), false).await
}

/// Sixteen callers at once. Each of them waits for the commit of its job before it enqueues the
/// next.
pub(super) async fn sixteen(stand: &Stand) -> Result<Vec<Reading>> {
    singly(stand, CALLERS, stand.size(16_000, 160), false).await
}

/// The same with keys.
pub(super) async fn sixteen_with_keys(stand: &Stand) -> Result<Vec<Reading>> {
    singly(stand, CALLERS, stand.size(16_000, 160), true).await
}

async fn singly(stand: &Stand, callers: u64, jobs: u64, keys: bool) -> Result<Vec<Reading>> {
    stand.warm_up().await?;
    let (first, run) = (stand.runs.number(jobs), unique().simple().to_string());
    let each = jobs / callers;
    let begin = monotonic();
    let mut calls = JoinSet::new();
    for caller in 0..callers {
        let (tenure, run) = (stand.tenure.clone(), run.clone());
        calls.spawn(async move {
            for n in first + caller * each..first + (caller + 1) * each {
                let job = tenure.enqueue(Noop { n });
                if keys {
                    job.key(format!("{run}-{n}")).await?
                } else {
                    job.await?
                };
            }
            anyhow::Ok(())
        });
    }
    while let Some(call) = calls.join_next().await {
        call??;
    }
    let rate = rate(jobs, monotonic() - begin);
    stand.drain(stand.worker().concurrency(1_000)).await?;
    // Sixteen callers that wait at the same time can share a commit.
    let limit = if callers == 1 { Limit::InsertSingly } else { Limit::Insert16 };
    let callers = if callers == 1 { "1 caller".to_owned() } else { format!("{callers} callers") };
    Ok(Reading::rate(rate, limit, format!("{} jobs, {callers}", whole(jobs))))
}
