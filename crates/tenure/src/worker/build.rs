//! The settings of a worker, and how it starts.

use std::fmt;
use std::future::Future;
use std::sync::{Arc, Once};
use std::time::Duration;

use tokio::sync::oneshot;

use super::attempt::Tasks;
use super::shutdown::Running;
use super::threads::Threads;
use super::{AHEAD, Plan, RELIEF};
use crate::client::{Job, Tenure};
use crate::clock::Chance;
use crate::desk::Desk;
use crate::handler::{self, AnyJob, Context, Handlers, Surroundings};
use crate::job::{Invalid, Json, Name};
use crate::lease::WorkerId;
use crate::lifecycle::Fault;
use crate::store::{Error, Result, Work, check_lease};
use crate::telemetry::{Event, Exit, Observer};

/// Runs jobs: claims them, keeps their leases, calls their handlers, and settles the attempts.
///
/// ```
/// # use serde::{Deserialize, Serialize};
/// # use tenure::{Context, Fault, Job, Tenure, Worker};
/// # #[derive(Serialize, Deserialize)]
/// # struct Greet { name: String }
/// # impl Job for Greet { const KIND: &'static str = "greet"; type Output = String; }
/// async fn greet(job: Greet, _: Context) -> Result<String, Fault> {
///     Ok(format!("Hello, {}!", job.name))
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let tenure = Tenure::open("sqlite::memory:").await?;
/// let handle = tenure.enqueue(Greet { name: "Ann".into() }).await?;
/// let (done, stop) = tokio::sync::oneshot::channel::<()>();
/// let worker = Worker::new(&tenure).handle(greet).concurrency(16);
/// let worker = tokio::spawn(worker.run_until(async { stop.await.unwrap_or(()) }));
///
/// assert_eq!(handle.wait().await?, "Hello, Ann!");
/// done.send(()).ok(); // in a service: run_until(tenure::shutdown_signal())
/// worker.await??;
/// # Ok(())
/// # }
/// ```
#[must_use = "a worker does nothing until it is run"]
pub struct Worker {
    pub(crate) tenure: Tenure,
    pub(crate) handlers: Handlers,
    pub(crate) queues: Vec<Name>,
    kinds: Option<Vec<Name>>,
    slots: usize,
    ahead: Duration,
    pub(crate) lease: Duration,
    grace: Duration,
    drain: bool,
    observer: Observer,
    #[cfg(feature = "drill")]
    stalled: bool,
    /// The first invalid setting. It is returned when the worker is started.
    problem: Option<Invalid>,
}

impl Worker {
    /// A worker for the queue `default` that runs as many jobs at a time as the machine has cores,
    /// at least 4.
    pub fn new(tenure: &Tenure) -> Worker {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Worker {
            tenure: tenure.clone(),
            handlers: Handlers::default(),
            queues: vec![Name::default_queue()],
            kinds: None,
            slots: cores.max(4),
            ahead: AHEAD,
            lease: Duration::from_secs(30),
            grace: Duration::from_secs(25),
            drain: false,
            observer: Observer::default(),
            #[cfg(feature = "drill")]
            stalled: false,
            problem: None,
        }
    }

    /// Runs jobs of this type with an async function. Its return value is stored as the job's
    /// result; if it fails or panics, the attempt has failed. It should not block its thread for
    /// long.
    pub fn handle<J, F, Fut>(self, handler: F) -> Worker
    where
        J: Job,
        F: Fn(J, Context) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<J::Output, Fault>> + Send + 'static,
    {
        self.with(|worker| worker.handlers.add(J::KIND, handler::typed(handler)))
    }

    /// Runs jobs of this type with a blocking function, on a thread of its own. The worker cannot
    /// interrupt it: it should check [`Context::is_cancelled`] now and then.
    ///
    /// ```
    /// # use serde::{Deserialize, Serialize};
    /// # use tenure::{Context, Fault, Job, Tenure, Worker};
    /// # #[derive(Serialize, Deserialize)]
    /// # struct Sum { upto: u64 }
    /// # impl Job for Sum { const KIND: &'static str = "sum"; type Output = u64; }
    /// fn sum(job: Sum, cx: Context) -> Result<u64, Fault> {
    ///     let half: u64 = cx.block_on(cx.step("half", || async { Ok((0..=job.upto / 2).sum()) }))?;
    ///     Ok(half + (job.upto / 2 + 1..=job.upto).sum::<u64>())
    /// }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let tenure = Tenure::open("sqlite::memory:").await?;
    /// # let handle = tenure.enqueue(Sum { upto: 10 }).await?;
    /// Worker::new(&tenure).handle_blocking(sum).drain().run().await?;
    /// assert_eq!(handle.wait().await?, 55);
    /// # Ok(())
    /// # }
    /// ```
    pub fn handle_blocking<J, F>(self, handler: F) -> Worker
    where
        J: Job,
        F: Fn(J, Context) -> Result<J::Output, Fault> + Send + Sync + 'static,
    {
        self.with(|worker| worker.handlers.add(J::KIND, handler::blocking(handler)))
    }

    /// Runs jobs of all kinds that have no handler of their own. [`Worker::kinds`] can limit them.
    ///
    /// ```
    /// # use tenure::Worker;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let sandbox = tenure::testing::Sandbox::new().await?;
    /// # let tenure = sandbox.tenure();
    /// let handle = tenure.enqueue_kind("echo", &[1, 2, 3]).await?;
    /// let worker = Worker::new(tenure)
    ///     .kinds(["echo", "shout"])
    ///     .handle_any(|job, cx| async move {
    ///         tracing::info!(kind = %cx.kind(), "a job");
    ///         Ok(Some(job.args))
    ///     });
    /// # sandbox.run_due(&worker).await?;
    /// assert_eq!(handle.wait().await?, serde_json::json!([1, 2, 3]));
    /// # Ok(())
    /// # }
    /// ```
    pub fn handle_any<F, Fut>(self, handler: F) -> Worker
    where
        F: Fn(AnyJob, Context) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Option<Json>, Fault>> + Send + 'static,
    {
        self.with(|worker| {
            worker.handlers.add_rest(handler::untyped(handler, false));
            Ok(())
        })
    }

    /// Like [`Worker::handle_any`], but the handler is not dropped when it must stop.
    /// [`Context::cancelled`] notifies it, so that it can end what it started outside of this
    /// process, and return. If that takes longer than a few seconds, the worker gives its job back
    /// without waiting for it.
    pub fn handle_any_patiently<F, Fut>(self, handler: F) -> Worker
    where
        F: Fn(AnyJob, Context) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Option<Json>, Fault>> + Send + 'static,
    {
        self.with(|worker| {
            worker.handlers.add_rest(handler::untyped(handler, true));
            Ok(())
        })
    }

    /// A value that handlers share: they get it with [`Context::state`]. One value of each type.
    pub fn state<T: Send + Sync + 'static>(self, state: T) -> Worker {
        self.with(|worker| {
            worker.handlers.add_state(state);
            Ok(())
        })
    }

    /// The queues that it claims from.
    pub fn queues<'a>(self, queues: impl IntoIterator<Item = &'a str>) -> Worker {
        self.with(|worker| {
            let names = queues.into_iter().map(|queue| Name::check("queue", queue));
            worker.queues = names.collect::<Result<_, _>>()?;
            Ok(())
        })
    }

    /// Runs only these kinds, of those it has handlers for.
    pub fn kinds<'a>(self, kinds: impl IntoIterator<Item = &'a str>) -> Worker {
        self.with(|worker| {
            let names = kinds.into_iter().map(|kind| Name::check("kind", kind));
            worker.kinds = Some(names.collect::<Result<_, _>>()?);
            Ok(())
        })
    }

    /// How many jobs it runs at a time, at most 10,000.
    pub fn concurrency(self, slots: usize) -> Worker {
        self.with(|worker| {
            /// Each slot is a task with a lease to renew: spread a larger number over several
            /// processes.
            const MOST: usize = 10_000;
            if !(1..=MOST).contains(&slots) {
                let why = format!("{slots} is outside 1 to {MOST}");
                return Err(Invalid::Value { field: "concurrency", why });
            }
            worker.slots = slots;
            Ok(())
        })
    }

    /// How much work the worker claims ahead of its free slots, as time that its slots need for it:
    /// so short jobs do not wait for a claim each. The default is 20 milliseconds, the most is one
    /// second. After a claim that brought a slow or unknown kind of job, it claims nothing ahead.
    /// If the worker's process dies, each job that it has claimed counts one crash, whether it had
    /// begun or not. With zero, it has claimed only jobs that have begun.
    pub fn claim_ahead(self, ahead: Duration) -> Worker {
        self.with(|worker| {
            const MOST: Duration = Duration::from_secs(1);
            if ahead > MOST {
                let why = format!("{ahead:?} is more than {MOST:?}");
                return Err(Invalid::Value { field: "claim_ahead", why });
            }
            worker.ahead = ahead;
            Ok(())
        })
    }

    /// The length of a lease. The worker renews its leases for as long as it lives. A worker that
    /// hangs or cannot reach the store loses its jobs after this time. A worker that dies loses
    /// them within a second, whatever the lease. So does a worker whose connections are cut, if it
    /// cannot connect again at once. The default is 30 seconds, the minimum 1 second.
    pub fn lease(self, lease: Duration) -> Worker {
        self.with(|worker| {
            worker.lease = lease;
            Worker::check_lease(lease)
        })
    }

    /// Whether a worker can keep leases of this length.
    pub fn check_lease(lease: Duration) -> Result<(), Invalid> {
        // The store accepts shorter leases from callers that renew nothing. A worker renews every
        // third of a lease, and on a busy machine or with a slow commit a renewal can take longer
        // than a third of less than a second.
        const SHORTEST: Duration = Duration::from_secs(1);
        if lease < SHORTEST {
            let why = format!(
                "with {lease:?} a worker that is merely busy loses its jobs; use 1 s or more, 30 s is usual"
            );
            return Err(Invalid::Value { field: "lease", why });
        }
        match check_lease(lease) {
            Err(Error::Invalid(invalid)) => Err(invalid),
            _ => Ok(()),
        }
    }

    /// How long jobs may continue after the worker was asked to end, before it gives them back. The
    /// default is 25 seconds.
    pub fn grace(self, grace: Duration) -> Worker {
        Worker { grace, ..self }
    }

    /// Ends when nothing is due and nothing runs. Jobs that are due later stay in the queue, even a
    /// retry that is a second away.
    pub fn drain(self) -> Worker {
        Worker { drain: true, ..self }
    }

    /// Calls this for each event of this worker, in addition to `tracing` and to the observers of
    /// the [`Tenure`]. It can be called several times; all observers are called.
    pub fn observe(self, observe: impl Fn(&Event) + Send + Sync + 'static) -> Worker {
        Worker { observer: self.observer.and(observe), ..self }
    }

    /// Makes the worker neglect its leases, like a process that was suspended and does not know it.
    /// Only for tests: it shows that the store refuses such a worker even if the worker does
    /// nothing to stop itself.
    #[cfg(feature = "drill")]
    pub fn stalled(self) -> Worker {
        Worker { stalled: true, ..self }
    }

    fn with(mut self, change: impl FnOnce(&mut Worker) -> Result<(), Invalid>) -> Worker {
        if let (Err(invalid), None) = (change(&mut self), &self.problem) {
            self.problem = Some(invalid);
        }
        self
    }

    /// Runs until it is dropped, or until nothing is due if it [drains](Worker::drain).
    ///
    /// # Errors
    ///
    /// As [`run_until`](Worker::run_until).
    pub async fn run(self) -> Result<Exit> {
        self.run_until(std::future::pending()).await
    }

    /// Runs until `stop` is ready. Then it claims nothing more, lets jobs continue for its
    /// [grace](Worker::grace), and gives back the rest.
    ///
    /// # Errors
    ///
    /// If it cannot start; if the store refuses it a right that it needs (then it gives back its
    /// jobs and ends); or if it ended and could not give everything back.
    pub async fn run_until(self, stop: impl Future<Output = ()>) -> Result<Exit> {
        let (mut stop, mut start) = (std::pin::pin!(stop), std::pin::pin!(self.start()));
        // Poll `stop` before the first job can be claimed. The first poll of `shutdown_signal`
        // installs the signal handlers; without them a signal kills the process.
        let mut running = tokio::select! {
            biased;
            () = &mut stop => {
                let mut running = start.await?;
                let exit = running.shut().await;
                return running.verdict(exit);
            }
            running = &mut start => running?,
        };
        let exit = tokio::select! {
            biased;
            exit = running.ended() => exit,
            () = stop => running.shut().await,
        };
        running.verdict(exit)
    }

    /// Starts it in the background, for a caller that wants to end it step by step.
    ///
    /// ```
    /// # use tenure::{Exit, Worker};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let tenure = tenure::Tenure::open("sqlite::memory:").await?;
    /// # let worker = Worker::new(&tenure).handle_any(|_, _| async { Ok(None) });
    /// let mut running = worker.start().await?;
    /// running.finish(); // claim nothing more; `release` also gives back what runs
    /// assert_eq!(running.ended().await, Exit::Shutdown);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn start(self) -> Result<Running> {
        if !self.tenure.0.observer.is_heard() && !self.observer.is_heard() {
            say_once_that_nothing_listens();
        }
        let (plan, desk) = (Arc::new(self.plan()?), Arc::new(self.desk()));
        let tasks = Tasks {
            runtime: tokio::runtime::Handle::current(),
            surroundings: Arc::new(self.surroundings(&plan, &desk)),
            chance: Chance::system(),
        };
        let inner = Arc::clone(&self.tenure.0);
        let (tell_start, started) = oneshot::channel();
        let (tell_end, ended) = oneshot::channel();
        let (at, grace) = (Arc::clone(&desk), self.grace);
        let run = move || {
            let mut connect =
                || Ok(inner.place.connect(&inner.options)?.into_store() as Box<dyn Work>);
            let threads = match Threads::start(&plan, &desk, tasks, &mut connect) {
                Ok(threads) => threads,
                Err(error) => return drop(tell_start.send(Err(error))),
            };
            // The caller may be gone already. Then `Running` was dropped, and the worker releases
            // its jobs.
            let _ = tell_start.send(Ok(()));
            let exit = threads.join();
            plan.observer.of_worker(&plan.worker, desk.tally().at_exit(exit));
            let _ = tell_end.send(exit);
        };
        let running = Running { desk: at, ended, exit: None, grace };
        let no_thread = |cause| Error::Engine { doing: "start a worker", source: cause };
        std::thread::Builder::new()
            .name("tenure-worker".into())
            .spawn(run)
            .map_err(|cause| no_thread(cause.into()))?;
        started.await.map_err(|cause| no_thread(cause.into()))??;
        Ok(running)
    }

    #[cfg(not(feature = "drill"))]
    fn desk(&self) -> Desk {
        Desk::new(self.slots)
    }

    #[cfg(feature = "drill")]
    fn desk(&self) -> Desk {
        if self.stalled { Desk::stalled(self.slots) } else { Desk::new(self.slots) }
    }

    /// The settings for the machines.
    pub(crate) fn plan(&self) -> Result<Plan> {
        if let Some(invalid) = &self.problem {
            return Err(invalid.clone().into());
        }
        let handled = self.handlers.kinds();
        let kinds = match (&self.kinds, handled) {
            (None, handled) => handled,
            (Some(wanted), None) => Some(wanted.clone()),
            (Some(wanted), Some(handled)) => {
                if let Some(unknown) = wanted.iter().find(|kind| !handled.contains(kind)) {
                    let why = format!("there is no handler for {unknown}");
                    return Err(Invalid::Value { field: "kinds", why }.into());
                }
                Some(wanted.clone())
            }
        };
        if kinds.as_ref().is_some_and(Vec::is_empty) {
            let why = "a worker without handlers can run nothing; give it some with Worker::handle";
            return Err(Invalid::Value { field: "handlers", why: why.into() }.into());
        }
        if self.queues.is_empty() {
            let why = "a worker works from at least one queue".into();
            return Err(Invalid::Value { field: "queues", why }.into());
        }
        Ok(Plan {
            queues: self.queues.clone(),
            kinds,
            slots: self.slots,
            ahead: self.ahead,
            relief: if self.tenure.0.place.serves_two_at_once() { RELIEF } else { 0 },
            lease: self.lease,
            drain: self.drain,
            observer: self.tenure.0.observer.clone().and_all_of(&self.observer),
            waiters: Arc::clone(&self.tenure.0.waiters),
            ..Plan::new(WorkerId::unique())
        })
    }

    pub(crate) fn surroundings(&self, plan: &Plan, desk: &Arc<Desk>) -> Surroundings {
        Surroundings {
            tenure: self.tenure.clone(),
            desk: Arc::clone(desk),
            worker: plan.worker.clone(),
            lease: plan.lease,
            observer: plan.observer.clone(),
            handlers: Arc::new(self.handlers.clone()),
            runtime: tokio::runtime::Handle::current(),
        }
    }
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker")
            .field("queues", &self.queues)
            .field("kinds", &self.handlers.kinds())
            .field("concurrency", &self.slots)
            .finish_non_exhaustive()
    }
}

/// Warns once on stderr: a worker whose events go nowhere looks as if it did nothing.
fn say_once_that_nothing_listens() {
    static SAID: Once = Once::new();
    SAID.call_once(|| {
        eprintln!(
            "tenure: nothing listens to the events of this worker; set up a subscriber of `tracing`, or call Worker::observe"
        );
    });
}

#[cfg(test)]
mod tests;
