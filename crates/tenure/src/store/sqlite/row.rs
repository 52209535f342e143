//! Converts between rows and values: the one place that knows SQLite's columns.

use rusqlite::{Error, Result, Row};

use crate::clock::Timestamp;
use crate::inspect::{EffectView, LeaseView, QueueSettings, Raise, TimelineEntry, WorkerRecord};
use crate::job::{Extras, JobId, Json, Name, State, Tenant};
use crate::lease::{Fence, Token, WorkerId};
use crate::ledger::{EffectRecord, Step};
use crate::lifecycle::Verb;
use crate::record::JobRecord;
use crate::store::row as spelling;
pub(super) use crate::store::row::{code, retry_column, standing_code};

/// The state with this number, and whether it waits until its time.
pub(super) fn state(code: i64) -> Result<(State, bool)> {
    spelling::state(code).ok_or(Error::IntegralValueOutOfRange(0, code))
}

/// A job, from the columns of `record.sql`.
pub(super) fn record(row: &Row<'_>) -> Result<JobRecord> {
    let (state, waiting) = state(row.get(1)?)?;
    Ok(JobRecord {
        id: JobId(row.get(0)?),
        state,
        waiting,
        queue: Name::trusted(row.get(2)?),
        tenant: Tenant::trusted(row.get(3)?),
        kind: Name::trusted(row.get(4)?),
        args: Json::trusted(row.get(5)?),
        priority: row.get(6)?,
        run_at: time(row.get(7)?),
        token: Token(row.get(8)?),
        attempt: row.get(9)?,
        max_attempts: row.get(10)?,
        crashes: row.get(11)?,
        max_crashes: row.get(12)?,
        retry: spelling::retry(row.get_ref(13)?.as_str_or_null()?),
        max_runtime_ms: row.get(14)?,
        key: row.get(15)?,
        extras: Extras::read(row.get_ref(16)?.as_str_or_null()?),
        parent: row.get::<_, Option<i64>>(17)?.map(JobId),
        enqueued_at: time(row.get(18)?),
        worker: row.get::<_, Option<String>>(19)?.map(WorkerId::trusted),
        started_at: row.get::<_, Option<i64>>(20)?.map(time),
        leased_at: row.get::<_, Option<i64>>(21)?.map(time),
        lease_ms: row.get(22)?,
        lease_until: row.get::<_, Option<i64>>(23)?.map(time),
        finished_at: row.get::<_, Option<i64>>(24)?.map(time),
        result: row.get::<_, Option<String>>(25)?.map(Json::trusted),
        reason: row.get(26)?,
        progress: spelling::progress(row.get(27)?, row.get(28)?),
        crashed_at: row.get::<_, Option<i64>>(29)?.map(time),
        is_suspect: row.get(30)?,
        returns_until: row.get::<_, Option<i64>>(31)?.map(time),
        request: row.get(32)?,
    })
}

pub(super) fn time(millis: i64) -> Timestamp {
    Timestamp::from_millis(millis)
}

pub(super) fn fence(row: &Row<'_>) -> Result<Fence> {
    Ok(Fence { job: JobId(row.get(0)?), token: Token(row.get(1)?) })
}

pub(super) fn timeline_entry(row: &Row<'_>) -> Result<TimelineEntry> {
    Ok(TimelineEntry {
        job: JobId(row.get(0)?),
        at: time(row.get(1)?),
        verb: Verb::named(row.get_ref(2)?.as_str()?),
        refused: row.get(3)?,
        token: Token(row.get(4)?),
        attempt: row.get(5)?,
        worker: row.get::<_, Option<String>>(6)?.map(WorkerId::trusted),
        from: row.get::<_, Option<i64>>(7)?.map(time),
        became: state(row.get(8)?)?.0,
        note: row.get(9)?,
        earlier: row.get::<_, i64>(10)?.unsigned_abs(),
    })
}

pub(super) fn queue_settings(row: &Row<'_>) -> Result<QueueSettings> {
    Ok(QueueSettings {
        queue: Name::trusted(row.get(0)?),
        paused_at: row.get::<_, Option<i64>>(1)?.map(time),
        keep_ms: row.get(2)?,
        keep_dead_ms: row.get(3)?,
    })
}

pub(super) fn lease_view(row: &Row<'_>) -> Result<LeaseView> {
    Ok(LeaseView {
        job: JobId(row.get(0)?),
        kind: Name::trusted(row.get(1)?),
        token: Token(row.get(2)?),
        worker: WorkerId::trusted(row.get(3)?),
        started_at: time(row.get(4)?),
        until: time(row.get(5)?),
    })
}

pub(super) fn effect(row: &Row<'_>) -> Result<EffectRecord> {
    let code = row.get(2)?;
    Ok(EffectRecord {
        job: JobId(row.get(0)?),
        name: Name::trusted(row.get(1)?),
        standing: spelling::standing(code).ok_or(Error::IntegralValueOutOfRange(2, code))?,
        token: Token(row.get(3)?),
        opened_at: time(row.get(4)?),
        ended_at: row.get::<_, Option<i64>>(5)?.map(time),
        result: row.get::<_, Option<String>>(6)?.map(Json::trusted),
        note: row.get(7)?,
    })
}

pub(super) fn effect_view(row: &Row<'_>) -> Result<EffectView> {
    Ok(EffectView {
        effect: effect(row)?,
        in_doubt: row.get(8)?,
        state: state(row.get(9)?)?.0,
        kind: Name::trusted(row.get(10)?),
        tenant: Tenant::trusted(row.get(11)?),
    })
}

pub(super) fn step(row: &Row<'_>) -> Result<Step> {
    Ok(Step {
        job: JobId(row.get(0)?),
        name: Name::trusted(row.get(1)?),
        token: Token(row.get(2)?),
        at: time(row.get(3)?),
        result: Json::trusted(row.get(4)?),
    })
}

pub(super) fn worker(row: &Row<'_>) -> Result<WorkerRecord> {
    Ok(WorkerRecord {
        worker: WorkerId::trusted(row.get(0)?),
        queues: spelling::names(row.get_ref(1)?.as_str()?),
        kinds: row.get_ref(2)?.as_str_or_null()?.map(spelling::names),
        guarded: row.get(3)?,
        under: time(row.get(4)?),
        takings: row.get(5)?,
        taken_at: time(row.get(6)?),
        free_since: row.get::<_, Option<i64>>(7)?.map(time),
    })
}

pub(super) fn raise(row: &Row<'_>) -> Result<Raise> {
    Ok(Raise { epoch: row.get(0)?, at: time(row.get(1)?), reason: row.get(2)? })
}
