//! What a handler gets besides its job: the identity of the attempt, whether the handler must stop,
//! and the calls that do something only once.
//!
//! Every write is fenced: if another worker holds the job by now, the store refuses the write, the
//! handler is stopped, and the refusal is reported as an event. If the store does not answer, the
//! call is repeated for as long as this worker may still hold the job. So a handler survives a
//! restart of the database. The outcome of an effect is retried for longer: see `outcome.rs`.

mod calls;
mod outcome;
mod refusal;
mod steps;
#[cfg(test)]
mod tests;

use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;

pub(super) use self::steps::unexpected;
use super::Handlers;
use super::names::Names;
use crate::client::Tenure;
use crate::clock::Moment;
use crate::desk::{Cause, Committed, Desk, Hold};
use crate::job::{JobId, Name, Tenant};
use crate::lease::{Fence, Token, WorkerId};
use crate::ledger::{EffectKey, effect_name};
use crate::lifecycle::Fault;
use crate::store::Attempt;
use crate::telemetry::{Fact, Observer};

/// What a handler gets besides its job. Clones are the same context.
#[derive(Clone)]
pub struct Context(Arc<Inner>);

struct Inner {
    tenure: Tenure,
    attempt: Attempt,
    hold: Arc<Hold>,
    desk: Arc<Desk>,
    worker: WorkerId,
    lease: Duration,
    observer: Observer,
    handlers: Arc<Handlers>,
    runtime: Handle,
    /// The names of steps and effects that this attempt has used.
    names: Names,
    committed: Mutex<Option<Committed>>,
    /// When progress was last reported to the store.
    progress_told: Mutex<Option<Moment>>,
}

/// What all contexts of a worker share.
pub(crate) struct Surroundings {
    pub(crate) tenure: Tenure,
    pub(crate) desk: Arc<Desk>,
    pub(crate) worker: WorkerId,
    pub(crate) lease: Duration,
    pub(crate) observer: Observer,
    pub(crate) handlers: Arc<Handlers>,
    /// Runs tasks that outlive a handler.
    pub(crate) runtime: Handle,
}

impl Context {
    pub(crate) fn new(surroundings: &Surroundings, attempt: Attempt, hold: Arc<Hold>) -> Context {
        let Surroundings { tenure, desk, worker, lease, observer, handlers, runtime } =
            surroundings;
        Context(Arc::new(Inner {
            tenure: tenure.clone(),
            attempt,
            hold,
            desk: Arc::clone(desk),
            worker: worker.clone(),
            lease: *lease,
            observer: observer.clone(),
            handlers: Arc::clone(handlers),
            runtime: runtime.clone(),
            names: Names::default(),
            committed: Mutex::default(),
            progress_told: Mutex::default(),
        }))
    }

    // ── its identity

    /// The job's number.
    pub fn job(&self) -> JobId {
        self.0.hold.fence.job
    }

    /// The fencing token of this attempt: larger than that of every earlier one. An outside system
    /// that stores the highest token it has seen can refuse lower ones.
    pub fn token(&self) -> Token {
        self.0.hold.fence.token
    }

    /// The job and the token, as fenced calls present them.
    pub fn fence(&self) -> Fence {
        self.0.hold.fence
    }

    /// The job's kind.
    pub fn kind(&self) -> &Name {
        &self.0.attempt.kind
    }

    /// The queue that it waited in.
    pub fn queue(&self) -> &Name {
        &self.0.attempt.queue
    }

    /// The tenant that the job belongs to.
    pub fn tenant(&self) -> &Tenant {
        &self.0.attempt.tenant
    }

    /// Which attempt this is, from 1.
    pub fn attempt(&self) -> u16 {
        self.0.attempt.attempt
    }

    /// How many crashes count for this job: its lease was over or its worker vanished.
    pub fn crashes(&self) -> u16 {
        self.0.attempt.crashes
    }

    /// Whether the job dies if this attempt fails.
    pub fn is_last_attempt(&self) -> bool {
        self.0.attempt.attempt >= self.0.attempt.max_attempts
    }

    /// The idempotency key that it was enqueued with.
    pub fn key(&self) -> Option<&str> {
        self.0.attempt.key.as_deref()
    }

    /// The trace that it continues.
    pub fn trace(&self) -> Option<&str> {
        self.0.attempt.extras.trace.as_deref()
    }

    /// A globally unique key for outside systems: the same in every attempt of this job, another
    /// for each name of an effect. In [`Context::effect`] it is
    /// [`Effect::key`](super::Effect::key).
    pub fn effect_key(&self, effect: &str) -> Result<String, Fault> {
        let effect = effect_name(effect).map_err(Fault::fatal)?;
        let installation = self.0.tenure.0.installation;
        Ok(EffectKey { installation, job: self.job(), effect }.to_string())
    }

    /// The store that the job came from, for example to enqueue more jobs.
    pub fn tenure(&self) -> &Tenure {
        &self.0.tenure
    }

    /// The value of this type that the worker got with [`crate::Worker::state`].
    ///
    /// # Panics
    ///
    /// If the worker has no value of this type. Then the attempt fails.
    pub fn state<T: Send + Sync + 'static>(&self) -> &T {
        self.0.handlers.state().unwrap_or_else(|| {
            panic!("no state of type {}; give it with Worker::state", std::any::type_name::<T>())
        })
    }

    // ── whether to continue

    /// Whether the handler must stop: its job was cancelled, is another worker's or has run too
    /// long, or the worker shuts down. Then an async handler is dropped. A blocking handler should
    /// check this now and then.
    pub fn is_cancelled(&self) -> bool {
        self.0.hold.is_stopped()
    }

    /// Whether the job is another worker's by now, or cancelled: the store refuses what is written.
    pub fn lease_lost(&self) -> bool {
        matches!(self.0.hold.trust().stopped, Some(Cause::Lost | Cause::Cancelled))
    }

    /// Waits until the handler must stop: for handlers that must end what they began elsewhere.
    ///
    /// ```
    /// # use serde::{Deserialize, Serialize};
    /// # use tenure::{Context, Fault, Job, Worker};
    /// # #[derive(Serialize, Deserialize)]
    /// # struct Watch;
    /// # impl Job for Watch { const KIND: &'static str = "watch"; type Output = (); }
    /// async fn watch(_: Watch, cx: Context) -> Result<(), Fault> {
    ///     let elsewhere = cx.clone();
    ///     tokio::spawn(async move {
    ///         elsewhere.cancelled().await;
    ///         // close what is open
    ///     });
    ///     Ok(())
    /// }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let sandbox = tenure::testing::Sandbox::new().await?;
    /// # sandbox.tenure().enqueue(Watch).await?;
    /// # let worker = Worker::new(sandbox.tenure()).handle(watch);
    /// # assert_eq!(sandbox.run_due(&worker).await?.succeeded, 1);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn cancelled(&self) {
        let mut watch = self.0.hold.watch();
        // The sender lives as long as this context does.
        let _ = watch.wait_for(|trust| trust.stopped.is_some()).await;
    }

    /// Runs a future to its end, from a handler that blocks its thread.
    pub fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        Handle::current().block_on(future)
    }

    // ── for the rest of the library

    pub(crate) fn result_limit(&self) -> usize {
        self.0.tenure.0.options.limits.result
    }

    pub(crate) fn committed(&self) -> Option<Committed> {
        *self.0.committed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_committed(&self, how: Committed) {
        if how == Committed::Yes {
            self.0.desk.committed(self.fence(), Moment::now());
        }
        *self.0.committed.lock().unwrap_or_else(PoisonError::into_inner) = Some(how);
    }

    pub(super) fn names(&self) -> &Names {
        &self.0.names
    }

    pub(super) fn tell(&self, fact: Fact) {
        self.0.observer.of_job(&self.0.worker, &self.0.hold.about, fact);
    }
}

fn stopped() -> Fault {
    Fault::retry("this attempt is over: the job is not this worker's any more")
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let attempt = &self.0.attempt;
        f.debug_struct("Context")
            .field("job", &self.job())
            .field("token", &self.token())
            .field("kind", &attempt.kind)
            .field("attempt", &attempt.attempt)
            .finish_non_exhaustive()
    }
}
