//! What a handler gets besides its job: its identity, whether it must stop, and the calls that do
//! something only once.
//!
//! Every write is fenced: if another worker holds the job by now, the store refuses the write, the
//! handler is stopped, and the refusal is reported as an event. A store that does not answer is
//! asked again for as long as this worker may still hold the job; so a handler survives a restart
//! of the database. The outcome of an effect is retried for longer: see `outcome.rs`.

mod outcome;
mod refusal;
#[cfg(test)]
mod tests;

use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::runtime::Handle;

use super::effect::EffectCall;
use super::names::Names;
use super::{Effect, Handlers};
use crate::client::Tenure;
use crate::clock::Moment;
use crate::job::{JobId, Json, Name, Progress, State, Tenant};
use crate::lease::{Fence, Reason, Stale, Token, WorkerId, epoch_of, first_of};
use crate::ledger::{Act, Answer, EffectKey, Entry, effect_name};
use crate::lifecycle::{Fault, Verb};
use crate::store::{Attempt, Error, Renewed, Report, Reported, Result as StoreResult};
use crate::telemetry::{Fact, Observer};
use crate::worker::desk::{Cause, Desk, Hold};

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

/// The handler has completed its job in a transaction of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Committed {
    /// The transaction is committed.
    Yes,
    /// The handler commits the transaction itself, so the worker does not know whether it did.
    #[cfg_attr(
        not(feature = "postgres"),
        allow(dead_code, reason = "only a client of the user's own can")
    )]
    Perhaps,
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

    /// A globally unique key for outside systems, one per job; for one per effect: [`Effect::key`].
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

    /// Whether the handler must stop: its job was cancelled, is another worker's or has run too long,
    /// or the worker shuts down. Async handlers are dropped then; blocking ones ask this.
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

    // ── what must not be done twice

    /// Does something and remembers its result under this name: a later attempt gets that result
    /// back, and does not do it again. If the worker dies in the middle, it is done again; for work
    /// that must not be repeated, see [`Context::effect`]. A step that fails, or that your own
    /// timeout drops, may be tried again under its name in the same attempt.
    ///
    /// ```
    /// # use serde::{Deserialize, Serialize};
    /// # use tenure::{Context, Fault, Job, Worker};
    /// # use std::sync::atomic::{AtomicU32, Ordering};
    /// # #[derive(Serialize, Deserialize)]
    /// # struct Index;
    /// # impl Job for Index { const KIND: &'static str = "index"; type Output = usize; }
    /// async fn index(_: Index, cx: Context) -> Result<usize, Fault> {
    ///     let loads = cx.state::<AtomicU32>();
    ///     let text: String = cx
    ///         .step("load", || async {
    ///             loads.fetch_add(1, Ordering::SeqCst); // slow and dear
    ///             Ok("a long text".to_owned())
    ///         })
    ///         .await?;
    ///     if cx.attempt() == 1 {
    ///         return Err(Fault::retry("the index is busy"));
    ///     }
    ///     Ok(text.len())
    /// }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use tenure::testing::Sandbox;
    /// let sandbox = Sandbox::new().await?;
    /// let handle = sandbox.tenure().enqueue(Index).await?;
    /// let worker = Worker::new(sandbox.tenure()).handle(index).state(AtomicU32::new(0));
    /// sandbox.run_due(&worker).await?; // fails
    /// sandbox.advance(std::time::Duration::from_secs(60));
    /// sandbox.run_due(&worker).await?; // succeeds, and has not loaded again
    /// assert_eq!(handle.wait().await?, 11);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn step<T, F, Fut>(&self, name: &str, work: F) -> Result<T, Fault>
    where
        T: Serialize + DeserializeOwned,
        F: FnOnce() -> Fut,
        Fut: Future<Output = Result<T, Fault>>,
    {
        let mut used = self.0.names.take("step", name)?;
        let name = used.name.clone();
        // A step that this attempt left open may have been stored all the same.
        if used.is_open || !self.is_first_claim() {
            match self.ledger(&name, Act::Recall).await? {
                Answer::Remembered(kept) => {
                    used.keep();
                    return decode(&name, &kept);
                }
                Answer::Unknown => {}
                other => return Err(unexpected(&name, &other)),
            }
        }
        self.certain().await?;
        // Nothing is remembered of a step that failed or was dropped, so that it may be tried again
        // under its name.
        let output = work().await?;
        let unkept = |invalid| Fault::fatal(format!("the step {name} ran, but its {invalid}"));
        let result = Json::of("result", &output, self.result_limit()).map_err(unkept)?;
        used.leave_open();
        let answer = self.ledger(&name, Act::Remember { result }).await?;
        used.keep();
        match answer {
            Answer::Recorded => Ok(output),
            // The answer to the first call was lost and the call repeated: the result that was
            // stored first counts.
            Answer::Remembered(kept) => decode(&name, &kept),
            other => Err(unexpected(&name, &other)),
        }
    }

    /// Makes an outside call that must not happen twice. The intent is stored before it, and the
    /// outcome after it; a later attempt that finds the outcome gets it back. An attempt that finds
    /// an intent without an outcome does not know whether the call happened: the effect is *in
    /// doubt*, and your choice decides:
    ///
    /// - nothing, or [`park`](EffectCall::park): the job waits until a person has checked, and
    ///   decides with `tenure effects resolve`.
    /// - [`resend`](EffectCall::resend): the call is made again, with the same [key](Effect::key),
    ///   so that the other side can recognise it.
    /// - [`verify`](EffectCall::verify): the other side is asked.
    ///
    /// ```
    /// # use serde::{Deserialize, Serialize};
    /// # use tenure::{Context, Fault, Job, Worker};
    /// # #[derive(Serialize, Deserialize)]
    /// # struct Charge { cents: u32 }
    /// # impl Job for Charge { const KIND: &'static str = "charge"; type Output = String; }
    /// # async fn bank_charge(_: u32, key: String) -> Result<String, Fault> { Ok(key) }
    /// async fn charge(job: Charge, cx: Context) -> Result<String, Fault> {
    ///     cx.effect("charge", |fx| bank_charge(job.cents, fx.key())).resend().await
    /// }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let sandbox = tenure::testing::Sandbox::new().await?;
    /// # let handle = sandbox.tenure().enqueue(Charge { cents: 42 }).await?;
    /// # sandbox.run_due(&Worker::new(sandbox.tenure()).handle(charge)).await?;
    /// # assert!(handle.wait().await?.ends_with("/charge"));
    /// # Ok(())
    /// # }
    /// ```
    pub fn effect<'a, T, F, Fut>(&'a self, name: &str, send: F) -> EffectCall<'a, T, F>
    where
        T: Serialize + DeserializeOwned + Send,
        F: FnOnce(Effect) -> Fut + Send + 'a,
        Fut: Future<Output = Result<T, Fault>> + Send,
    {
        EffectCall::new(self, name, send)
    }

    /// Asks the store whether this worker still holds the job, and renews the lease to its full
    /// length: for use right before an action that cannot be undone and has no key. It also refuses
    /// if the lease was over for a moment, even if no other worker took the job: the situation may
    /// have changed.
    ///
    /// ```
    /// # use serde::{Deserialize, Serialize};
    /// # use tenure::{Context, Fault, Job, Worker};
    /// # #[derive(Serialize, Deserialize)]
    /// # struct Launch;
    /// # impl Job for Launch { const KIND: &'static str = "launch"; type Output = (); }
    /// # async fn ignite(_: tenure::Token) {}
    /// async fn launch(_: Launch, cx: Context) -> Result<(), Fault> {
    ///     let token = cx.assert_held().await?; // we still hold it, and for a whole lease from now
    ///     ignite(token).await;
    ///     Ok(())
    /// }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let sandbox = tenure::testing::Sandbox::new().await?;
    /// # sandbox.tenure().enqueue(Launch).await?;
    /// # let worker = Worker::new(sandbox.tenure()).handle(launch);
    /// # assert_eq!(sandbox.run_due(&worker).await?.succeeded, 1);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn assert_held(&self) -> Result<Token, Fault> {
        let fence = self.fence();
        let trust = self.0.hold.trust();
        if trust.stopped.is_some() {
            return Err(stopped());
        }
        if Moment::now() >= trust.until {
            let stale = Stale {
                shown: fence,
                current: fence.token,
                state: State::Running,
                reason: Reason::LeaseExpired,
            };
            self.tell(Fact::refused(Verb::Renew, &stale, self.ran()));
            return Err(Fault::retry("the lease was over; the attempt begins anew"));
        }
        let lease = self.0.lease;
        let answers = self
            .insist(move || {
                self.0.tenure.0.link.as_holder(move |engine| engine.store().renew(&[fence], lease))
            })
            .await?;
        match answers.first() {
            // An open transaction has locked the row, so no other worker can take the job.
            Some(Renewed::Extended(_) | Renewed::Busy) => Ok(fence.token),
            Some(Renewed::Stale(stale)) => Err(self.refused(Verb::Renew, stale)),
            Some(Renewed::NotFound) | None => Err(self.lost()),
        }
    }

    /// Reports how far the job has come, from 0 to 1, and what it is doing; `tenure jobs show`
    /// displays it. Of several reports within a quarter of a second only the first is sent, and
    /// any that says 1, so a loop may call this as often as it likes.
    ///
    /// ```
    /// # use serde::{Deserialize, Serialize};
    /// # use tenure::{Context, Fault, Job, Worker};
    /// # #[derive(Serialize, Deserialize)]
    /// # struct Embed { pages: u32 }
    /// # impl Job for Embed { const KIND: &'static str = "embed"; type Output = (); }
    /// async fn embed(job: Embed, cx: Context) -> Result<(), Fault> {
    ///     for page in 0..job.pages {
    ///         cx.progress(f64::from(page) / f64::from(job.pages), "embedding").await?;
    ///         // …
    ///     }
    ///     Ok(())
    /// }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let sandbox = tenure::testing::Sandbox::new().await?;
    /// # let cx = sandbox.context(&Embed { pages: 3 }).await?;
    /// # let job = cx.job();
    /// # cx.progress(0.4, "embedding").await.unwrap();
    /// # let seen = sandbox.tenure().job(job).await?.unwrap().job.progress.unwrap();
    /// # assert_eq!(seen.to_string(), "40 % embedding");
    /// # Ok(())
    /// # }
    /// ```
    pub async fn progress(&self, fraction: f64, note: impl AsRef<str>) -> Result<(), Fault> {
        const PAUSE: Duration = Duration::from_millis(250);
        if self.is_cancelled() {
            return Err(stopped());
        }
        {
            let now = Moment::now();
            let mut told = self.0.progress_told.lock().unwrap_or_else(PoisonError::into_inner);
            if told.is_some_and(|told| now.since(told) < PAUSE) && fraction < 1.0 {
                return Ok(());
            }
            *told = Some(now);
        }
        let fence = self.fence();
        let report = Report { fence, progress: Progress::new(fraction, note.as_ref()) };
        let answers = self
            .insist(|| {
                let report = report.clone();
                self.0.tenure.0.link.as_holder(move |engine| engine.store().progress(&[report]))
            })
            .await?;
        match answers.first() {
            // A report that is not stored now is replaced by the next one.
            Some(Reported::Noted | Reported::Busy) => Ok(()),
            Some(Reported::Stale(stale)) => Err(self.refused(Verb::Progress, stale)),
            Some(Reported::NotFound) | None => Err(self.lost()),
        }
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

    /// Whether this is the job's first claim: then the ledger has nothing for it, and need not be
    /// asked.
    pub(super) fn is_first_claim(&self) -> bool {
        self.token().0 == first_of(epoch_of(self.job().0)) + 1
    }

    /// Waits until it is certain that this worker holds the job: at once, unless the lease could
    /// not be renewed in time. Nothing is started while that is uncertain.
    pub(crate) async fn certain(&self) -> Result<(), Fault> {
        let mut watch = self.0.hold.watch();
        loop {
            let trust = *watch.borrow_and_update();
            if trust.stopped.is_some() {
                return Err(stopped());
            }
            if Moment::now() < trust.until {
                return Ok(());
            }
            // The sender lives as long as this context does.
            let _ = watch.changed().await;
        }
    }

    pub(super) async fn ledger(&self, name: &Name, act: Act) -> Result<Answer, Fault> {
        let verb = act.verb();
        let entry = Entry { fence: self.fence(), name: name.clone(), act };
        match self.insist(|| self.0.tenure.0.link.ledger(entry.clone())).await? {
            Answer::Stale(stale) => Err(self.refused(verb, &stale)),
            Answer::NotFound => Err(self.lost()),
            answer => Ok(answer),
        }
    }

    pub(super) fn tell(&self, fact: Fact) {
        self.0.observer.of_job(&self.0.worker, &self.0.hold.about, fact);
    }

    /// Repeats a call until the store answers, for as long as this worker may hold the job.
    pub(crate) async fn insist<T, Fut>(&self, ask: impl Fn() -> Fut) -> Result<T, Fault>
    where
        Fut: Future<Output = StoreResult<T>>,
    {
        // A limit, because the transaction that has locked the job's row may be this handler's own.
        const LOCKED: u32 = 10;
        let mut pause = Duration::from_millis(20);
        let mut locked = 0;
        loop {
            let answer = ask().await;
            locked += u32::from(matches!(answer, Err(Error::Busy { .. })));
            match answer {
                Ok(answer) => return Ok(answer),
                Err(error) if error.is_transient() && locked < LOCKED && !self.is_cancelled() => {
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(Duration::from_secs(1));
                }
                Err(error) if error.is_invalid() => return Err(Fault::fatal(error)),
                Err(error) => return Err(self.failed(error)),
            }
        }
    }
}

fn stopped() -> Fault {
    Fault::retry("this attempt is over: the job is not this worker's any more")
}

/// A result that an older version of the handler stored may have another type.
fn decode<T: DeserializeOwned>(name: &Name, kept: &Json) -> Result<T, Fault> {
    serde_json::from_str(kept.as_str()).map_err(|cause| {
        Fault::fatal(format!(
            "what the step {name} came to in an earlier attempt does not decode any more: {cause}; \
             give it another name when its type changes"
        ))
    })
}

pub(super) fn unexpected(name: &Name, answer: &Answer) -> Fault {
    Fault::fatal(format!("the ledger does not allow {name}: {answer:?}"))
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
