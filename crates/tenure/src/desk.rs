//! What a worker process keeps about its own work: which leases it has, which attempts have ended
//! and are not settled yet, and whether it should continue. The machines share state only here.
//!
//! Everything is behind one mutex that is held only briefly. Nothing here calls a store or reads
//! the time. Nothing waits, except for the functions in which a thread rests (`rest…`), and
//! `outcomes_answered`. So a simulation can step the same machines on one thread.
//!
//! Handlers and machines both use the desk; the desk uses neither of them.

#![cfg_attr(
    not(feature = "drill"),
    allow(unreachable_pub, reason = "the machines are stepped from outside by the proof alone")
)]

mod ended;
mod failure;
mod hold;
mod leases;
mod outcomes;
mod pace;
mod relief;
mod waiting;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

pub use self::ended::{Committed, Returned};
pub(crate) use self::ended::{Ended, Found};
use self::failure::Failure;
pub(crate) use self::failure::Loss;
pub use self::hold::Hold;
use self::leases::Held;
use self::outcomes::Outcomes;
pub(crate) use self::outcomes::Unwritten;
use self::pace::Pace;
use self::relief::Relief;
use self::waiting::Waiting;
pub(crate) use self::waiting::{Begun, may_wait};
use crate::clock::Moment;
use crate::lease::Fence;
use crate::telemetry::Tally;

/// How far a worker is in its shutdown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// It claims and works.
    Working,
    /// It claims nothing more, and lets running jobs finish.
    Finishing,
    /// It stops running jobs and gives them back.
    Releasing,
    /// It has ended.
    Over,
}

/// Why a handler must stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// The job belongs to another worker by now.
    Lost,
    /// The job was cancelled.
    Cancelled,
    /// It has run for as long as it may (`max_runtime`).
    TimedOut,
    /// The worker shuts down.
    Shutdown,
}

/// The desk of one worker process.
#[derive(Debug)]
pub struct Desk {
    state: Mutex<State>,
    /// Wakes the dispatcher: there is something to settle, or perhaps something to claim.
    poked: Condvar,
    /// Wakes the relief: there is a batch for it.
    relief_wanted: Condvar,
    /// Wakes the other threads: the stage has changed.
    staged: Condvar,
    /// Wakes `testing::Sandbox`, which runs no machine but the dispatcher: the store has confirmed
    /// the outcome of an effect, or the outcome need not be written any more.
    answered: Notify,
}

#[derive(Debug)]
struct State {
    stage: Stage,
    slots: usize,
    /// Executions that have not returned, including those whose attempt is over.
    busy: usize,
    held: BTreeMap<Fence, Held>,
    /// Attempts that were claimed ahead of time, and begin when a slot is free.
    waiting: Waiting,
    /// How many may wait, by how long jobs took lately.
    pace: Pace,
    ended: Vec<Ended>,
    /// Which calls the dispatcher and its relief have under way, and what the relief could not
    /// finish.
    relief: Relief,
    /// Outcomes of effects that the store has not confirmed yet, by attempt and effect.
    unwritten: Outcomes,
    /// The leases that are being renewed right now, and since when.
    renewing: (BTreeSet<Fence>, Moment),
    poked: bool,
    /// How many ended attempts wake the dispatcher.
    enough: usize,
    failure: Failure,
    leaves_nothing: bool,
    /// How often the store refused a write of a handler.
    refused: u64,
    /// The settlements that the store has applied.
    tally: Tally,
    drains: bool,
    /// How many workers share the store, if its changes wake this one; 0 if this worker must poll.
    company: usize,
    /// It neglects its leases.
    stalled: bool,
}

impl Desk {
    /// The desk of a worker that runs up to `slots` jobs at a time.
    pub fn new(slots: usize) -> Desk {
        Desk {
            state: Mutex::new(State {
                stage: Stage::Working,
                slots,
                busy: 0,
                held: BTreeMap::new(),
                waiting: Waiting::default(),
                pace: Pace::new(slots),
                ended: Vec::new(),
                relief: Relief::default(),
                unwritten: Outcomes::new(),
                renewing: (BTreeSet::new(), Moment::default()),
                poked: true,
                enough: 1,
                failure: Failure::default(),
                leaves_nothing: false,
                refused: 0,
                tally: Tally::default(),
                drains: false,
                company: 1,
                stalled: false,
            }),
            poked: Condvar::new(),
            relief_wanted: Condvar::new(),
            staged: Condvar::new(),
            answered: Notify::new(),
        }
    }

    /// The desk of a worker that neglects its leases: it does not renew them, trusts them for ever,
    /// and takes back no jobs of other workers. In tests, such a worker stands for a process that
    /// was suspended and does not know it. A sandbox uses this desk because its clock stands still,
    /// so that its leases never end.
    pub fn stalled(slots: usize) -> Desk {
        let desk = Desk::new(slots);
        desk.state().stalled = true;
        desk
    }

    /// Whether this worker neglects its leases.
    pub(crate) fn is_stalled(&self) -> bool {
        self.state().stalled
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No code under this lock can panic halfway through a change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The current stage.
    pub fn stage(&self) -> Stage {
        self.state().stage
    }

    /// Advances to a later stage; there is no way back.
    pub fn advance(&self, stage: Stage) {
        let mut state = self.state();
        state.stage = state.stage.max(stage);
        self.wake(state);
        self.relief_wanted.notify_all();
        self.staged.notify_all();
    }

    /// From now on the worker ends when nothing is due and nothing runs.
    #[cfg(feature = "drill")]
    pub fn drain(&self) {
        self.state().drains = true;
        self.poke();
    }

    /// Tells the dispatcher that something may have changed in the store.
    pub fn poke(&self) {
        self.wake(self.state());
    }

    /// Wakes the dispatcher after a change of this state.
    fn wake(&self, mut state: MutexGuard<'_, State>) {
        let was_poked = std::mem::replace(&mut state.poked, true);
        // Unlocked first, so that the dispatcher does not have to wait for the lock.
        drop(state);
        // If the dispatcher was poked before and has not looked at the desk since, it is not
        // resting: nothing needs to be woken.
        if !was_poked {
            self.poked.notify_all();
        }
    }

    /// Sets how many workers share the store, or 0 if changes of the store do not wake this one.
    pub(crate) fn set_company(&self, workers: usize) {
        self.state().company = workers;
    }

    /// Whether the dispatcher has been poked.
    #[cfg(feature = "drill")]
    pub fn is_poked(&self) -> bool {
        self.state().poked
    }

    /// The dispatcher rests until it is poked, or for `length`.
    pub(crate) fn rest(&self, length: Duration) {
        let state = self.state();
        // The result does not matter: the dispatcher checks the desk either way.
        let _ = self.poked.wait_timeout_while(state, length, |state| !state.poked);
    }

    /// The other threads rest until the stage changes, or for `length`.
    pub(crate) fn rest_unless_staged(&self, length: Duration) {
        let state = self.state();
        let before = state.stage;
        let _ = self.staged.wait_timeout_while(state, length, |state| state.stage == before);
    }
}

#[cfg(test)]
mod tests;
