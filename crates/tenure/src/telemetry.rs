//! All events that Tenure reports, with their names and fields, in one place.
//!
//! An event is reported once, by the code that knows of it. An event of a job carries the job's
//! identity ([`About`]) and the worker, and never the job's args or result. Events go to
//! [`tracing`] under the target `tenure`, and to every [`Observer`].
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

mod trace;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use serde::{Serialize, Serializer};

pub(crate) use self::trace::span;
use crate::clock::{Timestamp, millis};
use crate::job::{JobId, Name, NewJob, State};
use crate::lease::{Reason, Stale, Token, WorkerId};
use crate::lifecycle::Verb;
use crate::record::About;

/// An event: what happened to which attempt of which job, reported by which worker. It serialises
/// as one flat object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Event {
    /// What happened.
    #[serde(flatten)]
    pub fact: Fact,
    /// The job and its attempt. Only events of a worker itself (`worker_…`, `store_…`) have none.
    #[serde(flatten, serialize_with = "flat")]
    pub about: Option<Arc<About>>,
    /// The worker that reports it. For `lease_lapsed` and `holder_vanished` it is the worker that
    /// took the job back. A program that enqueues a job is no worker.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker: Option<WorkerId>,
}

fn flat<S: Serializer>(about: &Option<Arc<About>>, serializer: S) -> Result<S::Ok, S::Error> {
    about.as_deref().serialize(serializer)
}

impl Event {
    /// An event about an attempt of a job, reported by `worker`.
    pub fn of_job(worker: &WorkerId, about: &Arc<About>, fact: Fact) -> Event {
        debug_assert!(fact.is_of_job(), "{} has no job", fact.name());
        Event { fact, about: Some(Arc::clone(about)), worker: Some(worker.clone()) }
    }

    /// An event about a worker itself.
    pub fn of_worker(worker: &WorkerId, fact: Fact) -> Event {
        debug_assert!(!fact.is_of_job(), "{} needs a job", fact.name());
        Event { fact, about: None, worker: Some(worker.clone()) }
    }

    /// The event of a new job.
    pub fn enqueued(id: JobId, job: &NewJob) -> Event {
        let about = Arc::new(About::new_job(id, job));
        Event { fact: Fact::JobEnqueued, about: Some(about), worker: None }
    }

    /// The job, if it is an event of a job.
    pub fn job(&self) -> Option<JobId> {
        self.about.as_ref().map(|about| about.job)
    }
}

/// What happened. `ran_ms` is how long the attempt has run, measured by the worker that ran it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum Fact {
    /// A job was enqueued.
    JobEnqueued,
    /// A worker has claimed a job, this long after the job was due, by the store's clock.
    LeaseAcquired { wait_ms: i64 },
    /// The job's handler was called.
    ExecutionStarted,
    /// The lease was extended.
    LeaseRenewed { until: Timestamp },
    /// The store refused a write under a stale token.
    StaleWriteBlocked {
        verb: Verb,
        stale_token: Token,
        current_token: Token,
        reason: Reason,
        state: State,
        ran_ms: i64,
    },
    /// A job was taken back because its lease was over.
    LeaseLapsed { from: WorkerId, became: State },
    /// A job was taken back because the process of its worker is gone, whatever its lease says.
    HolderVanished { from: WorkerId, became: State },
    /// The attempt failed, and there will be another.
    RetryScheduled { after_ms: i64, error: String, ran_ms: i64 },
    /// The job runs later; the attempt does not count.
    JobSnoozed { after_ms: i64, ran_ms: i64 },
    /// The worker gave the job back unfinished; the attempt does not count.
    JobReleased { ran_ms: i64 },
    /// The job waits for a person or a signal.
    JobParked { reason: String, ran_ms: i64 },
    /// The job succeeded.
    JobSucceeded { ran_ms: i64 },
    /// The job is dead: it will not be tried again. `ran_ms` is `None` if the job was taken back
    /// from another worker: how long that one ran it is not known.
    JobDead {
        reason: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        ran_ms: Option<i64>,
    },
    /// The worker has noticed that its job was cancelled.
    JobCancelled { ran_ms: i64 },
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

impl Exit {
    /// The name, as events spell it.
    pub fn name(self) -> &'static str {
        match self {
            Exit::Drained => "drained",
            Exit::Stale => "stale",
            Exit::Shutdown => "shutdown",
            Exit::Error => "error",
        }
    }
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
            Fact::JobEnqueued => 0,
            Fact::LeaseAcquired { .. } => 1,
            Fact::ExecutionStarted => 2,
            Fact::LeaseRenewed { .. } => 3,
            Fact::StaleWriteBlocked { .. } => 4,
            Fact::LeaseLapsed { .. } => 5,
            Fact::HolderVanished { .. } => 6,
            Fact::RetryScheduled { .. } => 7,
            Fact::JobSnoozed { .. } => 8,
            Fact::JobReleased { .. } => 9,
            Fact::JobParked { .. } => 10,
            Fact::JobSucceeded { .. } => 11,
            Fact::JobDead { .. } => 12,
            Fact::JobCancelled { .. } => 13,
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

    /// Whether it is about a job; otherwise it is about a worker itself.
    fn is_of_job(&self) -> bool {
        !self.name().starts_with("worker_") && !self.name().starts_with("store_")
    }

    /// The worker that has lost the job, if there is one.
    fn from(&self) -> Option<&WorkerId> {
        match self {
            Fact::LeaseLapsed { from, .. } | Fact::HolderVanished { from, .. } => Some(from),
            _ => None,
        }
    }

    /// The event of a refused call of an attempt that has run for `ran`.
    pub(crate) fn refused(verb: Verb, stale: &Stale, ran: Duration) -> Fact {
        Fact::StaleWriteBlocked {
            verb,
            stale_token: stale.shown.token,
            current_token: stale.current,
            reason: stale.reason,
            state: stale.state,
            ran_ms: millis(ran),
        }
    }
}

/// How many settlements of a worker the store has applied.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) succeeded: u64,
    pub(crate) retried: u64,
    pub(crate) dead: u64,
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

/// One line for people: the name, the attempt, then the event's own fields as `name=value`, and the
/// worker. The queue `default`, an empty tenant and the trace are left out.
impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<19}", self.fact.name())?;
        if let Some(about) = &self.about {
            write!(f, " job={}", about.job)?;
            if let Some(token) = about.attempt_token() {
                write!(f, " token={token}")?;
            }
            write!(f, " kind={}", about.kind)?;
            if about.queue != Name::default_queue() {
                write!(f, " queue={}", about.queue)?;
            }
            if !about.tenant.as_str().is_empty() {
                write!(f, " tenant={}", about.tenant)?;
            }
            if about.attempt > 0 {
                write!(f, " attempt={}", about.attempt)?;
            }
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
/// thread that reports the event, often one of the worker's own: they must be quick, and must not
/// call Tenure. Clones share them.
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

    /// Whether an event of this level may reach anything. If it cannot, it need not be made.
    fn hears(&self, level: Level) -> bool {
        let level = match level {
            Level::Debug => tracing::Level::DEBUG,
            Level::Info => tracing::Level::INFO,
            Level::Warn => tracing::Level::WARN,
        };
        !self.0.is_empty() || level <= tracing::level_filters::LevelFilter::current()
    }

    /// Reports an event. If a function panics, the others are still called, it is called again for
    /// the next event, and the work continues.
    pub fn tell(&self, event: &Event) {
        let _ = catch_unwind(|| trace::trace(event));
        for observe in &self.0 {
            let _ = catch_unwind(AssertUnwindSafe(|| observe(event)));
        }
    }

    /// Reports an event about a job that `worker` holds or held.
    pub(crate) fn of_job(&self, worker: &WorkerId, about: &Arc<About>, fact: Fact) {
        if self.hears(fact.level()) {
            self.tell(&Event::of_job(worker, about, fact));
        }
    }

    /// Reports an event about a worker.
    pub(crate) fn of_worker(&self, worker: &WorkerId, fact: Fact) {
        if self.hears(fact.level()) {
            self.tell(&Event::of_worker(worker, fact));
        }
    }

    /// Reports a new job.
    pub fn enqueued(&self, id: JobId, job: &NewJob) {
        if self.hears(Fact::JobEnqueued.level()) {
            self.tell(&Event::enqueued(id, job));
        }
    }
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Observer")
    }
}

#[cfg(test)]
mod tests;
