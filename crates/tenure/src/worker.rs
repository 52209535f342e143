//! How jobs run: a worker claims them, keeps their leases, calls their handlers and settles the
//! attempts.
//!
//! The work is done by machines that are stepped: the dispatcher ([`dispatch`](self), with its
//! settler), its relief, the renewer and the sweeper. `step` does what is due and returns when to
//! call it again. In production each machine has its own thread; in a simulation one thread steps
//! them all, in an order derived from a seed.

#![cfg_attr(
    not(feature = "drill"),
    allow(unreachable_pub, reason = "the machines are stepped from outside by the proof alone")
)]

pub(crate) mod attempt;
mod build;
mod dispatch;
mod relief;
mod renew;
mod settle;
mod shutdown;
mod sweep;
mod threads;
#[cfg(test)]
mod troubled;

use std::sync::Arc;
use std::time::Duration;

/// The machines, for the simulation, which steps them itself.
#[cfg(feature = "drill")]
pub(crate) mod machines {
    pub use super::attempt::decide;
    pub use super::dispatch::{Crew, Dispatcher};
    pub use super::relief::Relief;
    pub use super::renew::Renewer;
    pub use super::sweep::Sweeper;
    pub use super::{NextStep, Plan};
    pub use crate::desk::{Cause, Committed, Desk, Hold, Returned, Stage};
}

pub use self::build::Worker;
pub(crate) use self::dispatch::{Crew, Dispatcher};
use self::relief::Relief;
use self::renew::Renewer;
pub use self::shutdown::{Running, shutdown_signal};
use self::sweep::Sweeper;
use crate::client::Waiters;
use crate::clock::Moment;
use crate::desk::{Desk, Loss};
use crate::job::{JobId, Name, State};
use crate::lease::WorkerId;
use crate::record::About;
use crate::store::{Error, Lapse};
use crate::telemetry::{Fact, Observer};

/// When a machine wants to be called again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NextStep {
    /// At once: there may be more to do.
    Again,
    /// At this time, or earlier if the desk is poked.
    At(Moment),
    /// Never.
    Done,
}

/// The settings of a worker. They do not change while it runs.
#[derive(Debug)]
pub struct Plan {
    /// The worker's id.
    pub worker: WorkerId,
    /// The queues that it claims from.
    pub queues: Vec<Name>,
    /// The kinds that it can run; `None` for all.
    pub kinds: Option<Vec<Name>>,
    /// How many jobs it runs at a time.
    pub slots: usize,
    /// How much work it claims ahead of its free slots, as time that its slots need for it.
    pub ahead: Duration,
    /// How many ended attempts are worth a second call of the store while one is under way; 0: no
    /// second call is ever made, because the store serves one at a time.
    pub relief: usize,
    /// The length of a lease, and of each renewal.
    pub lease: Duration,
    /// Whether it ends when nothing is due and nothing runs.
    pub drain: bool,
    /// What receives the events.
    pub observer: Observer,
    /// The callers of this process that wait for jobs to end.
    pub(crate) waiters: Arc<Waiters>,
}

/// How much work a worker claims ahead, unless [`Worker::claim_ahead`] sets another time.
const AHEAD: Duration = Duration::from_millis(20);

/// How many ended attempts are worth a second call, where the store can serve two at once. If there
/// are fewer, they wait until the call under way has ended.
const RELIEF: usize = 32;

impl Plan {
    /// The plan of a worker that runs one job at a time, of any kind, from the default queue, and
    /// whose events nothing receives.
    pub fn new(worker: WorkerId) -> Plan {
        Plan {
            worker,
            queues: vec![Name::default_queue()],
            kinds: None,
            slots: 1,
            ahead: AHEAD,
            relief: 0,
            lease: Duration::from_secs(30),
            drain: false,
            observer: Observer::default(),
            waiters: Arc::default(),
        }
    }

    fn tell(&self, about: &Arc<About>, fact: Fact) {
        self.observer.of_job(&self.worker, about, fact);
    }

    /// A job is in this state now: wakes the callers that wait for its end, if it has ended.
    fn wake_waiting(&self, job: JobId, state: State) {
        if state.has_ended() {
            self.waiters.wake(job);
        }
    }

    fn tell_started(&self) {
        let fact = Fact::WorkerStarted {
            queues: self.queues.clone(),
            kinds: self.kinds.clone(),
            concurrency: self.slots,
        };
        self.observer.of_worker(&self.worker, fact);
    }

    /// Reports that the store is lost, once for each outage, whichever machine noticed it. A
    /// missing right does not come back by itself: it is reported once, and the worker ends.
    fn tell_of_store(&self, desk: &Desk, problem: &Error) {
        desk.note_problem(problem);
        if problem.is_forbidden() {
            return desk.forbidden(&self.observer, &self.worker, problem);
        }
        let loss = if problem.is_about_writing() { Loss::Unwritable } else { Loss::OutOfReach };
        if desk.store_lost(loss) {
            self.observer.of_worker(&self.worker, Fact::StoreLost { error: problem.to_string() });
        }
    }

    /// The store answered a call, and wrote if `wrote`. If it was lost, reports that it is back.
    fn tell_answered(&self, desk: &Desk, wrote: bool) {
        if desk.store_back(wrote) {
            self.observer.of_worker(&self.worker, Fact::StoreBack);
        }
    }

    /// Reports a job that was taken back because its lease was over, and its death if that was its
    /// last crash or attempt.
    fn tell_lapsed(&self, lapse: &Lapse) {
        let fact = Fact::LeaseLapsed { from: lapse.worker.clone(), became: lapse.became };
        self.tell_taken_back(lapse, fact, "its lease was over, and it may not be tried again");
    }

    /// Reports a job that was taken back because its worker's process is gone, and its death if
    /// that was its last crash or attempt.
    fn tell_vanished(&self, lapse: &Lapse) {
        let fact = Fact::HolderVanished { from: lapse.worker.clone(), became: lapse.became };
        self.tell_taken_back(lapse, fact, "its worker vanished, and it may not be tried again");
    }

    fn tell_taken_back(&self, lapse: &Lapse, fact: Fact, reason: &str) {
        self.wake_waiting(lapse.about.job, lapse.became);
        let about = Arc::new(lapse.about.clone());
        self.tell(&about, fact);
        if lapse.became == State::Dead {
            self.tell(&about, Fact::JobDead { reason: reason.to_owned(), ran_ms: None });
        }
    }
}

#[cfg(test)]
mod tests;
