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

use std::sync::Arc;
use std::time::Duration;

use crate::client::{Job, Tenure, kind};
use crate::clock::{Clock, Jitter, Moment, Timestamp};
use crate::handler::Context;
use crate::inspect::Filter;
use crate::job::{BATCH_LIMIT, JobRecord, State};
use crate::lifecycle::Verb;
use crate::store::{Attempt, Claim, Error, LEASE_LIMIT, Result, Settled, Settlement};
use crate::worker::desk::{Desk, Returned};
use crate::worker::execute::execute;
use crate::worker::{Plan, Worker};

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
        let plan = worker.plan()?;
        let mut ran = Ran::default();
        while let Some(attempt) = self.claim(&plan).await? {
            let desk = Arc::new(Desk::new(1));
            let Some(hold) = desk.hold(&attempt, Moment::now(), LEASE_LIMIT) else { break };
            let fence = hold.fence;
            let around = worker.surroundings(&plan, &desk);
            let returned = execute(&around, attempt, hold, Jitter(u32::MAX)).await;
            desk.outcomes_answered().await;
            match returned {
                Returned::Settle(outcome) => {
                    let verb = outcome.verb();
                    ran.count(self.settle(Settlement::new(fence, outcome)).await?, verb);
                }
                // Settled already, in the handler's own transaction, or held by another worker by
                // now.
                Returned::Committed | Returned::PerhapsCommitted | Returned::Lost => {
                    let found = self.tenure.job(fence.job).await?;
                    ran.count(found.map(|found| found.job.state), Verb::Complete);
                }
            }
        }
        Ok(ran)
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
        let plan = worker.plan()?;
        self.tenure.enqueue_kind(J::KIND, job).queue(SANDBOX).await?;
        let desk = Arc::new(Desk::new(1));
        let attempt = self.claim(&plan).await?;
        let hold = attempt.as_ref().and_then(|one| desk.hold(one, Moment::now(), LEASE_LIMIT));
        match (attempt, hold) {
            (Some(attempt), Some(hold)) => {
                Ok(Context::new(&worker.surroundings(&plan, &desk), attempt, hold))
            }
            _ => Err(Error::Engine { doing: "claim the job", source: "it was not due".into() }),
        }
    }

    async fn claim(&self, plan: &Plan) -> Result<Option<Attempt>> {
        let ask = Claim {
            queues: plan.queues.clone(),
            kinds: plan.kinds.clone(),
            ..Claim::new(plan.worker.clone(), 1, plan.lease)
        };
        let mut claimed = self.tenure.with_store(move |store| store.claim(&ask)).await?;
        Ok(claimed.attempts.pop())
    }

    async fn settle(&self, settlement: Settlement) -> Result<Option<State>> {
        let settled = self.tenure.with_store(move |store| store.settle(&[settlement])).await?;
        Ok(match settled.first() {
            Some(Settled::Applied(state)) => Some(*state),
            Some(Settled::Stale(stale)) => Some(stale.state),
            Some(Settled::NotFound) | None => None,
        })
    }
}

/// A separate queue, so that a context is never given to a job that the code under test has
/// enqueued.
const SANDBOX: &str = "sandbox";

impl Ran {
    fn count(&mut self, state: Option<State>, verb: Verb) {
        match (state, verb) {
            (Some(State::Succeeded), _) => self.succeeded += 1,
            (Some(State::Dead), _) => self.dead += 1,
            (Some(State::Queued), Verb::Retry) => self.retried += 1,
            _ => self.put_off += 1,
        }
    }
}
