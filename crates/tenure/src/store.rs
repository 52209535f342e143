//! The port that every engine implements, in the verbs of the domain: how jobs are stored, run and
//! read.
//!
//! The port is synchronous, takes batches, and returns one answer per item: a lost lease is an
//! answer, not an error. Only the store's clock counts, so callers pass durations, not times.
//! Policy lives in [`crate::lifecycle`]. SQL lives in `sql/<engine>/verbs`, one file per verb,
//! under the names used here.

mod address;
mod checks;
mod error;
pub(crate) mod lane;
mod limits;
pub mod migrate;
pub(crate) mod place;
#[cfg(feature = "postgres")]
pub mod postgres;
mod row;
pub mod sqlite;
pub(crate) mod thread;

use std::time::{Duration, Instant};

use serde::Serialize;

pub use self::address::Address;
pub use self::checks::{
    LEASE_LIMIT, check_batch, check_claim, check_entries, check_guard_gap, check_jobs, check_lease,
    check_resolution, check_settlements,
};
pub use self::error::{Error, Incomplete, Result, Verdict};
pub(crate) use self::limits::promote_limit;
pub use self::limits::{
    AFTER_STALL, GROUP_LIMIT, GUARD_GAP, GUARD_GAP_LIMIT, LAPSE_LIMIT, PASS_LIMIT, PROMOTE_LIMIT,
    PULSE, STALL, STALLED_GAP, SUSPICION, WORKER_MEMORY,
};
use crate::clock::{Timestamp, millis};
use crate::inspect::{
    Checked, Current, EffectFilter, EffectView, Filter, Identity, JobDetail, JobOutcome, LeaseView,
    Overview, QueueSettings, WorkerView,
};
use crate::job::{About, Extras, JobId, JobRecord, Json, Name, NewJob, Progress, State, Tenant};
use crate::lease::{Fence, Lease, Stale, Token, WorkerId};
use crate::ledger::{self, Entry, Resolution};
use crate::lifecycle::{Outcome, Standing};

/// One connection to a store. Every engine passes the same test suite and gives the same answers.
///
/// After an unknown outcome, every call may be repeated: the repeat returns what really happened
/// and changes nothing more. There are two exceptions: `enqueue` without a key, and `claim`; after
/// a claim, [`Store::held`] returns what it leased.
pub trait Store: sealed::Sealed + Send {
    // ── Enqueue ──

    /// Stores jobs, all or none, and answers for each. A job whose key is taken is not stored
    /// again.
    fn enqueue(&mut self, jobs: &[NewJob]) -> Result<Vec<Enqueued>>;

    // ── Run ──

    /// Leases up to `ask.n` due jobs, fairly between tenants; within a tenant by priority, then by
    /// age. Before that, a claim promotes jobs that have become due and lapses leases that are
    /// over, so that jobs make progress even if nothing but claims runs.
    fn claim(&mut self, ask: &Claim) -> Result<Claimed>;

    /// The jobs that this worker holds, in the form in which `claim` returns them; with `request`,
    /// only those of the claim with that number. Call this after a claim whose answer was lost.
    /// That claim may still be in flight, so a later call may return more.
    fn held(&mut self, worker: &WorkerId, request: Option<i64>) -> Result<Vec<Attempt>>;

    /// Extends leases to `length` from now. Never shortens a lease, and never extends one beyond
    /// the job's maximum runtime.
    fn renew(&mut self, fences: &[Fence], length: Duration) -> Result<Vec<Renewed>>;

    /// Records the progress of jobs, each under its token. Replaces the progress recorded before.
    /// Neither extends a lease nor waits for a locked row.
    fn progress(&mut self, reports: &[Report]) -> Result<Vec<Reported>>;

    /// Ends attempts. The token decides, not the lease's end: a settlement under the latest token
    /// of a running job is applied, however late it arrives.
    fn settle(&mut self, settlements: &[Settlement]) -> Result<Vec<Settled>>;

    /// Settles and claims in one transaction, for a worker whose slots become free as it settles.
    fn settle_and_claim(
        &mut self,
        settlements: &[Settlement],
        ask: &Claim,
    ) -> Result<(Vec<Settled>, Claimed)>;

    /// Writes and reads effects and steps, each entry under its job's token. Entries of one job are
    /// applied in their order.
    fn ledger(&mut self, entries: &[Entry]) -> Result<Vec<ledger::Answer>>;

    // ── Take jobs back ──

    /// Registers a worker, and guards it with this connection: from now on the death of its process
    /// is noticed within a second (at the default guard gap), as long as `renew` or `wait` keep the
    /// connection in use. If the connection breaks, it takes the guard again when it reconnects.
    fn register(&mut self, worker: &Registration) -> Result<Guarded>;

    /// Deletes the registration of a worker that has nothing left to do.
    fn retire(&mut self, worker: &WorkerId) -> Result<()>;

    /// Lapses up to `limit` jobs of workers whose processes are gone, however long their leases
    /// still run. One call cannot tell that a process is gone: call this a few times a second.
    fn vanished(&mut self, limit: usize) -> Result<Vec<Lapse>>;

    /// Records that the store can be reached and written to, while jobs are running. A gap between
    /// beats means that the store stalled: no worker could renew, so leases from before the stall
    /// run for their whole length again. Returns whether this caller should now call
    /// [`Store::vanished`] and [`Store::overdue`] for all workers. Call this several times a
    /// second.
    fn beat(&mut self) -> Result<Beat>;

    /// Running jobs whose lease has been over for `grace`, the longest first. Changes nothing, so
    /// the call is cheap. If the caller runs late (its machine was suspended), it passes a grace,
    /// because other workers may have been suspended with it and need time to renew.
    fn overdue(&mut self, limit: usize, grace: Duration) -> Result<Vec<Fence>>;

    /// Lapses overdue jobs: each goes back to its queue, or is buried when its attempts or crashes
    /// are used up. Each is checked again when it is written, because its worker may have renewed
    /// or settled since [`Store::overdue`] returned it.
    fn lapse(&mut self, fences: &[Fence]) -> Result<Vec<Lapsed>>;

    // ── Operate ──

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

    /// Tells the store that its database may have gone back in time where the store cannot notice
    /// it by itself. From now on all tokens and ids are above every one that was ever issued.
    /// Returns the new epoch.
    fn raise_epoch(&mut self, reason: &str) -> Result<u32>;

    /// Sets, for the whole installation, how long a worker's lock must have been free before its
    /// process counts as gone: [`GUARD_GAP`] to [`GUARD_GAP_LIMIT`]. Returns the previous value.
    fn set_guard_gap(&mut self, gap: Duration) -> Result<Duration>;

    /// Deletes up to `limit` ended jobs whose retention is over, and up to `limit` expired keys.
    fn prune(&mut self, limit: usize) -> Result<Pruned>;

    // ── Look ──

    /// The token and the state of each job, and nothing else; `None` for a job that does not exist
    /// (any more). A worker calls this when its handler may have completed the job itself.
    fn current(&mut self, jobs: &[JobId]) -> Result<Vec<Option<Current>>>;

    /// The state of a job and what came of it, for callers that wait for it.
    fn outcome(&mut self, id: JobId) -> Result<Option<JobOutcome>>;

    /// One job and its timeline.
    fn job(&mut self, id: JobId) -> Result<Option<JobDetail>>;

    /// A page of jobs, newest first.
    fn jobs(&mut self, filter: &Filter, limit: usize) -> Result<Vec<JobRecord>>;

    /// Counts for all queues.
    fn overview(&mut self) -> Result<Overview>;

    /// The leases that end soonest.
    fn leases(&mut self, limit: usize) -> Result<Vec<LeaseView>>;

    /// The queues with settings of their own, ordered by name.
    fn queues(&mut self) -> Result<Vec<QueueSettings>>;

    /// A page of the ledger's effects, those of the newest jobs first.
    fn effects(&mut self, filter: &EffectFilter, limit: usize) -> Result<Vec<EffectView>>;

    /// The registered workers.
    fn workers(&mut self) -> Result<Vec<WorkerView>>;

    /// How long a worker's lock must have been free before its process counts as gone.
    fn guard_gap(&mut self) -> Result<Duration>;

    /// The id of this installation and its epoch.
    fn identity(&mut self) -> Result<Identity>;

    /// Checks stored data against the invariants, for `limit` jobs, starting with `from`. Changes
    /// nothing. Any finding is a bug or damage.
    fn check(&mut self, from: Option<JobId>, limit: usize) -> Result<Checked>;

    /// Blocks until something has changed in the store, or until `until`. May return spuriously;
    /// never misses a change.
    fn wait(&mut self, until: Instant) -> Result<Wake>;

    /// A warning for the operator, when the store answers but something that it relies on does not
    /// work.
    fn caution(&mut self) -> Option<String> {
        None
    }
}

/// The answer to one enqueued job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(tag = "verdict", content = "job", rename_all = "snake_case")]
pub enum Enqueued {
    /// Stored under this id.
    Created(JobId),
    /// The key belongs to this job, and the request is the same: nothing was stored.
    Existing(JobId),
    /// The key belongs to this job, and the request differs: nothing was stored.
    Conflict(JobId),
}

/// What a worker wants to claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// The worker that claims.
    pub worker: WorkerId,
    /// The queues to claim from.
    pub queues: Vec<Name>,
    /// The kinds that the worker can run; `None` for all.
    pub kinds: Option<Vec<Name>>,
    /// How many jobs to lease at most.
    pub n: usize,
    /// How long each lease lasts, unless renewed.
    pub lease: Duration,
    /// Where the worker's last claim ended, so that the next tenant gets its turn.
    pub cursor: Cursor,
    /// How long a lease must have been over before this claim lapses it; see [`Store::overdue`].
    pub grace: Duration,
    /// A number that the worker chooses. If the answer is lost, [`Store::held`] finds the leased
    /// jobs by it.
    pub request: i64,
}

/// A position on the ring of (queue, tenant) groups. A worker passes the cursor of its last claim's
/// answer to its next claim.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize)]
pub struct Cursor {
    /// The claim starts after this group.
    pub group: i64,
    /// The claim continues a round that started after this group, and ends with this group. `None`:
    /// the claim starts a new round.
    pub round: Option<i64>,
}

impl Cursor {
    /// The start of a round, after this group.
    pub fn after(group: i64) -> Cursor {
        Cursor { group, round: None }
    }

    /// Whether the round has groups left that no claim has looked at, because of [`PASS_LIMIT`].
    pub fn is_midway(self) -> bool {
        self.round.is_some()
    }

    /// The last group of the round.
    pub fn end(self) -> i64 {
        self.round.unwrap_or(self.group)
    }
}

/// The answer to a claim.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub struct Claimed {
    /// The leased jobs.
    pub attempts: Vec<Attempt>,
    /// The jobs that this claim lapsed before it leased any.
    pub lapsed: Vec<Lapse>,
    /// Where the next claim continues.
    pub cursor: Cursor,
    /// If fewer jobs were leased than requested: how long until a waiting job is due. A hint for
    /// how long to wait.
    pub next_due: Option<Duration>,
}

/// A leased job: all that a worker needs to run it and to decide how to settle it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
#[allow(missing_docs)]
pub struct Attempt {
    pub lease: Lease,
    pub kind: Name,
    pub args: Json,
    pub queue: Name,
    pub tenant: Tenant,
    pub attempt: u16,
    pub max_attempts: u16,
    pub crashes: u16,
    pub max_crashes: u16,
    pub retry: crate::job::RetryPolicy,
    pub max_runtime_ms: Option<i64>,
    pub run_at: Timestamp,
    pub started_at: Timestamp,
    pub enqueued_at: Timestamp,
    pub key: Option<String>,
    pub extras: Extras,
}

impl Attempt {
    /// How many attempts and crashes the job has used, and how many it may use.
    pub fn standing(&self) -> Standing {
        Standing {
            attempt: self.attempt,
            max_attempts: self.max_attempts,
            crashes: self.crashes,
            max_crashes: self.max_crashes,
            retry: self.retry.clone(),
        }
    }

    /// Identifies the attempt and its job, for events.
    pub fn about(&self) -> About {
        About {
            job: self.lease.fence().job,
            token: self.lease.token(),
            kind: self.kind.clone(),
            queue: self.queue.clone(),
            tenant: self.tenant.clone(),
            attempt: self.attempt,
            trace: self.extras.trace.clone(),
        }
    }

    /// A running job as an attempt; `None` if the record has no lease.
    pub(crate) fn of(job: JobRecord) -> Option<Attempt> {
        let fence = Fence { job: job.id, token: job.token };
        Some(Attempt {
            lease: Lease::granted(fence, job.lease_until?),
            started_at: job.started_at?,
            kind: job.kind,
            args: job.args,
            queue: job.queue,
            tenant: job.tenant,
            attempt: job.attempt,
            max_attempts: job.max_attempts,
            crashes: job.crashes,
            max_crashes: job.max_crashes,
            retry: job.retry,
            max_runtime_ms: job.max_runtime_ms,
            run_at: job.run_at,
            enqueued_at: job.enqueued_at,
            key: job.key,
            extras: job.extras,
        })
    }
}

/// A request to end an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settlement {
    /// The fence of the attempt.
    pub fence: Fence,
    /// How the attempt ends.
    pub outcome: Outcome,
    /// Jobs to enqueue in the same transaction, if the settlement is applied.
    pub then: Vec<NewJob>,
}

impl Settlement {
    /// A settlement that enqueues nothing.
    pub fn new(fence: Fence, outcome: Outcome) -> Settlement {
        Settlement { fence, outcome, then: Vec::new() }
    }
}

/// The answer to a settlement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(tag = "verdict", content = "detail", rename_all = "snake_case")]
pub enum Settled {
    /// Applied, now or when it was first sent. This is the job's state after the attempt.
    Applied(State),
    /// Refused: the token is not the job's latest, or the attempt has ended differently.
    Stale(Stale),
    /// Refused: the job does not exist (any more).
    NotFound,
}

/// The answer to a renewal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(tag = "verdict", content = "detail", rename_all = "snake_case")]
pub enum Renewed {
    /// The lease runs until this time.
    Extended(Timestamp),
    /// The token is not the job's latest, or the job is not running.
    Stale(Stale),
    /// The job does not exist (any more).
    NotFound,
    /// The row is locked by an open transaction, so the lease is neither extended nor lost: no one
    /// else can take the job meanwhile. Try again.
    Busy,
}

/// The progress of a job, reported by its worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The fence of the attempt.
    pub fence: Fence,
    /// How far the job is. If a batch has several reports of one job, the last one counts.
    pub progress: Progress,
}

/// The answer to a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(tag = "verdict", content = "detail", rename_all = "snake_case")]
pub enum Reported {
    /// The progress is stored.
    Noted,
    /// Refused: the token is not the job's latest, or the attempt has ended.
    Stale(Stale),
    /// Refused: the job does not exist (any more).
    NotFound,
    /// Neither stored nor refused: the row is locked by an open transaction. Wait for the next
    /// report.
    Busy,
}

/// The answer to a request to lapse a job.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
#[serde(tag = "verdict", content = "detail", rename_all = "snake_case")]
pub enum Lapsed {
    /// The job was lapsed.
    TakenBack(Lapse),
    /// The job's worker has renewed or settled since, or another caller lapsed the job.
    LeftAlone,
    /// The row is locked by an open transaction. Try again.
    Busy,
}

/// The answer to a beat.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub struct Beat {
    /// Whether this caller now looks for overdue leases and lost workers, on behalf of all workers.
    pub leads: bool,
    /// Whether any job is running.
    pub leases_are_out: bool,
    /// How many workers are registered; counting stops at 1,000.
    pub workers: usize,
    /// Whether [`Store::wait`] returns when something changes. If not, the caller must poll.
    pub wakes: bool,
}

/// A worker that registers itself.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Registration {
    /// The worker's id.
    pub worker: WorkerId,
    /// The queues that it claims from.
    pub queues: Vec<Name>,
    /// The kinds that it can run; `None` for all.
    pub kinds: Option<Vec<Name>>,
}

/// Whether the death of a worker's process is noticed at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Guarded {
    /// The process holds a lock that ends with it.
    ByLock,
    /// The worker cannot hold such a lock, for example behind a pooler, which gives its session to
    /// other clients. Its jobs are taken back only when their leases are over.
    ByLeaseAlone,
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

/// A job that was lapsed.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub struct Lapse {
    /// The attempt that was ended.
    pub about: About,
    /// The worker that held the job.
    pub worker: WorkerId,
    /// The job's state afterwards.
    pub became: State,
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

/// How much a prune deleted. Less than the limit means that nothing is left to prune.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[allow(missing_docs)]
pub struct Pruned {
    pub jobs: usize,
    pub keys: usize,
}

/// Why [`Store::wait`] returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wake {
    /// Something may have changed: look again.
    Changed,
    /// The deadline has passed.
    TimedOut,
}

pub(crate) mod sealed {
    /// Only the engines of this project implement the port: each must pass the suite and agree with
    /// the model.
    pub trait Sealed {}
}
