//! The leases of a worker process: which ones it has, how long they may be trusted, and when their
//! handlers must stop. The dispatcher and its relief add them, the renewer renews them.

use std::sync::Arc;
use std::time::Duration;

use super::{Cause, Desk, Hold, Returned, Stage, State};
use crate::clock::{Jitter, Moment};
use crate::lease::Fence;
use crate::lifecycle::{self, Counts, Fault, Outcome};
use crate::store::Attempt;

#[derive(Debug)]
pub(super) struct Held {
    pub(super) hold: Arc<Hold>,
    counts: Counts,
    /// When its lease was last granted, or a little before.
    granted: Moment,
    /// How long its job may run.
    max_runtime: Option<Duration>,
    /// When to stop its handler, because its `max_runtime` is nearly over.
    revoke_at: Option<Moment>,
    /// Its handler was asked to stop. If it has not returned by this time, its attempt ends without
    /// it.
    patience_ends: Option<Moment>,
    /// When its attempt ended, if it has; it is not settled yet.
    pub(super) ended: Option<Moment>,
}

impl Held {
    /// Until when a lease granted at `granted` may be trusted: no longer than its handler may run.
    fn trusted(&self, granted: Moment, lease: Duration) -> Moment {
        let until = granted + trusted(lease);
        self.revoke_at.map_or(until, |revoke| revoke.min(until))
    }

    /// Whether to renew its lease. An attempt that has ended needs no renewal, unless its
    /// settlement has been waiting for a second. Nor does an attempt whose handler was asked to
    /// stop: the handler is about to return.
    fn is_to_be_kept(&self, now: Moment) -> bool {
        const SETTLING: Duration = Duration::from_secs(1);
        match self.ended {
            Some(ended) => now.since(ended) >= SETTLING,
            None => !self.hold.is_stopped(),
        }
    }
}

/// How long a lease of this length is trusted. Not to its very end: work that starts shortly before
/// the end would finish after it.
pub(crate) fn trusted(length: Duration) -> Duration {
    length - (length / 10).min(Duration::from_secs(1))
}

/// Longer than any worker runs.
const FOR_EVER: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// How long a handler may really run: less than `max_runtime` by a fifth of it, at most 500 ms. At
/// the end of `max_runtime` the store takes the job back and counts a crash, so the worker must
/// have settled the attempt by then.
fn patience(max_runtime: Duration) -> Duration {
    max_runtime - (max_runtime / 5).min(Duration::from_millis(500))
}

impl Desk {
    /// Records a lease granted at `granted` or later, and occupies a slot for it. Returns `None` if
    /// the desk has this lease already.
    pub(crate) fn hold(
        &self,
        attempt: &Attempt,
        granted: Moment,
        lease: Duration,
    ) -> Option<Arc<Hold>> {
        let fence = attempt.lease.fence();
        let mut state = self.state();
        if state.held.contains_key(&fence) {
            return None;
        }
        let runtime = attempt.max_runtime_ms.and_then(|limit| u64::try_from(limit).ok());
        let runtime = runtime.map(Duration::from_millis);
        let hold = Arc::new(Hold::new(attempt.about(), granted));
        let held = Held {
            hold: Arc::clone(&hold),
            counts: attempt.counts(),
            granted,
            max_runtime: runtime,
            revoke_at: runtime.map(|limit| granted + patience(limit)),
            patience_ends: None,
            ended: None,
        };
        hold.trust_until(held.trusted(granted, lease));
        if state.stalled {
            hold.trust_until(granted + FOR_EVER);
        }
        state.busy += 1;
        state.held.insert(fence, held);
        Some(hold)
    }

    /// Forgets an attempt that is settled, or that is not this worker's to settle.
    pub(crate) fn forget(&self, fence: Fence) {
        self.state().held.remove(&fence);
    }

    /// The leases that were granted at `before` or earlier, oldest grant first. Their attempts are
    /// not settled until [`Desk::renewed`] is called, but for one second at most. Otherwise the
    /// renewal could reach the store after the settlement of the same attempt, and the store would
    /// refuse it although nothing is wrong.
    pub(crate) fn to_renew(&self, before: Moment, now: Moment) -> Vec<Arc<Hold>> {
        let mut state = self.state();
        let is_stalled = state.stalled;
        let State { held, unwritten, .. } = &*state;
        let due = |held: &&Held| {
            let keep = held.is_to_be_kept(now) || unwritten.contains_key(&held.hold.fence);
            !is_stalled && keep && held.granted <= before
        };
        let mut due: Vec<&Held> = held.values().filter(due).collect();
        due.sort_by_key(|held| held.granted);
        let holds: Vec<Arc<Hold>> = due.iter().map(|held| Arc::clone(&held.hold)).collect();
        state.renewing = (holds.iter().map(|hold| hold.fence).collect(), now);
        holds
    }

    /// The call that renews the leases in `asked` has ended, answered or not. The leases in `held`
    /// were extended, by a call that was sent at `sent`.
    pub(crate) fn renewed(&self, asked: &[Fence], held: &[Fence], sent: Moment, lease: Duration) {
        let mut state = self.state();
        for fence in asked {
            state.renewing.0.remove(fence);
        }
        for fence in held {
            if let Some(held) = state.held.get_mut(fence) {
                held.granted = held.granted.max(sent);
                held.hold.trust_until(held.trusted(sent, lease));
            }
        }
        if !state.ended.is_empty() {
            self.wake(state);
        }
    }

    /// The job belongs to another worker by now, or was cancelled: its handler stops, and nothing
    /// is settled. Returns whether its attempt was still open.
    pub fn lose(&self, fence: Fence, cause: Cause) -> bool {
        let mut state = self.state();
        let Some(held) = state.held.get(&fence).filter(|held| held.ended.is_none()) else {
            return false;
        };
        held.hold.stop(cause);
        state.held.remove(&fence);
        true
    }

    /// Stops handlers that have run for as long as they may, and all handlers from
    /// [`Stage::Releasing`] on. Ends the attempts of handlers that do not stop, and attempts that
    /// have waited too long for a slot. Returns when to call it again. The dispatcher calls it in
    /// each step, because new jobs reach the dispatcher first. So does the renewer, because the
    /// dispatcher may be waiting for a store that does not answer.
    pub(crate) fn revoke(&self, now: Moment) -> Option<Moment> {
        /// How long a handler may take to stop after it was asked to.
        const PATIENCE: Duration = Duration::from_secs(6);
        let mut state = self.state();
        let releasing = state.stage >= Stage::Releasing;
        let release = || Returned::Settle(Outcome::Release);
        let ends = state.stage > Stage::Working;
        let given_back = state.waiting.give_back(now, ends);
        let mut over: Vec<_> = given_back.into_iter().map(|fence| (fence, release())).collect();
        for held in state.held.values_mut().filter(|held| held.ended.is_none()) {
            if held.revoke_at.is_some_and(|at| at <= now) {
                held.hold.stop(Cause::TimedOut);
                // Ended at once, without waiting for the handler.
                let (ran, limit) = (held.hold.ran(now), held.max_runtime.unwrap_or_default());
                let outcome = timed_out(&held.counts, ran, limit);
                over.push((held.hold.fence, Returned::Settle(outcome)));
            } else if releasing && held.patience_ends.is_none() {
                held.hold.stop(Cause::Shutdown);
                held.patience_ends = Some(now + PATIENCE);
            } else if held.patience_ends.is_some_and(|end| end <= now) {
                over.push((held.hold.fence, release()));
            }
        }
        let ended_some = !over.is_empty();
        for (fence, returned) in over {
            state.end(fence, returned, now);
        }
        let open = state.held.values().filter(|held| held.ended.is_none());
        let next = open.flat_map(|held| held.revoke_at.into_iter().chain(held.patience_ends));
        let next = next.chain(state.waiting.next()).min();
        if ended_some {
            self.wake(state);
        }
        next
    }
}

/// The outcome of an attempt that took too long. The retry waits for the policy's whole delay,
/// without jitter: jitter spreads the retries of jobs that fail at the same moment, and jobs seldom
/// time out at the same moment.
fn timed_out(counts: &Counts, ran: Duration, limit: Duration) -> Outcome {
    let ran = Duration::from_millis(u64::try_from(ran.as_millis()).unwrap_or(u64::MAX));
    let end = if ran < limit { "was about to end" } else { "was over" };
    let error = format!("it was stopped after {ran:?}, because its max_runtime of {limit:?} {end}");
    lifecycle::after_fault(counts, Fault::Retry { error }, Jitter(u32::MAX))
}
