//! Outcomes of effects that the store has not confirmed yet: the settlement of their attempt waits
//! for them, and so does the end of the worker. Tasks of the handlers' contexts write the outcomes;
//! nothing here writes.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Desk, Hold};
use crate::job::Name;
use crate::lease::Fence;
use crate::lifecycle::Verb;
use crate::record::About;
use crate::store::Error;

/// The outcome of an effect that the store has not confirmed yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Unwritten {
    /// The attempt, for events about it: the desk may not hold its lease any more.
    pub(crate) about: Arc<About>,
    pub(crate) verb: Verb,
    /// The store's last error.
    pub(crate) error: Option<String>,
}

/// By attempt and effect.
pub(super) type Outcomes = BTreeMap<Fence, BTreeMap<Name, Unwritten>>;

pub(super) fn each(unwritten: Outcomes) -> Vec<(Name, Unwritten)> {
    unwritten.into_values().flatten().collect()
}

impl Desk {
    /// The outcome of an effect is known. Until the store has confirmed it, the attempt is not
    /// settled and its lease is renewed: a settlement would end the right to write the outcome.
    pub(crate) fn outcome_known(&self, hold: &Hold, effect: &Name, verb: Verb) {
        let unwritten = Unwritten { about: Arc::clone(&hold.about), verb, error: None };
        self.state().unwritten.entry(hold.fence).or_default().insert(effect.clone(), unwritten);
    }

    /// The outcome could not be written this time. Returns whether this is the first failure.
    pub(crate) fn outcome_failed(&self, fence: Fence, effect: &Name, error: &Error) -> bool {
        let mut state = self.state();
        let of_attempt = state.unwritten.get_mut(&fence);
        let Some(one) = of_attempt.and_then(|outcomes| outcomes.get_mut(effect)) else {
            return false;
        };
        one.error.replace(error.to_string()).is_none()
    }

    /// The outcome is confirmed, or need not be written any more. Returns what the desk had
    /// recorded about it, if anything.
    pub(crate) fn outcome_answered(&self, fence: Fence, effect: &Name) -> Option<Unwritten> {
        let mut state = self.state();
        let of_attempt = state.unwritten.get_mut(&fence)?;
        let one = of_attempt.remove(effect);
        if of_attempt.is_empty() {
            state.unwritten.remove(&fence);
        }
        self.wake(state);
        self.answered.notify_waiters();
        one
    }

    /// Waits until all outcomes are confirmed.
    pub(crate) async fn outcomes_answered(&self) {
        loop {
            let answered = self.answered.notified();
            if self.state().unwritten.is_empty() {
                return;
            }
            answered.await;
        }
    }
}
