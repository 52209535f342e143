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
use self::desk::Desk;
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

    /// Tells when the store is lost and when it is back, each once, whoever noticed.
    fn tell_of_store(&self, desk: &Desk, problem: Option<&Error>) {
        let fact = match problem {
            Some(problem) if desk.store_lost() => Fact::StoreLost { error: problem.to_string() },
            None if desk.store_back() => Fact::StoreBack,
            _ => return,
        };
        self.observer.of_worker(&self.worker, fact);
    }

    fn tell_lapse(&self, lapse: &Lapse) {
        let Lapse { fence, worker, became } = lapse;
        self.tell_lapsed(*fence, Some(worker.clone()), *became);
    }

    /// A job was taken back. If that was once too often, it is dead.
    fn tell_lapsed(&self, fence: Fence, from: Option<WorkerId>, became: State) {
        self.tell(fence, Fact::LeaseLapsed { from, became });
        if became == State::Dead {
            let reason = "its worker vanished, and it may not be tried again".into();
            self.tell(fence, Fact::JobDead { reason });
        }
    }
}
