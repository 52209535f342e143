//! What a subscriber of `tracing` gets from a worker: its events with their fields, and a span
//! around each attempt.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use serde::{Deserialize, Serialize};
use tenure::{Context, Fault, Job, Tenure, Worker};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// The fields of an event or a span, as text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Fields(BTreeMap<&'static str, String>);

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name(), value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }
}

/// An event, and the innermost span that it happened in.
#[derive(Debug, Clone)]
struct Told {
    target: &'static str,
    fields: Fields,
    span: Option<(&'static str, Fields)>,
}

/// A small subscriber. It must be the global one: a worker's events come from its own threads.
#[derive(Clone, Default)]
struct Recorder(Arc<Kept>);

#[derive(Default)]
struct Kept {
    next: AtomicU64,
    spans: Mutex<BTreeMap<u64, (&'static str, Fields)>>,
    told: Mutex<Vec<Told>>,
}

thread_local! {
    static ENTERED: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

impl Subscriber for Recorder {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let id = self.0.next.fetch_add(1, Ordering::SeqCst) + 1;
        let mut fields = Fields::default();
        span.record(&mut fields);
        self.0.spans.lock().unwrap().insert(id, (span.metadata().name(), fields));
        Id::from_u64(id)
    }

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let id = ENTERED.with_borrow(|entered| entered.last().copied());
        let span = id.and_then(|id| self.0.spans.lock().unwrap().get(&id).cloned());
        let told = Told { target: event.metadata().target(), fields, span };
        self.0.told.lock().unwrap().push(told);
    }

    fn enter(&self, span: &Id) {
        ENTERED.with_borrow_mut(|entered| entered.push(span.into_u64()));
    }

    fn exit(&self, _: &Id) {
        ENTERED.with_borrow_mut(Vec::pop);
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
}

#[derive(Serialize, Deserialize)]
struct Async;

impl Job for Async {
    const KIND: &'static str = "async";
    type Output = ();
}

#[derive(Serialize, Deserialize)]
struct Blocking;

impl Job for Blocking {
    const KIND: &'static str = "blocking";
    type Output = ();
}

async fn asynchronously(_: Async, _: Context) -> Result<(), Fault> {
    tracing::info!("before it waits");
    tokio::task::yield_now().await;
    tracing::info!("after it has waited");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn events_have_fields_and_what_a_handler_logs_is_in_the_span_of_its_attempt() {
    let recorder = Recorder::default();
    tracing::subscriber::set_global_default(recorder.clone()).unwrap();
    let tenure = Tenure::open("sqlite::memory:").await.unwrap();
    let first = tenure.enqueue(Async).tenant("acme").trace("00-abc-01").await.unwrap().id();
    let second = tenure.enqueue(Blocking).queue("slow").await.unwrap().id();
    let any = tenure.enqueue_kind("patient", &()).await.unwrap().id();
    let worker = Worker::new(&tenure).queues(["default", "slow"]).handle(asynchronously);
    let worker = worker.handle_blocking(|_: Blocking, _| {
        tracing::info!("on a thread of its own");
        Ok(())
    });
    let worker = worker.handle_any_patiently(|_, _| async {
        tracing::info!("patiently");
        Ok(None)
    });
    worker.drain().run().await.unwrap();
    let told = recorder.0.told.lock().unwrap().clone();

    let field = |told: &Told, name: &str| told.fields.0.get(name).cloned().unwrap_or_default();
    let succeeded = told.iter().find(|told| {
        field(told, "event") == "job_succeeded" && field(told, "job") == first.to_string()
    });
    let succeeded = succeeded.unwrap_or_else(|| panic!("{told:?}"));
    assert_eq!(succeeded.target, "tenure");
    let identity = ["token", "kind", "queue", "tenant", "attempt", "trace"];
    let expected = ["1", "async", "default", "acme", "1", "00-abc-01"];
    assert_eq!(identity.map(|name| field(succeeded, name)), expected);
    assert!(field(succeeded, "ran_ms").parse::<u64>().is_ok(), "{succeeded:?}");
    let line = format!("job_succeeded       job={first} token=1 kind=async tenant=acme attempt=1 ");
    assert!(field(succeeded, "message").starts_with(&line), "{succeeded:?}");

    for (message, job, kind) in [
        ("before it waits", first, "async"),
        ("after it has waited", first, "async"),
        ("on a thread of its own", second, "blocking"),
        ("patiently", any, "patient"),
    ] {
        let logged = told.iter().find(|told| field(told, "message") == message);
        let Some((name, Fields(span))) = logged.and_then(|told| told.span.clone()) else {
            panic!("{message} is in no span: {told:?}")
        };
        assert_eq!((name, &span["job"], &*span["kind"]), ("attempt", &job.to_string(), kind));
        assert_eq!((&*span["token"], &*span["attempt"]), ("1", "1"));
        assert_eq!(span["worker"], field(succeeded, "worker"));
        assert_eq!(span["queue"], if kind == "blocking" { "slow" } else { "default" });
        let trace = span.get("trace").map(String::as_str);
        assert_eq!(trace, (kind == "async").then_some("00-abc-01"));
    }
    assert!(told.last().unwrap().span.is_none(), "the span of an attempt ends with it");
}
