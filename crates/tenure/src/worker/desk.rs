//! What a worker process knows of its own work: which leases it has, what has ended and is not settled yet,
//! and whether it is to go on. The machines meet here, and nowhere else.
//!
//! Everything is under one lock that is held for moments, and nothing here calls a store, asks the time or
//! waits, but for the two places where a thread rests. So a simulation steps the same machines on one
//! thread.

mod failure;
mod outcomes;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};

use self::failure::Failure;
pub(crate) use self::failure::Loss;
use self::outcomes::Outcomes;
pub(crate) use self::outcomes::Unwritten;
use crate::clock::{Jitter, Moment};
use crate::job::{BATCH_LIMIT, Name};
use crate::lease::Fence;
use crate::lifecycle::{self, Fault, Outcome, Standing};
use crate::store::Attempt;
use crate::telemetry::{Fact, Tally};

/// How far a worker is from its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// It claims and works.
    Working,
    /// It claims nothing more, and lets what runs come to its end.
    Finishing,
    /// It gives back what still runs.
    Releasing,
    /// It is over.
    Over,
}

/// Why a handler is to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// The job is somebody else's by now.
    Lost,
    /// The job was cancelled.
    Cancelled,
    /// It has run for as long as it may.
    TimedOut,
    /// The worker ends.
    Shutdown,
}

/// How an execution came back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Returned {
    /// To be settled so.
    Settle(Outcome),
    /// It was completed in a transaction of the handler's own, which is committed.
    Committed,
    /// It was completed in a transaction of the handler's own, and whether that was committed is to be
    /// looked up.
    PerhapsCommitted,
    /// There is nothing to settle: the job is not ours any more.
    Lost,
}

/// A lease that this process has, as the handler and the machines share it.
#[derive(Debug)]
pub struct Hold {
    /// What to show.
    pub fence: Fence,
    trust: watch::Sender<Trust>,
}

/// For how long a lease may be trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Trust {
    /// Until then nobody can have taken the job, unless it was cancelled.
    pub(crate) until: Moment,
    /// The handler is to stop.
    pub(crate) stopped: Option<Cause>,
}

impl Hold {
    fn new(fence: Fence, until: Moment) -> Hold {
        Hold { fence, trust: watch::Sender::new(Trust { until, stopped: None }) }
    }

    /// Whether its handler is to stop.
    pub fn is_stopped(&self) -> bool {
        self.trust().stopped.is_some()
    }

    /// Why its handler is to stop, if it is: for handlers that are stepped.
    #[cfg(feature = "drill")]
    pub fn stopped_for(&self) -> Option<Cause> {
        self.trust().stopped
    }

    /// Whether something may be begun by its right: for handlers that are stepped.
    #[cfg(feature = "drill")]
    pub fn is_trusted(&self, now: Moment) -> bool {
        now < self.trust().until
    }

    /// How it stands now.
    pub(crate) fn trust(&self) -> Trust {
        *self.trust.borrow()
    }

    /// To hear when that changes.
    pub(crate) fn watch(&self) -> watch::Receiver<Trust> {
        self.trust.subscribe()
    }

    fn trust_until(&self, until: Moment) {
        self.trust.send_modify(|trust| trust.until = trust.until.max(until));
    }

    fn stop(&self, cause: Cause) {
        self.trust.send_modify(|trust| trust.stopped = trust.stopped.or(Some(cause)));
    }
}

/// An attempt that has ended and is not settled yet.
#[derive(Debug, Clone)]
pub(crate) struct Ended {
    pub(crate) fence: Fence,
    pub(crate) kind: Name,
    pub(crate) returned: Returned,
    /// How long it ran.
    pub(crate) ran: Duration,
}

/// The desk of one worker process.
#[derive(Debug)]
pub struct Desk {
    state: Mutex<State>,
    /// For the dispatcher: something to settle, or perhaps something to claim.
    poked: Condvar,
    /// For everyone else: the stage has changed.
    staged: Condvar,
    /// For a sandbox, which has no machines: an outcome was answered.
    answered: Notify,
}

#[derive(Debug)]
struct State {
    stage: Stage,
    slots: usize,
    /// Executions that have not returned, also those whose attempt is over.
    busy: usize,
    held: BTreeMap<Fence, Held>,
    ended: Vec<Ended>,
    /// Outcomes of effects that the store has not answered yet, by attempt and effect.
    unwritten: Outcomes,
    /// What is being renewed at this moment, and since when.
    renewing: (BTreeSet<Fence>, Moment),
    poked: bool,
    failure: Failure,
    leaves_nothing: bool,
    /// How often something that a handler wanted to write was refused.
    refused: u64,
    /// What the store has heard.
    tally: Tally,
    drains: bool,
    /// How many workers share the store and are woken when something changes; 0 if nothing wakes this one.
    company: usize,
    #[cfg(feature = "drill")]
    stalled: bool,
}

#[derive(Debug)]
struct Held {
    hold: Arc<Hold>,
    kind: Name,
    standing: Standing,
    started: Moment,
    /// When its lease was last granted, or a little before.
    granted: Moment,
    /// For how long its job may run.
    max_runtime: Option<Duration>,
    /// When it is to be stopped, because it may not run for longer.
    revoke_at: Option<Moment>,
    /// Its handler was asked to stop, and if it has not returned by then, its attempt ends without it.
    patience_ends: Option<Moment>,
    /// When its attempt ended; it is not settled yet.
    ended: Option<Moment>,
}

impl Held {
    /// For how long it may be trusted, if it was granted at `granted`: never for longer than its handler may run.
    fn trusted(&self, granted: Moment, lease: Duration) -> Moment {
        let until = granted + trusted(lease);
        self.revoke_at.map_or(until, |revoke| revoke.min(until))
    }

    /// Whether to keep its lease. What is about to be settled needs it no more, unless the store has not heard of it for
    /// a while; what was stopped is on its way back.
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
    /// Leases that are not settled yet, also those whose attempt has ended and that wait here for their renewal.
    pub(crate) held: usize,
    /// Attempts with an outcome of an effect that the store has not answered yet.
    pub(crate) unwritten: usize,
    /// How often something that a handler wanted to write was refused.
    pub(crate) refused: u64,
    pub(crate) poked: bool,
    /// Whether it ends when nothing is due and nothing runs.
    pub(crate) drains: bool,
    /// How many workers share the store and are woken when something changes; 0 if nothing wakes this one.
    pub(crate) company: usize,
}

/// A lease is not trusted to its very end: what is begun shortly before would be done after it.
pub(crate) fn trusted(length: Duration) -> Duration {
    length - (length / 10).min(Duration::from_secs(1))
}

/// Longer than any worker lives.
const FOR_EVER: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// How long a handler may really run: a fifth less than its job may, at most 500 ms. At the end of `max_runtime` the store
/// takes the job back and counts a crash, so the worker must have settled the attempt by then.
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

    /// The desk of a worker that takes no care of its leases: it does not renew them, trusts them for ever, and takes
    /// nothing back. So a process behaves that stood still and does not know it, but this one can be told when to wake.
    #[cfg(feature = "drill")]
    pub fn stalled(slots: usize) -> Desk {
        let desk = Desk::new(slots);
        desk.state().stalled = true;
        desk
    }

    /// Whether nobody takes care of its leases.
    pub(crate) fn is_stalled(&self) -> bool {
        self.state().is_stalled()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing under this lock can panic half-way.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    // ── for whoever runs the worker

    /// How far it is.
    pub fn stage(&self) -> Stage {
        self.state().stage
    }

    /// Goes on to a later stage; there is no way back.
    pub fn advance(&self, stage: Stage) {
        let mut state = self.state();
        state.stage = state.stage.max(stage);
        state.poked = true;
        drop(state);
        self.poked.notify_all();
        self.staged.notify_all();
    }

    /// From now on it ends when nothing is due and nothing runs.
    #[cfg(feature = "drill")]
    pub fn drain(&self) {
        self.state().drains = true;
        self.poke();
    }

    /// Something may have changed in the store.
    pub fn poke(&self) {
        self.state().poked = true;
        self.poked.notify_all();
    }

    /// So many workers share the store and are woken when something changes.
    pub(super) fn set_company(&self, workers: usize) {
        self.state().company = workers;
    }

    /// Whether the dispatcher has something to look at.
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
        state.poked = true;
        drop(state);
        self.poked.notify_all();
    }

    /// Something that a handler wanted to write was refused: the job is somebody else's by now.
    pub(crate) fn refused(&self, fence: Fence) {
        self.state().refused += 1;
        self.lose(fence, Cause::Lost);
    }

    /// A handler has completed its job by itself, and goes on: for its worker the attempt is over.
    pub(crate) fn committed(&self, fence: Fence, now: Moment) {
        let mut state = self.state();
        state.end(fence, Returned::Committed, now);
        state.poked = true;
        drop(state);
        self.poked.notify_all();
    }

    // ── for the dispatcher

    /// Takes up to a batch of what has ended, and tells how things stand.
    pub(crate) fn take(&self, ended: &mut Vec<Ended>, now: Moment) -> Found {
        /// For how long a renewal is waited for, so that it does not find its job settled.
        const PATIENCE: Duration = Duration::from_secs(1);
        let mut state = self.state();
        let State { ended: waiting, renewing: (renewing, since), unwritten, .. } = &mut *state;
        let renewing_now = !renewing.is_empty() && now.since(*since) < PATIENCE;
        let room = BATCH_LIMIT.saturating_sub(ended.len());
        let mut taken = 0;
        waiting.retain(|one| {
            let waits =
                unwritten.contains_key(&one.fence) || renewing_now && renewing.contains(&one.fence);
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

    /// Notes a lease that was granted at `granted` or later. None if it is known already.
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
        let hold = Arc::new(Hold::new(fence, granted));
        let held = Held {
            hold: Arc::clone(&hold),
            kind: attempt.kind.clone(),
            standing: attempt.standing(),
            started: granted,
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

    /// An attempt is settled, or was never ours to settle.
    pub(crate) fn forget(&self, fence: Fence) {
        self.state().held.remove(&fence);
    }

    /// The store has heard a settlement.
    pub(crate) fn count(&self, fact: &Fact) {
        self.state().tally.count(fact);
    }

    /// How many settlements the store has heard.
    pub(crate) fn tally(&self) -> Tally {
        self.state().tally
    }

    /// The worker is over. If it leaves nothing behind, it may say good-bye; else the end of its connection tells. Answers
    /// the outcomes that the store has not heard.
    pub(crate) fn close(&self, leaves_nothing: bool) -> Vec<(Fence, Name, Unwritten)> {
        let mut state = self.state();
        state.leaves_nothing = leaves_nothing;
        let unwritten = std::mem::take(&mut state.unwritten);
        drop(state);
        self.advance(Stage::Over);
        outcomes::each(unwritten)
    }

    /// Whether the worker may say good-bye.
    pub(crate) fn leaves_nothing(&self) -> bool {
        self.state().leaves_nothing
    }

    /// The dispatcher rests until somebody pokes it, or for `length`.
    pub(crate) fn rest(&self, length: Duration) {
        let state = self.state();
        // Whether it was poked or the time is up, it looks.
        let _ = self.poked.wait_timeout_while(state, length, |state| !state.poked);
    }

    /// Others rest until the stage changes, or for `length`.
    pub(crate) fn rest_unless_staged(&self, length: Duration) {
        let state = self.state();
        let before = state.stage;
        let _ = self.staged.wait_timeout_while(state, length, |state| state.stage == before);
    }

    // ── for the renewer

    /// The leases that were granted at `before` or earlier, those that end first at the beginning. Until [`Desk::renewed`] they are not settled, if
    /// that does not take long: a renewal that comes after its own settlement would be refused for nothing.
    pub(crate) fn to_renew(&self, before: Moment, now: Moment) -> Vec<Fence> {
        let mut state = self.state();
        let is_stalled = state.is_stalled();
        let State { held, unwritten, .. } = &*state;
        let due = |held: &&Held| {
            let keep = held.is_to_be_kept(now) || unwritten.contains_key(&held.hold.fence);
            !is_stalled && keep && held.granted <= before
        };
        let mut due: Vec<&Held> = held.values().filter(due).collect();
        due.sort_by_key(|held| held.granted);
        let fences: Vec<Fence> = due.iter().map(|held| held.hold.fence).collect();
        state.renewing = (fences.iter().copied().collect(), now);
        fences
    }

    /// The renewal of `asked` has been answered, or failed: these hold on, by the word of a call that was sent at `sent`.
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
        state.poked |= !state.ended.is_empty();
        drop(state);
        self.poked.notify_all();
    }

    /// A job is somebody else's by now, or was cancelled: its handler stops, and nothing is settled. Tells
    /// whether it was still at work.
    pub fn lose(&self, fence: Fence, cause: Cause) -> bool {
        let mut state = self.state();
        let Some(held) = state.held.get(&fence).filter(|held| held.ended.is_none()) else {
            return false;
        };
        held.hold.stop(cause);
        state.held.remove(&fence);
        true
    }

    /// Stops what has run for as long as it may, and in the last stage everything; ends the attempts of those
    /// that do not stop. Answers when to look again. The dispatcher asks, because it knows at once of a new job, and so
    /// does the renewer, because the dispatcher may be waiting for a store that does not answer.
    pub(crate) fn revoke(&self, now: Moment) -> Option<Moment> {
        /// For how long a handler that is asked to stop may take to do so.
        const PATIENCE: Duration = Duration::from_secs(6);
        let mut state = self.state();
        let releasing = state.stage >= Stage::Releasing;
        let mut over = Vec::new();
        for held in state.held.values_mut().filter(|held| held.ended.is_none()) {
            if held.revoke_at.is_some_and(|at| at <= now) {
                held.hold.stop(Cause::TimedOut);
                // At once, without waiting for the handler.
                let (ran, limit) = (now.since(held.started), held.max_runtime.unwrap_or_default());
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
        state.poked |= ended_some;
        let open = state.held.values().filter(|held| held.ended.is_none());
        let next =
            open.filter_map(|held| held.revoke_at.into_iter().chain(held.patience_ends).min());
        let next = next.min();
        drop(state);
        if ended_some {
            self.poked.notify_all();
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
        let ran = now.since(held.started);
        self.ended.push(Ended { fence, kind: held.kind.clone(), returned, ran });
    }
}

/// How an attempt ends that took too long. There is no chance in it: who takes too long does so alone.
fn timed_out(standing: &Standing, ran: Duration, limit: Duration) -> Outcome {
    let ran = Duration::from_millis(u64::try_from(ran.as_millis()).unwrap_or(u64::MAX));
    let end = if ran < limit { "was about to end" } else { "was over" };
    let error = format!("it was stopped after {ran:?}, because its max_runtime of {limit:?} {end}");
    lifecycle::after_fault(standing, Fault::Retry { error }, Jitter(u32::MAX))
}

#[cfg(test)]
mod tests;
