//! What people do: cancel, requeue, resume, purge, and change settings.

use std::time::Duration;

use serde::Serialize;

use super::Result;
use super::sealed::Sealed;
use crate::clock::{Timestamp, millis};
use crate::inspect::QueueSettings;
use crate::job::{JobId, Name, State};
use crate::lease::Token;
use crate::ledger::{self, Resolution};

/// What an operator does, from a shell or a page. Every call may be repeated.
pub trait Operate: Sealed + Send {
    /// Cancels jobs that have not ended. The worker of a running job learns of it at its next call.
    fn cancel(&mut self, jobs: &[JobId]) -> Result<Vec<Changed>>;

    /// Queues dead or cancelled jobs again, with their attempts and crashes reset.
    fn requeue(&mut self, jobs: &[AsSeen]) -> Result<Vec<Changed>>;

    /// Queues parked jobs again.
    fn resume(&mut self, jobs: &[JobId]) -> Result<Vec<Changed>>;

    /// Deletes ended jobs, with all that is stored about them.
    fn purge(&mut self, jobs: &[AsSeen]) -> Result<Vec<Changed>>;

    /// Changes the settings of a queue, and returns all of its settings.
    fn configure(&mut self, queue: &Name, change: &QueueChange) -> Result<QueueSettings>;

    /// Resolves an effect in doubt, for a job that is not running. If the job is parked and has no
    /// other effect in doubt, it is queued again.
    fn resolve(&mut self, job: JobId, effect: &Name, how: &Resolution) -> Result<Resolved>;

    /// Starts a new epoch, for a database that may have gone back in time although the store has
    /// not noticed it. From now on all tokens and ids are above every one that was ever issued.
    /// Returns the new epoch.
    fn raise_epoch(&mut self, reason: &str) -> Result<u32>;

    /// Sets, for the whole installation, how long a worker's lock must have been free before its
    /// process counts as gone: [`GUARD_GAP`](super::GUARD_GAP) to
    /// [`GUARD_GAP_LIMIT`](super::GUARD_GAP_LIMIT). Returns the previous value.
    fn set_guard_gap(&mut self, gap: Duration) -> Result<Duration>;
}

/// An ended job, in the version that the caller has seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AsSeen {
    /// The job.
    pub job: JobId,
    /// If set, the call applies only while the job still has this token. This makes a requeue
    /// repeatable, and keeps a purge from deleting a job that has run since.
    pub if_token: Option<Token>,
}

impl AsSeen {
    /// The job, whatever its token is now.
    pub fn any(job: JobId) -> AsSeen {
        AsSeen { job, if_token: None }
    }

    /// The job, only if it still has this token.
    pub fn at(job: JobId, token: Token) -> AsSeen {
        AsSeen { job, if_token: Some(token) }
    }

    /// Whether the job's token has changed since the caller saw it.
    pub fn moved_on(&self, current: Token) -> bool {
        self.if_token.is_some_and(|token| token != current)
    }
}

/// The answer to an operator's request about one job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(tag = "verdict", content = "state", rename_all = "snake_case")]
pub enum Changed {
    /// Done, now or when it was first requested.
    Applied,
    /// Not possible in this state; nothing was changed.
    Refused(State),
    /// The job does not exist (any more).
    NotFound,
}

/// A change of a queue's settings. A setting that is `None` stays as it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct QueueChange {
    /// Pauses or resumes the queue.
    pub pause: Option<Pause>,
    /// How long succeeded jobs are kept; zero deletes them at once.
    pub keep: Option<Duration>,
    /// How long dead and cancelled jobs are kept.
    pub keep_dead: Option<Duration>,
}

/// Whether claims skip a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Pause {
    Pause,
    Resume,
}

impl QueueChange {
    /// The settings after this change. Pausing a paused queue keeps the time of its first pause.
    pub fn apply(&self, settings: &mut QueueSettings, now: Timestamp) {
        match self.pause {
            Some(Pause::Pause) => settings.paused_at = settings.paused_at.or(Some(now)),
            Some(Pause::Resume) => settings.paused_at = None,
            None => {}
        }
        settings.keep_ms = self.keep.map_or(settings.keep_ms, millis);
        settings.keep_dead_ms = self.keep_dead.map_or(settings.keep_dead_ms, millis);
    }
}

/// The answer to an operator who resolves an effect in doubt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(tag = "verdict", content = "detail", rename_all = "snake_case")]
pub enum Resolved {
    /// Resolved, now or when it was first requested. This is the job's state now.
    Applied(State),
    /// The effect is not in doubt; this is its standing.
    NotInDoubt(ledger::Standing),
    /// The job is running: its worker decides.
    Running,
    /// The job has succeeded, so nothing would ever send the effect again. The effect can only be
    /// resolved as committed.
    Succeeded,
    /// The job has no such effect.
    NoSuchEffect,
    /// The job does not exist (any more).
    NotFound,
}
