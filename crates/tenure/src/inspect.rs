//! How jobs are seen: the answers to questions that change nothing.

mod unknown;

use std::time::Duration;

use serde::{Deserialize, Serialize, Serializer};

pub use self::unknown::UnknownName;
use crate::clock::Timestamp;
use crate::job::{JobId, JobRecord, Json, Name, State, Tenant};
use crate::lease::{Token, WorkerId};
use crate::ledger::Effect;
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
    /// The attempt's number. Of a refusal: the attempt that had the token, or 0 if that is not known any more.
    pub attempt: u16,
    /// The worker that held the job; of a refusal, the one that had the token.
    pub worker: Option<WorkerId>,
    /// When the attempt that this ended had begun.
    pub from: Option<Timestamp>,
    /// The state of the job afterwards.
    pub became: State,
    /// The reason or the error, in words.
    pub note: Option<String>,
    /// How many older lines of this verb have been dropped by then.
    #[serde(default, skip_serializing_if = "is_none")]
    pub earlier: u64,
}

fn is_none(earlier: &u64) -> bool {
    *earlier == 0
}

impl TimelineEntry {
    /// How many lines of one verb a job keeps: those of the highest tokens. Refusals are all kept.
    pub fn kept(verb: Verb) -> usize {
        const KEPT: usize = 20;
        // A worker's return is looked up for as long as the line that tells of its crash is there, and is written later.
        if verb == Verb::Return { 3 * KEPT } else { KEPT }
    }

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

/// Where a job stands: what a worker needs to know of a job that may have ended without it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub struct Current {
    /// Its latest token.
    pub token: Token,
    /// Its state.
    pub state: State,
}

/// What a job has come to, for callers that wait for it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub struct JobOutcome {
    /// Where it is in its life.
    pub state: State,
    /// What it returned, if it has succeeded and returned something.
    pub result: Option<Json>,
    /// Why it is dead or parked.
    pub reason: Option<String>,
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

/// Which effects to show, those of the newest jobs first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EffectFilter {
    /// Only those in doubt.
    pub in_doubt: bool,
    /// Only of this job.
    pub job: Option<JobId>,
    /// Only of jobs older than this one: the last one of the page before.
    pub before: Option<JobId>,
}

/// An effect as others see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct EffectView {
    /// The effect.
    #[serde(flatten)]
    pub effect: Effect,
    /// Whether it may have happened and nobody knows: its intent has no outcome, and the attempt
    /// that wrote it does not hold the job any more.
    pub in_doubt: bool,
    /// What the job is.
    #[serde(rename = "job_state")]
    pub state: State,
    /// The job's kind.
    pub kind: Name,
    /// The job's tenant.
    pub tenant: Tenant,
}

/// Jobs of one kind in one queue that are due and that nobody has taken yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Due {
    /// The queue.
    pub queue: Name,
    /// The kind.
    pub kind: Name,
    /// How many were seen. The look is bounded: from [`Due::EACH`] on there may be more.
    pub jobs: u64,
}

impl Due {
    /// How many lanes are looked at: those of as many queues, tenants and kinds.
    pub const LANES: usize = 1_000;
    /// How many jobs of each lane are counted.
    pub const EACH: usize = 100;
}

/// A worker as others see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct WorkerView {
    /// Who.
    pub worker: WorkerId,
    /// From which queues it works.
    pub queues: Vec<Name>,
    /// Which kinds it can run; `None` for all.
    pub kinds: Option<Vec<Name>>,
    /// When it made itself known, or last took its guard again.
    pub since: Timestamp,
    /// Whether its process holds the lock that ends with it; unknown for one that cannot hold one.
    pub is_alive: Option<bool>,
}

/// A worker as the store keeps it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub struct WorkerRecord {
    /// Who.
    pub worker: WorkerId,
    /// From which queues it works.
    pub queues: Vec<Name>,
    /// Which kinds it can run; `None` for all.
    pub kinds: Option<Vec<Name>>,
    /// Whether it could take its lock at all.
    pub guarded: bool,
    /// Under which start of the store it was taken.
    pub under: Timestamp,
    /// How often it was taken.
    pub takings: u32,
    /// When it was last taken.
    pub taken_at: Timestamp,
    /// When the lock was first seen free, if nobody has seen it held since.
    pub free_since: Option<Timestamp>,
}

/// Which store this is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Identity {
    /// Random; a part of every key that outside systems see.
    pub installation: uuid::Uuid,
    /// The epoch that tokens and ids are issued in now.
    pub epoch: u32,
    /// How it came to that, oldest first.
    pub raises: Vec<Raise>,
}

/// A moment at which the database may have gone back in time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Raise {
    /// The epoch that began.
    pub epoch: u32,
    /// When it was noticed.
    pub at: Timestamp,
    /// What was noticed, or what an operator said.
    pub reason: String,
}

/// What a look at part of the store came to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Checked {
    /// How many jobs were looked at.
    pub looked: usize,
    /// What must not be.
    pub wrong: Vec<Wrong>,
    /// Where to go on; nothing when all were looked at.
    pub next: Option<JobId>,
}

/// Something that must not be.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Wrong {
    /// The job it is about.
    pub job: JobId,
    /// The rule that is broken.
    pub rule: Rule,
    /// What was seen, in words.
    pub what: String,
}

/// What must be true of everything that is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rule {
    /// Succeeded means completed, by the last claim.
    I3,
    /// Every job is there once, and nothing is left of one that is gone.
    I9,
    /// Nothing stays running without a living holder.
    I11,
    /// The ledger agrees with the jobs.
    Ledger,
    /// Keys belong to the jobs that carry them.
    Keys,
    /// A job stands in the lane that its names give, and in a suspect's only after enough crashes.
    Lane,
    /// No number is from an epoch that has not begun.
    Epoch,
    /// What the functions of a newer release hold jobs against, by its name.
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

    /// The rule of this name. A name that this release does not know is kept.
    pub fn named(name: &str) -> Rule {
        let known = Rule::ALL.into_iter().find(|rule| rule.name() == name);
        known.unwrap_or_else(|| Rule::Unknown(UnknownName::new(name)))
    }

    /// For how long a lease may be over before nobody seems to be there to take the job back.
    pub const OVERDUE: Duration = Duration::from_secs(60);
}

impl Serialize for Rule {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}
