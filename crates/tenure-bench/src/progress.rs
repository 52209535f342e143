//! How far a run has come. The run writes this, and the command reads and shows it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// What is being measured, and how far that is.
#[derive(Debug, Default)]
pub struct Progress {
    doing: Mutex<String>,
    step: AtomicU64,
    steps: AtomicU64,
    done: AtomicU64,
    of: AtomicU64,
}

impl Progress {
    /// What is being done, for people.
    pub fn doing(&self) -> String {
        self.doing.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How many measures are over, and how many there are in all rounds.
    pub fn steps(&self) -> (u64, u64) {
        (self.step.load(Ordering::Relaxed), self.steps.load(Ordering::Relaxed))
    }

    /// How many jobs of the present measure were enqueued or have run, and how many will be.
    pub fn jobs(&self) -> (u64, u64) {
        (self.done.load(Ordering::Relaxed), self.of.load(Ordering::Relaxed))
    }

    /// There will be so many steps.
    pub(crate) fn plan(&self, steps: u64) {
        self.steps.store(steps, Ordering::Relaxed);
    }

    /// A step begins.
    pub(crate) fn begin(&self, doing: String) {
        *self.doing.lock().unwrap_or_else(PoisonError::into_inner) = doing;
        self.done.store(0, Ordering::Relaxed);
        self.of.store(0, Ordering::Relaxed);
    }

    /// A step is over.
    pub(crate) fn end(&self) {
        self.step.fetch_add(1, Ordering::Relaxed);
    }

    /// So many more jobs will be enqueued or run.
    pub(crate) fn expect(&self, jobs: u64) {
        self.of.fetch_add(jobs, Ordering::Relaxed);
    }

    /// So many more jobs were enqueued or have run.
    pub(crate) fn moved(&self, jobs: u64) {
        self.done.fetch_add(jobs, Ordering::Relaxed);
    }
}
