//! Every event, as JSON, as a line for people, and as `tracing` gets it.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Mutex;

use serde_json::Value;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Metadata, Subscriber};

use super::*;
use crate::job::{Json, Tenant};

fn name(text: &str) -> Name {
    Name::check("name", text).unwrap()
}

fn ann() -> WorkerId {
    WorkerId::check("0123456789abcdef0123456789abcdef").unwrap()
}

fn about() -> About {
    About {
        job: JobId(7),
        token: Token(3),
        kind: name("mail"),
        queue: Name::default_queue(),
        tenant: Tenant::default(),
        attempt: 2,
        trace: None,
    }
}

/// The same attempt, of a job for which nothing is as usual.
fn unusual() -> About {
    let (queue, tenant) = (name("slow"), Tenant::check("acme").unwrap());
    About { queue, tenant, trace: Some("00-abc-01".into()), ..about() }
}

fn event(about: About, fact: Fact) -> Event {
    Event::of_job(&ann(), &Arc::new(about), fact)
}

fn refusal() -> Fact {
    let about = about();
    let stale = Stale::new(about.fence(), Token(4), State::Running);
    Fact::refused(Verb::Complete, &stale, Duration::from_millis(12))
}

/// One of each, in the order of their names.
fn samples() -> [Fact; Fact::NAMES.len()] {
    let (from, error) = (WorkerId::check("bob").unwrap(), || "no way".to_owned());
    [
        Fact::JobEnqueued,
        Fact::LeaseAcquired { wait_ms: 5 },
        Fact::ExecutionStarted,
        Fact::LeaseRenewed { until: Timestamp::from_millis(0) },
        refusal(),
        Fact::LeaseLapsed { from: from.clone(), became: State::Queued },
        Fact::HolderVanished { from, became: State::Queued },
        Fact::RetryScheduled { after_ms: 1, error: error(), ran_ms: 1 },
        Fact::JobSnoozed { after_ms: 1, ran_ms: 1 },
        Fact::JobReleased { ran_ms: 1 },
        Fact::JobParked { reason: error(), ran_ms: 1 },
        Fact::JobSucceeded { ran_ms: 1 },
        Fact::JobDead { reason: error(), ran_ms: Some(1) },
        Fact::JobCancelled { ran_ms: 1 },
        Fact::EffectInDoubt { effect: name("charge"), opened_by: Token(1) },
        Fact::EffectUnrecorded {
            effect: name("charge"),
            verb: Verb::EffectCommit,
            given_up: true,
            error: error(),
        },
        Fact::WorkerStarted {
            queues: vec![name("a"), name("b")],
            kinds: Some(vec![name("mail")]),
            concurrency: 4,
        },
        Fact::WorkerExit { reason: Exit::Drained, succeeded: 1, retried: 2, dead: 3 },
        Fact::StoreLost { error: error() },
        Fact::StoreBack,
        Fact::StoreCaution { problem: error() },
        Fact::StoreForbidden { error: error() },
    ]
}

/// Each sample as an event.
fn events() -> impl Iterator<Item = Event> {
    samples().into_iter().map(|fact| match fact.is_of_job() {
        true => event(unusual(), fact),
        false => Event::of_worker(&ann(), fact),
    })
}

#[test]
fn an_event_is_one_flat_object_with_its_identity() {
    assert_eq!(
        serde_json::to_string(&event(unusual(), refusal())).unwrap(),
        r#"{"event":"stale_write_blocked","verb":"complete","stale_token":"3","current_token":"4","reason":"token_mismatch","state":"running","ran_ms":12,"job":"7","token":"3","kind":"mail","queue":"slow","tenant":"acme","attempt":2,"trace":"00-abc-01","worker":"0123456789abcdef0123456789abcdef"}"#
    );
    assert_eq!(
        serde_json::to_string(&Event::of_worker(&ann(), Fact::StoreBack)).unwrap(),
        r#"{"event":"store_back","worker":"0123456789abcdef0123456789abcdef"}"#
    );
    let job = NewJob::new(name("mail"), Json::check("args", "{}", 10).unwrap());
    assert_eq!(
        serde_json::to_string(&Event::enqueued(JobId(7), &job)).unwrap(),
        r#"{"event":"job_enqueued","job":"7","kind":"mail","queue":"default","tenant":""}"#
    );
}

#[test]
fn an_event_for_people_is_one_line_without_what_is_usual() {
    let fact = Fact::RetryScheduled { after_ms: 500, error: "no\nway".into(), ran_ms: 12 };
    assert_eq!(
        event(about(), fact.clone()).to_string(),
        r#"retry_scheduled     job=7 token=3 kind=mail attempt=2 after_ms=500 error="no\nway" ran_ms=12 worker=01234567"#
    );
    assert_eq!(
        event(unusual(), fact).to_string(),
        r#"retry_scheduled     job=7 token=3 kind=mail queue=slow tenant=acme attempt=2 after_ms=500 error="no\nway" ran_ms=12 worker=01234567"#
    );
    let job = NewJob::new(name("mail"), Json::check("args", "{}", 10).unwrap());
    let line = Event::enqueued(JobId(7), &job).to_string();
    assert_eq!(line, "job_enqueued        job=7 kind=mail");
}

#[test]
fn every_worker_in_a_line_for_people_is_in_its_short_form() {
    let from = WorkerId::check("fedcba9876543210fedcba9876543210").unwrap();
    let lapsed = Fact::LeaseLapsed { from: from.clone(), became: State::Queued };
    let vanished = Fact::HolderVanished { from, became: State::Queued };
    for (fact, name) in [(lapsed, "lease_lapsed   "), (vanished, "holder_vanished")] {
        let line = event(about(), fact).to_string();
        let rest = "job=7 token=3 kind=mail attempt=2 became=queued from=fedcba98 worker=01234567";
        assert_eq!(line, format!("{name}     {rest}"));
    }
}

#[test]
fn the_name_is_the_one_that_json_carries() {
    for (fact, name) in samples().iter().zip(Fact::NAMES) {
        let json = serde_json::to_value(fact).unwrap();
        assert_eq!((json["event"].as_str(), fact.name()), (Some(name), name));
    }
    for exit in [Exit::Drained, Exit::Stale, Exit::Shutdown, Exit::Error] {
        assert_eq!(serde_json::to_value(exit).unwrap(), exit.name());
    }
}

/// Keeps the level and the fields of each event.
#[derive(Clone, Default)]
struct Recorder(Arc<Mutex<Vec<(tracing::Level, Fields)>>>);

#[derive(Default)]
struct Fields(BTreeMap<&'static str, Value>);

impl Visit for Fields {
    fn record_i64(&mut self, field: &Field, value: i64) {
        self.0.insert(field.name(), value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.0.insert(field.name(), value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.0.insert(field.name(), value.into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name(), value.into());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name(), format!("{value:?}").into());
    }
}

impl Subscriber for Recorder {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn event(&self, event: &tracing::Event<'_>) {
        assert_eq!(event.metadata().target(), "tenure");
        let mut fields = Fields::default();
        event.record(&mut fields);
        self.0.lock().unwrap().push((*event.metadata().level(), fields));
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// A value as one text: in JSON, numbers that may be large are strings, and `tracing` gets a list
/// joined by commas.
fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(all) => all.iter().map(text).collect::<Vec<_>>().join(","),
        other => other.to_string(),
    }
}

#[test]
fn tracing_gets_every_field_that_json_has_and_the_line_for_people_and_nothing_is_made_for_nothing()
{
    for level in [Level::Debug, Level::Info, Level::Warn] {
        // No subscriber of this process has raised the level yet: it is off, and only observers
        // count.
        assert!(!Observer::default().hears(level) && Observer::new(|_| ()).hears(level));
    }
    let recorder = Recorder::default();
    tracing::subscriber::with_default(recorder.clone(), || {
        assert!(Observer::default().hears(Level::Debug));
        events().for_each(|event| Observer::default().tell(&event));
    });
    let recorded = recorder.0.lock().unwrap();
    assert_eq!(recorded.len(), Fact::NAMES.len());
    for (event, (level, fields)) in events().zip(&*recorded) {
        let expected = match event.fact.level() {
            Level::Debug => tracing::Level::DEBUG,
            Level::Info => tracing::Level::INFO,
            Level::Warn => tracing::Level::WARN,
        };
        assert_eq!(*level, expected, "{event}");
        let json = serde_json::to_value(&event).unwrap();
        let mut expected: BTreeMap<&str, String> =
            json.as_object().unwrap().iter().map(|(name, value)| (&**name, text(value))).collect();
        let line = event.to_string();
        expected.insert("message", line);
        let fields: BTreeMap<&str, String> =
            fields.0.iter().map(|(name, value)| (*name, text(value))).collect();
        assert_eq!(fields, expected);
    }
}
