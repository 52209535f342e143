//! What a worker process knows about its own work: which leases it has, which attempts have ended
//! and are not settled yet, and whether it should continue. The machines share state only here.
//!
//! Everything is behind one mutex that is held only briefly. Nothing here calls a store, reads the
//! time or waits, except for the two functions in which a thread rests. So a simulation can step
//! the same machines on one thread.

mod failure;
mod hold;
mod outcomes;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use self::failure::Failure;
pub(crate) use self::failure::Loss;
pub use self::hold::Hold;
use self::outcomes::Outcomes;
pub(crate) use self::outcomes::Unwritten;
use crate::clock::{Jitter, Moment};
use crate::job::{About, BATCH_LIMIT, Name};
use crate::lease::Fence;
use crate::lifecycle::{self, Fault, Outcome, Standing};
use crate::store::Attempt;
use crate::telemetry::{Fact, Tally};

/// How far a worker is in its shutdown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// It claims and works.
    Working,
    /// It claims nothing more, and lets running jobs finish.
    Finishing,
    /// It stops running jobs and gives them back.
    Releasing,
    /// It has ended.
    Over,
}

/// Why a handler must stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// The job belongs to another worker by now.
    Lost,
    /// The job was cancelled.
    Cancelled,
    /// It has run for as long as it may (`max_runtime`).
    TimedOut,
    /// The worker shuts down.
    Shutdown,
}

/// What an execution returned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Returned {
    /// Settle the attempt with this outcome.
    Settle(Outcome),
    /// The handler completed the job in its own transaction, which is committed.
    Committed,
    /// The handler completed the job in its own transaction, and the store must be asked whether
    /// that was committed.
    PerhapsCommitted,
    /// There is nothing to settle: this worker does not hold the job any more.
    Lost,
}

/// An attempt that has ended and is not settled yet.
#[derive(Debug, Clone)]
pub(crate) struct Ended {
    pub(crate) about: Arc<About>,
    pub(crate) returned: Returned,
    /// How long it ran.
    pub(crate) ran: Duration,
}

impl Ended {
    pub(crate) fn fence(&self) -> Fence {
        self.about.fence()
    }
}

/// The desk of one worker process.
#[derive(Debug)]
pub struct Desk {
    state: Mutex<State>,
    /// Wakes the dispatcher: there is something to settle, or perhaps something to claim.
    poked: Condvar,
    /// Wakes the other threads: the stage has changed.
    staged: Condvar,
    /// For a sandbox, which has no machines: the store has answered the outcome of an effect.
    answered: Notify,
}

#[derive(Debug)]
struct State {
    stage: Stage,
    slots: usize,
    /// Executions that have not returned, including those whose attempt is over.
    busy: usize,
    held: BTreeMap<Fence, Held>,
    ended: Vec<Ended>,
    /// Outcomes of effects that the store has not confirmed yet, by attempt and effect.
    unwritten: Outcomes,
    /// The leases that are being renewed right now, and since when.
    renewing: (BTreeSet<Fence>, Moment),
    poked: bool,
    failure: Failure,
    leaves_nothing: bool,
    /// How often the store refused a write of a handler.
    refused: u64,
    /// The settlements that the store has applied.
    tally: Tally,
    drains: bool,
    /// How many workers share the store and are woken by changes; 0 if this one is not.
    company: usize,
    #[cfg(feature = "drill")]
    stalled: bool,
}

#[derive(Debug)]
struct Held {
    hold: Arc<Hold>,
    standing: Standing,
    /// When its lease was last granted, or a little before.
    granted: Moment,
    /// How long its job may run.
    max_runtime: Option<Duration>,
    /// When to stop it, because it may not run longer.
    revoke_at: Option<Moment>,
    /// Its handler was asked to stop. If it has not returned by this time, its attempt ends without
    /// it.
    patience_ends: Option<Moment>,
    /// When its attempt ended, if it has; it is not settled yet.
    ended: Option<Moment>,
}

impl Held {
    /// Until when a lease granted at `granted` may be trusted: no longer than its handler may run.
    fn trusted(&self, granted: Moment, lease: Duration) -> Moment {
        let until = granted + trusted(lease);
        self.revoke_at.map_or(until, |revoke| revoke.min(until))
    }

    /// Whether to renew its lease. An attempt that is about to be settled does not need it, unless
    /// its settlement has been waiting for a while. A stopped one is about to return.
    fn is_to_be_kept(&self, now: Moment) -> bool {
        const SETTLING: Duration = Duration::from_secs(1);
        match self.ended {
            Some(ended) => now.since(ended) >= SETTLING,
            None => !self.hold.is_stopped(),
        }
    }
}

/// What the dispatcher finds on the desk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) stage: Stage,
    pub(crate) free: usize,
    pub(crate) busy: usize,
    /// Leases that are not settled yet, including those of ended attempts that wait here for a
    /// renewal to finish.
    pub(crate) held: usize,
    /// Attempts with an outcome of an effect that the store has not confirmed yet.
    pub(crate) unwritten: usize,
    /// How often the store refused a write of a handler.
    pub(crate) refused: u64,
    pub(crate) poked: bool,
    /// Whether the worker ends when nothing is due and nothing runs.
    pub(crate) drains: bool,
    /// How many workers share the store and are woken by changes; 0 if this one is not.
    pub(crate) company: usize,
}

/// A lease is not trusted to its very end: work that starts shortly before would finish after it.
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
    /// The desk of a worker that runs up to `slots` jobs at a time.
    pub fn new(slots: usize) -> Desk {
        Desk {
            state: Mutex::new(State {
                stage: Stage::Working,
                slots,
                busy: 0,
                held: BTreeMap::new(),
                ended: Vec::new(),
                unwritten: Outcomes::new(),
                renewing: (BTreeSet::new(), Moment::default()),
                poked: true,
                failure: Failure::default(),
                leaves_nothing: false,
                refused: 0,
                tally: Tally::default(),
                drains: false,
                company: 1,
                #[cfg(feature = "drill")]
                stalled: false,
            }),
            poked: Condvar::new(),
            staged: Condvar::new(),
            answered: Notify::new(),
        }
    }

    /// The desk of a worker that neglects its leases: it does not renew them, trusts them for ever,
    /// and takes back no jobs of others. A process that was suspended and does not know it behaves
    /// like this, but a test can control when this one continues.
    #[cfg(feature = "drill")]
    pub fn stalled(slots: usize) -> Desk {
        let desk = Desk::new(slots);
        desk.state().stalled = true;
        desk
    }

    /// Whether this worker neglects its leases.
    pub(crate) fn is_stalled(&self) -> bool {
        self.state().is_stalled()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No code under this lock can panic halfway through a change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    // ── for the caller that runs the worker

    /// The current stage.
    pub fn stage(&self) -> Stage {
        self.state().stage
    }

    /// Advances to a later stage; there is no way back.
    pub fn advance(&self, stage: Stage) {
        let mut state = self.state();
        state.stage = state.stage.max(stage);
        self.wake(state);
        self.staged.notify_all();
    }

    /// From now on the worker ends when nothing is due and nothing runs.
    #[cfg(feature = "drill")]
    pub fn drain(&self) {
        self.state().drains = true;
        self.poke();
    }

    /// Tells the dispatcher that something may have changed in the store.
    pub fn poke(&self) {
        self.wake(self.state());
    }

    /// Wakes the dispatcher after a change of this state.
    fn wake(&self, mut state: MutexGuard<'_, State>) {
        state.poked = true;
        // Unlocked first, so that the dispatcher does not have to wait for the lock.
        drop(state);
        self.poked.notify_all();
    }

    /// Sets how many workers share the store and are woken when something changes.
    pub(super) fn set_company(&self, workers: usize) {
        self.state().company = workers;
    }

    /// Whether the dispatcher has been poked.
    #[cfg(feature = "drill")]
    pub fn is_poked(&self) -> bool {
        self.state().poked
    }

    // ── for executions

    /// An execution has returned. What it returned counts, unless its attempt is over already.
    pub fn returned(&self, fence: Fence, returned: Returned, now: Moment) {
        let mut state = self.state();
        state.busy = state.busy.saturating_sub(1);
        state.end(fence, returned, now);
        self.wake(state);
    }

    /// The store refused a write of a handler: the job belongs to another worker by now.
    pub(crate) fn refused(&self, fence: Fence) {
        self.state().refused += 1;
        self.lose(fence, Cause::Lost);
    }

    /// A handler has completed its job itself, and continues: for its worker the attempt is over.
    pub(crate) fn committed(&self, fence: Fence, now: Moment) {
        let mut state = self.state();
        state.end(fence, Returned::Committed, now);
        self.wake(state);
    }

    // ── for the dispatcher

    /// Takes up to a batch of ended attempts, and returns the state of the desk.
    pub(crate) fn take(&self, ended: &mut Vec<Ended>, now: Moment) -> Found {
        /// How long a settlement waits for a renewal of the same lease, so that the renewal is not
        /// refused.
        const PATIENCE: Duration = Duration::from_secs(1);
        let mut state = self.state();
        let State { ended: waiting, renewing: (renewing, since), unwritten, .. } = &mut *state;
        let renewing_now = now.since(*since) < PATIENCE;
        let room = BATCH_LIMIT.saturating_sub(ended.len());
        let mut taken = 0;
        waiting.retain(|one| {
            let fence = one.fence();
            let waits = unwritten.contains_key(&fence) || renewing_now && renewing.contains(&fence);
            let take = taken < room && !waits;
            if take {
                ended.push(one.clone());
                taken += 1;
            }
            !take
        });
        Found {
            stage: state.stage,
            free: state.slots.saturating_sub(state.busy),
            busy: state.busy,
            held: state.held.len(),
            unwritten: state.unwritten.len(),
            refused: state.refused,
            poked: std::mem::take(&mut state.poked),
            drains: state.drains,
            company: state.company,
        }
    }

    /// Records a lease granted at `granted` or later. Returns `None` if it is known already.
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
            standing: attempt.standing(),
            granted,
            max_runtime: runtime,
            revoke_at: runtime.map(|limit| granted + patience(limit)),
            patience_ends: None,
            ended: None,
        };
        hold.trust_until(held.trusted(granted, lease));
        if state.is_stalled() {
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

    /// Counts a settlement that the store has applied.
    pub(crate) fn count(&self, fact: &Fact) {
        self.state().tally.count(fact);
    }

    /// How many settlements the store has applied.
    pub(crate) fn tally(&self) -> Tally {
        self.state().tally
    }

    /// The worker has ended. If it leaves nothing behind, it may retire; otherwise other workers
    /// notice the end of its connection. Returns the outcomes of effects that the store has not
    /// confirmed.
    pub(crate) fn close(&self, leaves_nothing: bool) -> Vec<(Name, Unwritten)> {
        let mut state = self.state();
        state.leaves_nothing = leaves_nothing;
        let unwritten = std::mem::take(&mut state.unwritten);
        drop(state);
        self.advance(Stage::Over);
        outcomes::each(unwritten)
    }

    /// Whether the worker may retire: it leaves nothing behind.
    pub(crate) fn leaves_nothing(&self) -> bool {
        self.state().leaves_nothing
    }

    /// The dispatcher rests until it is poked, or for `length`.
    pub(crate) fn rest(&self, length: Duration) {
        let state = self.state();
        // The result does not matter: the dispatcher checks the desk either way.
        let _ = self.poked.wait_timeout_while(state, length, |state| !state.poked);
    }

    /// The other threads rest until the stage changes, or for `length`.
    pub(crate) fn rest_unless_staged(&self, length: Duration) {
        let state = self.state();
        let before = state.stage;
        let _ = self.staged.wait_timeout_while(state, length, |state| state.stage == before);
    }

    // ── for the renewer

    /// The leases that were granted at `before` or earlier, oldest grant first. They are not
    /// settled until [`Desk::renewed`], unless that takes long: a renewal that arrives after its
    /// own settlement would be refused for nothing.
    pub(crate) fn to_renew(&self, before: Moment, now: Moment) -> Vec<Arc<Hold>> {
        let mut state = self.state();
        let is_stalled = state.is_stalled();
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

    /// The renewal of `asked` was answered, or failed. The leases in `held` were extended by a call
    /// that was sent at `sent`.
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
    /// [`Stage::Releasing`] on; ends the attempts of handlers that do not stop. Returns when to
    /// check again. The dispatcher calls it, because it knows of new jobs first, and so does the
    /// renewer, because the dispatcher may be waiting for a store that does not answer.
    pub(crate) fn revoke(&self, now: Moment) -> Option<Moment> {
        /// How long a handler may take to stop after it was asked to.
        const PATIENCE: Duration = Duration::from_secs(6);
        let mut state = self.state();
        let releasing = state.stage >= Stage::Releasing;
        let mut over = Vec::new();
        for held in state.held.values_mut().filter(|held| held.ended.is_none()) {
            if held.revoke_at.is_some_and(|at| at <= now) {
                held.hold.stop(Cause::TimedOut);
                // Ended at once, without waiting for the handler.
                let (ran, limit) = (held.hold.ran(now), held.max_runtime.unwrap_or_default());
                let outcome = timed_out(&held.standing, ran, limit);
                over.push((held.hold.fence, Returned::Settle(outcome)));
            } else if releasing && held.patience_ends.is_none() {
                held.hold.stop(Cause::Shutdown);
                held.patience_ends = Some(now + PATIENCE);
            } else if held.patience_ends.is_some_and(|end| end <= now) {
                over.push((held.hold.fence, Returned::Settle(Outcome::Release)));
            }
        }
        let ended_some = !over.is_empty();
        for (fence, returned) in over {
            state.end(fence, returned, now);
        }
        let open = state.held.values().filter(|held| held.ended.is_none());
        let next = open.flat_map(|held| held.revoke_at.into_iter().chain(held.patience_ends)).min();
        if ended_some {
            self.wake(state);
        }
        next
    }
}

impl State {
    #[cfg(feature = "drill")]
    fn is_stalled(&self) -> bool {
        self.stalled
    }

    #[cfg(not(feature = "drill"))]
    fn is_stalled(&self) -> bool {
        false
    }

    fn end(&mut self, fence: Fence, returned: Returned, now: Moment) {
        let open = self.held.get_mut(&fence).filter(|held| held.ended.is_none());
        let Some(held) = open else { return };
        held.ended = Some(now);
        let about = Arc::clone(&held.hold.about);
        self.ended.push(Ended { about, returned, ran: held.hold.ran(now) });
    }
}

/// The outcome of an attempt that took too long. The delay is not random: jobs that time out do not
/// do so together.
fn timed_out(standing: &Standing, ran: Duration, limit: Duration) -> Outcome {
    let ran = Duration::from_millis(u64::try_from(ran.as_millis()).unwrap_or(u64::MAX));
    let end = if ran < limit { "was about to end" } else { "was over" };
    let error = format!("it was stopped after {ran:?}, because its max_runtime of {limit:?} {end}");
    lifecycle::after_fault(standing, Fault::Retry { error }, Jitter(u32::MAX))
}

#[cfg(test)]
mod tests;
