//! A job as a store keeps it, and which attempt of it an event or an answer is about.

use serde::{Deserialize, Serialize};

use crate::clock::{Timestamp, millis};
use crate::job::{Due, Extras, JobId, Json, Name, NewJob, Progress, RetryPolicy, State, Tenant};
use crate::lease::{Fence, Token, WorkerId};

/// A job as a store keeps it, live or ended.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct JobRecord {
    /// Its number.
    pub id: JobId,
    /// Its state.
    pub state: State,
    /// Queued, but outside the claim index: it is not due yet, or was not when a claim last
    /// checked.
    pub waiting: bool,
    /// The queue it waits in.
    pub queue: Name,
    /// The tenant that it belongs to.
    pub tenant: Tenant,
    /// Which handler runs it.
    pub kind: Name,
    /// What the handler gets.
    pub args: Json,
    /// Lower numbers run first.
    pub priority: i16,
    /// When it is due.
    pub run_at: Timestamp,
    /// The fencing token: it rises with every change of ownership.
    pub token: Token,
    /// How many attempts count against the limit.
    pub attempt: u16,
    /// The limit of attempts.
    pub max_attempts: u16,
    /// How many crashes count: each time the store took the job back since it was enqueued or
    /// requeued, except when the worker came back and the crash was undone. A handler that returns
    /// by itself resets the count, if its job continues and the last crash is at least an hour old.
    pub crashes: u16,
    /// When the last of these crashes happened, while the job has not ended.
    pub crashed_at: Option<Timestamp>,
    /// Whether it has crashed often enough (see [`makes_suspect`](crate::lifecycle::makes_suspect))
    /// and its handler has not returned since: its next attempt may crash its worker too.
    pub is_suspect: bool,
    /// The limit of crashes.
    pub max_crashes: u16,
    /// The delays between tries.
    pub retry: RetryPolicy,
    /// How long one attempt may hold its lease.
    pub max_runtime_ms: Option<i64>,
    /// The idempotency key that it was enqueued with.
    pub key: Option<String>,
    /// Data that travels with the job and changes nothing about how it runs.
    pub extras: Extras,
    /// The job whose settlement enqueued it.
    pub parent: Option<JobId>,
    /// When it was enqueued.
    pub enqueued_at: Timestamp,
    /// The worker that holds it, or held it last.
    pub worker: Option<WorkerId>,
    /// When its latest attempt began.
    pub started_at: Option<Timestamp>,
    /// When its lease was last granted: at claim, or by renewal.
    pub leased_at: Option<Timestamp>,
    /// The length of the lease that was granted.
    pub lease_ms: Option<i64>,
    /// When its lease is over.
    pub lease_until: Option<Timestamp>,
    /// When it ended.
    pub finished_at: Option<Timestamp>,
    /// What its handler returned.
    pub result: Option<Json>,
    /// Why it is dead, parked or cancelled.
    pub reason: Option<String>,
    /// The progress that the holder of the latest attempt last reported. The next claim clears it,
    /// and a job that has ended has none.
    pub progress: Option<Progress>,
    /// If the job lapsed because its lease was over: until when its worker may show its token
    /// again, while the job waits for its next attempt. Then the crash is not counted.
    #[serde(skip)]
    pub returns_until: Option<Timestamp>,
    /// The number of the claim that leased it. Each worker numbers its own claims.
    #[serde(skip)]
    pub request: Option<i64>,
}

impl NewJob {
    /// The record of this job when it enters a store at `now` under `id`. This is the only
    /// definition of a new job's fields in Rust; on PostgreSQL `verbs/enqueue.sql` has the same.
    pub fn record(&self, id: JobId, now: Timestamp) -> JobRecord {
        let run_at = match self.due {
            Due::Now => now,
            Due::In(delay) => now + delay,
            Due::At(time) => time.min(Timestamp::MAX),
        };
        JobRecord {
            id,
            state: State::Queued,
            waiting: run_at > now,
            queue: self.queue.clone(),
            tenant: self.tenant.clone(),
            kind: self.kind.clone(),
            args: self.args.clone(),
            priority: self.priority,
            run_at,
            token: Token::NONE,
            attempt: 0,
            max_attempts: self.max_attempts.get(),
            crashes: 0,
            crashed_at: None,
            is_suspect: false,
            max_crashes: self.max_crashes.get(),
            retry: self.retry.clone(),
            max_runtime_ms: self.max_runtime.map(millis),
            key: self.key.as_ref().map(|key| key.as_str().to_owned()),
            extras: self.extras.clone(),
            parent: self.parent,
            enqueued_at: now,
            worker: None,
            started_at: None,
            leased_at: None,
            lease_ms: None,
            lease_until: None,
            finished_at: None,
            result: None,
            reason: None,
            progress: None,
            returns_until: None,
            request: None,
        }
    }
}

/// Which attempt of which job an event or an answer is about. Events carry it, and so does the
/// answer about a job that was taken back.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
#[allow(missing_docs)]
pub struct About {
    pub job: JobId,
    /// The token of the attempt; [`Token::NONE`] before the first. Not serialised then.
    #[serde(skip_serializing_if = "is_no_token")]
    pub token: Token,
    pub kind: Name,
    pub queue: Name,
    pub tenant: Tenant,
    /// Which attempt it is; 0 before the first. Not serialised then.
    #[serde(skip_serializing_if = "is_no_attempt")]
    pub attempt: u16,
    /// The trace that the job continues.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace: Option<String>,
}

fn is_no_token(token: &Token) -> bool {
    *token == Token::NONE
}

fn is_no_attempt(attempt: &u16) -> bool {
    *attempt == 0
}

impl About {
    /// A job that was enqueued under this id, before its first attempt.
    pub fn new_job(id: JobId, job: &NewJob) -> About {
        About {
            job: id,
            token: Token::NONE,
            kind: job.kind.clone(),
            queue: job.queue.clone(),
            tenant: job.tenant.clone(),
            attempt: 0,
            trace: job.extras.trace.clone(),
        }
    }

    /// The token of the attempt; `None` before the first.
    pub fn attempt_token(&self) -> Option<Token> {
        (self.token != Token::NONE).then_some(self.token)
    }

    /// The fence of the attempt.
    pub fn fence(&self) -> Fence {
        Fence { job: self.job, token: self.token }
    }
}

impl From<&JobRecord> for About {
    /// The latest attempt of a job.
    fn from(job: &JobRecord) -> About {
        About {
            job: job.id,
            token: job.token,
            kind: job.kind.clone(),
            queue: job.queue.clone(),
            tenant: job.tenant.clone(),
            attempt: job.attempt,
            trace: job.extras.trace.clone(),
        }
    }
}
