//! Why a worker cannot go on: what its machines and handlers have heard from the store.

use super::{Desk, Stage};
use crate::store::Error;

/// How a store is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Loss {
    /// It does not answer.
    OutOfReach,
    /// It may be read, but it cannot be written to.
    Unwritable,
}

/// What is wrong with the store.
#[derive(Debug, Default)]
pub(super) struct Failure {
    /// What the worker ends for.
    ends: Option<Error>,
    /// What the store was last lost with.
    last: Option<String>,
    /// Whether it is lost, as far as was told.
    lost: Option<Loss>,
}

impl Desk {
    /// The worker cannot go on: from now on it gives back what it has. Tells whether that is news.
    pub(crate) fn fail(&self, error: &Error) -> bool {
        let mut state = self.state();
        let is_news = state.failure.ends.is_none();
        state.failure.ends.get_or_insert_with(|| error.for_another());
        drop(state);
        self.advance(Stage::Releasing);
        is_news
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.state().failure.ends.is_some()
    }

    /// Notes what the store did not answer for.
    pub(crate) fn note_problem(&self, error: &Error) {
        self.state().failure.last = Some(error.to_string());
    }

    /// The store is out of reach, or cannot be written to. Tells whether that is news.
    pub(crate) fn store_lost(&self, loss: Loss) -> bool {
        self.state().failure.lost.replace(loss).is_none()
    }

    /// The store has answered, and perhaps written. Tells whether that is news: a store that could not be written to is not
    /// back because it can be read.
    pub(crate) fn store_back(&self, wrote: bool) -> bool {
        let mut state = self.state();
        let is_back = state.failure.lost.is_some_and(|loss| wrote || loss == Loss::OutOfReach);
        is_back && state.failure.lost.take().is_some()
    }

    /// Why a worker that did not end in order ended.
    pub(crate) fn failure(&self) -> Error {
        let state = self.state();
        let unknown = || "the store did not answer in time".to_owned();
        match &state.failure.ends {
            Some(error) => error.for_another(),
            None => Error::Engine {
                doing: "give back all jobs, which other workers take over",
                source: state.failure.last.clone().unwrap_or_else(unknown).into(),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_that_could_not_be_written_to_is_not_back_because_it_can_be_read() {
        let desk = Desk::new(1);
        assert!(!desk.store_back(true), "it was not lost");
        for (loss, read_suffices) in [(Loss::OutOfReach, true), (Loss::Unwritable, false)] {
            assert!(desk.store_lost(loss));
            assert!(!desk.store_lost(loss), "told once");
            assert_eq!(desk.store_back(false), read_suffices, "{loss:?}");
            assert_eq!(desk.store_back(true), !read_suffices, "{loss:?}");
            assert!(!desk.store_back(true), "told once");
        }
    }
}
