//! The tables in the documentation agree with the code.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::sync::Arc;

use tenure::Timestamp;
use tenure::engine::job::{About, JobId, Name, State, Tenant};
use tenure::engine::lease::{Reason, Token, WorkerId};
use tenure::engine::lifecycle::{Verb, attempt_counts};
use tenure::engine::telemetry::{Event, Exit, Fact, Level};

/// The cells of a page's table rows whose first cell is code.
fn rows(page: &str, heading: &str) -> Vec<Vec<String>> {
    let section = page.split("\n## ").find(|section| section.starts_with(heading)).expect(heading);
    let cells =
        |line: &str| line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect();
    section.lines().filter(|line| line.starts_with("| `")).map(cells).collect()
}

const LIFECYCLE: &str = include_str!("../../../docs/lifecycle.md");
const EVENTS: &str = include_str!("../../../docs/events.md");

#[test]
fn the_table_of_states_lists_every_state_in_order() {
    let listed: Vec<_> =
        rows(LIFECYCLE, "States").iter().map(|row| row[0].replace('`', "")).collect();
    assert_eq!(listed, State::ALL.map(|state| state.name().to_owned()));
}

#[test]
fn the_table_of_verbs_lists_every_verb_and_whether_its_attempt_counts() {
    let rows = rows(LIFECYCLE, "Verbs");
    let listed: Vec<_> = rows.iter().map(|row| row[0].replace('`', "")).collect();
    assert_eq!(listed, Verb::ALL.map(|verb| verb.name().to_owned()));
    for (row, verb) in rows.iter().zip(Verb::ALL) {
        let ends_an_attempt = matches!(row[3].as_str(), "yes" | "no");
        assert!(!ends_an_attempt || (row[3] == "yes") == attempt_counts(verb), "{verb}");
    }
}

/// One of each, with all its fields.
fn facts() -> [Fact; Fact::NAMES.len()] {
    let name = || Name::check("name", "n").unwrap();
    let error = || "no".to_owned();
    [
        Fact::JobEnqueued,
        Fact::LeaseAcquired { wait_ms: 1 },
        Fact::ExecutionStarted,
        Fact::LeaseRenewed { until: Timestamp::from_millis(0) },
        Fact::StaleWriteBlocked {
            verb: Verb::Complete,
            stale_token: Token(1),
            current_token: Token(2),
            reason: Reason::TokenMismatch,
            state: State::Running,
            ran_ms: 1,
        },
        Fact::LeaseLapsed { from: WorkerId::unique(), became: State::Queued },
        Fact::HolderVanished { from: WorkerId::unique(), became: State::Queued },
        Fact::RetryScheduled { after_ms: 1, error: error(), ran_ms: 1 },
        Fact::JobSnoozed { after_ms: 1, ran_ms: 1 },
        Fact::JobReleased { ran_ms: 1 },
        Fact::JobParked { reason: error(), ran_ms: 1 },
        Fact::JobSucceeded { ran_ms: 1 },
        Fact::JobDead { reason: error(), ran_ms: Some(1) },
        Fact::JobCancelled { ran_ms: 1 },
        Fact::EffectInDoubt { effect: name(), opened_by: Token(1) },
        Fact::EffectUnrecorded {
            effect: name(),
            verb: Verb::EffectCommit,
            given_up: false,
            error: error(),
        },
        Fact::WorkerStarted { queues: vec![name()], kinds: None, concurrency: 1 },
        Fact::WorkerExit { reason: Exit::Drained, succeeded: 1, retried: 0, dead: 0 },
        Fact::StoreLost { error: error() },
        Fact::StoreBack,
        Fact::StoreCaution { problem: error() },
        Fact::StoreForbidden { error: error() },
    ]
}

#[test]
fn the_table_of_events_lists_every_event_with_its_level_and_its_fields() {
    let rows = rows(EVENTS, "Events");
    let listed: Vec<_> = rows.iter().map(|row| row[0].replace('`', "")).collect();
    assert_eq!(listed, Fact::NAMES);
    for (row, fact) in rows.iter().zip(facts()) {
        assert_eq!(row[0].replace('`', ""), fact.name());
        let level = match fact.level() {
            Level::Debug => "debug",
            Level::Info => "info",
            Level::Warn => "warn",
        };
        assert_eq!(row[1], level, "{}", fact.name());
        let mut told: Vec<_> = row[2].split(", ").filter(|cell| !cell.is_empty()).collect();
        told.sort_unstable();
        let json = serde_json::to_value(&fact).unwrap();
        let fields = json.as_object().unwrap().keys().filter(|key| *key != "event");
        let mut fields: Vec<_> = fields.map(|key| format!("`{key}`")).collect();
        fields.sort_unstable();
        assert_eq!(told, fields, "{}", fact.name());
    }
}

#[test]
fn the_table_of_the_identity_lists_every_field_that_an_event_of_a_job_carries() {
    let about = About {
        job: JobId(1),
        token: Token(1),
        kind: Name::default_queue(),
        queue: Name::default_queue(),
        tenant: Tenant::default(),
        attempt: 1,
        trace: Some("t".into()),
    };
    let event = Event::of_job(&WorkerId::unique(), &Arc::new(about), Fact::ExecutionStarted);
    let text = serde_json::to_string(&event).unwrap();
    let mut expected = text.as_str();
    for row in rows(EVENTS, "Identity") {
        let field = format!("\"{}\":", row[0].replace('`', ""));
        let found = expected.find(&field).unwrap_or_else(|| panic!("{field} is not in {text}"));
        expected = &expected[found + field.len()..];
    }
    let fields = serde_json::to_value(&event).unwrap().as_object().unwrap().len();
    assert_eq!(rows(EVENTS, "Identity").len(), fields - 1, "all but the name: {text}");
}
