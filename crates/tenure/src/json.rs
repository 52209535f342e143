//! The one JSON spelling of what a store holds and answers, for programs in any language. The
//! command line prints it under `--json`.
//!
//! Ids and tokens are strings. Times are RFC 3339, in UTC. A length of time is in milliseconds, and
//! its name ends in `_ms`. Args and results are the JSON that they are. A value that is not there is
//! `null`. The files in `tests/golden` show every shape.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let tenure = tenure::Tenure::open("sqlite::memory:").await?;
//! let id = tenure.enqueue_kind("resize", &serde_json::json!({ "width": 80 })).await?.id();
//! let found = tenure.job(id).await?.ok_or("it is there")?;
//! let job = serde_json::to_value(tenure::json::job(&found.job))?;
//! assert_eq!(job["id"], "1");
//! assert_eq!(job["args"]["width"], 80);
//! # Ok(())
//! # }
//! ```
//!
//! Serialising a record itself, such as [`JobRecord`], gives another spelling, with times as numbers
//! and JSON as text: the one in which the proof keeps states.

use std::time::Duration;

use serde::{Serialize, Serializer};
use serde_json::value::RawValue;

use crate::clock::Timestamp;
use crate::inspect::{
    EffectView, Identity, JobDetail, JobOutcome, LeaseView, Overview, OverviewLine, QueueSettings,
    Raise, TimelineEntry, WorkerView, Wrong,
};
use crate::job::{JobId, Json, Name, Progress, RetryPolicy, State, Tenant};
use crate::lease::{Token, WorkerId};
use crate::ledger::Standing;
use crate::lifecycle::Verb;
use crate::record::JobRecord;
use crate::store::migrate::Status;
#[cfg(feature = "postgres")]
use crate::store::postgres::{Contents, Durability};
use crate::store::{Changed, Enqueued, Resolved, Verdict};

/// A job.
pub fn job(job: &JobRecord) -> impl Serialize {
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

#[derive(Serialize)]
struct Job<'a> {
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

/// A job with its timeline and its effects. The store's identity is part of the effects' keys.
pub fn detail(detail: &JobDetail, effects: &[EffectView], store: &Identity) -> impl Serialize {
    #[derive(Serialize)]
    struct Detail<J, T, E> {
        #[serde(flatten)]
        job: J,
        timeline: Vec<T>,
        effects: Vec<E>,
    }
    Detail {
        job: job(&detail.job),
        timeline: detail.timeline.iter().map(timeline_entry).collect(),
        effects: effects.iter().map(|view| effect(view, store)).collect(),
    }
}

/// A line of a job's timeline.
pub fn timeline_entry(entry: &TimelineEntry) -> impl Serialize {
    #[derive(Serialize)]
    struct Line<'a> {
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
        /// How many older lines of this verb have been dropped.
        #[serde(skip_serializing_if = "Option::is_none")]
        earlier: Option<u64>,
    }
    Line {
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

/// What a job has come to.
pub fn outcome(outcome: &JobOutcome) -> impl Serialize {
    #[derive(Serialize)]
    struct Shape<'a> {
        state: State,
        result: Option<Box<RawValue>>,
        reason: Option<&'a str>,
    }
    Shape {
        state: outcome.state,
        result: outcome.result.as_ref().and_then(raw),
        reason: outcome.reason.as_deref(),
    }
}

/// An effect, with the key under which outside systems know it. The store's identity is part of
/// that key.
pub fn effect(view: &EffectView, store: &Identity) -> impl Serialize {
    #[derive(Serialize)]
    struct Shape<'a> {
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
    let EffectView { effect, in_doubt, state, kind, tenant } = view;
    Shape {
        job: effect.job,
        effect: &effect.name,
        standing: effect.standing,
        in_doubt: *in_doubt,
        key: view.key(store).to_string(),
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

/// The settings of a queue.
pub fn queue(settings: &QueueSettings) -> impl Serialize {
    #[derive(Serialize)]
    struct Shape<'a> {
        queue: &'a Name,
        paused_at: Option<Rfc3339>,
        keep_ms: i64,
        keep_dead_ms: i64,
    }
    Shape {
        queue: &settings.queue,
        paused_at: settings.paused_at.map(Rfc3339),
        keep_ms: settings.keep_ms,
        keep_dead_ms: settings.keep_dead_ms,
    }
}

/// The counts of all queues, and which of them are paused by their settings.
pub fn overview<'a>(overview: &'a Overview, queues: &'a [QueueSettings]) -> impl Serialize {
    #[derive(Serialize)]
    struct Shape<'a> {
        at: Rfc3339,
        lines: Vec<Line<'a>>,
    }
    #[derive(Serialize)]
    struct Line<'a> {
        queue: &'a Name,
        tenant: &'a Tenant,
        ready: u64,
        waiting: u64,
        running: u64,
        parked: u64,
        dead: u64,
        oldest_wait_ms: Option<i64>,
        succeeded_last_minute: u64,
        died_last_minute: u64,
        paused_at: Option<Rfc3339>,
    }
    let paused_at = |queue: &Name| {
        let settings = queues.iter().find(|settings| settings.queue == *queue);
        settings.and_then(|settings| settings.paused_at).map(Rfc3339)
    };
    let line = |counts: &'a OverviewLine| Line {
        queue: &counts.queue,
        tenant: &counts.tenant,
        ready: counts.ready,
        waiting: counts.waiting,
        running: counts.running,
        parked: counts.parked,
        dead: counts.dead,
        oldest_wait_ms: counts.oldest_wait_ms,
        succeeded_last_minute: counts.succeeded_last_minute,
        died_last_minute: counts.died_last_minute,
        paused_at: paused_at(&counts.queue),
    };
    Shape { at: Rfc3339(overview.at), lines: overview.lines.iter().map(line).collect() }
}

/// A lease.
pub fn lease(view: &LeaseView) -> impl Serialize {
    #[derive(Serialize)]
    struct Shape<'a> {
        job: JobId,
        kind: &'a Name,
        token: Token,
        worker: &'a WorkerId,
        started_at: Rfc3339,
        lease_until: Rfc3339,
    }
    Shape {
        job: view.job,
        kind: &view.kind,
        token: view.token,
        worker: &view.worker,
        started_at: Rfc3339(view.started_at),
        lease_until: Rfc3339(view.until),
    }
}

/// A worker. `alive` is `null` for a worker that cannot hold a guard.
pub fn worker(view: &WorkerView) -> impl Serialize {
    #[derive(Serialize)]
    struct Shape<'a> {
        worker: &'a WorkerId,
        queues: &'a [Name],
        kinds: Option<&'a [Name]>,
        since: Rfc3339,
        alive: Option<bool>,
    }
    Shape {
        worker: &view.worker,
        queues: &view.queues,
        kinds: view.kinds.as_deref(),
        since: Rfc3339(view.since),
        alive: view.is_alive,
    }
}

/// Which store this is, and its epochs.
pub fn identity<'a>(identity: &'a Identity) -> impl Serialize {
    #[derive(Serialize)]
    struct Shape<'a> {
        installation: uuid::Uuid,
        epoch: u32,
        raises: Vec<Raised<'a>>,
    }
    #[derive(Serialize)]
    struct Raised<'a> {
        epoch: u32,
        at: Rfc3339,
        reason: &'a str,
    }
    let raised = |raise: &'a Raise| Raised {
        epoch: raise.epoch,
        at: Rfc3339(raise.at),
        reason: &raise.reason,
    };
    Shape {
        installation: identity.installation,
        epoch: identity.epoch,
        raises: identity.raises.iter().map(raised).collect(),
    }
}

/// The answer to one enqueued job. There is no id if it is not known whether the job was stored.
pub fn verdict(verdict: Verdict) -> impl Serialize {
    #[derive(Serialize)]
    struct Shape {
        #[serde(skip_serializing_if = "Option::is_none")]
        id: Option<JobId>,
        verdict: &'static str,
    }
    let (id, verdict) = match verdict {
        Verdict::Answered(Enqueued::Created(id)) => (Some(id), "created"),
        Verdict::Answered(Enqueued::Existing(id)) => (Some(id), "existing"),
        Verdict::Answered(Enqueued::Conflict(id)) => (Some(id), "conflict"),
        Verdict::Failed => (None, "failed"),
        Verdict::NotSent => (None, "not_sent"),
    };
    Shape { id, verdict }
}

/// The answer to an operator's request about one job.
pub fn changed(id: JobId, changed: Changed) -> impl Serialize {
    #[derive(Serialize)]
    struct Shape {
        id: JobId,
        #[serde(flatten)]
        changed: Changed,
    }
    Shape { id, changed }
}

/// The answer to an operator's request about all jobs that match a filter: how many of them were
/// changed.
pub fn tally(done: u64) -> impl Serialize {
    #[derive(Serialize)]
    struct Shape {
        done: u64,
    }
    Shape { done }
}

/// The answer to an operator who resolves an effect in doubt.
pub fn resolved(job: JobId, effect: &Name, resolved: Resolved) -> impl Serialize {
    #[derive(Serialize)]
    struct Shape<'a> {
        job: JobId,
        effect: &'a Name,
        #[serde(flatten)]
        resolved: Resolved,
    }
    Shape { job, effect, resolved }
}

/// The result of checking all jobs: how many there were, and which rules are broken.
pub fn checked<'a>(checked: usize, wrong: &'a [Wrong]) -> impl Serialize {
    #[derive(Serialize)]
    struct Shape<'a> {
        checked: usize,
        wrong: Vec<Broken<'a>>,
    }
    #[derive(Serialize)]
    struct Broken<'a> {
        job: JobId,
        rule: &'static str,
        what: &'a str,
    }
    let broken =
        |wrong: &'a Wrong| Broken { job: wrong.job, rule: wrong.rule.name(), what: &wrong.what };
    Shape { checked, wrong: wrong.iter().map(broken).collect() }
}

/// The result of one check of the store's health: what was found, and what to do next if that is
/// not well.
pub fn finding<'a>(check: &'a str, found: &'a str, next: Option<&'a str>) -> impl Serialize {
    #[derive(Serialize)]
    struct Shape<'a> {
        check: &'a str,
        ok: bool,
        found: &'a str,
        next: Option<&'a str>,
    }
    Shape { check, ok: next.is_none(), found, next }
}

/// The answer to an operator who begins a new epoch.
pub fn raised(was: u32, epoch: u32, reason: &str) -> impl Serialize {
    #[derive(Serialize)]
    struct Shape<'a> {
        was: u32,
        epoch: u32,
        reason: &'a str,
    }
    Shape { was, epoch, reason }
}

/// The answer to an operator who sets how long a guard must be free.
pub fn guard_gap(was: Duration, gap: Duration) -> impl Serialize {
    #[derive(Serialize)]
    struct Shape {
        was_ms: u64,
        guard_gap_ms: u64,
    }
    let millis = |gap: Duration| u64::try_from(gap.as_millis()).unwrap_or(u64::MAX);
    Shape { was_ms: millis(was), guard_gap_ms: millis(gap) }
}

/// The answer to an operator who sets whether commits wait for the disk.
#[cfg(feature = "postgres")]
pub fn durability(was: Durability, durability: Durability) -> impl Serialize {
    #[derive(Serialize)]
    struct Shape {
        was: &'static str,
        durability: &'static str,
    }
    Shape { was: was.name(), durability: durability.name() }
}

/// A migration and where a store stands with it.
pub fn migration(status: &Status) -> impl Serialize {
    #[derive(Serialize)]
    struct Shape<'a> {
        version: u32,
        name: &'a str,
        standing: &'static str,
        at: Option<Rfc3339>,
    }
    Shape {
        version: status.version,
        name: &status.name,
        standing: status.standing.name(),
        at: status.standing.at().map(Rfc3339),
    }
}

/// The state of the schema after a migration. On PostgreSQL also the statements that grant the
/// rights to other roles, unless the migration has created these roles itself.
pub fn migrated(status: &[Status], grants: Option<&str>) -> impl Serialize {
    #[derive(Serialize)]
    struct Shape<'a, M> {
        migrations: Vec<M>,
        grants: Option<&'a str>,
    }
    Shape { migrations: status.iter().map(migration).collect(), grants }
}

/// How many jobs were removed with the schema.
#[cfg(feature = "postgres")]
pub fn removed(contents: &Contents) -> impl Serialize {
    #[derive(Serialize)]
    struct Shape {
        live: u64,
        ended: u64,
    }
    Shape { live: contents.live, ended: contents.ended }
}

/// A time in a format that programs of any language can parse.
#[derive(Clone, Copy)]
struct Rfc3339(Timestamp);

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
