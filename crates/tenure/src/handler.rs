//! What runs a job: a plain function, and the [`Context`] it is given.
//!
//! A handler is `async fn(job, Context) -> Result<Output, Fault>`. This module turns one into something that can be
//! kept by its kind: it decodes the args, calls it, catches its panics and encodes what it returns. It knows neither
//! leases nor stores.

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
pub(crate) use self::context::{Committed, Surroundings};
pub use self::effect::{Effect, EffectCall};
use crate::client::{Job, kind};
use crate::job::{Invalid, Json, Name};
use crate::lifecycle::Fault;

/// What a handler of ours comes to.
pub(crate) type Answer = Result<Option<Json>, Fault>;

/// A handler that is under way.
pub(crate) enum Execution {
    /// It can be dropped at any await.
    Async(Pin<Box<dyn Future<Output = Answer> + Send>>),
    /// It stops by itself when it is to.
    Patient(Pin<Box<dyn Future<Output = Answer> + Send>>),
    /// It has a thread, and cannot be stopped, only asked to.
    Blocking(Box<dyn FnOnce() -> Answer + Send>),
}

/// A handler whose types are forgotten.
pub(crate) type Handler = Arc<dyn Fn(&Json, Context) -> Result<Execution, Fault> + Send + Sync>;

/// A job of any kind, for a handler that takes them all: its kind is [`Context::kind`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AnyJob {
    /// Its args, as they were written.
    pub args: Json,
}

/// All handlers of a worker, and what they share.
#[derive(Clone, Default)]
pub(crate) struct Handlers {
    by_kind: BTreeMap<Name, Handler>,
    rest: Option<Handler>,
    states: HashMap<TypeId, Arc<dyn Any + Send + Sync>>,
}

impl Handlers {
    /// A handler for a kind. A second one for the same kind is a mistake.
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

    /// A handler for all kinds that have none.
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
        // Called within the future, so that a panic in its first words is caught as well.
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

/// A handler for jobs of any kind. If it is `patient`, it stops by itself.
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

/// Args that are not what the handler expects never will be: the job is buried with the reason.
fn decode<J: Job>(args: &Json) -> Result<J, Fault> {
    serde_json::from_str(args.as_str()).map_err(|cause| {
        Fault::fatal(format!("its args are not what the handler of {} expects: {cause}", J::KIND))
    })
}

/// What cannot be kept never will be, however often the handler runs.
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

/// A panic is an error of one attempt, not of the worker.
pub(crate) fn panicked(panic: &(dyn Any + Send)) -> Fault {
    let words = panic.downcast_ref::<&str>().copied();
    let words = words.or(panic.downcast_ref::<String>().map(String::as_str));
    Fault::retry(format!("the handler panicked: {}", words.unwrap_or("without words")))
}

/// A future whose panic is its answer.
pub(crate) struct Caught(pub(crate) Pin<Box<dyn Future<Output = Answer> + Send>>);

impl Future for Caught {
    type Output = Answer;

    fn poll(mut self: Pin<&mut Self>, cx: &mut task::Context<'_>) -> Poll<Answer> {
        let poll = catch_unwind(AssertUnwindSafe(|| self.0.as_mut().poll(cx)));
        poll.unwrap_or_else(|panic| Poll::Ready(Err(panicked(panic.as_ref()))))
    }
}
