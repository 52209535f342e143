//! Why a worker cannot go on: what its machines and handlers have heard from the store.

use super::{Desk, Stage};
use crate::store::Error;

/// What is wrong with the store.
#[derive(Debug, Default)]
pub(super) struct Failure {
    /// What the worker ends for.
    ends: Option<Error>,
    /// What the store was last lost with.
    last: Option<String>,
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
