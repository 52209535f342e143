//! Many tenants in one queue, of which each gets its share of every claim.

use anyhow::Result;

use super::{Limit, Reading};
use crate::jobs::Noop;
use crate::stand::Stand;
use crate::stats::{rate, whole};

const TENANTS: u64 = 1_000;

/// A thousand tenants with as many jobs each.
pub(super) async fn thousand(stand: &Stand) -> Result<Vec<Reading>> {
    let jobs = TENANTS * stand.size(20, 1);
    stand.warm_up().await?;
    let tenant = |n: u64| format!("tenant-{}", n % TENANTS);
    let job = |n| stand.tenure.enqueue(Noop { n }).tenant(tenant(n));
    stand.fill_with(jobs, job).await?;
    let took = stand.drain(stand.worker().concurrency(100)).await?;
    let settings = format!("{} jobs of {} tenants, concurrency 100", whole(jobs), whole(TENANTS));
    Ok(Reading::rate(rate(jobs, took), Limit::Process, settings))
}
