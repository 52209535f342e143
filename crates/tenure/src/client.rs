//! How a job is enqueued: the store handle of a program, typed jobs, and handles on their results.
//!
//! [`Tenure`] is cheap to clone and safe to share. It has a few connections. Each of them has its
//! own thread and serves one sort of call, so that an enqueue that waits for a key which another
//! transaction has locked does not block other calls. Jobs that are enqueued at the same time are
//! sent in one call. Nothing here runs a job: [`crate::Worker`] does.

mod enqueue;
mod handle;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::Notify;

pub use self::enqueue::Enqueue;
pub use self::handle::{Handle, JobError};
use crate::clock::Clock;
use crate::inspect::{Identity, JobDetail};
use crate::job::{BATCH_LIMIT, JobId, Limits, Name, NewJob, RetryPolicy};
use crate::store::StoreOptions;
use crate::store::place::Place;
use crate::store::thread::Link;
use crate::store::{Address, Changed, Enqueued, Error, Incomplete, Result, Store, Verdict};
use crate::telemetry::{Event, Observer};

/// A kind of job: the value itself is its args, and its handler returns the output.
///
/// ```
/// use serde::{Deserialize, Serialize};
/// use tenure::{Job, RetryPolicy};
///
/// #[derive(Serialize, Deserialize)]
/// struct SendEmail {
///     to: String,
/// }
///
/// impl Job for SendEmail {
///     const KIND: &'static str = "send_email";
///     const RETRY: RetryPolicy = RetryPolicy::Fixed { ms: 5_000 };
///     type Output = ();
/// }
/// ```
pub trait Job: Serialize + DeserializeOwned + Send + 'static {
    /// The name of the kind, as every program and every language spells it.
    const KIND: &'static str;

    /// The queue that its jobs wait in, unless enqueued into another.
    const QUEUE: &'static str = "default";

    /// The delays between tries, unless enqueued with another policy.
    const RETRY: RetryPolicy = RetryPolicy::DEFAULT;

    /// What its handler returns.
    type Output: Serialize + DeserializeOwned + Send + 'static;
}

/// A handle on a store.
///
/// ```
/// # use serde::{Deserialize, Serialize};
/// # use tenure::{Context, Fault, Job, Tenure, Worker};
/// #[derive(Serialize, Deserialize)]
/// struct Double(u32);
///
/// impl Job for Double {
///     const KIND: &'static str = "double";
///     type Output = u32;
/// }
///
/// async fn double(job: Double, _: Context) -> Result<u32, Fault> {
///     Ok(job.0 * 2)
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let directory = tempfile::tempdir()?;
/// # let file = directory.path().join("tenure.db");
/// # let file = file.to_str().unwrap();
/// let tenure = Tenure::open(file).await?; // or "postgres://…"
/// let handle = tenure.enqueue(Double(21)).key("answer").await?;
/// Worker::new(&tenure).handle(double).drain().run().await?;
/// assert_eq!(handle.wait().await?, 42);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Tenure(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) place: Arc<Place>,
    pub(crate) options: StoreOptions,
    pub(crate) link: Link,
    pub(crate) observer: Observer,
    pub(crate) installation: uuid::Uuid,
    pub(crate) waiters: Arc<Waiters>,
}

/// The options for opening a store.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tenure::Error> {
/// use tenure::{Limits, Tenure};
///
/// let limits = Limits { args: 1024, ..Limits::default() };
/// let tenure = Tenure::options().limits(limits).open("sqlite::memory:").await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Default)]
pub struct TenureOptions {
    store: StoreOptions,
    observer: Observer,
}

impl TenureOptions {
    /// The largest sizes that the store accepts from this program.
    pub fn limits(mut self, limits: Limits) -> TenureOptions {
        self.store.limits = limits;
        self
    }

    /// Calls this for each event, in addition to `tracing`. It can be called several times; all
    /// observers are called.
    pub fn observe(mut self, observe: impl Fn(&Event) + Send + Sync + 'static) -> TenureOptions {
        self.observer = self.observer.and(observe);
        self
    }

    /// The clock of a store on SQLite: for tests. PostgreSQL has a clock of its own.
    pub fn clock(mut self, clock: Clock) -> TenureOptions {
        self.store.clock = clock;
        self
    }

    /// Opens a store, see [`Tenure::open`].
    pub async fn open<A>(self, address: A) -> Result<Tenure>
    where
        A: TryInto<Address>,
        Error: From<A::Error>,
    {
        let TenureOptions { store: options, observer } = self;
        let place = Arc::new(Place::new(&address.try_into()?, &options)?);
        let (there, how) = (Arc::clone(&place), options.clone());
        let open = Link::open(move || there.connect(&how), |engine| engine.store().identity());
        let (link, Identity { installation, .. }) = open.await?;
        let waiters = Arc::default();
        Ok(Tenure(Arc::new(Inner { place, options, link, observer, installation, waiters })))
    }
}

impl Tenure {
    /// Opens a store: a file such as `tenure.db`, by its name or its path, which is created if it
    /// does not exist; `sqlite::memory:`, which lives as long as a connection to it is open; or
    /// `postgres://user:password@host/database`, whose schema `tenure migrate up` has created. See
    /// [`Address`] for all spellings.
    pub async fn open<A>(address: A) -> Result<Tenure>
    where
        A: TryInto<Address>,
        Error: From<A::Error>,
    {
        Tenure::options().open(address).await
    }

    /// Options for opening a store.
    pub fn options() -> TenureOptions {
        TenureOptions::default()
    }

    /// A job to enqueue. Set its options, and await it.
    ///
    /// ```
    /// # use serde::{Deserialize, Serialize};
    /// # use std::time::Duration;
    /// # use tenure::{Job, Tenure};
    /// # #[derive(Serialize, Deserialize)]
    /// # struct Report { month: u8 }
    /// # impl Job for Report { const KIND: &'static str = "report"; type Output = (); }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tenure::Error> {
    /// # let tenure = Tenure::open("sqlite::memory:").await?;
    /// let first = tenure.enqueue(Report { month: 7 }).key("report-7").await?;
    /// let again = tenure.enqueue(Report { month: 7 }).key("report-7").await?;
    /// assert_eq!(first.id(), again.id());
    ///
    /// let later = tenure
    ///     .enqueue(Report { month: 8 })
    ///     .queue("slow")
    ///     .delay(Duration::from_secs(3600))
    ///     .max_attempts(3)
    ///     .await?;
    /// assert!(later.is_new() && !again.is_new());
    /// # Ok(())
    /// # }
    /// ```
    #[expect(clippy::needless_pass_by_value, reason = "a job that is enqueued is given away")]
    pub fn enqueue<J: Job>(&self, job: J) -> Enqueue<J::Output> {
        Enqueue::new(self, J::KIND, J::QUEUE, &job).retry(J::RETRY)
    }

    /// Like [`Tenure::enqueue`], for a kind that has no type in this program: its args are JSON,
    /// and so is its result.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tenure::Error> {
    /// # let tenure = tenure::Tenure::open("sqlite::memory:").await?;
    /// let handle = tenure.enqueue_kind("resize", &serde_json::json!({ "width": 80 })).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn enqueue_kind(
        &self,
        kind: impl AsRef<str>,
        args: &impl Serialize,
    ) -> Enqueue<serde_json::Value> {
        Enqueue::new(self, kind.as_ref(), "default", args)
    }

    /// Enqueues many jobs, each with its own options. Up to a thousand go in one transaction, all
    /// or none; more go in parts.
    ///
    /// # Errors
    ///
    /// An invalid job is an error before any job is sent. After that, if some were not enqueued,
    /// [`Error::Incomplete`] has a [`Verdict`] for each: a key that belongs to another request
    /// affects only its own job, and after a part that fails no more are sent. If there is only one
    /// part and it fails, that error is returned.
    ///
    /// ```
    /// # use serde::{Deserialize, Serialize};
    /// # use tenure::{Job, Tenure};
    /// # #[derive(Serialize, Deserialize)]
    /// # struct Report { month: u8 }
    /// # impl Job for Report { const KIND: &'static str = "report"; type Output = (); }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tenure::Error> {
    /// # let tenure = Tenure::open("sqlite::memory:").await?;
    /// let year = (1..=12).map(|month| tenure.enqueue(Report { month }).priority(month.into()));
    /// let handles = tenure.enqueue_many(year).await?;
    /// assert_eq!(handles.len(), 12);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn enqueue_many<T: DeserializeOwned>(
        &self,
        jobs: impl IntoIterator<Item = Enqueue<T>>,
    ) -> Result<Vec<Handle<T>>> {
        // All are checked before any is sent.
        let jobs: Vec<NewJob> = jobs.into_iter().map(Enqueue::build).collect::<Result<_>>()?;
        let mut verdicts = Vec::with_capacity(jobs.len());
        let mut cause = None;
        for part in jobs.chunks(BATCH_LIMIT) {
            match self.0.link.enqueue(part.to_vec()).await {
                Ok(answers) => {
                    part.iter().zip(&answers).for_each(|(job, answer)| self.tell(job, *answer));
                    verdicts.extend(answers.into_iter().map(Verdict::Answered));
                }
                Err(error) if jobs.len() <= BATCH_LIMIT => return Err(error),
                Err(error) => {
                    cause = Some(error);
                    verdicts.resize(verdicts.len() + part.len(), Verdict::Failed);
                    verdicts.resize(jobs.len(), Verdict::NotSent);
                    break;
                }
            }
        }
        let handle = |verdict: &Verdict| match verdict {
            Verdict::Answered(answer) => self.handle_on(*answer).ok(),
            Verdict::Failed | Verdict::NotSent => None,
        };
        let handles: Option<Vec<_>> = verdicts.iter().map(handle).collect();
        handles.ok_or_else(|| Error::Incomplete(Box::new(Incomplete { verdicts, cause })))
    }

    /// A job's details and timeline; `None` if the store does not know it.
    pub async fn job(&self, id: JobId) -> Result<Option<JobDetail>> {
        self.0.link.look(move |engine| engine.store().job(id)).await
    }

    /// A handle on a job that was enqueued elsewhere. If the job is of another type, its result
    /// will not decode.
    pub fn find<J: Job>(&self, id: JobId) -> Handle<J::Output> {
        Handle::new(self, id, false)
    }

    /// Cancels a job that has not ended. If it runs, its handler is stopped within seconds, and the
    /// store refuses everything that it still writes.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tenure::Error> {
    /// # let tenure = tenure::Tenure::open("sqlite::memory:").await?;
    /// use tenure::State;
    ///
    /// let id = tenure.enqueue_kind("hello", &()).await?.id();
    /// tenure.cancel(id).await?;
    /// assert_eq!(tenure.job(id).await?.map(|found| found.job.state), Some(State::Cancelled));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn cancel(&self, id: JobId) -> Result<Changed> {
        let changed = self.with_store(move |store| store.cancel(&[id])).await?;
        Ok(changed.first().copied().unwrap_or(Changed::NotFound))
    }

    /// Calls anything else that a store can do, on the store's thread. While `work` runs, it blocks
    /// other calls of this function and [`cancel`](Tenure::cancel), but neither enqueues nor
    /// handlers.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tenure::Error> {
    /// # let tenure = tenure::Tenure::open("sqlite::memory:").await?;
    /// let overview = tenure.with_store(|store| store.overview()).await?;
    /// assert!(overview.lines.is_empty());
    /// # Ok(())
    /// # }
    /// ```
    pub async fn with_store<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut dyn Store) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.0.link.call(move |engine| work(engine.store())).await
    }

    /// Turns the answer to an enqueue into a handle, and reports a new job. A key that belongs to
    /// another request is an error.
    pub(crate) fn enqueued<T>(&self, job: &NewJob, answer: Enqueued) -> Result<Handle<T>> {
        self.tell(job, answer);
        self.handle_on(answer)
    }

    /// Reports a new job as an event.
    fn tell(&self, job: &NewJob, answer: Enqueued) {
        if let Enqueued::Created(id) = answer {
            self.0.observer.enqueued(id, job);
        }
    }

    /// Turns the answer to an enqueue into a handle, without an event.
    pub(crate) fn handle_on<T>(&self, answer: Enqueued) -> Result<Handle<T>> {
        match answer {
            Enqueued::Created(id) => Ok(Handle::new(self, id, true)),
            Enqueued::Existing(id) => Ok(Handle::new(self, id, false)),
            Enqueued::Conflict(owner) => Err(Error::Conflict { owner }),
        }
    }
}

impl fmt::Debug for Tenure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tenure").field("installation", &self.0.installation).finish_non_exhaustive()
    }
}

/// The callers that wait for a job to end. If the job ends in this process, a worker wakes them, so
/// that they need not wait for their next poll. This does not go through events, so it does not
/// depend on the observers.
#[derive(Debug, Default)]
pub(crate) struct Waiters(Mutex<BTreeMap<(JobId, u64), Arc<Notify>>>);

/// A caller that waits. Dropping it removes it.
pub(crate) struct Waiting<'a> {
    waiters: &'a Waiters,
    place: (JobId, u64),
    woken: Arc<Notify>,
}

impl Waiters {
    /// Registers a caller, to be woken when the job ends in this process. The job may end
    /// elsewhere.
    pub(crate) fn wait_for(&self, job: JobId) -> Waiting<'_> {
        let woken = Arc::new(Notify::new());
        let mut waiting = self.all();
        let last = waiting.range((job, 0)..=(job, u64::MAX)).next_back();
        let place = (job, last.map_or(0, |((_, n), _)| n + 1));
        waiting.insert(place, Arc::clone(&woken));
        Waiting { waiters: self, place, woken }
    }

    /// Wakes the callers that wait for this job: it has ended.
    pub(crate) fn wake(&self, job: JobId) {
        for (_, woken) in self.all().range((job, 0)..=(job, u64::MAX)) {
            woken.notify_one();
        }
    }

    fn all(&self) -> MutexGuard<'_, BTreeMap<(JobId, u64), Arc<Notify>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiting<'_> {
    /// Waits to be woken, at most for `length`.
    pub(crate) async fn rest(&self, length: Duration) {
        // The result does not matter: the caller checks the job either way.
        let _ = tokio::time::timeout(length, self.woken.notified()).await;
    }
}

#[cfg(test)]
impl Waiting<'_> {
    /// Whether the caller was woken since its last [`Waiting::rest`], or its last call of this
    /// function.
    pub(crate) fn is_woken(&self) -> bool {
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        std::pin::pin!(self.woken.notified()).poll(&mut context).is_ready()
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.waiters.all().remove(&self.place);
    }
}

/// Checks the name of a kind that this program has given.
pub(crate) fn kind(text: &str) -> Result<Name, crate::job::Invalid> {
    Name::check("kind", text)
}
