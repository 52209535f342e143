//! For tests of programs that use Tenure: a store in memory whose clock the test controls, and jobs
//! that run when the test says so.
//!
//! ```
//! # use serde::{Deserialize, Serialize};
//! # use tenure::{Context, Fault, Job, Tenure, Worker};
//! # #[derive(Serialize, Deserialize, Debug, PartialEq)]
//! # struct Welcome { to: String }
//! # impl Job for Welcome { const KIND: &'static str = "welcome"; type Output = (); }
//! # async fn welcome(_: Welcome, _: Context) -> Result<(), Fault> { Ok(()) }
//! # async fn sign_up(tenure: &Tenure, name: &str) -> Result<(), tenure::Error> {
//! #     tenure.enqueue(Welcome { to: name.into() }).delay(Duration::from_secs(60)).await?;
//! #     Ok(())
//! # }
//! use std::time::Duration;
//! use tenure::testing::Sandbox;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let sandbox = Sandbox::new().await?;
//! sign_up(sandbox.tenure(), "Ann").await?; // the code under test
//! assert_eq!(sandbox.enqueued::<Welcome>().await?, [Welcome { to: "Ann".into() }]);
//!
//! let worker = Worker::new(sandbox.tenure()).handle(welcome);
//! assert_eq!(sandbox.run_due(&worker).await?.total(), 0); // not yet
//! sandbox.advance(Duration::from_secs(60));
//! assert_eq!(sandbox.run_due(&worker).await?.succeeded, 1);
//! # Ok(())
//! # }
//! ```

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::client::{Job, Tenure, kind};
use crate::clock::{Clock, Jitter, Moment, Timestamp};
use crate::desk::{Desk, Hold};
use crate::handler::{Context, Surroundings};
use crate::inspect::Filter;
use crate::job::{BATCH_LIMIT, State};
use crate::record::JobRecord;
use crate::store::{Attempt, Error, Result, Store};
use crate::telemetry::Tally;
use crate::worker::attempt::run;
use crate::worker::{Crew, Dispatcher, NextStep, Plan, Worker};

/// A store in memory whose clock stands still until the test moves it.
#[derive(Debug)]
pub struct Sandbox {
    tenure: Tenure,
    clock: Clock,
}

/// How the jobs that ran ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ran {
    /// Jobs that succeeded.
    pub succeeded: usize,
    /// Jobs that failed and will be tried again.
    pub retried: usize,
    /// Jobs that are dead: they will not be tried again.
    pub dead: usize,
    /// Jobs that run later, or wait for a person.
    pub put_off: usize,
}

impl Ran {
    fn new(runs: usize, tally: Tally) -> Ran {
        let number = |of: u64| usize::try_from(of).unwrap_or(usize::MAX);
        let (succeeded, retried) = (number(tally.succeeded), number(tally.retried));
        let dead = number(tally.dead);
        let put_off = runs.saturating_sub(succeeded + retried + dead);
        Ran { succeeded, retried, dead, put_off }
    }

    /// How many ran.
    pub fn total(&self) -> usize {
        self.succeeded + self.retried + self.dead + self.put_off
    }
}

impl Sandbox {
    /// An empty store. Its clock starts in 2001.
    pub async fn new() -> Result<Sandbox> {
        let clock = Clock::manual(Timestamp::from_millis(1_000_000_000_000));
        let tenure = Tenure::options().clock(clock.clone()).open("sqlite::memory:").await?;
        Ok(Sandbox { tenure, clock })
    }

    /// The store, for the code under test.
    pub fn tenure(&self) -> &Tenure {
        &self.tenure
    }

    /// Moves the clock forward, so that jobs become due.
    pub fn advance(&self, by: Duration) {
        self.clock.advance(by);
    }

    /// The jobs of this type that have not run yet, in the order in which they were enqueued.
    pub async fn enqueued<J: Job>(&self) -> Result<Vec<J>> {
        let decode = |job: &JobRecord| {
            serde_json::from_str(job.args.as_str()).map_err(|cause| Error::Engine {
                doing: "decode a job's args",
                source: cause.into(),
            })
        };
        self.queued::<J>().await?.iter().map(decode).collect()
    }

    /// Fails the test unless a queued job of this type satisfies `expected`.
    ///
    /// # Panics
    ///
    /// If there is none. The message lists the queued jobs of this type.
    pub async fn assert_enqueued<J: Job>(&self, expected: impl Fn(&J) -> bool) -> Result<()> {
        if self.enqueued::<J>().await?.iter().any(expected) {
            return Ok(());
        }
        let waiting = self.queued::<J>().await?;
        let args: Vec<&str> = waiting.iter().map(|job| job.args.as_str()).collect();
        panic!("no such {} is enqueued, only: {}", J::KIND, args.join(", "));
    }

    async fn queued<J: Job>(&self) -> Result<Vec<JobRecord>> {
        let kind = kind(J::KIND)?;
        let state = Some(State::Queued);
        let mut all = Vec::new();
        let mut filter = Filter { state, kind: Some(kind), ..Filter::default() };
        loop {
            let asked = filter.clone();
            let page = self.tenure.with_store(move |store| store.jobs(&asked, BATCH_LIMIT)).await?;
            let Some(last) = page.last() else { break };
            filter.before = Some(last.id);
            all.extend(page);
        }
        all.reverse();
        Ok(all)
    }

    /// Runs all due jobs with the handlers of this worker, in this task, one after the other,
    /// including jobs that become due meanwhile.
    pub async fn run_due(&self, worker: &Worker) -> Result<Ran> {
        let mut bench = Bench::new(worker)?;
        let mut runs = 0;
        loop {
            let next = bench.step(&self.tenure).await?;
            if let Some((attempt, hold)) = bench.started.take() {
                let fence = hold.fence;
                let returned = run(&bench.around, attempt, hold, Jitter(u32::MAX)).await;
                bench.desk.outcomes_answered().await;
                bench.desk.returned(fence, returned, Moment::now());
                runs += 1;
                continue;
            }
            match next {
                NextStep::Again => {}
                NextStep::At(at) => tokio::time::sleep(at.since(Moment::now())).await,
                NextStep::Done => return Ok(Ran::new(runs, bench.desk.tally())),
            }
        }
    }

    /// Enqueues this job, claims it, and returns the context of its attempt, so that a test can
    /// call its handler directly.
    ///
    /// ```
    /// # use serde::{Deserialize, Serialize};
    /// # use tenure::{Context, Fault, Job};
    /// # #[derive(Serialize, Deserialize)]
    /// # struct Double(u32);
    /// # impl Job for Double { const KIND: &'static str = "double"; type Output = u32; }
    /// async fn double(job: Double, cx: Context) -> Result<u32, Fault> {
    ///     cx.step("double", || async { Ok(job.0 * 2) }).await
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let sandbox = tenure::testing::Sandbox::new().await?;
    /// let cx = sandbox.context(&Double(21)).await?;
    /// assert_eq!(double(Double(21), cx).await, Ok(42));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn context<J: Job>(&self, job: &J) -> Result<Context> {
        let worker = Worker::new(&self.tenure).handle_any(|_, _| async { Ok(None) });
        let worker = worker.kinds([J::KIND]).queues([SANDBOX]);
        let mut bench = Bench::new(&worker)?;
        self.tenure.enqueue_kind(J::KIND, job).queue(SANDBOX).await?;
        bench.step(&self.tenure).await?;
        match bench.started.take() {
            Some((attempt, hold)) => Ok(Context::new(&bench.around, attempt, hold)),
            None => Err(Error::Engine { doing: "claim the job", source: "it was not due".into() }),
        }
    }
}

/// A worker with one slot whose dispatcher is stepped here, instead of by a thread. Nothing renews
/// its leases: the clock stands still.
struct Bench {
    desk: Arc<Desk>,
    /// `None` while it is stepped.
    dispatcher: Option<Dispatcher<Started>>,
    started: Started,
    around: Surroundings,
}

/// The attempt that the dispatcher has started and that has not run yet.
#[derive(Clone, Default)]
struct Started(Arc<Mutex<Option<Begun>>>);

type Begun = (Attempt, Arc<Hold>);

impl Started {
    fn take(&self) -> Option<Begun> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Crew for Started {
    fn another(&mut self) -> Started {
        self.clone()
    }

    fn start(&mut self, attempt: Attempt, hold: Arc<Hold>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((attempt, hold));
    }
}

impl Bench {
    fn new(worker: &Worker) -> Result<Bench> {
        let plan =
            Arc::new(Plan { slots: 1, ahead: Duration::ZERO, drain: true, ..worker.plan()? });
        let desk = Arc::new(Desk::stalled(1));
        let around = worker.surroundings(&plan, &desk);
        let started = Started::default();
        let dispatcher = Dispatcher::new(plan, Arc::clone(&desk), started.clone(), Moment::now());
        Ok(Bench { desk, dispatcher: Some(dispatcher), started, around })
    }

    /// Steps the dispatcher: it settles the attempt that has ended, and claims the next job.
    async fn step(&mut self, tenure: &Tenure) -> Result<NextStep> {
        let Some(mut dispatcher) = self.dispatcher.take() else { return Ok(NextStep::Done) };
        let step = move |store: &mut dyn Store| {
            let next = dispatcher.step(store, Moment::now());
            Ok((dispatcher, next))
        };
        let (dispatcher, next) = tenure.with_store(step).await?;
        self.dispatcher = Some(dispatcher);
        // A worker would try again; a test should fail.
        match self.desk.problem() {
            Some(problem) => {
                Err(Error::Engine { doing: "run the due jobs", source: problem.into() })
            }
            None => Ok(next),
        }
    }
}

/// The queue of the jobs for [`Sandbox::context`], so that it never claims a job that the code
/// under test has enqueued.
const SANDBOX: &str = "sandbox";
