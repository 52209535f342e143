//! How jobs are seen: the answers to questions that change nothing.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use crate::job::{JobId, JobRecord, Name, State, Tenant};
use crate::lease::{Token, WorkerId};
use crate::lifecycle::Verb;

/// One thing that happened to a job and was not the happy path.
///
/// A verb that ended an attempt carries that attempt: who, under which token, from when. `at` is
/// when it ended.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TimelineEntry {
    /// The job.
    pub job: JobId,
    /// When.
    pub at: Timestamp,
    /// What.
    pub verb: Verb,
    /// It was refused, because the token was stale: nothing changed but this line.
    pub refused: bool,
    /// The token that was shown, or that the job had before.
    pub token: Token,
    /// The attempt's number.
    pub attempt: u16,
    /// Who held the job.
    pub worker: Option<WorkerId>,
    /// When the attempt that this ended had begun.
    pub from: Option<Timestamp>,
    /// The state of the job afterwards.
    pub became: State,
    /// The reason or the error, in words.
    pub note: Option<String>,
}

impl TimelineEntry {
    /// The name of the event: the verb, or `stale_write_blocked`.
    pub fn event(&self) -> &'static str {
        if self.refused { "stale_write_blocked" } else { self.verb.name() }
    }
}

/// A job with its story.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct JobDetail {
    /// The job.
    #[serde(flatten)]
    pub job: JobRecord,
    /// What happened to it, oldest first. A job that simply succeeded has no lines: its own times
    /// tell that story.
    pub timeline: Vec<TimelineEntry>,
}

/// Which jobs to show, newest first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    /// Only in this state.
    pub state: Option<State>,
    /// Only in this queue.
    pub queue: Option<Name>,
    /// Only of this tenant.
    pub tenant: Option<Tenant>,
    /// Only of this kind.
    pub kind: Option<Name>,
    /// Only older than this job: the last one of the page before.
    pub before: Option<JobId>,
}

/// The state of all queues at a glance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Overview {
    /// The store's clock.
    pub at: Timestamp,
    /// A line for each queue and tenant that has jobs, in order of name.
    pub lines: Vec<OverviewLine>,
}

/// One queue of one tenant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OverviewLine {
    /// The queue.
    pub queue: Name,
    /// The tenant.
    pub tenant: Tenant,
    /// Due, and free to be claimed.
    pub ready: u64,
    /// Not due yet.
    pub waiting: u64,
    /// Claimed.
    pub running: u64,
    /// Waiting for a person or a signal.
    pub parked: u64,
    /// Dead, and kept.
    pub dead: u64,
    /// How long the job that has been due the longest has been waiting for a worker.
    pub oldest_wait_ms: Option<i64>,
    /// How many succeeded within the last minute.
    pub succeeded_last_minute: u64,
    /// How many died within the last minute.
    pub died_last_minute: u64,
}

impl OverviewLine {
    /// The window of the rates.
    pub const WINDOW: Duration = Duration::from_secs(60);

    /// A line with no jobs.
    pub fn empty(queue: Name, tenant: Tenant) -> OverviewLine {
        OverviewLine {
            queue,
            tenant,
            ready: 0,
            waiting: 0,
            running: 0,
            parked: 0,
            dead: 0,
            oldest_wait_ms: None,
            succeeded_last_minute: 0,
            died_last_minute: 0,
        }
    }
}

/// A lease as others see it. It is not a right: only the holder's [`crate::lease::Lease`] is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LeaseView {
    /// The job.
    pub job: JobId,
    /// Its kind.
    pub kind: Name,
    /// The token.
    pub token: Token,
    /// Who holds it.
    pub worker: WorkerId,
    /// Since when.
    pub started_at: Timestamp,
    /// Until when, unless it is renewed.
    pub until: Timestamp,
}

/// What an operator has set for a queue.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct QueueSettings {
    /// The queue.
    pub queue: Name,
    /// Claims pass it by since then.
    pub paused_at: Option<Timestamp>,
    /// How long succeeded jobs are kept; zero deletes them at once.
    pub keep_ms: i64,
    /// How long dead and cancelled jobs are kept.
    pub keep_dead_ms: i64,
}

impl QueueSettings {
    const DAY_MS: i64 = 24 * 60 * 60 * 1000;

    /// What holds for a queue that nobody has set anything for.
    pub fn default_for(queue: Name) -> QueueSettings {
        QueueSettings {
            queue,
            paused_at: None,
            keep_ms: 7 * QueueSettings::DAY_MS,
            keep_dead_ms: 30 * QueueSettings::DAY_MS,
        }
    }

    /// How long a job that ended in `state` is kept.
    pub fn keep(&self, state: State) -> Duration {
        let kept = if state == State::Succeeded { self.keep_ms } else { self.keep_dead_ms };
        Duration::from_millis(u64::try_from(kept).unwrap_or(0))
    }
}
