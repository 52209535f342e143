//! Read-only views of jobs, queues, workers and the store: the answers to calls that change
//! nothing.

use std::time::Duration;

use serde::{Deserialize, Serialize, Serializer};

use crate::clock::Timestamp;
use crate::job::{JobId, Json, Key, Name, State, Tenant, UnknownName};
use crate::lease::{Token, WorkerId};
use crate::ledger::{EffectKey, EffectRecord};
use crate::lifecycle::Verb;
use crate::record::JobRecord;

/// One event in a job's life. A plain success leaves none.
///
/// A verb that ended an attempt carries that attempt: its worker, its token and its start. `at` is
/// when it ended.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TimelineEntry {
    /// The job.
    pub job: JobId,
    /// When it happened.
    pub at: Timestamp,
    /// What happened.
    pub verb: Verb,
    /// Whether a call was refused because its token was stale. For [`Verb::Follow`] the token is
    /// valid, and it is the follow-up job that was refused.
    pub refused: bool,
    /// The token that the caller presented, or that the job had before.
    pub token: Token,
    /// The attempt's number. For a refusal: the attempt that had the token, or 0 if that is not
    /// known any more.
    pub attempt: u16,
    /// The worker that held the job; for a refusal, the worker that had the token.
    pub worker: Option<WorkerId>,
    /// When the attempt that this verb ended had started.
    pub from: Option<Timestamp>,
    /// The state of the job afterwards.
    pub became: State,
    /// The reason or the error, as text.
    pub note: Option<String>,
    /// How many older lines of this verb had been dropped by then.
    #[serde(default, skip_serializing_if = "is_none")]
    pub earlier: u64,
}

fn is_none(earlier: &u64) -> bool {
    *earlier == 0
}

impl TimelineEntry {
    /// How many lines of one verb a job keeps: those with the highest tokens. Refusals are all
    /// kept.
    pub fn kept(verb: Verb) -> usize {
        const KEPT: usize = 20;
        // A worker's return is looked up for as long as the line of its crash is there. It is
        // written later than that line, so more lines of returns are kept than of crashes.
        if verb == Verb::Return { 3 * KEPT } else { KEPT }
    }

    /// The name of the event: the verb, or `stale_write_blocked` for a refused call. A follow-up job
    /// that was refused is `follow_refused`: its caller held the job.
    pub fn event(&self) -> &'static str {
        match self.verb {
            verb if !self.refused => verb.name(),
            Verb::Follow => "follow_refused",
            _ => "stale_write_blocked",
        }
    }
}

/// A job with its timeline.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobDetail {
    /// The job.
    pub job: JobRecord,
    /// What happened to it, oldest first. A job that simply succeeded has no lines: its own times
    /// are enough.
    pub timeline: Vec<TimelineEntry>,
}

/// A job's current token and state: for a worker whose handler may have completed the job itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Current {
    /// Its latest token.
    pub token: Token,
    /// Its state.
    pub state: State,
}

/// The state and result of a job, for callers that wait for it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct JobOutcome {
    /// Its state.
    pub state: State,
    /// Its result, if it has succeeded and returned something.
    pub result: Option<Json>,
    /// Why it is dead or parked.
    pub reason: Option<String>,
}

/// Which jobs to list, newest first.
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
    /// Only with this tag.
    pub tag: Option<Name>,
    /// Only those that were enqueued with this key, of whatever tenant.
    pub key: Option<Key>,
    /// Only older than this job: the last one of the previous page.
    pub before: Option<JobId>,
}

/// The state of all queues.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Overview {
    /// The store's clock.
    pub at: Timestamp,
    /// A line for each queue and tenant that has jobs, ordered by name.
    pub lines: Vec<OverviewLine>,
}

/// One queue of one tenant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OverviewLine {
    /// The queue.
    pub queue: Name,
    /// The tenant.
    pub tenant: Tenant,
    /// Due and not claimed yet.
    pub ready: u64,
    /// Not due yet.
    pub waiting: u64,
    /// Claimed.
    pub running: u64,
    /// Waiting for a person or a signal.
    pub parked: u64,
    /// Dead and not deleted yet.
    pub dead: u64,
    /// How long the job that has been due the longest has waited for a worker.
    pub oldest_wait_ms: Option<i64>,
    /// How many succeeded within the last minute.
    pub succeeded_last_minute: u64,
    /// How many died within the last minute.
    pub died_last_minute: u64,
}

impl OverviewLine {
    /// The time window of the rates.
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

/// A lease as others see it. It gives no right to the job: only the holder's
/// [`crate::lease::Lease`] does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseView {
    /// The job.
    pub job: JobId,
    /// Its kind.
    pub kind: Name,
    /// The token.
    pub token: Token,
    /// The worker that holds it.
    pub worker: WorkerId,
    /// Since when.
    pub started_at: Timestamp,
    /// Until when, unless it is renewed.
    pub until: Timestamp,
}

/// The settings of an operator for a queue.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct QueueSettings {
    /// The queue.
    pub queue: Name,
    /// When it was paused, if it is: claims skip it.
    pub paused_at: Option<Timestamp>,
    /// How long succeeded jobs are kept; zero deletes them at once.
    pub keep_ms: i64,
    /// How long dead and cancelled jobs are kept.
    pub keep_dead_ms: i64,
}

impl QueueSettings {
    const DAY_MS: i64 = 24 * 60 * 60 * 1000;

    /// The settings of a queue that no operator has changed.
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

/// Which effects to list, those of the newest jobs first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EffectFilter {
    /// Only those in doubt.
    pub in_doubt: bool,
    /// Only of this job.
    pub job: Option<JobId>,
    /// Only of jobs older than this one: the last one of the previous page.
    pub before: Option<JobId>,
}

/// An effect as others see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EffectView {
    /// The effect.
    pub effect: EffectRecord,
    /// Whether it is unknown if the effect happened: its intent has no outcome, and the attempt
    /// that wrote it does not hold the job any more.
    pub in_doubt: bool,
    /// The job's state.
    pub state: State,
    /// The job's kind.
    pub kind: Name,
    /// The job's tenant.
    pub tenant: Tenant,
}

impl EffectView {
    /// The key under which outside systems know the effect.
    pub fn key(&self, store: &Identity) -> EffectKey {
        let (installation, job) = (store.installation, self.effect.job);
        EffectKey { installation, job, effect: self.effect.name.clone() }
    }
}

/// Jobs of one kind in one queue that are due and not claimed yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DueJobs {
    /// The queue.
    pub queue: Name,
    /// The kind.
    pub kind: Name,
    /// How many were counted. The count is bounded: from [`DueJobs::EACH`] on there may be more.
    pub jobs: u64,
}

impl DueJobs {
    /// How many lanes are checked. Each combination of queue, tenant and kind has a lane.
    pub const LANES: usize = 1_000;
    /// How many jobs of each lane are counted.
    pub const EACH: usize = 100;
}

/// A worker as others see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerView {
    /// The worker's id.
    pub worker: WorkerId,
    /// The queues that it claims from.
    pub queues: Vec<Name>,
    /// The kinds that it can run; `None` for all.
    pub kinds: Option<Vec<Name>>,
    /// When it registered, or last took its guard again.
    pub since: Timestamp,
    /// Whether its process holds its guard, the lock that ends with the process; `None` for a
    /// worker that cannot hold one.
    pub is_alive: Option<bool>,
}

/// A worker as the store keeps it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub struct WorkerRecord {
    /// The worker's id.
    pub worker: WorkerId,
    /// The queues that it claims from.
    pub queues: Vec<Name>,
    /// The kinds that it can run; `None` for all.
    pub kinds: Option<Vec<Name>>,
    /// Whether it could take its guard at all.
    pub guarded: bool,
    /// Since when the store had been running without a break when the guard was taken: on
    /// PostgreSQL the last start or recovery of the server, on SQLite the last break of the clock.
    pub under: Timestamp,
    /// How often the guard was taken.
    pub takings: u32,
    /// When the guard was last taken.
    pub taken_at: Timestamp,
    /// When the guard was first seen free, if it was not seen held since.
    pub free_since: Option<Timestamp>,
}

/// Which store this is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Random; part of every key that outside systems see.
    pub installation: uuid::Uuid,
    /// The epoch in which tokens and ids are issued now.
    pub epoch: u32,
    /// How the epoch was raised to that, oldest first.
    pub raises: Vec<Raise>,
}

/// A time at which the database may have gone back in time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Raise {
    /// The epoch that began.
    pub epoch: u32,
    /// When it was noticed.
    pub at: Timestamp,
    /// What the store noticed, or what an operator gave as the reason.
    pub reason: String,
}

/// The result of checking a part of the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checked {
    /// How many jobs were checked.
    pub looked: usize,
    /// The violations that were found.
    pub wrong: Vec<Wrong>,
    /// Where to continue; `None` when all jobs were checked.
    pub next: Option<JobId>,
}

/// A violation of a rule.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Wrong {
    /// The job it is about.
    pub job: JobId,
    /// The rule that is broken.
    pub rule: Rule,
    /// What was found, as text.
    pub what: String,
}

/// What must be true of everything that is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rule {
    /// A succeeded job was completed by its last claim.
    I3,
    /// Every job exists exactly once, and nothing is left of a deleted one.
    I9,
    /// No job stays running without a living holder.
    I11,
    /// The ledger agrees with the jobs.
    Ledger,
    /// Keys belong to the jobs that have them.
    Keys,
    /// A job stands in the lane that its names give, and in a suspect's lane only after enough
    /// crashes.
    Lane,
    /// No token or id is from an epoch that has not begun.
    Epoch,
    /// A rule that the functions of a newer release check, by its name.
    Unknown(UnknownName),
}

impl Rule {
    /// All rules of this release.
    pub const ALL: [Rule; 7] =
        [Rule::I3, Rule::I9, Rule::I11, Rule::Ledger, Rule::Keys, Rule::Lane, Rule::Epoch];

    /// The name, as every layer spells it.
    pub fn name(self) -> &'static str {
        match self {
            Rule::I3 => "i3",
            Rule::I9 => "i9",
            Rule::I11 => "i11",
            Rule::Ledger => "ledger",
            Rule::Keys => "keys",
            Rule::Lane => "lane",
            Rule::Epoch => "epoch",
            Rule::Unknown(name) => name.as_str(),
        }
    }

    /// The rule of this name. An unknown name is kept as [`Rule::Unknown`].
    pub fn named(name: &str) -> Rule {
        let known = Rule::ALL.into_iter().find(|rule| rule.name() == name);
        known.unwrap_or_else(|| Rule::Unknown(UnknownName::new(name)))
    }

    /// How long a lease may be over before it seems that no worker runs that could take the job
    /// back.
    pub const OVERDUE: Duration = Duration::from_secs(60);
}

impl Serialize for Rule {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}
