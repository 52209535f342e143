//! The books on what must happen in time: each tenant has its turn, retries are spread, and a worker that is told of a job starts it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tenure::job::{JobId, State, Tenant};
use tenure::lease::WorkerId;
use tenure::lifecycle::Outcome;
use tenure::store::Claimed;

use super::Books;
use crate::verdict::Invariant;

/// How long a worker with room takes to start a job that it is told of.
const PROMPT: Duration = Duration::from_millis(50);
/// The policy of all jobs here: doubling from the first to the second, in milliseconds.
pub(in super::super) const RETRY: (u64, u64) = (200, 5_000);

/// Whose turn it is.
#[derive(Debug, Default)]
pub(super) struct Turns {
    /// Of each tenant the jobs that were never given out, and so are due.
    fresh: BTreeMap<Tenant, u32>,
    /// How many claims of a worker have passed a tenant by that had such a job.
    passed: BTreeMap<(WorkerId, Tenant), u32>,
}

/// How long retries were put off after a first failure.
#[derive(Debug, Default)]
pub(super) struct Delays {
    first: Vec<Duration>,
}

impl Books {
    /// A tenant has one more job that is due.
    pub(super) fn waits(&mut self, tenant: &Tenant) {
        *self.turns.fresh.entry(tenant.clone()).or_default() += 1;
    }

    /// The database went back: waiting tenants are counted anew.
    pub(super) fn begin_turns(&mut self) {
        // Others may have jobs that are tried again: they have their turns too.
        let tenants = self.jobs.values().map(|ghost| (ghost.tenant.clone(), 0));
        self.turns = Turns { fresh: tenants.collect(), passed: BTreeMap::new() };
        let is_fresh = |state, claims: usize| state == State::Queued && claims == 0;
        let fresh = self.jobs.values().filter(|ghost| is_fresh(ghost.state, ghost.claims.len()));
        let tenants: Vec<Tenant> = fresh.map(|ghost| ghost.tenant.clone()).collect();
        tenants.iter().for_each(|tenant| self.waits(tenant));
    }

    /// A job is not fresh any more: it was given out or cancelled.
    pub(super) fn is_fresh_no_more(&mut self, tenant: &Tenant) {
        if let Some(count) = self.turns.fresh.get_mut(tenant) {
            *count = count.saturating_sub(1);
        }
    }

    /// A job begins to run.
    pub(super) fn started(&mut self, job: JobId) {
        let Some(told) = self.told.remove(&job) else { return };
        let after = self.trace.now.saturating_sub(told);
        if after > PROMPT {
            let what = format!("job {job} was started {after:?} after all workers were told of it");
            self.fail(Invariant::Told, job, what);
        }
    }

    /// A worker has heard what its claim brought: a tenant that waits is passed by at most once around the ring.
    pub(in super::super) fn served(&mut self, who: &WorkerId, answer: &Claimed) {
        let served: BTreeSet<&Tenant> =
            answer.attempts.iter().map(|attempt| &attempt.tenant).collect();
        if served.is_empty() {
            return;
        }
        self.turns.passed.retain(|(_, tenant), _| !served.contains(tenant));
        let round = self.turns.fresh.len();
        let waiting = self
            .turns
            .fresh
            .iter()
            .filter(|(tenant, fresh)| **fresh > 0 && !served.contains(tenant));
        let mut starved = None;
        for (tenant, _) in waiting {
            let passed = self.turns.passed.entry((who.clone(), tenant.clone())).or_default();
            *passed += 1;
            if *passed as usize > round {
                starved = Some((tenant.clone(), *passed));
            }
        }
        if let Some((tenant, passed)) = starved {
            let fresh = |state, claims: usize| state == State::Queued && claims == 0;
            let of_tenant = self.jobs.iter().find(|(_, ghost)| {
                ghost.tenant == tenant && fresh(ghost.state, ghost.claims.len())
            });
            let job = of_tenant.map_or(JobId(0), |(job, _)| *job);
            let what = format!(
                "{passed} claims of {who} in a row passed tenant {:?} by, whose job {job} is due",
                tenant.as_str()
            );
            self.fail(Invariant::Fair, job, what);
        }
    }

    /// A job is put off after a failure: not by more than its policy says, nor by less than half of it, and not all alike.
    pub(super) fn put_off(&mut self, job: JobId, attempt: u16, outcome: &Outcome) {
        const ENOUGH: usize = 8;
        let Outcome::Retry { after, error } = outcome else { return };
        // Others say themselves for how long.
        if error != "it failed" {
            return;
        }
        let (base, cap) = RETRY;
        let whole = (1..attempt).fold(base, |delay, _| (2 * delay).min(cap));
        let bounds = Duration::from_millis(whole / 2)..=Duration::from_millis(whole);
        if !bounds.contains(after) {
            let what = format!("job {job} is put off by {after:?} after attempt {attempt}");
            return self.fail(Invariant::Spread, job, format!("{what}, not by {bounds:?}"));
        }
        if attempt > 1 {
            return;
        }
        let first = &mut self.delays.first;
        first.push(*after);
        if first.len() >= ENOUGH && first.iter().all(|delay| delay == after) {
            let what = format!("all of {} first failures were put off by {after:?}", first.len());
            self.fail(Invariant::Spread, job, what);
        }
    }
}
