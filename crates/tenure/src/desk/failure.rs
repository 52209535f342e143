//! Why a worker cannot continue: the errors that its machines and handlers got from the store.

use super::{Desk, Stage};
use crate::lease::WorkerId;
use crate::store::Error;
use crate::telemetry::{Fact, Observer};

/// How a store is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Loss {
    /// It does not answer.
    OutOfReach,
    /// It may be read, but it cannot be written to.
    Unwritable,
}

/// The problems with the store.
#[derive(Debug, Default)]
pub(super) struct Failure {
    /// The error that ends the worker.
    ends: Option<Error>,
    /// The last error of the store, as text.
    last: Option<String>,
    /// Why the store was reported as lost; `None` if it was not, or has come back since.
    lost: Option<Loss>,
}

impl Desk {
    /// The worker cannot continue: from now on it gives back its jobs. Returns whether this is the
    /// first such error.
    pub(crate) fn fail(&self, error: &Error) -> bool {
        let mut state = self.state();
        let is_news = state.failure.ends.is_none();
        state.failure.ends.get_or_insert_with(|| error.for_another());
        drop(state);
        self.advance(Stage::Releasing);
        is_news
    }

    /// The worker lacks a right: reports it once, and makes the worker give back its jobs and end.
    pub(crate) fn forbidden(&self, observer: &Observer, worker: &WorkerId, problem: &Error) {
        if self.fail(problem) {
            observer.of_worker(worker, Fact::StoreForbidden { error: problem.to_string() });
        }
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.state().failure.ends.is_some()
    }

    /// Records an error of the store, for [`Desk::failure`].
    pub(crate) fn note_problem(&self, error: &Error) {
        self.state().failure.last = Some(error.to_string());
    }

    /// The last error of the store, as text.
    pub(crate) fn problem(&self) -> Option<String> {
        self.state().failure.last.clone()
    }

    /// The store is out of reach, or cannot be written to. Returns whether that is new.
    pub(crate) fn store_lost(&self, loss: Loss) -> bool {
        self.state().failure.lost.replace(loss).is_none()
    }

    /// The store has answered, and has written if `wrote`. Returns whether it was lost and is back:
    /// a store that could not be written to is not back because it can be read.
    pub(crate) fn store_back(&self, wrote: bool) -> bool {
        let mut state = self.state();
        let is_back = state.failure.lost.is_some_and(|loss| wrote || loss == Loss::OutOfReach);
        is_back && state.failure.lost.take().is_some()
    }

    /// The error of a worker that did not end properly.
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

    fn forbidden(problem: &str) -> Error {
        let (target, next) = ("the store".into(), "grant it".into());
        Error::Forbidden { target, problem: problem.into(), next }
    }

    #[test]
    fn a_worker_that_lacks_a_right_ends_with_the_first_error_that_said_so() {
        let desk = Desk::new(1);
        assert!(!desk.has_failed());
        assert!(desk.fail(&forbidden("it may not settle")));
        assert!(desk.has_failed());
        assert_eq!(desk.stage(), Stage::Releasing, "it gives back its jobs");
        assert!(!desk.fail(&forbidden("it may not renew")), "told once");
        assert_eq!(desk.failure().to_string(), "the store: it may not settle; grant it");
    }

    #[test]
    fn a_worker_that_could_not_give_back_its_jobs_says_what_the_store_said_last() {
        let desk = Desk::new(1);
        assert!(desk.failure().to_string().contains("the store did not answer in time"));
        desk.note_problem(&forbidden("it may not settle"));
        assert!(desk.failure().to_string().contains("it may not settle"));
        assert!(!desk.has_failed(), "it was only noted");
    }
}
