//! What a context does when the store refuses a call: the worker lacks a right, or the job is not
//! this worker's any more. It reports that and stops the handler. Nothing here calls the store.

use std::time::Duration;

use super::{Context, stopped};
use crate::clock::{Moment, millis};
use crate::desk::Cause;
use crate::job::State;
use crate::lease::Stale;
use crate::lifecycle::{Fault, Verb};
use crate::store::Error;
use crate::telemetry::Fact;

impl Context {
    /// A right that the worker lacks is not a failure of the job: the worker ends, and gives the
    /// attempt back.
    pub(super) fn failed(&self, error: Error) -> Fault {
        if error.is_forbidden() {
            self.0.desk.forbidden(&self.0.observer, &self.0.worker, &error);
            self.0.desk.revoke(Moment::now());
        }
        error.into()
    }

    /// The store has refused a write: the job was cancelled, or another worker holds it. A
    /// cancellation is reported once.
    pub(crate) fn refused(&self, verb: Verb, stale: &Stale) -> Fault {
        if stale.state.has_ended() {
            self.0.tenure.0.waiters.wake(self.job());
        }
        if stale.state == State::Cancelled {
            if self.0.desk.lose(self.fence(), Cause::Cancelled) {
                self.tell(Fact::JobCancelled { ran_ms: millis(self.ran()) });
            }
            return stopped();
        }
        self.tell(Fact::refused(verb, stale, self.ran()));
        self.0.desk.refused(self.fence());
        stopped()
    }

    pub(crate) fn lost(&self) -> Fault {
        self.0.desk.lose(self.fence(), Cause::Lost);
        stopped()
    }

    /// How long the attempt has run.
    pub(super) fn ran(&self) -> Duration {
        self.0.hold.ran(Moment::now())
    }
}
