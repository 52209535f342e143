//! All events that Tenure reports, with their names and fields, in one place.
//!
//! An event is reported once, where it is known. It carries identity (job, token, worker) and never
//! a job's args or result. Events go to [`tracing`] under the target `tenure`, and to every
//! [`Observer`].
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # use std::sync::{Arc, Mutex};
//! use tenure::Tenure;
//!
//! let names: Arc<Mutex<Vec<&str>>> = Arc::default();
//! let seen = Arc::clone(&names);
//! let tenure = Tenure::options()
//!     .observe(move |event| seen.lock().unwrap().push(event.fact.name()))
//!     .open("sqlite::memory:")
//!     .await?;
//! tenure.enqueue_kind("hello", &()).await?;
//! assert_eq!(*names.lock().unwrap(), ["job_enqueued"]);
//! # Ok(())
//! # }
//! ```

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use serde::Serialize;

use crate::clock::Timestamp;
use crate::job::{JobId, Name, NewJob, State, Tenant};
use crate::lease::{Fence, Reason, Stale, Token, WorkerId};
use crate::lifecycle::Verb;

/// An event: what happened to which job, under which token, reported by which worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Event {
    /// What happened.
    #[serde(flatten)]
    pub fact: Fact,
    /// The job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job: Option<JobId>,
    /// The token of the attempt that it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<Token>,
    /// The worker that reports it. For `lease_lapsed` and `holder_vanished` it is the worker that
    /// took the job back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker: Option<WorkerId>,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum Fact {
    /// A job was enqueued.
    JobEnqueued { kind: Name, queue: Name, tenant: Tenant },
    /// A worker has claimed a job.
    LeaseAcquired { kind: Name, queue: Name, tenant: Tenant, attempt: u16 },
    /// The job's handler was called.
    ExecutionStarted { kind: Name, attempt: u16 },
    /// The lease was extended.
    LeaseRenewed { until: Timestamp },
    /// The store refused a write under a stale token.
    StaleWriteBlocked {
        verb: Verb,
        stale_token: Token,
        current_token: Token,
        reason: Reason,
        state: State,
    },
    /// A job was taken back because its lease was over.
    LeaseLapsed { from: WorkerId, became: State },
    /// A job was taken back because the process of its worker is gone, whatever its lease says.
    HolderVanished { from: WorkerId, became: State },
    /// The attempt failed, and there will be another.
    RetryScheduled { after_ms: i64, error: String },
    /// The job runs later; the attempt does not count.
    JobSnoozed { after_ms: i64 },
    /// The worker gave the job back unfinished; the attempt does not count.
    JobReleased,
    /// The job waits for a person or a signal.
    JobParked { reason: String },
    /// The job succeeded.
    JobSucceeded { kind: Name, ran_ms: i64 },
    /// The job is dead: it will not be tried again.
    JobDead { reason: String },
    /// The worker has noticed that its job was cancelled.
    JobCancelled,
    /// An earlier attempt may have had this effect, and its outcome is unknown.
    EffectInDoubt { effect: Name, opened_by: Token },
    /// The outcome of an effect is known, but the store has not recorded it.
    EffectUnrecorded { effect: Name, verb: Verb, given_up: bool, error: String },
    /// A worker has started.
    WorkerStarted { queues: Vec<Name>, kinds: Option<Vec<Name>>, concurrency: usize },
    /// A worker has ended, after this many settlements of each sort.
    WorkerExit { reason: Exit, succeeded: u64, retried: u64, dead: u64 },
    /// The store does not answer, or cannot be written to. Workers keep trying.
    StoreLost { error: String },
    /// The store works again.
    StoreBack,
    /// The store answers, but something that it relies on does not work.
    StoreCaution { problem: String },
    /// The store refuses the worker a right that it needs, and the worker ends.
    StoreForbidden { error: String },
}

/// Why a worker ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Exit {
    /// It drained: nothing more was due and nothing ran. The exit event also counts how its jobs
    /// ended.
    Drained,
    /// It drained, and the store refused a write of the worker or of a handler.
    Stale,
    /// It was asked to end.
    Shutdown,
    /// It could not continue.
    Error,
}

/// The severity of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Only for a close look.
    Debug,
    /// The normal course of events.
    Info,
    /// An operator should know.
    Warn,
}

impl Fact {
    /// The names of all events, in the order of a job's life.
    pub const NAMES: [&'static str; 22] = [
        "job_enqueued",
        "lease_acquired",
        "execution_started",
        "lease_renewed",
        "stale_write_blocked",
        "lease_lapsed",
        "holder_vanished",
        "retry_scheduled",
        "job_snoozed",
        "job_released",
        "job_parked",
        "job_succeeded",
        "job_dead",
        "job_cancelled",
        "effect_in_doubt",
        "effect_unrecorded",
        "worker_started",
        "worker_exit",
        "store_lost",
        "store_back",
        "store_caution",
        "store_forbidden",
    ];

    /// The name, as every layer spells it.
    pub fn name(&self) -> &'static str {
        let at = match self {
            Fact::JobEnqueued { .. } => 0,
            Fact::LeaseAcquired { .. } => 1,
            Fact::ExecutionStarted { .. } => 2,
            Fact::LeaseRenewed { .. } => 3,
            Fact::StaleWriteBlocked { .. } => 4,
            Fact::LeaseLapsed { .. } => 5,
            Fact::HolderVanished { .. } => 6,
            Fact::RetryScheduled { .. } => 7,
            Fact::JobSnoozed { .. } => 8,
            Fact::JobReleased => 9,
            Fact::JobParked { .. } => 10,
            Fact::JobSucceeded { .. } => 11,
            Fact::JobDead { .. } => 12,
            Fact::JobCancelled => 13,
            Fact::EffectInDoubt { .. } => 14,
            Fact::EffectUnrecorded { .. } => 15,
            Fact::WorkerStarted { .. } => 16,
            Fact::WorkerExit { .. } => 17,
            Fact::StoreLost { .. } => 18,
            Fact::StoreBack => 19,
            Fact::StoreCaution { .. } => 20,
            Fact::StoreForbidden { .. } => 21,
        };
        Fact::NAMES[at]
    }

    /// The severity.
    pub fn level(&self) -> Level {
        match self {
            Fact::LeaseRenewed { .. } => Level::Debug,
            Fact::StaleWriteBlocked { .. }
            | Fact::LeaseLapsed { .. }
            | Fact::HolderVanished { .. }
            | Fact::RetryScheduled { .. }
            | Fact::JobParked { .. }
            | Fact::JobDead { .. }
            | Fact::EffectInDoubt { .. }
            | Fact::EffectUnrecorded { .. }
            | Fact::StoreLost { .. }
            | Fact::StoreCaution { .. }
            | Fact::StoreForbidden { .. } => Level::Warn,
            _ => Level::Info,
        }
    }

    /// The worker that has lost the job, if there is one.
    fn from(&self) -> Option<&WorkerId> {
        match self {
            Fact::LeaseLapsed { from, .. } | Fact::HolderVanished { from, .. } => Some(from),
            _ => None,
        }
    }

    /// The event of a new job.
    pub fn enqueued(job: &NewJob) -> Fact {
        Fact::JobEnqueued {
            kind: job.kind.clone(),
            queue: job.queue.clone(),
            tenant: job.tenant.clone(),
        }
    }

    /// The event of a refused call.
    pub(crate) fn refused(verb: Verb, stale: &Stale) -> Fact {
        Fact::StaleWriteBlocked {
            verb,
            stale_token: stale.shown.token,
            current_token: stale.current,
            reason: stale.reason,
            state: stale.state,
        }
    }
}

/// How many settlements of a worker the store has applied.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    succeeded: u64,
    retried: u64,
    dead: u64,
}

impl Tally {
    pub(crate) fn count(&mut self, fact: &Fact) {
        match fact {
            Fact::JobSucceeded { .. } => self.succeeded += 1,
            Fact::RetryScheduled { .. } => self.retried += 1,
            Fact::JobDead { .. } => self.dead += 1,
            _ => {}
        }
    }

    /// The event of the worker's end.
    pub(crate) fn at_exit(self, reason: Exit) -> Fact {
        let Tally { succeeded, retried, dead } = self;
        Fact::WorkerExit { reason, succeeded, retried, dead }
    }
}

/// One line for people: the name, the job and the token, then the other fields as `name=value`.
impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<19}", self.fact.name())?;
        if let Some(job) = self.job {
            write!(f, " job={job}")?;
        }
        if let Some(token) = self.token {
            write!(f, " token={token}")?;
        }
        let mut fields = serde_json::to_value(&self.fact).unwrap_or_default();
        if let Some(from) = self.fact.from() {
            fields["from"] = from.short().into();
        }
        for (name, value) in fields.as_object().into_iter().flatten() {
            match value {
                _ if name == "event" => {}
                serde_json::Value::Null => {}
                serde_json::Value::String(text) if text.is_empty() => {}
                serde_json::Value::String(text) if !text.contains([' ', '\n', '"']) => {
                    write!(f, " {name}={text}")?;
                }
                value => write!(f, " {name}={value}")?,
            }
        }
        if let Some(worker) = &self.worker {
            write!(f, " worker={}", worker.short())?;
        }
        Ok(())
    }
}

/// The functions that are called for each event, in this order, after [`tracing`]. They run on the
/// worker's own threads: they must be quick, and must not call back. Clones share them.
#[derive(Clone, Default)]
pub struct Observer(Vec<Observe>);

type Observe = Arc<dyn Fn(&Event) + Send + Sync>;

impl Observer {
    /// An observer that calls this for each event.
    pub fn new(observe: impl Fn(&Event) + Send + Sync + 'static) -> Observer {
        Observer::default().and(observe)
    }

    /// Adds a function.
    pub fn and(mut self, observe: impl Fn(&Event) + Send + Sync + 'static) -> Observer {
        self.0.push(Arc::new(observe));
        self
    }

    /// Adds all functions of another observer.
    pub(crate) fn and_all_of(mut self, other: &Observer) -> Observer {
        self.0.extend(other.0.iter().cloned());
        self
    }

    /// Whether an event reaches anything: a function, or a subscriber of `tracing`.
    pub(crate) fn is_heard(&self) -> bool {
        let is_silent = |to: &tracing::Dispatch| to.is::<tracing::subscriber::NoSubscriber>();
        !self.0.is_empty() || !tracing::dispatcher::get_default(is_silent)
    }

    /// Reports an event. If a function panics, the others are still called, it is called again for
    /// the next event, and the work continues.
    pub fn tell(&self, event: &Event) {
        let _ = catch_unwind(|| trace(event));
        for observe in &self.0 {
            let _ = catch_unwind(AssertUnwindSafe(|| observe(event)));
        }
    }

    /// Reports an event about a job that `worker` holds or held.
    pub(crate) fn of_job(&self, worker: &WorkerId, fence: Fence, fact: Fact) {
        self.tell(&Event {
            fact,
            job: Some(fence.job),
            token: Some(fence.token),
            worker: Some(worker.clone()),
        });
    }

    /// Reports an event about a worker.
    pub(crate) fn of_worker(&self, worker: &WorkerId, fact: Fact) {
        self.tell(&Event { fact, job: None, token: None, worker: Some(worker.clone()) });
    }
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Observer")
    }
}

/// Passes an event to `tracing`, under the target `tenure`.
fn trace(event: &Event) {
    let name = event.fact.name();
    let (job, token) = (event.job.map(|job| job.0), event.token.map(|token| token.0));
    let worker = event.worker.as_ref().map(WorkerId::as_str);
    // The level must be a constant where `tracing` is called.
    macro_rules! tell {
        ($tell:ident) => {
            tracing::$tell!(target: "tenure", event = name, job, token, worker, "{event}")
        };
    }
    match event.fact.level() {
        Level::Debug => tell!(debug),
        Level::Info => tell!(info),
        Level::Warn => tell!(warn),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Name {
        Name::check("name", text).unwrap()
    }

    fn refusal() -> Event {
        let fence = Fence { job: JobId(7), token: Token(3) };
        let stale = Stale::new(fence, Token(4), State::Running);
        Event {
            fact: Fact::refused(Verb::Complete, &stale),
            job: Some(fence.job),
            token: Some(fence.token),
            worker: Some(WorkerId::check("0123456789abcdef0123456789abcdef").unwrap()),
        }
    }

    #[test]
    fn an_event_is_one_flat_object_with_its_identity() {
        assert_eq!(
            serde_json::to_string(&refusal()).unwrap(),
            r#"{"event":"stale_write_blocked","verb":"complete","stale_token":"3","current_token":"4","reason":"token_mismatch","state":"running","job":"7","token":"3","worker":"0123456789abcdef0123456789abcdef"}"#
        );
    }

    #[test]
    fn an_event_for_people_is_one_line() {
        let event = Event {
            fact: Fact::RetryScheduled { after_ms: 500, error: "no\nway".into() },
            ..refusal()
        };
        assert_eq!(
            event.to_string(),
            r#"retry_scheduled     job=7 token=3 after_ms=500 error="no\nway" worker=01234567"#
        );
    }

    #[test]
    fn every_worker_in_a_line_for_people_is_in_its_short_form() {
        let from = WorkerId::check("fedcba9876543210fedcba9876543210").unwrap();
        let lapsed = Fact::LeaseLapsed { from: from.clone(), became: State::Queued };
        let vanished = Fact::HolderVanished { from, became: State::Queued };
        for (fact, name) in [(lapsed, "lease_lapsed   "), (vanished, "holder_vanished")] {
            let line = Event { fact, ..refusal() }.to_string();
            let rest = "job=7 token=3 became=queued from=fedcba98 worker=01234567";
            assert_eq!(line, format!("{name}     {rest}"));
        }
    }

    #[test]
    fn the_name_is_the_one_that_json_carries() {
        let worker = WorkerId::check("w").unwrap();
        let facts = [
            Fact::JobEnqueued { kind: name("k"), queue: name("q"), tenant: Tenant::default() },
            Fact::LeaseAcquired {
                kind: name("k"),
                queue: name("q"),
                tenant: Tenant::default(),
                attempt: 1,
            },
            Fact::ExecutionStarted { kind: name("k"), attempt: 1 },
            Fact::LeaseRenewed { until: Timestamp::from_millis(0) },
            refusal().fact,
            Fact::LeaseLapsed { from: worker.clone(), became: State::Queued },
            Fact::HolderVanished { from: worker, became: State::Queued },
            Fact::RetryScheduled { after_ms: 1, error: String::new() },
            Fact::JobSnoozed { after_ms: 1 },
            Fact::JobReleased,
            Fact::JobParked { reason: String::new() },
            Fact::JobSucceeded { kind: name("k"), ran_ms: 1 },
            Fact::JobDead { reason: String::new() },
            Fact::JobCancelled,
            Fact::EffectInDoubt { effect: name("e"), opened_by: Token(1) },
            Fact::EffectUnrecorded {
                effect: name("e"),
                verb: Verb::EffectCommit,
                given_up: true,
                error: String::new(),
            },
            Fact::WorkerStarted { queues: vec![], kinds: None, concurrency: 1 },
            Fact::WorkerExit { reason: Exit::Drained, succeeded: 1, retried: 0, dead: 0 },
            Fact::StoreLost { error: String::new() },
            Fact::StoreBack,
            Fact::StoreCaution { problem: String::new() },
            Fact::StoreForbidden { error: String::new() },
        ];
        assert_eq!(facts.len(), Fact::NAMES.len());
        for fact in facts {
            let json = serde_json::to_value(&fact).unwrap();
            assert_eq!(json["event"], fact.name());
        }
    }
}
