//! What runs a job: a plain function, and the [`Context`] it gets.
//!
//! A handler is `async fn(job, Context) -> Result<Output, Fault>`. This module wraps one so that it
//! can be found by its kind: the wrapper decodes the args, calls the function, catches its panics
//! and encodes its result. It knows neither leases nor stores.

mod context;
mod effect;
mod names;

use std::any::{Any, TypeId};
use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{self, Poll};

pub use self::context::Context;
pub(crate) use self::context::Surroundings;
pub use self::effect::{Effect, EffectCall};
use crate::client::{Job, kind};
use crate::job::{Invalid, Json, Name};
use crate::lifecycle::Fault;

/// What a handler returns, encoded.
pub(crate) type Answer = Result<Option<Json>, Fault>;

/// A handler that has started.
pub(crate) enum Execution {
    /// It can be dropped at any await.
    Async(Pin<Box<dyn Future<Output = Answer> + Send>>),
    /// It is not dropped: it stops by itself when asked to.
    Patient(Pin<Box<dyn Future<Output = Answer> + Send>>),
    /// It has its own thread, and cannot be interrupted, only asked to stop.
    Blocking(Box<dyn FnOnce() -> Answer + Send>),
}

/// A handler with its types erased.
pub(crate) type Handler = Arc<dyn Fn(&Json, Context) -> Result<Execution, Fault> + Send + Sync>;

/// A job of any kind, for a handler that accepts all. Its kind is [`Context::kind`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AnyJob {
    /// Its args, as they were written.
    pub args: Json,
}

/// All handlers of a worker, and the values that they share.
#[derive(Clone, Default)]
pub(crate) struct Handlers {
    by_kind: BTreeMap<Name, Handler>,
    rest: Option<Handler>,
    states: HashMap<TypeId, Arc<dyn Any + Send + Sync>>,
}

impl Handlers {
    /// Adds a handler for a kind. A second one for the same kind is an error.
    pub(crate) fn add(&mut self, name: &str, handler: Handler) -> Result<(), Invalid> {
        let name = kind(name)?;
        match self.by_kind.insert(name.clone(), handler) {
            None => Ok(()),
            Some(_) => Err(Invalid::Value {
                field: "handler",
                why: format!("the kind {name} has two handlers; a worker has one for each"),
            }),
        }
    }

    /// Sets the handler for all kinds that have none.
    pub(crate) fn add_rest(&mut self, handler: Handler) {
        self.rest = Some(handler);
    }

    pub(crate) fn add_state<T: Send + Sync + 'static>(&mut self, state: T) {
        self.states.insert(TypeId::of::<T>(), Arc::new(state));
    }

    pub(crate) fn state<T: Send + Sync + 'static>(&self) -> Option<&T> {
        self.states.get(&TypeId::of::<T>()).and_then(|state| state.downcast_ref())
    }

    pub(crate) fn find(&self, name: &Name) -> Option<&Handler> {
        self.by_kind.get(name).or(self.rest.as_ref())
    }

    /// The kinds that can be run; `None` for all.
    pub(crate) fn kinds(&self) -> Option<Vec<Name>> {
        match self.rest {
            Some(_) => None,
            None => Some(self.by_kind.keys().cloned().collect()),
        }
    }
}

/// A typed async handler.
pub(crate) fn typed<J, F, Fut>(handler: F) -> Handler
where
    J: Job,
    F: Fn(J, Context) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<J::Output, Fault>> + Send + 'static,
{
    Arc::new(move |args, cx| {
        let job = decode::<J>(args)?;
        let limit = cx.result_limit();
        // A handler may panic before it returns its future; that is caught here.
        let run = catch_unwind(AssertUnwindSafe(|| handler(job, cx)));
        let run = run.map_err(|panic| panicked(panic.as_ref()))?;
        Ok(Execution::Async(Box::pin(async move { encode(&run.await?, limit) })))
    })
}

/// A typed handler that blocks its thread.
pub(crate) fn blocking<J, F>(handler: F) -> Handler
where
    J: Job,
    F: Fn(J, Context) -> Result<J::Output, Fault> + Send + Sync + 'static,
{
    let handler = Arc::new(handler);
    Arc::new(move |args, cx| {
        let job = decode::<J>(args)?;
        let (limit, handler) = (cx.result_limit(), Arc::clone(&handler));
        Ok(Execution::Blocking(Box::new(move || encode(&handler(job, cx)?, limit))))
    })
}

/// A handler for jobs of any kind. A `patient` one is not dropped, and stops by itself.
pub(crate) fn untyped<F, Fut>(handler: F, patient: bool) -> Handler
where
    F: Fn(AnyJob, Context) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<Option<Json>, Fault>> + Send + 'static,
{
    Arc::new(move |args, cx| {
        let limit = cx.result_limit();
        let job = AnyJob { args: args.clone() };
        let run = catch_unwind(AssertUnwindSafe(|| handler(job, cx)));
        let run = run.map_err(|panic| panicked(panic.as_ref()))?;
        let run: Pin<Box<dyn Future<Output = Answer> + Send>> = Box::pin(async move {
            let result = run.await?;
            if let Some(result) = &result {
                check_size(result.as_str().len(), limit)?;
            }
            Ok(result)
        });
        Ok(if patient { Execution::Patient(run) } else { Execution::Async(run) })
    })
}

/// Args of the wrong type stay wrong: the job is buried with the reason.
fn decode<J: Job>(args: &Json) -> Result<J, Fault> {
    serde_json::from_str(args.as_str()).map_err(|cause| {
        Fault::fatal(format!("its args are not what the handler of {} expects: {cause}", J::KIND))
    })
}

/// A result that cannot be stored never can be, however often the handler runs: the job is buried.
fn encode(output: &impl serde::Serialize, limit: usize) -> Answer {
    let result = Json::of("result", output, limit)
        .map_err(|invalid| Fault::fatal(format!("it ran, but {invalid}")))?;
    Ok((result.as_str() != "null").then_some(result))
}

fn check_size(size: usize, limit: usize) -> Result<(), Fault> {
    if size <= limit {
        return Ok(());
    }
    Err(Fault::fatal(format!("it ran, but {}", Invalid::TooLarge { field: "result", size, limit })))
}

/// A panic fails one attempt, not the worker.
pub(crate) fn panicked(panic: &(dyn Any + Send)) -> Fault {
    let words = panic.downcast_ref::<&str>().copied();
    let words = words.or(panic.downcast_ref::<String>().map(String::as_str));
    Fault::retry(format!("the handler panicked: {}", words.unwrap_or("without words")))
}

/// A future that turns its panic into its answer.
pub(crate) struct Caught(pub(crate) Pin<Box<dyn Future<Output = Answer> + Send>>);

impl Future for Caught {
    type Output = Answer;

    fn poll(mut self: Pin<&mut Self>, cx: &mut task::Context<'_>) -> Poll<Answer> {
        let poll = catch_unwind(AssertUnwindSafe(|| self.0.as_mut().poll(cx)));
        poll.unwrap_or_else(|panic| Poll::Ready(Err(panicked(panic.as_ref()))))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::Worker;
    use crate::testing::Sandbox;

    #[tokio::test]
    async fn a_worker_claims_what_it_has_a_handler_for_and_with_one_for_the_rest_everything() {
        #[derive(serde::Serialize, serde::Deserialize)]
        struct Mail;
        impl Job for Mail {
            const KIND: &'static str = "mail";
            type Output = ();
        }
        let sandbox = Sandbox::new().await.unwrap();
        let worker = || Worker::new(sandbox.tenure()).handle(|_: Mail, _| async { Ok(()) });
        let mail = Name::check("kind", "mail").unwrap();
        assert_eq!(worker().plan().unwrap().kinds, Some(vec![mail]));
        let worker = worker().handle_any(|_, _| async { Ok(None) });
        assert_eq!(worker.plan().unwrap().kinds, None);
    }

    #[tokio::test]
    async fn only_a_patient_handler_goes_on_when_its_job_is_lost() {
        let sandbox = Sandbox::new().await.unwrap();
        let ends = Arc::new(AtomicUsize::new(0));
        let handler = |_, cx: Context| async move {
            drop(cx.lost());
            tokio::task::yield_now().await;
            cx.state::<Arc<AtomicUsize>>().fetch_add(1, Ordering::SeqCst);
            Ok(None)
        };
        let worker = || Worker::new(sandbox.tenure()).state(Arc::clone(&ends));
        for (worker, expected) in
            [(worker().handle_any(handler), 0), (worker().handle_any_patiently(handler), 1)]
        {
            sandbox.tenure().enqueue_kind("work", &()).await.unwrap();
            assert_eq!(sandbox.run_due(&worker).await.unwrap().total(), 1);
            assert_eq!(ends.load(Ordering::SeqCst), expected);
        }
    }
}
