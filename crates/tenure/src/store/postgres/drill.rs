//! Access for the tests in `tenure-drill`: they set the clock, read and set the whole state, and
//! break the SQL on purpose.

mod hands;

use postgres::Row;
use postgres::types::Type;
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use self::hands::Hands;
use super::address::ServerAddress;
use super::migrate::Migrations;
use super::schema::Schema;
use super::session::{Isolation, Session};
use super::{Postgres, PostgresOptions, row};
use crate::clock::{Clock, Timestamp, millis};
use crate::inspect::TimelineEntry;
use crate::inspect::WorkerRecord;
use crate::job::{Fingerprint, Json, Name};
use crate::lease::{WorkerId, first_of};
use crate::ledger::{EffectRecord, Step};
use crate::record::JobRecord;
use crate::store::explore::{Dump, Explorable, KeyRecord, KeyScope, Patch};
use crate::store::{Guarded, Look, Registration, Result, lane, row as spelling};

/// The state of a store under test: its time stands still until it is moved, and it may be in a
/// transaction that is never committed.
#[derive(Default)]
pub struct Rehearsal {
    clock: Option<Clock>,
    /// The time that the database was last set to.
    told: Option<Timestamp>,
    on: bool,
    /// How many states were loaded.
    loads: u32,
    /// The last loaded state. If the next call starts from the same state, as it often does, a
    /// savepoint leads back to it.
    loaded: Option<Dump>,
    /// Holds the locks of the workers' processes.
    hands: Option<Hands>,
}

impl Rehearsal {
    pub(super) fn is_on(&self) -> bool {
        self.on
    }

    /// Whether the test sets the time.
    pub(super) fn is_set(&self) -> bool {
        self.clock.is_some()
    }
}

impl Postgres {
    /// Opens a store in a database made for tests, and sets its time from this clock.
    pub fn with_test_clock(
        address: &ServerAddress,
        options: &PostgresOptions,
        clock: Clock,
    ) -> Result<Postgres> {
        let mut store = Postgres::open(address, options)?;
        store.rehearsal.clock = Some(clock);
        store.rehearsal.hands = Some(Hands::new(address));
        Ok(store)
    }

    /// Installs the schema with patched SQL, without some safeguard.
    pub fn install_patched(address: &ServerAddress, patches: &[Patch]) -> Result<()> {
        Migrations::connect(address)?.up_edited(|file, text| Patch::apply(patches, file, text))
    }

    /// The SQL files of the functions, without `.sql`, and their texts.
    pub fn texts() -> Vec<(&'static str, &'static str)> {
        Migrations::texts()
    }

    /// In an installed schema, replaces the functions of one file by those of this text.
    pub fn replace_functions(address: &ServerAddress, text: &str) -> Result<()> {
        Migrations::connect(address)?.replace(text)
    }

    /// From now on nothing is committed: each state is loaded in a transaction of its own, which
    /// the next load rolls back. This saves the explorer a flush for every call.
    pub fn rehearse(&mut self) {
        self.rehearsal.on = true;
    }

    /// Sets the database's time, if it has changed.
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

    /// Registers a worker, whose lock is held by another connection: a lock of this session would
    /// outlast the transaction that is rolled back.
    pub(super) fn register_by_hand(&mut self, worker: &Registration) -> Result<Guarded> {
        const REGISTER: &str = "SELECT tenure.register($1, $2, $3, true)";
        if let Some(hands) = &mut self.rehearsal.hands {
            hands.take(&self.schema, &worker.worker)?;
        }
        let queues: Vec<_> = worker.queues.iter().map(Name::as_str).collect();
        let kinds: Option<Vec<_>> =
            worker.kinds.as_ref().map(|kinds| kinds.iter().map(Name::as_str).collect());
        self.call("register a worker", |session, schema| {
            let id = (&worker.worker.as_str() as &_, Type::TEXT);
            let lists = [(&queues as &_, Type::TEXT_ARRAY), (&kinds as &_, Type::TEXT_ARRAY)];
            let [queues, kinds] = lists;
            session.query(&schema.apply(REGISTER), &[id, queues, kinds]).map(drop)
        })?;
        Ok(Guarded::ByLock)
    }

    /// Makes the other connection release a worker's lock, if it holds it.
    pub(super) fn let_go(&mut self, worker: &WorkerId) -> Result<()> {
        match &mut self.rehearsal.hands {
            Some(hands) => hands.let_go(&self.schema, worker),
            None => Ok(()),
        }
    }

    /// Sets the store to a state. With `moved`, the stored WAL timeline differs from the server's,
    /// so that the database seems to have gone back in time.
    fn put(&mut self, state: &Dump, moved: bool) -> Result<()> {
        if let Some(clock) = &self.rehearsal.clock {
            clock.set(state.now);
        }
        if let Some(hands) = &mut self.rehearsal.hands {
            hands.hold(&self.schema, &state.held)?;
        }
        self.marks = None;
        self.rehearsal.told = Some(state.now);
        let schema = &self.schema;
        if !moved && self.rehearsal.loaded.as_ref() == Some(state) {
            let again = format!("ROLLBACK TO SAVEPOINT loaded; {}", sequences(state));
            return self.link.run("load again", |session| session.batch(&schema.apply(&again)));
        }
        self.rehearsal.loads += 1;
        self.rehearsal.loaded = (self.rehearsal.on && !moved).then(|| state.clone());
        let (is_rehearsal, loads) = (self.rehearsal.on, self.rehearsal.loads);
        let numbers = numbers(state, moved);
        self.link.run("load", |session| {
            if is_rehearsal {
                begin_anew(session, schema, loads, &numbers)?;
                fill_all(session, schema, state)?;
                return session.batch("SAVEPOINT loaded");
            }
            session.transaction(Isolation::ReadCommitted, |session| {
                session.batch(&schema.apply(EMPTY))?;
                session.batch(&schema.apply(&numbers))?;
                fill_all(session, schema, state)
            })
        })
    }
}

impl Explorable for Postgres {
    fn look(&mut self) -> Option<&mut dyn Look> {
        Some(self)
    }

    fn dump(&mut self) -> Result<Dump> {
        let now = self.rehearsal.clock.as_ref().map_or(Timestamp::from_millis(0), Clock::now);
        let held = self.rehearsal.hands.as_ref().map(Hands::held).unwrap_or_default();
        let state = self
            .transact("dump", Isolation::Snapshot, |session, schema| dump(session, schema, now))?;
        Ok(Dump { held, ..state })
    }

    fn load(&mut self, state: &Dump) -> Result<()> {
        self.put(state, false)
    }

    fn go_back(&mut self, state: &Dump) -> Result<()> {
        let now = self.rehearsal.clock.as_ref().map_or(state.now, Clock::now);
        self.put(&Dump { now, ..state.clone() }, true)
    }
}

const EMPTY: &str = "DELETE FROM tenure.jobs; DELETE FROM tenure.done; DELETE FROM tenure.payloads; \
    DELETE FROM tenure.timeline; DELETE FROM tenure.keys; DELETE FROM tenure.queues; DELETE FROM tenure.clock; \
    DELETE FROM tenure.ledger; DELETE FROM tenure.steps; DELETE FROM tenure.workers";

/// Rolls the last state back and begins the transaction of the next one. Rolled-back rows remain in
/// the tables, so they are vacuumed from time to time.
fn begin_anew(
    session: &mut Session,
    schema: &Schema,
    loads: u32,
    numbers: &str,
) -> Result<(), postgres::Error> {
    const SWEEP_AFTER: u32 = 200;
    const SWEEP: &str = "VACUUM tenure.jobs, tenure.done, tenure.payloads, tenure.timeline, tenure.keys, \
        tenure.queues, tenure.meta, tenure.clock, tenure.ledger, tenure.steps, tenure.workers, tenure.epochs";
    if loads.is_multiple_of(SWEEP_AFTER) {
        session.batch("ROLLBACK")?;
        session.batch(&schema.apply(SWEEP))?;
    }
    session.batch(&schema.apply(&format!("ROLLBACK; BEGIN; {numbers}")))
}

/// The statements that set the values that are stored once for the whole store.
fn numbers(state: &Dump, moved: bool) -> String {
    let Dump { now, started_at, guard_gap, epoch, .. } = state;
    let gap = millis(*guard_gap);
    let (now, started_at) = (now.as_millis(), started_at.as_millis());
    let (sequences, moved) = (sequences(state), i32::from(moved));
    format!(
        "INSERT INTO tenure.clock (one, at, started_at) VALUES (1, {now}, {started_at}) \
             ON CONFLICT (one) DO UPDATE SET at = excluded.at, started_at = excluded.started_at; \
         UPDATE tenure.meta m SET epoch = {epoch}, guard_gap = {gap}, floor = {epoch}::bigint << 40, wal_timeline = h.wal_timeline, system = h.system, jobs_table = h.jobs_table \
           FROM (SELECT w.wal_timeline + {moved} AS wal_timeline, w.system, w.jobs_table FROM tenure.whereabouts() w) h \
          WHERE (m.epoch, m.guard_gap, m.floor, m.wal_timeline, m.system, m.jobs_table) \
             IS DISTINCT FROM ({epoch}, {gap}, {epoch}::bigint << 40, h.wal_timeline, h.system, h.jobs_table); \
         DELETE FROM tenure.epochs WHERE epoch > {epoch}; {sequences}"
    )
}

/// Sequences do not roll back, so all of them are set each time.
fn sequences(state: &Dump) -> String {
    let next = state.next_id - first_of(state.epoch);
    let (broke, before) = (state.broke.as_millis(), state.broke_before.as_millis());
    format!(
        "SELECT setval('tenure.job_id', {next}, false), setval('tenure.pulse', 0, false), \
                setval('tenure.announced', 0, false), \
                setval('tenure.broke', {broke}), setval('tenure.broke_before', {before})"
    )
}

fn dump(session: &mut Session, schema: &Schema, now: Timestamp) -> Result<Dump, postgres::Error> {
    // The values that are stored once come with every job, so that most states need one round trip.
    // The columns of a job come first, in the order of `select_record`.
    const JOBS: &str = "SELECT r.*, m.epoch, m.gap_ms, m.next_id, m.steady_since, m.broke, m.broke_before, m.effects, m.steps, m.workers, m.lines, m.queues, \
        m.keys, m.ids, m.lanes \
        FROM (SELECT e.epoch, (SELECT k.guard_gap FROM tenure.meta k) AS gap_ms, (e.epoch << 40) + s.last_value + s.is_called::int AS next_id, \
              (SELECT started_at FROM tenure.clock) AS steady_since, b.last_value AS broke, \
              a.last_value AS broke_before, EXISTS (SELECT 1 FROM tenure.ledger) AS effects, \
              EXISTS (SELECT 1 FROM tenure.steps) AS steps, EXISTS (SELECT 1 FROM tenure.workers) AS workers, \
              EXISTS (SELECT 1 FROM tenure.timeline) AS lines, EXISTS (SELECT 1 FROM tenure.queues) AS queues, \
              EXISTS (SELECT 1 FROM tenure.keys) AS keys, ARRAY(SELECT id FROM tenure.jobs ORDER BY id) AS ids, \
              ARRAY(SELECT lane FROM tenure.jobs ORDER BY id) AS lanes \
              FROM (SELECT tenure.epoch_of_now(tenure.clock_ms()) AS epoch) e, tenure.job_id s, \
                   tenure.broke b, tenure.broke_before a) m \
        LEFT JOIN tenure.record r ON true ORDER BY r.id";
    const TIMELINE: &str = "SELECT job_id AS job, at, verb, refused, token, attempt, worker, began, became, note, earlier \
        FROM tenure.timeline ORDER BY job_id, seq";
    const QUEUES: &str =
        "SELECT queue, paused_at, keep_ms, keep_dead_ms FROM tenure.queues ORDER BY queue";
    const KEYS: &str = "SELECT tenant, key, fingerprint, job_id, expires_at FROM tenure.keys ORDER BY tenant, scope, key";
    const EFFECTS: &str = "SELECT job_id AS job, effect, state AS standing, token, opened_at, ended_at, result, note \
        FROM tenure.ledger ORDER BY job_id, effect";
    const STEPS: &str =
        "SELECT job_id AS job, step, token, at, result FROM tenure.steps ORDER BY job_id, step";
    const WORKERS: &str = "SELECT worker, queues, kinds, guarded, under, takings, taken_at, free_since \
        FROM tenure.workers ORDER BY worker";
    let mut ask = |sql: &str| session.query(&schema.apply(sql), &[]);
    let mut state = Dump::empty(now);
    let (mut lines, mut queues, mut keys) = (false, false, false);
    let (mut effects, mut steps, mut workers) = (false, false, false);
    let (mut ids, mut lanes): (Vec<i64>, Vec<i64>) = (vec![], vec![]);
    let found = ask(JOBS)?;
    if let Some(found) = found.first() {
        state.epoch = row::epoch(found, "epoch")?;
        state.guard_gap = row::gap(found)?;
        state.started_at = found.try_get("steady_since")?;
        (state.broke, state.broke_before) =
            (found.try_get("broke")?, found.try_get("broke_before")?);
        (effects, steps, workers) =
            (found.try_get("effects")?, found.try_get("steps")?, found.try_get("workers")?);
        state.next_id = found.try_get("next_id")?;
        (lines, queues, keys) =
            (found.try_get("lines")?, found.try_get("queues")?, found.try_get("keys")?);
        (ids, lanes) = (found.try_get("ids")?, found.try_get("lanes")?);
    }
    for found in &found {
        if found.try_get::<_, Option<i64>>("id")?.is_some() {
            state.jobs.push(row::record(found)?);
        }
    }
    for (id, lane) in ids.into_iter().zip(lanes) {
        let job = state.jobs.iter().find(|job| job.id.0 == id);
        // The lane is computed from the job, so the dump does not contain it; check here that the
        // stored one is right.
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
    if effects {
        state.ledger = ask(EFFECTS)?.iter().map(row::effect).collect::<Result<_, _>>()?;
    }
    if steps {
        state.steps = ask(STEPS)?.iter().map(row::step).collect::<Result<_, _>>()?;
    }
    if workers {
        state.workers = ask(WORKERS)?.iter().map(worker).collect::<Result<_, _>>()?;
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

fn worker(row: &Row) -> Result<WorkerRecord, postgres::Error> {
    let (queues, kinds) = row::names(row)?;
    Ok(WorkerRecord {
        worker: row.try_get("worker")?,
        queues,
        kinds,
        guarded: row.try_get("guarded")?,
        under: row.try_get("under")?,
        takings: row.try_get::<_, i32>("takings")?.unsigned_abs(),
        taken_at: row.try_get("taken_at")?,
        free_since: row.try_get("free_since")?,
    })
}

/// Inserts the rows of a state into empty tables.
fn fill_all(session: &mut Session, schema: &Schema, state: &Dump) -> Result<(), postgres::Error> {
    let (ended, live): (Vec<_>, Vec<_>) = state.jobs.iter().partition(|job| job.state.has_ended());
    let first = i64::MIN;
    let lines = state.timeline.iter().zip(first..).map(|(line, seq)| line_row(line, seq));
    let mut fill = |table, rows: Vec<Fields>| fill(session, schema, table, &rows);
    fill("jobs", live.into_iter().map(job_row).collect())?;
    fill("done", ended.into_iter().map(job_row).collect())?;
    fill("timeline", lines.collect())?;
    fill("keys", state.keys.iter().map(key_row).collect())?;
    fill("ledger", state.ledger.iter().map(effect_row).collect())?;
    fill("steps", state.steps.iter().map(step_row).collect())?;
    fill("workers", state.workers.iter().map(worker_row).collect())?;
    fill("queues", state.queues.iter().map(|settings| json!(settings).into()).collect())
}

/// Inserts rows into a table. Each row is JSON, with a field for each column.
fn fill(
    session: &mut Session,
    schema: &Schema,
    table: &str,
    rows: &[Fields],
) -> Result<(), postgres::Error> {
    if rows.is_empty() {
        return Ok(());
    }
    let sql = format!(
        "INSERT INTO tenure.{table} OVERRIDING SYSTEM VALUE SELECT r.* FROM json_populate_recordset(NULL::tenure.{table}, $1) r"
    );
    let rows = serde_json::to_string(rows).unwrap_or_default();
    session.execute(&schema.apply(&sql), &[(&row::JsonText(&rows), Type::JSON)])?;
    Ok(())
}

/// A row as JSON; args and results are inserted as they were written.
#[derive(Serialize)]
struct Fields {
    #[serde(flatten)]
    plain: Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    args: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<Box<RawValue>>,
}

impl From<Value> for Fields {
    fn from(plain: Value) -> Fields {
        Fields { plain, args: None, result: None }
    }
}

fn raw(json: &Json) -> Option<Box<RawValue>> {
    RawValue::from_string(json.as_str().to_owned()).ok()
}

/// A job as a row of `jobs` or `done`; each table takes the columns that it has.
fn job_row(job: &JobRecord) -> Fields {
    let (permille, note) = spelling::progress_columns(job.progress.as_ref());
    let plain = json!({
        "id": job.id.0, "state": spelling::code(job.state, job.waiting), "lane": lane::of(job),
        "queue": job.queue, "tenant": job.tenant, "kind": job.kind,
        "priority": job.priority, "run_at": job.run_at, "token": job.token.0, "attempt": job.attempt,
        "max_attempts": job.max_attempts, "crashes": job.crashes, "max_crashes": job.max_crashes,
        "crashed_at": job.crashed_at,
        "retry": spelling::retry_column(&job.retry).map(|_| json!(job.retry)),
        "max_runtime": job.max_runtime_ms, "key": job.key,
        "extras": job.extras.column().map(|_| json!(job.extras)), "parent": job.parent.map(|parent| parent.0),
        "enqueued_at": job.enqueued_at, "worker": job.worker, "started_at": job.started_at,
        "leased_at": job.leased_at, "lease_ms": job.lease_ms, "lease_until": job.lease_until,
        "finished_at": job.finished_at, "reason": job.reason,
        "progress": permille, "progress_note": note, "returns_until": job.returns_until,
        "request": job.request,
    });
    Fields { plain, args: raw(&job.args), result: job.result.as_ref().and_then(raw) }
}

fn key_row(key: &KeyRecord) -> Fields {
    let hex: String = key.fingerprint.0.iter().map(|byte| format!("{byte:02x}")).collect();
    json!({
        "tenant": key.tenant, "scope": 0, "key": key.key, "fingerprint": format!("\\x{hex}"),
        "job_id": key.job.0, "expires_at": key.expires_at,
    })
    .into()
}

/// A timeline entry, with a number below those of all later entries.
fn line_row(line: &TimelineEntry, seq: i64) -> Fields {
    json!({
        "seq": seq, "job_id": line.job.0, "at": line.at, "token": line.token.0, "began": line.from,
        "attempt": line.attempt, "became": spelling::code(line.became, false), "refused": line.refused,
        "verb": line.verb.name(), "worker": line.worker, "note": line.note, "earlier": line.earlier,
    })
    .into()
}

fn effect_row(effect: &EffectRecord) -> Fields {
    let plain = json!({
        "job_id": effect.job.0, "effect": effect.name, "state": effect.standing as u8, "token": effect.token.0,
        "opened_at": effect.opened_at, "ended_at": effect.ended_at, "note": effect.note,
    });
    Fields { plain, args: None, result: effect.result.as_ref().and_then(raw) }
}

fn step_row(step: &Step) -> Fields {
    let plain = json!({
        "job_id": step.job.0, "step": step.name, "token": step.token.0, "at": step.at,
    });
    Fields { plain, args: None, result: raw(&step.result) }
}

fn worker_row(worker: &WorkerRecord) -> Fields {
    let line = |names: &Vec<Name>| names.iter().map(Name::as_str).collect::<Vec<_>>().join(" ");
    json!({
        "worker": worker.worker, "queues": line(&worker.queues), "kinds": worker.kinds.as_ref().map(line),
        "guarded": worker.guarded, "under": worker.under, "takings": worker.takings, "taken_at": worker.taken_at,
        "free_since": worker.free_since,
    })
    .into()
}
