//! What the proof does to this engine: own its clock, read and set its whole state, and break its SQL on
//! purpose.

use postgres::Row;
use postgres::types::Type;
use serde_json::{Value, json};

use super::address::Address;
use super::migrate::Migrations;
use super::schema::Schema;
use super::session::{Isolation, Session};
use super::{Options, Postgres, row};
use crate::clock::{Clock, Timestamp};
use crate::drill::{Dump, Explorable, KeyRecord, KeyScope, Patch};
use crate::inspect::TimelineEntry;
use crate::job::{Fingerprint, JobRecord, Json};
use crate::store::{Result, lane, row as spelling};

/// A store whose time stands still until it is moved, and which may be in a transaction that is never
/// committed.
#[derive(Debug, Default)]
pub struct Rehearsal {
    clock: Option<Clock>,
    /// What the database was last told.
    told: Option<Timestamp>,
    on: bool,
    /// How many states were loaded.
    loads: u32,
}

impl Rehearsal {
    pub(super) fn is_on(&self) -> bool {
        self.on
    }
}

impl Postgres {
    /// Opens a store in a database made for tests, and sets its time from this clock.
    pub fn with_test_clock(address: &Address, options: &Options, clock: Clock) -> Result<Postgres> {
        let mut store = Postgres::open(address, options)?;
        store.rehearsal.clock = Some(clock);
        Ok(store)
    }

    /// Installs the schema with a safeguard taken out.
    pub fn install_patched(address: &Address, patches: &[Patch]) -> Result<()> {
        Migrations::connect(address)?.up_edited(|file, text| Patch::apply(patches, file, text))
    }

    /// From now on nothing is committed: each state that is loaded begins in a transaction of its own,
    /// and the next one undoes it. It saves the explorer a flush for every call.
    pub fn rehearse(&mut self) {
        self.rehearsal.on = true;
    }

    /// Tells the database the time, if it has moved.
    pub(super) fn set_test_clock(&mut self) -> Result<()> {
        const SET: &str = "INSERT INTO tenure.clock (one, at) VALUES (1, $1) \
            ON CONFLICT (one) DO UPDATE SET at = excluded.at";
        let Some(now) = self.rehearsal.clock.as_ref().map(Clock::now) else { return Ok(()) };
        if self.rehearsal.told != Some(now) {
            let schema = &self.schema;
            self.link.run("set the test clock", |session| {
                session.execute(&schema.apply(SET), &[(&now.as_millis(), Type::INT8)])
            })?;
            self.rehearsal.told = Some(now);
        }
        Ok(())
    }
}

impl Explorable for Postgres {
    fn dump(&mut self) -> Result<Dump> {
        let now = self.rehearsal.clock.as_ref().map_or(Timestamp::from_millis(0), Clock::now);
        self.transact("dump", Isolation::Snapshot, |session, schema| dump(session, schema, now))
    }

    fn load(&mut self, state: &Dump) -> Result<()> {
        if let Some(clock) = &self.rehearsal.clock {
            clock.set(state.now);
        }
        self.marks = None;
        self.rehearsal.loads += 1;
        self.rehearsal.told = Some(state.now);
        let schema = &self.schema;
        let (is_rehearsal, loads) = (self.rehearsal.on, self.rehearsal.loads);
        self.link.run("load", |session| {
            if is_rehearsal {
                begin_anew(session, schema, loads, state)?;
                return fill_all(session, schema, state);
            }
            session.transaction(Isolation::ReadCommitted, |session| {
                session.batch(&schema.apply(EMPTY))?;
                session.batch(&schema.apply(&numbers(state)))?;
                fill_all(session, schema, state)
            })
        })
    }
}

const EMPTY: &str = "DELETE FROM tenure.jobs; DELETE FROM tenure.done; DELETE FROM tenure.payloads; \
    DELETE FROM tenure.timeline; DELETE FROM tenure.keys; DELETE FROM tenure.queues; DELETE FROM tenure.clock";

/// Leaves the last state behind. What was undone still lies about in the tables, and is swept out
/// before it gets in the way.
fn begin_anew(
    session: &mut Session,
    schema: &Schema,
    loads: u32,
    state: &Dump,
) -> Result<(), postgres::Error> {
    const SWEEP_AFTER: u32 = 200;
    const SWEEP: &str = "VACUUM tenure.jobs, tenure.done, tenure.payloads, tenure.timeline, tenure.keys, \
        tenure.queues, tenure.meta, tenure.clock";
    if loads.is_multiple_of(SWEEP_AFTER) {
        session.batch("ROLLBACK")?;
        session.batch(&schema.apply(SWEEP))?;
    }
    session.batch(&schema.apply(&format!("ROLLBACK; BEGIN; {}", numbers(state))))
}

/// The statements that set what is kept once for the whole store. A sequence does not roll back, so
/// it is set each time.
fn numbers(state: &Dump) -> String {
    let Dump { now, epoch, next_id, .. } = state;
    let now = now.as_millis();
    format!(
        "INSERT INTO tenure.clock (one, at) VALUES (1, {now}) ON CONFLICT (one) DO UPDATE SET at = excluded.at; \
         UPDATE tenure.meta SET epoch = {epoch} WHERE epoch <> {epoch}; SELECT setval('tenure.job_id', {next_id}, false)"
    )
}

fn dump(session: &mut Session, schema: &Schema, now: Timestamp) -> Result<Dump, postgres::Error> {
    const META: &str = "SELECT m.epoch, s.last_value + s.is_called::int AS next_id, \
        EXISTS (SELECT 1 FROM tenure.timeline) AS lines, EXISTS (SELECT 1 FROM tenure.queues) AS queues, \
        EXISTS (SELECT 1 FROM tenure.keys) AS keys, ARRAY(SELECT id FROM tenure.jobs ORDER BY id) AS ids, \
        ARRAY(SELECT lane FROM tenure.jobs ORDER BY id) AS lanes FROM tenure.meta m, tenure.job_id s";
    const JOBS: &str = row::select_record!("tenure.record ORDER BY id");
    const TIMELINE: &str = "SELECT job_id AS job, at, verb, refused, token, attempt, worker, began, became, note \
        FROM tenure.timeline ORDER BY job_id, seq";
    const QUEUES: &str =
        "SELECT queue, paused_at, keep_ms, keep_dead_ms FROM tenure.queues ORDER BY queue";
    const KEYS: &str = "SELECT tenant, key, fingerprint, job_id, expires_at FROM tenure.keys ORDER BY tenant, scope, key";
    let mut ask = |sql: &str| session.query(&schema.apply(sql), &[]);
    let mut state = Dump::empty(now);
    let (mut lines, mut queues, mut keys) = (false, false, false);
    let (mut ids, mut lanes): (Vec<i64>, Vec<i64>) = (vec![], vec![]);
    for found in ask(META)? {
        state.epoch = u32::try_from(found.try_get::<_, i64>("epoch")?).unwrap_or(u32::MAX);
        state.next_id = found.try_get("next_id")?;
        (lines, queues, keys) =
            (found.try_get("lines")?, found.try_get("queues")?, found.try_get("keys")?);
        (ids, lanes) = (found.try_get("ids")?, found.try_get("lanes")?);
    }
    state.jobs = ask(JOBS)?.iter().map(row::record).collect::<Result<_, _>>()?;
    for (id, lane) in ids.into_iter().zip(lanes) {
        let job = state.jobs.iter().find(|job| job.id.0 == id);
        // The lane is computed from the job, so the dump does not show it; but it must be right.
        assert_eq!(job.map(lane::of), Some(lane), "job {id} is in the wrong lane");
    }
    if lines {
        state.timeline =
            ask(TIMELINE)?.iter().map(row::timeline_entry).collect::<Result<_, _>>()?;
    }
    if queues {
        state.queues = ask(QUEUES)?.iter().map(row::queue_settings).collect::<Result<_, _>>()?;
    }
    if keys {
        state.keys = ask(KEYS)?.iter().map(key).collect::<Result<_, _>>()?;
    }
    Ok(state)
}

fn key(row: &Row) -> Result<KeyRecord, postgres::Error> {
    let mut fingerprint = Fingerprint([0; 32]);
    fingerprint.0.copy_from_slice(row.try_get("fingerprint")?);
    Ok(KeyRecord {
        tenant: row.try_get("tenant")?,
        scope: KeyScope::Idempotency,
        key: row.try_get("key")?,
        fingerprint,
        job: row.try_get("job_id")?,
        expires_at: row.try_get("expires_at")?,
    })
}

/// Puts the rows of a state into empty tables.
fn fill_all(session: &mut Session, schema: &Schema, state: &Dump) -> Result<(), postgres::Error> {
    let (ended, live): (Vec<_>, Vec<_>) = state.jobs.iter().partition(|job| job.state.has_ended());
    let first = i64::MIN;
    let lines = state.timeline.iter().zip(first..).map(|(line, seq)| line_row(line, seq));
    fill(session, schema, "jobs", live.into_iter().map(job_row).collect())?;
    fill(session, schema, "done", ended.into_iter().map(job_row).collect())?;
    fill(session, schema, "timeline", lines.collect())?;
    fill(session, schema, "keys", state.keys.iter().map(key_row).collect())?;
    fill(session, schema, "queues", state.queues.iter().map(|settings| json!(settings)).collect())
}

/// Fills a table with rows that are written as JSON, a field for each column.
fn fill(
    session: &mut Session,
    schema: &Schema,
    table: &str,
    rows: Vec<Value>,
) -> Result<(), postgres::Error> {
    if rows.is_empty() {
        return Ok(());
    }
    let sql = format!(
        "INSERT INTO tenure.{table} OVERRIDING SYSTEM VALUE SELECT r.* FROM json_populate_recordset(NULL::tenure.{table}, $1) r"
    );
    let rows = Value::from(rows).to_string();
    session.execute(&schema.apply(&sql), &[(&row::JsonText(&rows), Type::JSON)])?;
    Ok(())
}

/// A job as a row of `jobs` or `done`: each table takes the columns that it has.
fn job_row(job: &JobRecord) -> Value {
    let raw = |json: &Json| serde_json::from_str::<Value>(json.as_str()).unwrap_or_default();
    json!({
        "id": job.id.0, "state": spelling::code(job.state, job.waiting), "lane": lane::of(job),
        "queue": job.queue, "tenant": job.tenant, "kind": job.kind, "args": raw(&job.args),
        "priority": job.priority, "run_at": job.run_at, "token": job.token.0, "attempt": job.attempt,
        "max_attempts": job.max_attempts, "crashes": job.crashes, "max_crashes": job.max_crashes,
        "retry": spelling::retry_column(&job.retry).map(|_| json!(job.retry)),
        "max_runtime": job.max_runtime_ms, "key": job.key, "trace": job.trace,
        "tags": spelling::tags_column(&job.tags), "parent": job.parent.map(|parent| parent.0),
        "enqueued_at": job.enqueued_at, "worker": job.worker, "started_at": job.started_at,
        "leased_at": job.leased_at, "lease_ms": job.lease_ms, "lease_until": job.lease_until,
        "finished_at": job.finished_at, "result": job.result.as_ref().map(raw), "reason": job.reason,
    })
}

fn key_row(key: &KeyRecord) -> Value {
    let hex: String = key.fingerprint.0.iter().map(|byte| format!("{byte:02x}")).collect();
    json!({
        "tenant": key.tenant, "scope": 0, "key": key.key, "fingerprint": format!("\\x{hex}"),
        "job_id": key.job.0, "expires_at": key.expires_at,
    })
}

/// A line of the timeline, before all that are still to come.
fn line_row(line: &TimelineEntry, seq: i64) -> Value {
    json!({
        "seq": seq, "job_id": line.job.0, "at": line.at, "token": line.token.0, "began": line.from,
        "attempt": line.attempt, "became": spelling::code(line.became, false), "refused": line.refused,
        "verb": line.verb.name(), "worker": line.worker, "note": line.note,
    })
}
