//! What workers call: enqueue, claim, renew, settle, and take back the jobs of lost workers.

use std::time::{Duration, Instant};

use serde::Serialize;

use super::Result;
use super::sealed::Sealed;
use crate::clock::Timestamp;
use crate::inspect::Current;
use crate::job::{Extras, JobId, Json, Name, NewJob, Progress, State, Tenant};
use crate::lease::{Fence, Lease, Stale, WorkerId};
use crate::ledger::{self, Entry};
use crate::lifecycle::{Counts, Outcome};
use crate::record::{About, JobRecord};

/// What workers and producers do with jobs.
///
/// After an unknown outcome, every call may be repeated: the repeat returns what really happened
/// and changes nothing more. There are two exceptions: `enqueue` without a key, and `claim`; after
/// a claim, [`Work::held`] returns what it leased.
pub trait Work: Sealed + Send {
    // ── Run ──

    /// Stores jobs, all or none, and answers for each. A job whose key is taken is not stored
    /// again.
    fn enqueue(&mut self, jobs: &[NewJob]) -> Result<Vec<Enqueued>>;

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

    // ── Take jobs back, and delete old ones ──

    /// Registers a worker, and guards it by a lock of this connection. If the answer is
    /// [`Guarded::ByLock`], other workers notice the death of its process within a second (at the
    /// default guard gap), as long as `renew` or `wait` keep the connection in use. If the
    /// connection breaks, it takes the lock again when it reconnects.
    fn register(&mut self, worker: &Registration) -> Result<Guarded>;

    /// Deletes the registration of a worker that has nothing left to do.
    fn retire(&mut self, worker: &WorkerId) -> Result<()>;

    /// Lapses up to `limit` jobs of workers whose processes are gone, however long their leases
    /// still run. A process counts as gone only after two calls, at least the guard gap apart,
    /// found its lock free. So call this a few times a second.
    fn vanished(&mut self, limit: usize) -> Result<Vec<Lapse>>;

    /// Records that the store can be reached and written to, while jobs are running. A gap between
    /// beats means that the store stalled: no worker could renew, so leases from before the stall
    /// run for their whole length again. Returns whether this caller should now call
    /// [`Work::vanished`] and [`Work::overdue`] for all workers. Call this several times a second.
    fn beat(&mut self) -> Result<Beat>;

    /// Running jobs whose lease has been over for at least `grace`, those that are over longest
    /// first. Changes nothing, so the call is cheap. If the caller runs late (its machine was
    /// suspended), it passes a grace, because other workers may have been suspended with it and
    /// need time to renew.
    fn overdue(&mut self, limit: usize, grace: Duration) -> Result<Vec<Fence>>;

    /// Lapses overdue jobs: each goes back to its queue, or is buried when its attempts or crashes
    /// are used up. Each is checked again when it is written, because its worker may have renewed
    /// or settled since [`Work::overdue`] returned it.
    fn lapse(&mut self, fences: &[Fence]) -> Result<Vec<Lapsed>>;

    /// Deletes up to `limit` ended jobs whose retention is over, and up to `limit` expired keys.
    fn prune(&mut self, limit: usize) -> Result<Pruned>;

    // ── Know what has happened ──

    /// The token and the state of each job, and nothing else; `None` for a job that does not exist
    /// (any more). A worker calls this when its handler may have completed the job itself.
    fn current(&mut self, jobs: &[JobId]) -> Result<Vec<Option<Current>>>;

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
    /// How long a lease must have been over before this claim lapses it; see [`Work::overdue`].
    pub grace: Duration,
    /// Whether this claim may take a suspect: a job that has crashed so often that it may be what
    /// kills its workers. Of two claims that a worker makes at once, only one may.
    pub suspects: bool,
    /// A number that the worker chooses. If the answer is lost, [`Work::held`] finds the leased
    /// jobs by it.
    pub request: i64,
}

impl Claim {
    /// A claim of up to `n` jobs of any kind in the default queue, from the start of the ring.
    pub fn new(worker: WorkerId, n: usize, lease: Duration) -> Claim {
        Claim {
            worker,
            queues: vec![Name::default_queue()],
            kinds: None,
            n,
            lease,
            cursor: Cursor::default(),
            grace: Duration::ZERO,
            suspects: true,
            request: 0,
        }
    }
}

/// A position on the ring of (queue, tenant) groups. A worker passes the cursor of its last claim's
/// answer to its next claim.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize)]
pub struct Cursor {
    /// The claim starts after this group.
    pub group: i64,
    /// `None`: the claim starts a round, which goes once around the ring. Otherwise the claim
    /// continues the round of an earlier claim, which started after this group and ends with it.
    pub round: Option<i64>,
}

impl Cursor {
    /// The start of a round, after this group.
    pub fn after(group: i64) -> Cursor {
        Cursor { group, round: None }
    }

    /// Whether the round has groups left that no claim has looked at, because of
    /// [`PASS_LIMIT`](super::PASS_LIMIT).
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
    pub fn counts(&self) -> Counts {
        Counts {
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

/// The answer to a beat.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub struct Beat {
    /// Whether this caller now looks for overdue leases and lost workers, on behalf of all workers.
    pub leads: bool,
    /// Whether any job is running.
    pub leases_are_out: bool,
    /// How many workers are registered; counting stops at 1,000.
    pub workers: usize,
    /// Whether [`Work::wait`] returns when something changes. If not, the caller must poll.
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

impl Registration {
    /// A worker of these queues that can run all kinds.
    pub fn new(worker: WorkerId, queues: Vec<Name>) -> Registration {
        Registration { worker, queues, kinds: None }
    }
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

/// How much a prune deleted. Less than the limit means that nothing is left to prune.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[allow(missing_docs)]
pub struct Pruned {
    pub jobs: usize,
    pub keys: usize,
}

/// Why [`Work::wait`] returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wake {
    /// Something may have changed: look again.
    Changed,
    /// The deadline has passed.
    TimedOut,
}
