//! Attempts that were claimed ahead of time and wait for a free slot, so that short jobs do not wait
//! for a claim each.
//!
//! The store counts a waiting attempt as begun: if the worker's process dies, each job that waits
//! has one more crash. So a job may wait only if it has not crashed before and one crash does not
//! end it, and none waits for long.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::{Desk, Hold, Returned, Stage, State};
use crate::clock::Moment;
use crate::lease::Fence;
use crate::lifecycle::Outcome;
use crate::store::Attempt;

/// An attempt that begins now, and its lease.
pub(crate) type Begun = (Attempt, Arc<Hold>);

/// The longest wait for a slot. Attempts that have waited longer are given back: what runs takes
/// longer than expected, and other workers may have free slots.
const LONGEST: Duration = Duration::from_millis(50);

/// Whether an attempt may wait for a slot. If this process dies meanwhile, that counts as a crash
/// of the job. So a job may not wait if it has crashed before, or if this crash or this attempt
/// could be its last. Nor may it wait if its `max_runtime` is so short that the wait would be a
/// noticeable part of it.
pub(crate) fn may_wait(attempt: &Attempt) -> bool {
    const SHORTEST_RUNTIME_MS: i64 = 1_000;
    attempt.crashes == 0
        && attempt.max_crashes > 1
        && attempt.attempt < attempt.max_attempts
        && attempt.max_runtime_ms.is_none_or(|limit| limit >= SHORTEST_RUNTIME_MS)
}

/// The attempts that wait, in the order in which they begin.
#[derive(Debug, Default)]
pub(super) struct Waiting(VecDeque<One>);

#[derive(Debug)]
struct One {
    attempt: Attempt,
    hold: Arc<Hold>,
    /// When `give_back` first found it waiting: its wait counts from then. The claim itself may
    /// have taken long.
    since: Option<Moment>,
}

impl Waiting {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Takes out those that have waited too long, or all.
    pub(super) fn give_back(&mut self, now: Moment, all: bool) -> Vec<Fence> {
        for one in &mut self.0 {
            one.since.get_or_insert(now);
        }
        let is_old = |one: &One| one.since.is_some_and(|since| now.since(since) >= LONGEST);
        // The oldest are in front.
        let count = self.0.iter().take_while(|one| all || is_old(one)).count();
        self.0.drain(..count).map(|one| one.hold.fence).collect()
    }

    /// When the first of them will have waited too long.
    pub(super) fn next(&self) -> Option<Moment> {
        self.0.front()?.since.map(|since| since + LONGEST)
    }
}

impl Desk {
    /// From now on, as many attempts are claimed ahead as the slots will probably begin within this
    /// time.
    pub(crate) fn claim_ahead(&self, ahead: Duration) {
        self.state().pace.claim_ahead(ahead);
    }

    /// Whether attempts may wait for a slot. If so, the dispatcher must look at the desk often, so
    /// that none of them waits too long.
    pub(crate) fn claims_ahead(&self) -> bool {
        self.state().pace.allowed() > 0
    }

    /// A claim has brought these attempts.
    pub(crate) fn claimed(&self, attempts: &[Attempt], now: Moment) {
        self.state().pace.claimed(attempts, now);
    }

    /// Decides where an attempt goes whose lease was just recorded. If there is a slot for it, it
    /// begins and is returned. Otherwise it waits, or is given back if it may not wait or if the
    /// worker ends.
    pub(crate) fn seat(&self, attempt: Attempt, hold: Arc<Hold>, now: Moment) -> Option<Begun> {
        let mut state = self.state();
        if state.busy <= state.slots && state.stage < Stage::Releasing {
            return Some((attempt, hold));
        }
        // `hold` counted an occupied slot for it, but there is none.
        state.busy -= 1;
        if may_wait(&attempt) && state.stage == Stage::Working {
            state.waiting.0.push_back(One { attempt, hold, since: None });
        } else {
            state.end(hold.fence, Returned::Settle(Outcome::Release), now);
        }
        None
    }

    /// The next attempt that waits, if there is a free slot: it begins now.
    pub(crate) fn next(&self) -> Option<Begun> {
        self.state().next()
    }
}

impl State {
    pub(super) fn next(&mut self) -> Option<Begun> {
        if self.busy >= self.slots || self.stage != Stage::Working {
            return None;
        }
        while let Some(One { attempt, hold, .. }) = self.waiting.0.pop_front() {
            // Skip an attempt that ended while it waited: it was lost or cancelled, or its
            // `max_runtime` was over.
            if self.held.get(&hold.fence).is_some_and(|held| held.ended.is_none()) {
                self.busy += 1;
                return Some((attempt, hold));
            }
        }
        None
    }
}
