//! What the dispatcher and its relief share: which calls they have under way, and what the relief
//! could not finish.

use std::sync::Arc;

use super::{Desk, Ended, Returned, Stage, State};
use crate::clock::Moment;
use crate::job::BATCH_LIMIT;

/// A claim whose answer was lost: its number, and when it was sent.
pub(crate) type LostClaim = (i64, Moment);

#[derive(Debug, Default)]
pub(super) struct Relief {
    /// The smallest number of ended attempts that is worth a second call; 0: there is no relief.
    smallest: usize,
    /// The dispatcher has a call under way.
    is_calling: bool,
    /// The relief has a call under way.
    is_relieved: bool,
    /// The relief's last call failed, or none of the ended attempts was for the relief; and no call
    /// of the dispatcher has succeeded since.
    rests: bool,
    /// For how many attempts calls under way have asked.
    reserved: usize,
    /// The claims of the relief whose answers were lost.
    lost: Vec<LostClaim>,
    /// The number of the last claim.
    request: i64,
}

impl Relief {
    pub(super) fn reserved(&self) -> usize {
        self.reserved
    }

    pub(super) fn is_relieved(&self) -> bool {
        self.is_relieved
    }
}

/// Places for attempts that a call under way may bring, until this value is dropped.
pub(crate) struct Reserved {
    desk: Arc<Desk>,
    places: usize,
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.desk.state().relief.reserved -= self.places;
    }
}

impl Desk {
    /// From now on the relief makes a second call when at least this many attempts have ended.
    pub fn relieve_from(&self, smallest: usize) {
        self.state().relief.smallest = smallest;
    }

    /// Keeps places for attempts that a call may bring, so that a second call does not ask for
    /// them too.
    pub(crate) fn reserve(self: &Arc<Desk>, places: usize) -> Reserved {
        self.state().relief.reserved += places;
        Reserved { desk: Arc::clone(self), places }
    }

    /// A number for a claim that no other claim of this worker has.
    pub(crate) fn next_request(&self) -> i64 {
        let mut state = self.state();
        state.relief.request += 1;
        state.relief.request
    }

    /// The dispatcher calls the store.
    pub(crate) fn call_begins(&self) {
        let mut state = self.state();
        state.relief.is_calling = true;
        if state.wants_relief() {
            self.relief_wanted.notify_one();
        }
    }

    /// The dispatcher's call has ended. If the store has answered, the relief may call it again.
    pub(crate) fn call_ended(&self, is_answered: bool) {
        let relief = &mut self.state().relief;
        relief.is_calling = false;
        relief.rests &= !is_answered;
    }

    /// Takes a batch of ended attempts for the relief, and returns how many attempts it should
    /// claim; `None` if there is no batch. Attempts that may have been settled before, and those
    /// that must be looked up, stay for the dispatcher.
    pub(crate) fn take_relief(&self, ended: &mut Vec<Ended>, now: Moment) -> Option<usize> {
        let mut state = self.state();
        if !state.has_relief() {
            return None;
        }
        let is_simple = |one: &Ended| !one.was_sent && one.returned != Returned::PerhapsCommitted;
        if state.take(ended, now, is_simple) == 0 {
            // None of these is for the relief: only the dispatcher may repeat a settlement or look
            // up a job.
            state.relief.rests = true;
            return None;
        }
        state.relief.is_relieved = true;
        Some(state.room())
    }

    /// The relief's call has ended. What it could not finish is the dispatcher's: attempts that are
    /// to be settled, and a claim whose answer was lost. The dispatcher is woken in any case: the
    /// relief's settlements may have made a job due since the dispatcher looked last.
    pub(crate) fn relieved(&self, failed: Option<(Vec<Ended>, Option<LostClaim>)>) {
        let mut state = self.state();
        state.relief.is_relieved = false;
        if let Some((ended, lost)) = failed {
            state.relief.rests = true;
            state.relief.lost.extend(lost);
            // They ended before those that wait here.
            state.ended.splice(..0, ended);
        }
        self.wake(state);
    }

    /// The claims of the relief whose answers were lost, each once.
    pub(crate) fn take_lost(&self) -> Vec<LostClaim> {
        std::mem::take(&mut self.state().relief.lost)
    }

    /// Whether there is a batch for the relief, if the dispatcher has a call under way.
    #[cfg(any(test, feature = "drill"))]
    pub fn has_relief(&self) -> bool {
        self.state().has_relief()
    }

    /// Blocks the relief's thread until there is a batch for it while the dispatcher has a call
    /// under way. Returns true then, and false when the worker has ended.
    pub(crate) fn rest_of_relief(&self) -> bool {
        let rests = |state: &mut State| state.stage != Stage::Over && !state.wants_relief();
        let state = self.relief_wanted.wait_while(self.state(), rests);
        state.is_ok_and(|state| state.stage != Stage::Over)
    }
}

impl State {
    /// Whether the relief should call the store now.
    pub(super) fn wants_relief(&self) -> bool {
        self.relief.is_calling && self.has_relief()
    }

    /// Whether there are enough ended attempts for a second call: half of what the worker can
    /// hold, since more calls with fewer in each would cost more.
    fn has_relief(&self) -> bool {
        let Relief { smallest, is_relieved, rests, .. } = self.relief;
        let half = (self.slots + self.pace.allowed()) / 2;
        smallest > 0
            && !is_relieved
            && !rests
            && self.stage == Stage::Working
            && self.ended.len() >= half.clamp(smallest.min(BATCH_LIMIT), BATCH_LIMIT)
    }
}
