//! The books on what must happen in time: each tenant gets its turn, retries are spread, and a
//! worker that is notified of a job starts it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tenure::WorkerId;
use tenure::engine::job::{JobId, State, Tenant};
use tenure::engine::lifecycle::Outcome;
use tenure::engine::store::Claimed;

use super::Books;
use crate::verdict::Invariant;

/// How long a worker with room may take to start a job that it was notified of.
const PROMPT: Duration = Duration::from_millis(50);
/// The retry policy of all jobs here: the delay doubles from the first value up to the second, in
/// milliseconds.
pub(in super::super) const RETRY: (u64, u64) = (200, 5_000);

/// Which tenants wait for their turn.
#[derive(Debug, Default)]
pub(super) struct Turns {
    /// For each tenant, the number of its due jobs that were never leased.
    fresh: BTreeMap<Tenant, u32>,
    /// How many claims of a worker have passed by a tenant that had such a job.
    passed: BTreeMap<(WorkerId, Tenant), u32>,
}

/// The delays of retries after a first failure.
#[derive(Debug, Default)]
pub(super) struct Delays {
    first: Vec<Duration>,
}

impl Books {
    /// A tenant has one more due job.
    pub(super) fn waits(&mut self, tenant: &Tenant) {
        *self.turns.fresh.entry(tenant.clone()).or_default() += 1;
    }

    /// The database went back: count the waiting tenants again.
    pub(super) fn begin_turns(&mut self) {
        // A round is as long as there are tenants. A tenant whose jobs are all retries counts too:
        // claims serve it as well.
        let tenants = self.jobs.values().map(|ghost| (ghost.tenant.clone(), 0));
        self.turns = Turns { fresh: tenants.collect(), passed: BTreeMap::new() };
        let is_fresh = |state, claims: usize| state == State::Queued && claims == 0;
        let fresh = self.jobs.values().filter(|ghost| is_fresh(ghost.state, ghost.claims.len()));
        let tenants: Vec<Tenant> = fresh.map(|ghost| ghost.tenant.clone()).collect();
        tenants.iter().for_each(|tenant| self.waits(tenant));
    }

    /// A job was leased for the first time, or was cancelled before that.
    pub(super) fn is_fresh_no_more(&mut self, tenant: &Tenant) {
        if let Some(count) = self.turns.fresh.get_mut(tenant) {
            *count = count.saturating_sub(1);
        }
    }

    /// A job starts to run.
    pub(super) fn started(&mut self, job: JobId) {
        let Some(told) = self.told.remove(&job) else { return };
        let after = self.trace.now.saturating_sub(told);
        if after > PROMPT {
            let what = format!("job {job} was started {after:?} after all workers were told of it");
            self.fail(Invariant::Told, job, what);
        }
    }

    /// A worker got the answer to its claim. Its claims may pass a waiting tenant by for at most
    /// one round, that is, as often as there are tenants.
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

    /// A job is retried after a failure. The delay must be at most what its policy says and at
    /// least half of that, and the delays must not all be equal.
    pub(super) fn put_off(&mut self, job: JobId, attempt: u16, outcome: &Outcome) {
        const ENOUGH: usize = 8;
        let Outcome::Retry { after, error } = outcome else { return };
        // Only this error is retried by the policy: other errors have a delay of their own.
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
