//! Attempts that have ended, from the return of their handler to their settlement.

use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use super::outcomes::{self, Unwritten};
use super::{Begun, Cause, Desk, Stage, State};
use crate::clock::Moment;
use crate::job::{BATCH_LIMIT, Name};
use crate::lease::Fence;
use crate::lifecycle::Outcome;
use crate::record::About;
use crate::telemetry::{Fact, Tally};

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

/// Whether the transaction in which a handler completed its job is committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Committed {
    /// The transaction is committed.
    Yes,
    /// The handler commits the transaction itself, so the worker does not know whether it did.
    #[cfg_attr(
        not(feature = "postgres"),
        allow(dead_code, reason = "only a client of the user's own can")
    )]
    Perhaps,
}

/// An attempt that has ended and is not settled yet.
#[derive(Debug, Clone)]
pub(crate) struct Ended {
    pub(crate) about: Arc<About>,
    pub(crate) returned: Returned,
    /// How long it ran.
    pub(crate) ran: Duration,
    /// Whether its settlement was sent, without knowing whether the store applied it.
    pub(crate) was_sent: bool,
}

impl Ended {
    pub(crate) fn fence(&self) -> Fence {
        self.about.fence()
    }
}

/// What the dispatcher finds on the desk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) stage: Stage,
    pub(crate) free: usize,
    pub(crate) busy: usize,
    /// How many attempts to claim now.
    pub(crate) room: usize,
    /// How many ended attempts are worth a call of the store, even if other attempts will end soon.
    pub(crate) enough: usize,
    /// Whether the relief has a call under way.
    pub(crate) is_relieved: bool,
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
    /// How many workers share the store, if its changes wake this one; 0 if this worker must poll.
    pub(crate) company: usize,
}

impl Desk {
    /// An execution has returned, and its slot is free. What it returned is ignored if its attempt
    /// is over already.
    pub fn returned(&self, fence: Fence, returned: Returned, now: Moment) {
        let mut state = self.state();
        state.leave(fence, returned, now);
        self.wake_if_enough(state);
    }

    /// Like [`Desk::returned`]. If another attempt waits for a slot, it begins in the same slot,
    /// and is returned.
    pub(crate) fn returned_for_next(
        &self,
        fence: Fence,
        returned: Returned,
        now: Moment,
    ) -> Option<Begun> {
        let mut state = self.state();
        state.leave(fence, returned, now);
        let next = state.next();
        self.wake_if_enough(state);
        next
    }

    /// Sets how many ended attempts wake the dispatcher. This holds until the dispatcher looks at
    /// the desk again. It is also woken when no job runs any more.
    pub(crate) fn gather(&self, enough: usize) {
        self.state().enough = enough;
    }

    fn wake_if_enough(&self, state: MutexGuard<'_, State>) {
        if state.wants_relief() {
            self.relief_wanted.notify_one();
        }
        if state.ended.len() >= state.enough || state.busy == 0 {
            self.wake(state);
        }
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

    /// Takes up to a batch of ended attempts, and returns the state of the desk.
    pub(crate) fn take(&self, ended: &mut Vec<Ended>, now: Moment) -> Found {
        let mut state = self.state();
        state.enough = 1;
        let taken = state.take(ended, now, |_| true);
        Found {
            stage: state.stage,
            free: state.free(),
            busy: state.busy,
            room: state.room(),
            enough: state.enough(),
            is_relieved: state.relief.is_relieved(),
            held: state.held.len(),
            unwritten: state.unwritten.len(),
            refused: state.refused,
            // An attempt that has ended may have made room for another.
            poked: std::mem::take(&mut state.poked) || taken > 0,
            drains: state.drains,
            company: state.company,
        }
    }

    /// Counts a settlement that the store has applied.
    pub(crate) fn count(&self, fact: &Fact) {
        self.state().tally.count(fact);
    }

    /// How many settlements the store has applied.
    pub(crate) fn tally(&self) -> Tally {
        self.state().tally
    }

    /// The worker has ended. If it leaves nothing behind, its renewer may delete its registration.
    /// Otherwise it stays registered, so that other workers notice its end and take back its jobs.
    /// Returns the outcomes of effects that the store has not confirmed.
    pub(crate) fn close(&self, leaves_nothing: bool) -> Vec<(Name, Unwritten)> {
        let mut state = self.state();
        state.leaves_nothing = leaves_nothing;
        let unwritten = std::mem::take(&mut state.unwritten);
        drop(state);
        self.advance(Stage::Over);
        outcomes::each(unwritten)
    }

    /// Whether the worker may delete its registration: it leaves nothing behind.
    pub(crate) fn leaves_nothing(&self) -> bool {
        self.state().leaves_nothing
    }
}

impl State {
    fn leave(&mut self, fence: Fence, returned: Returned, now: Moment) {
        self.busy = self.busy.saturating_sub(1);
        self.end(fence, returned, now);
    }

    /// Takes up to a batch of those ended attempts that are `wanted`; returns how many.
    pub(super) fn take(
        &mut self,
        ended: &mut Vec<Ended>,
        now: Moment,
        wanted: impl Fn(&Ended) -> bool,
    ) -> usize {
        /// How long a settlement waits for a renewal of the same lease, so that the renewal is not
        /// refused.
        const PATIENCE: Duration = Duration::from_secs(1);
        let State { ended: waiting, renewing: (renewing, since), unwritten, .. } = self;
        let renewing_now = now.since(*since) < PATIENCE;
        let (known, room) = (ended.len(), BATCH_LIMIT.saturating_sub(ended.len()));
        let mut taken = 0;
        waiting.retain(|one| {
            let fence = one.fence();
            let waits = unwritten.contains_key(&fence) || renewing_now && renewing.contains(&fence);
            let take = taken < room && !waits && wanted(one);
            if take {
                ended.push(one.clone());
                taken += 1;
            }
            !take
        });
        self.pace.ended(&ended[known..], now);
        taken
    }

    pub(super) fn free(&self) -> usize {
        self.slots.saturating_sub(self.busy)
    }

    /// How many attempts to claim: one for each free slot and for each that may wait for a slot,
    /// less those that wait already and those that calls under way may bring. If no slot is free,
    /// at least half of the places to wait must be: a call for a few attempts would delay the next
    /// settlements.
    pub(super) fn room(&self) -> usize {
        let (free, allowed) = (self.free(), self.pace.allowed());
        let there = self.waiting.len() + self.relief.reserved();
        if free == 0 && there * 2 > allowed {
            return 0;
        }
        (free + allowed).saturating_sub(there).min(BATCH_LIMIT)
    }

    /// How many ended attempts are worth a call of the store, even if other attempts will end soon.
    pub(super) fn enough(&self) -> usize {
        self.slots.max(self.pace.allowed() / 2).min(BATCH_LIMIT)
    }

    pub(super) fn end(&mut self, fence: Fence, returned: Returned, now: Moment) {
        let open = self.held.get_mut(&fence).filter(|held| held.ended.is_none());
        let Some(held) = open else { return };
        held.ended = Some(now);
        let about = Arc::clone(&held.hold.about);
        let ran = held.hold.ran(now);
        self.ended.push(Ended { about, returned, ran, was_sent: false });
    }
}
