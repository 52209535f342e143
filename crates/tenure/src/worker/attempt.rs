//! One attempt, from the claimed job to its settlement, on one page.
//!
//! 1. The dispatcher has claimed the job: [`begin`] puts its lease on the desk.
//! 2. [`run`] calls the handler, and waits until it returns or must stop.
//! 3. [`decide`] decides what is to be settled.
//! 4. [`Desk::returned`](crate::desk::Desk::returned) puts that on the desk, and the settler sends
//!    it with the dispatcher's next call.
//!
//! A worker runs attempts as [tasks](Tasks), a [`Sandbox`](crate::testing::Sandbox) one after the
//! other. The handlers of the simulation are not futures: there the scheduler takes the place of
//! [`run`].

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tracing::Instrument;

use super::Plan;
use super::dispatch::Crew;
use crate::clock::{Chance, Jitter, Moment, millis};
use crate::desk::{Begun, Cause, Committed, Desk, Hold, Returned, Stage};
use crate::handler::{Answer, Caught, Context, Execution, Surroundings, panicked};
use crate::lease::Fence;
use crate::lifecycle::{self, Counts, Fault, Outcome};
use crate::store::Attempt;
use crate::telemetry::{self, Fact};

/// Puts the lease of a claimed job on the desk. The claim was sent at `asked`. Returns `None` if
/// the lease was on the desk before.
pub(super) fn begin(
    plan: &Plan,
    desk: &Desk,
    attempt: &Attempt,
    asked: Moment,
) -> Option<Arc<Hold>> {
    let hold = desk.hold(attempt, asked, plan.lease)?;
    plan.tell(&hold.about, acquired(attempt));
    Some(hold)
}

/// The event of a claimed job.
pub(super) fn acquired(attempt: &Attempt) -> Fact {
    Fact::LeaseAcquired { wait_ms: millis(attempt.started_at.since(attempt.run_at)) }
}

/// Calls the handler of a job that this worker holds, and returns what is to be settled.
pub(crate) async fn run(
    around: &Surroundings,
    attempt: Attempt,
    hold: Arc<Hold>,
    jitter: Jitter,
) -> Returned {
    hold.begin(Moment::now());
    let counts = attempt.counts();
    let Some(handler) = around.handlers.find(&attempt.kind).cloned() else {
        // This should not happen, because a worker claims only kinds that it has a handler for.
        // Give the job back for another worker.
        return Returned::Settle(Outcome::Release);
    };
    around.observer.of_job(&around.worker, &hold.about, Fact::ExecutionStarted);
    let span = telemetry::span(&around.worker, &hold.about);
    let args = attempt.args.clone();
    let cx = Context::new(around, attempt, Arc::clone(&hold));
    // A panic while the args are decoded counts as the handler's, too.
    let call = || catch_unwind(AssertUnwindSafe(|| handler(&args, cx.clone())));
    let begun = span.in_scope(call);
    let answer = match begun.unwrap_or_else(|panic| Err(panicked(panic.as_ref()))) {
        Err(fault) => Some(Err(fault)),
        Ok(Execution::Async(run)) => {
            let mut watch = hold.watch();
            tokio::select! {
                biased;
                // If the handler is done at the same moment, its answer counts.
                answer = Caught(run).instrument(span) => Some(answer),
                _ = watch.wait_for(|trust| trust.stopped.is_some()) => None,
            }
        }
        // A patient handler is not dropped: it watches `Context::cancelled`, and can end what it
        // started elsewhere before it returns.
        Ok(Execution::Patient(run)) => Some(Caught(run).instrument(span).await),
        Ok(Execution::Blocking(run)) => {
            match tokio::task::spawn_blocking(move || span.in_scope(run)).await {
                Ok(answer) => Some(answer),
                Err(broken) => match broken.try_into_panic() {
                    Ok(panic) => Some(Err(panicked(panic.as_ref()))),
                    // The runtime ends.
                    Err(_) => return Returned::Settle(Outcome::Release),
                },
            }
        }
    };
    decide(&counts, answer, cx.committed(), hold.trust().stopped, jitter)
}

/// Decides what is to be settled for an attempt. `answer` is what its handler returned, or `None`
/// if the handler was dropped. `committed` is set if the handler has completed the job itself.
/// `stopped` is why the handler was asked to stop, if it was.
pub fn decide(
    counts: &Counts,
    answer: Option<Answer>,
    committed: Option<Committed>,
    stopped: Option<Cause>,
    jitter: Jitter,
) -> Returned {
    let is_shutdown = stopped == Some(Cause::Shutdown);
    match (answer, committed) {
        (Some(_), Some(Committed::Yes)) => Returned::Committed,
        (Some(Ok(_)), Some(Committed::Perhaps)) => Returned::PerhapsCommitted,
        (Some(Ok(result)), None) => Returned::Settle(Outcome::Complete { result }),
        // The handler was asked to stop and did, in its own way or at its next step: that is not a
        // failure of the job.
        (None | Some(Err(Fault::Retry { .. })), _) if is_shutdown => {
            Returned::Settle(Outcome::Release)
        }
        (Some(Err(fault)), _) => Returned::Settle(lifecycle::after_fault(counts, fault, jitter)),
        // A lost or cancelled job needs no settlement, and an attempt that ran too long was settled
        // when it was stopped.
        (None, _) => Returned::Lost,
    }
}

/// Runs handlers on the tokio runtime that the worker was started on.
pub(super) struct Tasks {
    pub(super) runtime: Handle,
    pub(super) surroundings: Arc<Surroundings>,
    pub(super) chance: Chance,
}

impl Crew for Tasks {
    fn another(&mut self) -> Tasks {
        let (runtime, surroundings) = (self.runtime.clone(), Arc::clone(&self.surroundings));
        Tasks { runtime, surroundings, chance: Chance::seeded(self.chance.bits()) }
    }

    fn start(&mut self, attempt: Attempt, hold: Arc<Hold>) {
        let around = Arc::clone(&self.surroundings);
        let mut chance = Chance::seeded(self.chance.bits());
        // Created here, so that the slot is given back even if the task never starts.
        let mut slot = Slot { desk: Arc::clone(&around.desk), fence: Some(hold.fence) };
        self.runtime.spawn(async move {
            let mut begun = Some((attempt, hold));
            while let Some((attempt, hold)) = begun {
                let returned = run(&around, attempt, hold, chance.jitter()).await;
                begun = slot.pass_on(returned);
                // Handlers that wait for nothing must not keep other tasks from running.
                tokio::task::consume_budget().await;
            }
        });
    }
}

/// An occupied slot, and the attempt that occupies it.
struct Slot {
    desk: Arc<Desk>,
    fence: Option<Fence>,
}

impl Slot {
    /// The attempt has ended. If another one waits, it occupies the slot and begins.
    fn pass_on(&mut self, returned: Returned) -> Option<Begun> {
        let next = self.desk.returned_for_next(self.fence.take()?, returned, Moment::now());
        self.fence = next.as_ref().map(|(_, hold)| hold.fence);
        next
    }
}

impl Drop for Slot {
    /// The slot is still occupied here if the handler's future panicked while it was dropped, or if
    /// the runtime shuts down and drops its tasks.
    fn drop(&mut self) {
        let Some(fence) = self.fence else { return };
        let outcome = if std::thread::panicking() {
            Outcome::Retry { after: Duration::from_secs(1), error: "the handler panicked".into() }
        } else {
            // Without a runtime the worker would claim and give back for ever.
            self.desk.advance(Stage::Releasing);
            Outcome::Release
        };
        self.desk.returned(fence, Returned::Settle(outcome), Moment::now());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use tokio::sync::mpsc::UnboundedSender;

    use crate::job::State;
    use crate::lifecycle::Fault;
    use crate::{Context, Tenure, Worker};

    /// Starts a worker whose one job reports that it has begun, ends the worker without any grace,
    /// and returns the job's state and attempts.
    async fn job_after_shutdown(with: impl FnOnce(Worker) -> Worker) -> (State, u16) {
        let tenure = Tenure::open("sqlite::memory:").await.unwrap();
        let job = tenure.enqueue_kind("work", &()).await.unwrap();
        let (tell, mut begun) = tokio::sync::mpsc::unbounded_channel::<()>();
        let worker = with(Worker::new(&tenure).state(tell)).grace(Duration::ZERO);
        let running = worker.start().await.unwrap();
        begun.recv().await.unwrap();
        running.shut_down().await;
        let found = tenure.job(job.id()).await.unwrap().unwrap().job;
        (found.state, found.attempt)
    }

    fn has_begun(cx: &Context) {
        cx.state::<UnboundedSender<()>>().send(()).unwrap();
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_handler_that_meets_the_end_of_its_worker_in_a_step_has_not_failed() {
        let with = |worker: Worker| {
            worker.handle_any(|_, cx| async move {
                has_begun(&cx);
                // The handler is busy, and is stopped before it reaches its next await.
                tokio::task::block_in_place(|| cx.block_on(cx.cancelled()));
                cx.step("next", || async { Ok(()) }).await?;
                Ok(None)
            })
        };
        assert_eq!(job_after_shutdown(with).await, (State::Queued, 0));
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_blocking_handler_that_stops_when_its_worker_ends_has_not_failed() {
        let with = |worker: Worker| {
            worker.handle_blocking(|_: Work, cx| {
                has_begun(&cx);
                cx.block_on(cx.cancelled());
                Err(Fault::retry("I was asked to stop"))
            })
        };
        assert_eq!(job_after_shutdown(with).await, (State::Queued, 0));
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_handler_that_buries_its_job_while_its_worker_ends_is_heard() {
        let with = |worker: Worker| {
            worker.handle_blocking(|_: Work, cx| {
                has_begun(&cx);
                cx.block_on(cx.cancelled());
                Err(Fault::fatal("this will never work"))
            })
        };
        assert_eq!(job_after_shutdown(with).await, (State::Dead, 1));
    }

    /// Panics when it is dropped.
    struct Brittle;

    impl Drop for Brittle {
        fn drop(&mut self) {
            panic!("it breaks");
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_handler_that_panics_while_it_is_stopped_has_failed() {
        let with = |worker: Worker| {
            worker.handle_any(|_, cx| async move {
                let _brittle = Brittle;
                has_begun(&cx);
                std::future::pending().await
            })
        };
        let (_, attempts) = job_after_shutdown(with).await;
        assert_eq!(attempts, 1, "it was not given back as if nothing had happened");
    }

    #[tokio::test]
    async fn the_start_of_a_handler_is_reported_after_the_lease_and_before_the_end() {
        let tenure = Tenure::open("sqlite::memory:").await.unwrap();
        let job = tenure.enqueue_kind("work", &()).await.unwrap();
        let told: Arc<Mutex<Vec<&'static str>>> = Arc::default();
        let tell = Arc::clone(&told);
        let worker = Worker::new(&tenure).handle_any(|_, _| async { Ok(None) }).drain();
        let worker = worker.observe(move |event| {
            if event.job() == Some(job.id()) {
                tell.lock().unwrap().push(event.fact.name());
            }
        });
        worker.run().await.unwrap();
        let told = told.lock().unwrap();
        assert_eq!(*told, ["lease_acquired", "execution_started", "job_succeeded"]);
    }

    #[derive(serde::Serialize, serde::Deserialize)]
    struct Work;

    impl crate::Job for Work {
        const KIND: &'static str = "work";
        type Output = ();
    }
}
