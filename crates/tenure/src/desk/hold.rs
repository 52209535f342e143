//! One lease of a worker process: which attempt it is for, and how long it may be trusted. Nothing
//! here reads the time.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::watch;

use super::Cause;
use crate::clock::Moment;
use crate::lease::Fence;
use crate::record::About;

/// A lease of this process, shared by the handler and the machines.
#[derive(Debug)]
pub struct Hold {
    /// What to present to the store.
    pub fence: Fence,
    /// The attempt, for its events.
    pub(crate) about: Arc<About>,
    granted: Moment,
    begun: OnceLock<Moment>,
    trust: watch::Sender<Trust>,
}

/// How long a lease may be trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Trust {
    /// Until this time the worker may begin work under the lease, because the lease lasts longer.
    /// The store can still take the job earlier: if it is cancelled, or if other workers find that
    /// this worker's guard is free.
    pub(crate) until: Moment,
    /// Why the handler must stop, if it must.
    pub(crate) stopped: Option<Cause>,
}

impl Hold {
    pub(super) fn new(about: About, granted: Moment) -> Hold {
        let trust = watch::Sender::new(Trust { until: granted, stopped: None });
        let (fence, about) = (about.fence(), Arc::new(about));
        Hold { fence, about, granted, begun: OnceLock::new(), trust }
    }

    /// Its handler is called now.
    pub fn begin(&self, now: Moment) {
        // A handler begins once.
        let _ = self.begun.set(now);
    }

    /// How long its handler has run: from its beginning, or from the claim if it has not begun.
    pub(crate) fn ran(&self, now: Moment) -> Duration {
        now.since(*self.begun.get().unwrap_or(&self.granted))
    }

    /// Whether its handler must stop.
    pub fn is_stopped(&self) -> bool {
        self.trust().stopped.is_some()
    }

    /// Why its handler must stop, if it must: for simulated handlers.
    #[cfg(feature = "drill")]
    pub fn stopped_for(&self) -> Option<Cause> {
        self.trust().stopped
    }

    /// Whether a handler may start something under this lease: for simulated handlers.
    #[cfg(feature = "drill")]
    pub fn is_trusted(&self, now: Moment) -> bool {
        now < self.trust().until
    }

    /// The current trust.
    pub(crate) fn trust(&self) -> Trust {
        *self.trust.borrow()
    }

    /// Notifies of changes of the trust.
    pub(crate) fn watch(&self) -> watch::Receiver<Trust> {
        self.trust.subscribe()
    }

    pub(super) fn trust_until(&self, until: Moment) {
        self.trust.send_modify(|trust| trust.until = trust.until.max(until));
    }

    pub(super) fn stop(&self, cause: Cause) {
        self.trust.send_modify(|trust| trust.stopped = trust.stopped.or(Some(cause)));
    }
}
