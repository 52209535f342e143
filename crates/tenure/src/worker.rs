//! How jobs run: a process that claims them, keeps their leases, calls their handlers and settles what they come
//! to.
//!
//! The work is done by machines that are stepped: the dispatcher ([`claim`](self), with its settler), the renewer and the
//! sweeper. `step` does what is due and says when it wants to be called again. In production a thread of its
//! own calls each; in a simulation a scheduler does, on one thread and from a seed.

#![cfg_attr(
    not(feature = "drill"),
    allow(unreachable_pub, reason = "the machines are stepped from outside by the proof alone")
)]

mod build;
mod claim;
pub(crate) mod desk;
pub(crate) mod execute;
mod renew;
mod settle;
mod shutdown;
mod sweep;
mod threads;

use std::time::Duration;

/// For the proof, which steps them itself.
#[cfg(feature = "drill")]
pub(crate) mod machines {
    pub use super::claim::{Crew, Dispatcher};
    pub use super::desk::{Cause, Desk, Hold, Returned, Stage};
    pub use super::renew::Renewer;
    pub use super::sweep::Sweeper;
    pub use super::{Next, Plan};
}

pub use self::build::Worker;
use self::claim::{Crew, Dispatcher};
use self::desk::{Desk, Loss};
use self::renew::Renewer;
pub use self::shutdown::{Running, shutdown_signal};
use self::sweep::Sweeper;
use crate::clock::Moment;
use crate::job::{Name, State};
use crate::lease::{Fence, WorkerId};
use crate::store::{Error, Lapse};
use crate::telemetry::{Fact, Observer};

/// When a machine wants to be called again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// At once: there may be more to do.
    Again,
    /// Then, or earlier if its desk is poked.
    At(Moment),
    /// Never.
    Done,
}

/// What a worker is to do. It does not change while it runs.
#[derive(Debug)]
pub struct Plan {
    /// Who it is.
    pub worker: WorkerId,
    /// From which queues it works.
    pub queues: Vec<Name>,
    /// Which kinds it can run; `None` for all.
    pub kinds: Option<Vec<Name>>,
    /// How many jobs it runs at a time.
    pub slots: usize,
    /// For how long it takes a job, unless it renews.
    pub lease: Duration,
    /// Whether it ends when nothing is due.
    pub drain: bool,
    /// Who wants to know.
    pub observer: Observer,
}

impl Plan {
    fn tell(&self, fence: Fence, fact: Fact) {
        self.observer.of_job(&self.worker, fence, fact);
    }

    fn tell_started(&self) {
        let fact = Fact::WorkerStarted {
            queues: self.queues.clone(),
            kinds: self.kinds.clone(),
            concurrency: self.slots,
        };
        self.observer.of_worker(&self.worker, fact);
    }

    /// Tells when the store is lost and when it is back, each once, whichever machine noticed. A right that the worker lacks
    /// does not come back by itself: that is told once, and the worker ends.
    fn tell_of_store(&self, desk: &Desk, problem: &Error) {
        desk.note_problem(problem);
        if problem.is_forbidden() {
            return tell_forbidden(&self.observer, &self.worker, desk, problem);
        }
        let loss = if problem.is_about_writing() { Loss::Unwritable } else { Loss::OutOfReach };
        if desk.store_lost(loss) {
            self.observer.of_worker(&self.worker, Fact::StoreLost { error: problem.to_string() });
        }
    }

    /// The store has answered, and perhaps written: if it was lost, that is told.
    fn tell_answered(&self, desk: &Desk, wrote: bool) {
        if desk.store_back(wrote) {
            self.observer.of_worker(&self.worker, Fact::StoreBack);
        }
    }

    /// A job was taken back because its lease was over. If that was once too often, it is dead.
    fn tell_lapsed(&self, lapse: &Lapse) {
        let Lapse { about, worker, became } = lapse;
        let fact = Fact::LeaseLapsed { from: worker.clone(), became: *became };
        self.tell(about.fence(), fact);
        self.tell_if_dead(lapse, "its lease was over, and it may not be tried again");
    }

    /// A job was taken back because its worker's process is gone. If that was once too often, it is dead.
    fn tell_vanished(&self, lapse: &Lapse) {
        let Lapse { about, worker, became } = lapse;
        let fact = Fact::HolderVanished { from: worker.clone(), became: *became };
        self.tell(about.fence(), fact);
        self.tell_if_dead(lapse, "its worker vanished, and it may not be tried again");
    }

    fn tell_if_dead(&self, lapse: &Lapse, reason: &str) {
        if lapse.became == State::Dead {
            self.tell(lapse.about.fence(), Fact::JobDead { reason: reason.to_owned() });
        }
    }
}

/// A worker that lacks a right gives back what it has, and ends.
pub(crate) fn tell_forbidden(observer: &Observer, worker: &WorkerId, desk: &Desk, problem: &Error) {
    if desk.fail(problem) {
        observer.of_worker(worker, Fact::StoreForbidden { error: problem.to_string() });
    }
}
