//! How jobs are kept: the port that every engine stands behind, in the verbs of the domain.
//!
//! The port is synchronous, takes batches, and answers each item with a value of its own: a lost
//! lease is an answer, not an error. Only the store's clock counts, so callers pass durations.
//! Policy lives in [`crate::lifecycle`], SQL lives in `sql/<engine>/verbs`, one file per verb,
//! under the names used here.

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
pub use self::place::is_meant_as_a_server;
use crate::clock::{Timestamp, millis};
use crate::inspect::{
    Checked, Current, EffectFilter, EffectView, Filter, Identity, JobDetail, JobOutcome, LeaseView,
    Overview, QueueSettings, WorkerView,
};
use crate::job::{About, Extras, JobId, JobRecord, Json, Name, NewJob, Progress, State, Tenant};
use crate::lease::{Fence, Lease, Stale, Token, WorkerId};
use crate::ledger::{self, Entry, Resolution};
use crate::lifecycle::{Outcome, Standing};

/// One connection to a store. All of them, on every engine, pass the same suite and agree in every
/// answer.
///
/// Every call may be repeated after an unknown outcome: it then tells what really happened and
/// changes nothing more. The exceptions are `enqueue` without a key, and `claim`, after which
/// [`Store::held`] tells.
pub trait Store: sealed::Sealed + Send {
    // ── how jobs get in
    // ──────────────────────────────────────────────────────────────────────────────────────────

    /// Stores jobs, all or none, and answers each. Jobs with a key that is taken are not stored
    /// again.
    fn enqueue(&mut self, jobs: &[NewJob]) -> Result<Vec<Enqueued>>;

    // ── how they run
    // ─────────────────────────────────────────────────────────────────────────────────────────────

    /// Leases up to `ask.n` due jobs, fair between tenants, by priority and then age within a
    /// tenant. It first promotes what has become due and lapses what is over, so that nothing else
    /// need be running for progress.
    fn claim(&mut self, ask: &Claim) -> Result<Claimed>;

    /// What this worker holds, as a claim would have answered; with `request` only what the claim of that number got. It
    /// is for after a claim whose answer was lost. Such a claim may still be on its way: then the same question has
    /// another answer later.
    fn held(&mut self, worker: &WorkerId, request: Option<i64>) -> Result<Vec<Attempt>>;

    /// Extends leases to `length` from now, never shortens them, and never beyond the job's maximal
    /// runtime.
    fn renew(&mut self, fences: &[Fence], length: Duration) -> Result<Vec<Renewed>>;

    /// Notes how far jobs have come, by the right of their holders. It replaces what was noted
    /// before, and neither extends a lease nor waits for a row.
    fn progress(&mut self, reports: &[Report]) -> Result<Vec<Reported>>;

    /// Ends attempts. The token decides: whoever shows the job's latest token on a running job is
    /// heard, however late.
    fn settle(&mut self, settlements: &[Settlement]) -> Result<Vec<Settled>>;

    /// Both in one transaction, for a worker whose slots become free as it settles.
    fn settle_and_claim(
        &mut self,
        settlements: &[Settlement],
        ask: &Claim,
    ) -> Result<(Vec<Settled>, Claimed)>;

    /// Writes and reads what took effect and what is remembered of steps, each entry by the right of
    /// the job's holder. Entries for one job are heard in their order.
    fn ledger(&mut self, entries: &[Entry]) -> Result<Vec<ledger::Answer>>;

    // ── how they are taken back
    // ──────────────────────────────────────────────────────────────────────────────────

    /// Makes a worker known, and guards it with this connection: from now on its death is noticed
    /// within a second, for as long as the connection is kept in use by `renew` or `wait`. After
    /// a break the connection takes the guard again by itself.
    fn register(&mut self, worker: &Registration) -> Result<Guarded>;

    /// Forgets a worker that has nothing left to do.
    fn retire(&mut self, worker: &WorkerId) -> Result<()>;

    /// Takes back the jobs of workers whose processes are gone, up to `limit` of them, whatever
    /// their leases say. One look is not enough to tell: call it a few times a second.
    fn vanished(&mut self, limit: usize) -> Result<Vec<Lapse>>;

    /// Says that the store can be reached and written to, while leases are out. A gap in what workers
    /// say here is a stall of the store: no worker could renew, and leases from before it get their
    /// length again. Answers whether it is this caller's turn to call [`Store::vanished`] and
    /// [`Store::overdue`] for all workers. To be called several times a second.
    fn beat(&mut self) -> Result<Beat>;

    /// Running jobs whose lease has been over for `grace`, longest first. It changes nothing, so
    /// that looking is cheap. Who comes late to look, because the machine stood still, passes a grace:
    /// others may have stood still with it.
    fn overdue(&mut self, limit: usize, grace: Duration) -> Result<Vec<Fence>>;

    /// Takes overdue jobs from their holders: back to the queue, or buried when attempts or crashes
    /// are used up. Each is checked again at the moment of writing, since its holder may have
    /// renewed or settled since it was seen.
    fn lapse(&mut self, fences: &[Fence]) -> Result<Vec<Lapsed>>;

    // ── what operators do
    // ────────────────────────────────────────────────────────────────────────────────────────

    /// Ends jobs that have not ended. A running job's holder learns of it at its next call.
    fn cancel(&mut self, jobs: &[JobId]) -> Result<Vec<Changed>>;

    /// Queues dead or cancelled jobs again, with their counts reset.
    fn requeue(&mut self, jobs: &[AsSeen]) -> Result<Vec<Changed>>;

    /// Queues parked jobs again.
    fn resume(&mut self, jobs: &[JobId]) -> Result<Vec<Changed>>;

    /// Deletes ended jobs and all that is known of them.
    fn purge(&mut self, jobs: &[AsSeen]) -> Result<Vec<Changed>>;

    /// Sets what an operator wants for a queue, and answers with all that holds now.
    fn configure(&mut self, queue: &Name, change: &QueueChange) -> Result<QueueSettings>;

    /// Decides about an effect in doubt, for a job that nobody holds. A parked job with no other
    /// doubt is queued again.
    fn resolve(&mut self, job: JobId, effect: &Name, how: &Resolution) -> Result<Resolved>;

    /// Says that the database may have gone back in time where it cannot notice by itself: from now
    /// on all tokens and ids are above every one that was ever issued. Answers the new epoch.
    fn raise_epoch(&mut self, reason: &str) -> Result<u32>;

    /// Says for the whole installation how long a worker's lock must have been free before its process counts as gone:
    /// [`GUARD_GAP`] to [`GUARD_GAP_LIMIT`]. Answers what was said before.
    fn set_guard_gap(&mut self, gap: Duration) -> Result<Duration>;

    /// Deletes up to `limit` ended jobs whose time of keeping is over, and up to as many expired
    /// keys.
    fn prune(&mut self, limit: usize) -> Result<Pruned>;

    // ── how they are seen
    // ────────────────────────────────────────────────────────────────────────────────────────

    /// The token and the state of each job, and nothing else; `None` for a job that the store does not know,
    /// or no longer. It is what a worker asks whose handler may have completed the job itself.
    fn current(&mut self, jobs: &[JobId]) -> Result<Vec<Option<Current>>>;

    /// What a job has come to, for callers that wait for it.
    fn outcome(&mut self, id: JobId) -> Result<Option<JobOutcome>>;

    /// One job and its timeline.
    fn job(&mut self, id: JobId) -> Result<Option<JobDetail>>;

    /// A page of jobs, newest first.
    fn jobs(&mut self, filter: &Filter, limit: usize) -> Result<Vec<JobRecord>>;

    /// All queues at a glance.
    fn overview(&mut self) -> Result<Overview>;

    /// The leases that end soonest.
    fn leases(&mut self, limit: usize) -> Result<Vec<LeaseView>>;

    /// The queues for which an operator has set something, in order of name.
    fn queues(&mut self) -> Result<Vec<QueueSettings>>;

    /// A page of the ledger's effects, those of the newest jobs first.
    fn effects(&mut self, filter: &EffectFilter, limit: usize) -> Result<Vec<EffectView>>;

    /// The workers that have made themselves known.
    fn workers(&mut self) -> Result<Vec<WorkerView>>;

    /// How long a worker's lock must have been free before its process counts as gone.
    fn guard_gap(&mut self) -> Result<Duration>;

    /// Which installation this is, and how often it may have gone back in time.
    fn identity(&mut self) -> Result<Identity>;

    /// Holds what is stored against what must be true of it: of `limit` jobs, beginning with
    /// `from`. It changes nothing, and should find nothing, ever.
    fn check(&mut self, from: Option<JobId>, limit: usize) -> Result<Checked>;

    /// Blocks until something has changed in the store, or until `until`. It may wake for nothing,
    /// never the reverse.
    fn wait(&mut self, until: Instant) -> Result<Wake>;

    /// What a person should know of a store that answers well: something that it relies on does not work.
    fn caution(&mut self) -> Option<String> {
        None
    }
}

/// The answer to one enqueued job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(tag = "verdict", content = "job", rename_all = "lowercase")]
pub enum Enqueued {
    /// Stored under this id.
    Created(JobId),
    /// The key is taken by this job, and the request is the same: nothing was stored.
    Existing(JobId),
    /// The key is taken by this job, and the request is another one: nothing was stored.
    Conflict(JobId),
}

/// What a worker asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// Who asks.
    pub worker: WorkerId,
    /// From which queues.
    pub queues: Vec<Name>,
    /// Which kinds it can run; `None` for all.
    pub kinds: Option<Vec<Name>>,
    /// How many it has room for.
    pub n: usize,
    /// For how long, unless renewed.
    pub lease: Duration,
    /// Where its last claim ended, so that the next tenant has its turn.
    pub cursor: Cursor,
    /// How long a lease must have been over before this claim lapses it; see [`Store::overdue`].
    pub grace: Duration,
    /// A number of the worker's own. If the answer is lost, [`Store::held`] gives it again by this.
    pub request: i64,
}

/// A place on the ring of (queue, tenant) groups. A worker passes back what its last claim
/// answered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize)]
pub struct Cursor {
    /// The claim begins after this group.
    pub group: i64,
    /// The claim goes on with a round that began after this group, and ends with it. `None`: the
    /// claim begins a round.
    pub round: Option<i64>,
}

impl Cursor {
    /// A round that begins after this group.
    pub fn after(group: i64) -> Cursor {
        Cursor { group, round: None }
    }

    /// Whether groups are left that no claim of this round has looked at, because of [`PASS_LIMIT`].
    pub fn is_midway(self) -> bool {
        self.round.is_some()
    }

    /// The group that ends the round.
    pub fn end(self) -> i64 {
        self.round.unwrap_or(self.group)
    }
}

/// The answer to a claim.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub struct Claimed {
    /// What was leased.
    pub attempts: Vec<Attempt>,
    /// What was taken back from others on the way.
    pub lapsed: Vec<Lapse>,
    /// Where the next claim goes on.
    pub cursor: Cursor,
    /// When fewer jobs were leased than asked for: how long until a waiting job is due. A hint for
    /// how long to wait.
    pub next_due: Option<Duration>,
}

/// A leased job: all that a worker needs to run it and to decide what becomes of it.
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
    /// How much of the job's patience is used up.
    pub fn standing(&self) -> Standing {
        Standing {
            attempt: self.attempt,
            max_attempts: self.max_attempts,
            crashes: self.crashes,
            max_crashes: self.max_crashes,
            retry: self.retry.clone(),
        }
    }

    /// Which attempt of which job it is.
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

    /// A running job, as its holder sees it.
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

/// The end of an attempt, as its holder wants it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settlement {
    /// The right to settle.
    pub fence: Fence,
    /// How it ends.
    pub outcome: Outcome,
    /// Jobs that are enqueued in the same transaction, if the settlement is heard.
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
#[serde(tag = "verdict", content = "detail", rename_all = "lowercase")]
pub enum Settled {
    /// Heard, now or when it was first sent: the attempt ended so, and this is what the job became.
    Yes(State),
    /// Refused: the token is not the job's latest, or the attempt has ended otherwise.
    Stale(Stale),
    /// Refused: the store knows no such job, or no longer.
    Gone,
}

/// The answer to a renewal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(tag = "verdict", content = "detail", rename_all = "lowercase")]
pub enum Renewed {
    /// The lease holds until then.
    Held(Timestamp),
    /// The job is somebody else's, or has ended.
    Lost(Stale),
    /// The store knows no such job, or no longer.
    Gone,
    /// Neither held nor lost: the row is locked by an open transaction, so nobody can take it
    /// meanwhile. Ask again.
    Busy,
}

/// How far a job has come, as its holder tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The right to tell.
    pub fence: Fence,
    /// How far. Of several reports of one job in a batch, the last counts.
    pub progress: Progress,
}

/// The answer to a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(tag = "verdict", content = "detail", rename_all = "lowercase")]
pub enum Reported {
    /// It is noted.
    Yes,
    /// Refused: the job is somebody else's, or the attempt has ended.
    Stale(Stale),
    /// Refused: the store knows no such job, or no longer.
    Gone,
    /// Neither noted nor refused: the row is locked by an open transaction. The next report will do.
    Busy,
}

/// The answer to a lapse.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
#[serde(tag = "verdict", content = "detail", rename_all = "lowercase")]
pub enum Lapsed {
    /// Taken back.
    Yes(Lapse),
    /// Its holder has renewed or settled since, or somebody else took it back.
    No,
    /// The row is locked by an open transaction. Ask again.
    Busy,
}

/// The answer to a beat.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub struct Beat {
    /// Whether this caller now looks for what is over and for lost workers, for all workers.
    pub leads: bool,
    /// Whether any job is running.
    pub leases_are_out: bool,
    /// How many workers have made themselves known; counting ends at 1,000.
    pub workers: usize,
    /// Whether [`Store::wait`] ends when something changes. If not, one must look by oneself.
    pub wakes: bool,
}

/// A worker that makes itself known.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Registration {
    /// Who.
    pub worker: WorkerId,
    /// From which queues it works.
    pub queues: Vec<Name>,
    /// Which kinds it can run; `None` for all.
    pub kinds: Option<Vec<Name>>,
}

/// Whether a worker's death will be noticed at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Guarded {
    /// Its process holds a lock that ends with it.
    Yes,
    /// It cannot hold one, as through a pooler, which lends the session to others: only its leases
    /// decide.
    No,
}

/// The answer to a person who decides about an effect in doubt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(tag = "verdict", content = "detail", rename_all = "lowercase")]
pub enum Resolved {
    /// Done, now or when it was first asked; this is what the job is now.
    Yes(State),
    /// It is not in doubt: it stands so.
    No(ledger::Standing),
    /// The job is running: its holder decides.
    Held,
    /// The job has succeeded, and nobody would ever send it again. It can only be said that it happened.
    Over,
    /// The job has no such effect.
    Unknown,
    /// The store knows no such job, or no longer.
    Gone,
}

/// A job that was taken back from its holder.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub struct Lapse {
    /// The attempt that ended so.
    pub about: About,
    /// The worker that had it.
    pub worker: WorkerId,
    /// What the job became.
    pub became: State,
}

/// An ended job, as whoever asks something of it has seen it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AsSeen {
    /// The job.
    pub job: JobId,
    /// Only if the job still has this token. It makes a requeue repeatable, and keeps a purge from
    /// deleting what has happened since.
    pub if_token: Option<Token>,
}

impl AsSeen {
    /// The job, whatever has become of it.
    pub fn any(job: JobId) -> AsSeen {
        AsSeen { job, if_token: None }
    }

    /// The job, if nothing has become of it since it had this token.
    pub fn at(job: JobId, token: Token) -> AsSeen {
        AsSeen { job, if_token: Some(token) }
    }

    /// Whether the job has moved on since it was seen.
    pub fn moved_on(&self, current: Token) -> bool {
        self.if_token.is_some_and(|token| token != current)
    }
}

/// The answer to what an operator asked of one job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(tag = "verdict", content = "state", rename_all = "lowercase")]
pub enum Changed {
    /// Done, now or when it was first asked.
    Yes,
    /// Not possible in this state; nothing changed.
    No(State),
    /// The store knows no such job, or no longer.
    Gone,
}

/// What an operator wants of a queue. What is `None` stays as it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct QueueChange {
    /// Whether claims pass it by.
    pub pause: Option<Pause>,
    /// How long succeeded jobs are kept; zero deletes them at once.
    pub keep: Option<Duration>,
    /// How long dead and cancelled jobs are kept.
    pub keep_dead: Option<Duration>,
}

/// Whether claims pass a queue by.
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
    /// Something may have changed: look.
    Changed,
    /// The time is up.
    TimedOut,
}

pub(crate) mod sealed {
    /// Only engines of this project stand behind the port: each is held to the suite and to the
    /// model.
    pub trait Sealed {}
}
