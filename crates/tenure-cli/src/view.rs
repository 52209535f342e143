//! Jobs as programs see them under `--json`: ids and tokens as strings, times as RFC 3339, args and
//! results as the JSON that they are.
//!
//! The library's own records have times as numbers and JSON as text; a script should not have to
//! know.

use serde::{Serialize, Serializer};
use serde_json::value::RawValue;
use tenure::clock::Timestamp;
use tenure::inspect::{EffectView, Identity, JobDetail, QueueSettings, TimelineEntry};
use tenure::job::{JobId, JobRecord, Json, Name, Progress, RetryPolicy, State, Tenant};
use tenure::lease::{Token, WorkerId};
use tenure::ledger::{EffectKey, Standing};
use tenure::lifecycle::Verb;

/// A job.
#[derive(Serialize)]
pub(crate) struct Job<'a> {
    id: JobId,
    state: State,
    waiting: bool,
    queue: &'a Name,
    tenant: &'a Tenant,
    kind: &'a Name,
    args: Option<Box<RawValue>>,
    priority: i16,
    run_at: Rfc3339,
    token: Token,
    attempt: u16,
    max_attempts: u16,
    crashes: u16,
    max_crashes: u16,
    retry: &'a RetryPolicy,
    max_runtime_ms: Option<i64>,
    key: Option<&'a str>,
    trace: Option<&'a str>,
    tags: &'a [Name],
    parent: Option<JobId>,
    enqueued_at: Rfc3339,
    worker: Option<&'a WorkerId>,
    started_at: Option<Rfc3339>,
    leased_at: Option<Rfc3339>,
    lease_until: Option<Rfc3339>,
    finished_at: Option<Rfc3339>,
    result: Option<Box<RawValue>>,
    reason: Option<&'a str>,
    progress: Option<&'a Progress>,
}

impl<'a> Job<'a> {
    pub(crate) fn of(job: &'a JobRecord) -> Job<'a> {
        Job {
            id: job.id,
            state: job.state,
            waiting: job.waiting,
            queue: &job.queue,
            tenant: &job.tenant,
            kind: &job.kind,
            args: raw(&job.args),
            priority: job.priority,
            run_at: Rfc3339(job.run_at),
            token: job.token,
            attempt: job.attempt,
            max_attempts: job.max_attempts,
            crashes: job.crashes,
            max_crashes: job.max_crashes,
            retry: &job.retry,
            max_runtime_ms: job.max_runtime_ms,
            key: job.key.as_deref(),
            trace: job.extras.trace.as_deref(),
            tags: &job.extras.tags,
            parent: job.parent,
            enqueued_at: Rfc3339(job.enqueued_at),
            worker: job.worker.as_ref(),
            started_at: job.started_at.map(Rfc3339),
            leased_at: job.leased_at.map(Rfc3339),
            lease_until: job.lease_until.map(Rfc3339),
            finished_at: job.finished_at.map(Rfc3339),
            result: job.result.as_ref().and_then(raw),
            reason: job.reason.as_deref(),
            progress: job.progress.as_ref(),
        }
    }
}

/// A job with its timeline.
#[derive(Serialize)]
pub(crate) struct Detail<'a> {
    #[serde(flatten)]
    job: Job<'a>,
    timeline: Vec<Entry<'a>>,
    effects: Vec<Effect<'a>>,
}

impl<'a> Detail<'a> {
    pub(crate) fn of(detail: &'a JobDetail, effects: Vec<Effect<'a>>) -> Detail<'a> {
        Detail {
            job: Job::of(&detail.job),
            timeline: detail.timeline.iter().map(Entry::of).collect(),
            effects,
        }
    }
}

#[derive(Serialize)]
struct Entry<'a> {
    at: Rfc3339,
    event: &'static str,
    verb: Verb,
    refused: bool,
    token: Token,
    attempt: u16,
    worker: Option<&'a WorkerId>,
    from: Option<Rfc3339>,
    became: State,
    note: Option<&'a str>,
    /// How many older entries of this verb have been dropped.
    #[serde(skip_serializing_if = "Option::is_none")]
    earlier: Option<u64>,
}

impl<'a> Entry<'a> {
    fn of(entry: &'a TimelineEntry) -> Entry<'a> {
        Entry {
            at: Rfc3339(entry.at),
            event: entry.event(),
            verb: entry.verb,
            refused: entry.refused,
            token: entry.token,
            attempt: entry.attempt,
            worker: entry.worker.as_ref(),
            from: entry.from.map(Rfc3339),
            became: entry.became,
            note: entry.note.as_deref(),
            earlier: (entry.earlier > 0).then_some(entry.earlier),
        }
    }
}

/// An effect, and the key under which outside systems know it.
#[derive(Serialize)]
pub(crate) struct Effect<'a> {
    job: JobId,
    effect: &'a Name,
    standing: Standing,
    in_doubt: bool,
    key: String,
    kind: &'a Name,
    tenant: &'a Tenant,
    job_state: State,
    token: Token,
    opened_at: Rfc3339,
    ended_at: Option<Rfc3339>,
    result: Option<Box<RawValue>>,
    note: Option<&'a str>,
}

impl<'a> Effect<'a> {
    pub(crate) fn of(view: &'a EffectView, store: &Identity) -> Effect<'a> {
        let EffectView { effect, in_doubt, state, kind, tenant } = view;
        Effect {
            job: effect.job,
            effect: &effect.name,
            standing: effect.standing,
            in_doubt: *in_doubt,
            key: effect_key(view, store),
            kind,
            tenant,
            job_state: *state,
            token: effect.token,
            opened_at: Rfc3339(effect.opened_at),
            ended_at: effect.ended_at.map(Rfc3339),
            result: effect.result.as_ref().and_then(raw),
            note: effect.note.as_deref(),
        }
    }
}

/// The key under which outside systems know an effect.
pub(crate) fn effect_key(EffectView { effect, .. }: &EffectView, store: &Identity) -> String {
    let (installation, job, effect) = (store.installation, effect.job, effect.name.clone());
    EffectKey { installation, job, effect }.to_string()
}

/// The settings of a queue.
#[derive(Serialize)]
pub(crate) struct Queue<'a> {
    queue: &'a Name,
    paused_at: Option<Rfc3339>,
    keep_ms: i64,
    keep_dead_ms: i64,
}

impl<'a> Queue<'a> {
    pub(crate) fn of(settings: &'a QueueSettings) -> Queue<'a> {
        Queue {
            queue: &settings.queue,
            paused_at: settings.paused_at.map(Rfc3339),
            keep_ms: settings.keep_ms,
            keep_dead_ms: settings.keep_dead_ms,
        }
    }
}

/// A time in a format that programs of any language can parse.
#[derive(Clone, Copy)]
pub(crate) struct Rfc3339(pub(crate) Timestamp);

impl Serialize for Rfc3339 {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

/// The JSON itself, on one line and with its numbers as written. Parsing it into a value would
/// round them.
fn raw(json: &Json) -> Option<Box<RawValue>> {
    RawValue::from_string(json.canonical()).ok()
}

#[cfg(test)]
mod tests {
    use tenure::job::NewJob;

    use super::*;

    #[test]
    fn a_program_gets_strings_for_ids_and_times_and_json_for_json() {
        let args = Json::check("args", "{\n\"n\": 12345678901234567890.10}", 100).unwrap();
        let job = NewJob::new(Name::check("kind", "k").unwrap(), args);
        let record = job.record(JobId(7), Timestamp::from_millis(0));
        let text = serde_json::to_string(&Job::of(&record)).unwrap();
        assert!(text.contains(r#""id":"7""#), "{text}");
        assert!(text.contains(r#""token":"0""#), "{text}");
        assert!(text.contains(r#""enqueued_at":"1970-01-01T00:00:00.000Z""#), "{text}");
        assert!(text.contains(r#""args":{"n":12345678901234567890.10}"#), "{text}");
    }
}
