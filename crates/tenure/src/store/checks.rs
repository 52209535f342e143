//! Checks of arguments, before a call touches the store: batches, jobs, settlements, ledger
//! entries, leases, claims. Every engine calls them, so that all engines refuse the same requests.
//! Nothing here reads the store.

use std::time::Duration;

use super::{Claim, GUARD_GAP, GUARD_GAP_LIMIT, Result, Settlement};
use crate::job::{BATCH_LIMIT, Invalid, Json, Limits, NewJob, RETRY_LIMIT};
use crate::ledger::{Entry, Resolution};
use crate::lifecycle::Outcome;

/// Checks the size of a batch.
pub fn check_batch(size: usize) -> Result<()> {
    if size > BATCH_LIMIT { Err(Invalid::Batch { size }.into()) } else { Ok(()) }
}

/// Checks jobs to enqueue.
pub fn check_jobs(jobs: &[NewJob], limits: &Limits) -> Result<()> {
    check_batch(jobs.len())?;
    if jobs.iter().any(|job| !job.retry.is_reasonable()) {
        let why = format!("a list of retries has 1 to {RETRY_LIMIT} delays; the last one repeats");
        return Err(Invalid::Value { field: "retry", why }.into());
    }
    match jobs.iter().find(|job| job.args.as_str().len() > limits.args) {
        Some(job) => Err(Invalid::TooLarge {
            field: "args",
            size: job.args.as_str().len(),
            limit: limits.args,
        }
        .into()),
        None => Ok(()),
    }
}

/// Checks settlements, with the jobs that they enqueue.
pub fn check_settlements(settlements: &[Settlement], limits: &Limits) -> Result<()> {
    check_batch(settlements.len())?;
    check_batch(settlements.iter().map(|settlement| settlement.then.len()).sum())?;
    for settlement in settlements {
        check_jobs(&settlement.then, limits)?;
        if let Outcome::Complete { result: Some(result) } = &settlement.outcome {
            check_kept(result, limits)?;
        }
    }
    Ok(())
}

/// Checks entries of the ledger.
pub fn check_entries(entries: &[Entry], limits: &Limits) -> Result<()> {
    check_batch(entries.len())?;
    entries
        .iter()
        .filter_map(|entry| entry.act.result())
        .try_for_each(|kept| check_kept(kept, limits))
}

/// Checks an operator's decision about an effect.
pub fn check_resolution(how: &Resolution, limits: &Limits) -> Result<()> {
    match how {
        Resolution::Committed { result } => check_kept(result, limits),
        Resolution::Resend => Ok(()),
    }
}

fn check_kept(result: &Json, limits: &Limits) -> Result<()> {
    let size = result.as_str().len();
    if size <= limits.result {
        return Ok(());
    }
    Err(Invalid::TooLarge { field: "result", size, limit: limits.result }.into())
}

/// The longest lease. A worker that is cut off for longer than this has lost its job.
pub const LEASE_LIMIT: Duration = Duration::from_secs(24 * 60 * 60);

/// Checks the length of a lease.
pub fn check_lease(length: Duration) -> Result<()> {
    if (Duration::from_millis(1)..=LEASE_LIMIT).contains(&length) {
        return Ok(());
    }
    let why = format!(
        "a lease of {length:?} is outside 1 ms to 24 h; renew it instead of making it longer"
    );
    Err(Invalid::Value { field: "lease", why }.into())
}

/// Checks a guard gap.
pub fn check_guard_gap(gap: Duration) -> Result<()> {
    if (GUARD_GAP..=GUARD_GAP_LIMIT).contains(&gap) {
        return Ok(());
    }
    let why = format!(
        "a guard gap of {gap:?} is outside 300 ms to 60 s; a lock that is free for longer than a minute means a lost \
         process, and leases decide about the rest"
    );
    Err(Invalid::Value { field: "guard_gap", why }.into())
}

/// Checks a claim.
pub fn check_claim(ask: &Claim) -> Result<()> {
    check_batch(ask.n)?;
    check_lease(ask.lease)?;
    if ask.queues.is_empty() {
        return Err(Invalid::Value {
            field: "queues",
            why: "a claim names at least one queue".into(),
        }
        .into());
    }
    Ok(())
}
