//! One attempt, from the claimed job to what is to be settled.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;

use super::claim::Crew;
use super::desk::{Cause, Hold, Returned};
use crate::clock::{Chance, Jitter, Moment};
use crate::handler::{Answer, Caught, Committed, Context, Execution, Surroundings, panicked};
use crate::lifecycle::{self, Fault, Outcome, Standing};
use crate::store::Attempt;
use crate::telemetry::Fact;

/// Runs handlers on the runtime of whoever started the worker.
pub(super) struct Tasks {
    pub(super) runtime: Handle,
    pub(super) surroundings: Arc<Surroundings>,
    pub(super) chance: Chance,
}

impl Crew for Tasks {
    fn start(&mut self, attempt: Attempt, hold: Arc<Hold>) {
        let around = Arc::clone(&self.surroundings);
        let jitter = self.chance.jitter();
        self.runtime.spawn(async move {
            let fence = hold.fence;
            let desk = Arc::clone(&around.desk);
            // Whatever happens to this task, the slot is given back.
            let mut slot = Slot(Some((desk, fence)));
            let returned = execute(&around, attempt, hold, jitter).await;
            slot.give_back(returned);
        });
    }
}

/// A slot that is taken.
struct Slot(Option<(Arc<super::Desk>, crate::lease::Fence)>);

impl Slot {
    fn give_back(&mut self, returned: Returned) {
        if let Some((desk, fence)) = self.0.take() {
            desk.returned(fence, returned, Moment::now());
        }
    }
}

impl Drop for Slot {
    /// Something of the handler's panicked while it was dropped; or the runtime ends, and takes its tasks down with it.
    fn drop(&mut self) {
        let outcome = if std::thread::panicking() {
            Outcome::Retry { after: Duration::from_secs(1), error: "the handler panicked".into() }
        } else {
            Outcome::Release
        };
        self.give_back(Returned::Settle(outcome));
    }
}

/// Runs one attempt.
pub(crate) async fn execute(
    around: &Surroundings,
    attempt: Attempt,
    hold: Arc<Hold>,
    jitter: Jitter,
) -> Returned {
    let standing = attempt.standing();
    let Some(handler) = around.handlers.find(&attempt.kind).cloned() else {
        // Only what can be run is claimed; so this is for somebody else.
        return Returned::Settle(Outcome::Release);
    };
    let started = Fact::ExecutionStarted { kind: attempt.kind.clone(), attempt: attempt.attempt };
    around.observer.of_job(&around.worker, hold.fence, started);
    let args = attempt.args.clone();
    let cx = Context::new(around, attempt, Arc::clone(&hold));
    // A panic while the args are decoded is one of the handler's, too.
    let begun = catch_unwind(AssertUnwindSafe(|| handler(&args, cx.clone())));
    let answer = match begun.unwrap_or_else(|panic| Err(panicked(panic.as_ref()))) {
        Err(fault) => Err(fault),
        Ok(Execution::Async(run)) => {
            let mut watch = hold.watch();
            tokio::select! {
                biased;
                stop = watch.wait_for(|trust| trust.stopped.is_some()) => {
                    return stopped(stop.ok().and_then(|trust| trust.stopped));
                }
                answer = Caught(run) => answer,
            }
        }
        Ok(Execution::Blocking(run)) => match tokio::task::spawn_blocking(run).await {
            Ok(answer) => answer,
            Err(broken) => match broken.try_into_panic() {
                Ok(panic) => Err(panicked(panic.as_ref())),
                Err(_) => return Returned::Settle(Outcome::Release),
            },
        },
    };
    decide(&standing, &cx, answer, jitter)
}

/// What becomes of an attempt that was stopped. What is not ours any more, or was settled when it was stopped, needs
/// nothing.
fn stopped(cause: Option<Cause>) -> Returned {
    match cause {
        Some(Cause::Shutdown) => Returned::Settle(Outcome::Release),
        Some(Cause::Lost | Cause::Cancelled | Cause::TimedOut) | None => Returned::Lost,
    }
}

fn decide(standing: &Standing, cx: &Context, answer: Answer, jitter: Jitter) -> Returned {
    match (answer, cx.committed()) {
        (_, Some(Committed::Yes)) => Returned::Committed,
        (Ok(_), Some(Committed::Perhaps)) => Returned::PerhapsCommitted,
        (Ok(result), None) => Returned::Settle(Outcome::Complete { result }),
        (Err(fault), _) => settle(standing, fault, jitter),
    }
}

fn settle(standing: &Standing, fault: Fault, jitter: Jitter) -> Returned {
    Returned::Settle(lifecycle::after_fault(standing, fault, jitter))
}
