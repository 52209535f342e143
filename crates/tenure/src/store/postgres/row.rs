//! Converts between rows and values: the one place that knows PostgreSQL's columns.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use bytes::BytesMut;
use postgres::Row;
use postgres::types::{FromSql, IsNull, ToSql, Type, accepts, to_sql_checked};

use crate::clock::Timestamp;
use crate::inspect::{LeaseView, OverviewLine, QueueSettings, Rule, TimelineEntry, WorkerView};
use crate::job::{Extras, Fingerprint, JobId, Json, Name, RetryPolicy, State, Tenant};
use crate::lease::{Fence, Lease, Token, WorkerId};
#[cfg(feature = "drill")]
use crate::ledger::Step;
use crate::ledger::{EffectRecord, Standing};
use crate::lifecycle::Verb;
use crate::record::{About, JobRecord};
use crate::store::{Attempt, Lapse, row as spelling};

type Read<T> = Result<T, postgres::Error>;
type Failure = Box<dyn Error + Sync + Send>;

/// A query for jobs: the columns that [`record`] reads, in their order.
macro_rules! select_record {
    ($from:literal) => {
        concat!(
            "SELECT id, state, queue, tenant, kind, args, priority, run_at, token, attempt, max_attempts, ",
            "crashes, max_crashes, retry, max_runtime, key, extras, parent, enqueued_at, worker, ",
            "started_at, leased_at, lease_ms, lease_until, finished_at, result, reason, progress, ",
            "progress_note, crashed_at, suspect, returns_until, request FROM ",
            $from
        )
    };
}
pub(super) use select_record;

/// The guard gap.
pub(super) fn gap(row: &Row) -> Read<Duration> {
    Ok(Duration::from_millis(row.try_get::<_, i64>("gap_ms")?.unsigned_abs()))
}

/// A job, from the columns of `select_record`.
pub(super) fn record(row: &Row) -> Read<JobRecord> {
    let Stage(state, waiting) = row.try_get(1)?;
    Ok(JobRecord {
        id: row.try_get(0)?,
        state,
        waiting,
        queue: row.try_get(2)?,
        tenant: row.try_get(3)?,
        kind: row.try_get(4)?,
        args: row.try_get(5)?,
        priority: row.try_get(6)?,
        run_at: row.try_get(7)?,
        token: row.try_get(8)?,
        attempt: count(row, 9)?,
        max_attempts: count(row, 10)?,
        crashes: count(row, 11)?,
        max_crashes: count(row, 12)?,
        retry: retry(row, 13)?,
        max_runtime_ms: row.try_get(14)?,
        key: row.try_get(15)?,
        extras: row.try_get::<_, Option<Extras>>(16)?.unwrap_or_default(),
        parent: row.try_get(17)?,
        enqueued_at: row.try_get(18)?,
        worker: row.try_get(19)?,
        started_at: row.try_get(20)?,
        leased_at: row.try_get(21)?,
        lease_ms: row.try_get(22)?,
        lease_until: row.try_get(23)?,
        finished_at: row.try_get(24)?,
        result: row.try_get(25)?,
        reason: row.try_get(26)?,
        progress: spelling::progress(row.try_get(27)?, row.try_get(28)?),
        crashed_at: row.try_get(29)?,
        is_suspect: row.try_get(30)?,
        returns_until: row.try_get(31)?,
        request: row.try_get(32)?,
    })
}

/// A leased job, from a row of a claim.
pub(super) fn attempt(row: &Row) -> Read<Attempt> {
    let fence = Fence { job: row.try_get("job")?, token: row.try_get("token")? };
    Ok(Attempt {
        lease: Lease::granted(fence, row.try_get("lease_until")?),
        kind: row.try_get("kind")?,
        args: row.try_get("args")?,
        queue: row.try_get("queue")?,
        tenant: row.try_get("tenant")?,
        attempt: count(row, "attempt")?,
        max_attempts: count(row, "max_attempts")?,
        crashes: count(row, "crashes")?,
        max_crashes: count(row, "max_crashes")?,
        retry: retry(row, "retry")?,
        max_runtime_ms: row.try_get("max_runtime")?,
        run_at: row.try_get("run_at")?,
        started_at: row.try_get("started_at")?,
        enqueued_at: row.try_get("enqueued_at")?,
        key: row.try_get("key")?,
        extras: row.try_get::<_, Option<Extras>>("extras")?.unwrap_or_default(),
    })
}

/// A job that was lapsed.
pub(super) fn lapse(row: &Row) -> Read<Lapse> {
    let Stage(became, _) = row.try_get("became")?;
    let extras: Option<Extras> = row.try_get("extras")?;
    let about = About {
        job: row.try_get("job")?,
        token: row.try_get("token")?,
        kind: row.try_get("kind")?,
        queue: row.try_get("queue")?,
        tenant: row.try_get("tenant")?,
        attempt: count(row, "attempt")?,
        trace: extras.and_then(|extras| extras.trace),
    };
    Ok(Lapse { about, worker: row.try_get("worker")?, became })
}

pub(super) fn timeline_entry(row: &Row) -> Read<TimelineEntry> {
    let Stage(became, _) = row.try_get("became")?;
    Ok(TimelineEntry {
        job: row.try_get("job")?,
        at: row.try_get("at")?,
        verb: row.try_get("verb")?,
        refused: row.try_get("refused")?,
        token: row.try_get("token")?,
        attempt: count(row, "attempt")?,
        worker: row.try_get("worker")?,
        from: row.try_get("began")?,
        became,
        note: row.try_get("note")?,
        earlier: row.try_get::<_, i64>("earlier")?.unsigned_abs(),
    })
}

pub(super) fn queue_settings(row: &Row) -> Read<QueueSettings> {
    Ok(QueueSettings {
        queue: row.try_get("queue")?,
        paused_at: row.try_get("paused_at")?,
        keep_ms: row.try_get("keep_ms")?,
        keep_dead_ms: row.try_get("keep_dead_ms")?,
    })
}

pub(super) fn lease_view(row: &Row) -> Read<LeaseView> {
    Ok(LeaseView {
        job: row.try_get("job")?,
        kind: row.try_get("kind")?,
        token: row.try_get("token")?,
        worker: row.try_get("worker")?,
        started_at: row.try_get("started_at")?,
        until: row.try_get("lease_until")?,
    })
}

/// An effect. The column is called `standing`, because a job's state may be in the same row.
pub(super) fn effect(row: &Row) -> Read<EffectRecord> {
    let Stands(standing) = row.try_get("standing")?;
    Ok(EffectRecord {
        job: row.try_get("job")?,
        name: row.try_get("effect")?,
        standing,
        token: row.try_get("token")?,
        opened_at: row.try_get("opened_at")?,
        ended_at: row.try_get("ended_at")?,
        result: row.try_get("result")?,
        note: row.try_get("note")?,
    })
}

#[cfg(feature = "drill")]
pub(super) fn step(row: &Row) -> Read<Step> {
    Ok(Step {
        job: row.try_get("job")?,
        name: row.try_get("step")?,
        token: row.try_get("token")?,
        at: row.try_get("at")?,
        result: row.try_get("result")?,
    })
}

pub(super) fn worker_view(row: &Row) -> Read<WorkerView> {
    let (queues, kinds) = names(row)?;
    Ok(WorkerView {
        worker: row.try_get("worker")?,
        queues,
        kinds,
        since: row.try_get("taken_at")?,
        is_alive: row.try_get("is_alive")?,
    })
}

/// The queues and kinds of a worker: names separated by spaces.
pub(super) fn names(row: &Row) -> Read<(Vec<Name>, Option<Vec<Name>>)> {
    let split = |text: String| {
        text.split_ascii_whitespace().map(|name| Name::trusted(name.to_owned())).collect()
    };
    Ok((split(row.try_get("queues")?), row.try_get::<_, Option<_>>("kinds")?.map(split)))
}

pub(super) fn overview_line(row: &Row) -> Read<OverviewLine> {
    let number = |column| row.try_get::<_, i64>(column).map(|n| u64::try_from(n).unwrap_or(0));
    Ok(OverviewLine {
        queue: row.try_get("queue")?,
        tenant: row.try_get("tenant")?,
        ready: number("ready")?,
        waiting: number("waiting")?,
        running: number("running")?,
        parked: number("parked")?,
        dead: number("dead")?,
        oldest_wait_ms: row.try_get("oldest_wait_ms")?,
        succeeded_last_minute: number("succeeded_last_minute")?,
        died_last_minute: number("died_last_minute")?,
    })
}

/// The number of an epoch.
pub(super) fn epoch(row: &Row, column: &str) -> Read<u32> {
    Ok(u32::try_from(row.try_get::<_, i64>(column)?).unwrap_or(u32::MAX))
}

/// The place in the batch that a row belongs to, counted from 0.
pub(super) fn place(row: &Row, column: &str) -> Read<usize> {
    Ok(usize::try_from(row.try_get::<_, i32>(column)? - 1).unwrap_or(usize::MAX))
}

fn count(row: &Row, column: impl postgres::row::RowIndex + std::fmt::Display) -> Read<u16> {
    Ok(row.try_get::<_, Count>(column)?.0)
}

fn retry(row: &Row, column: impl postgres::row::RowIndex + std::fmt::Display) -> Read<RetryPolicy> {
    Ok(row.try_get::<_, Option<RetryPolicy>>(column)?.unwrap_or_default())
}

/// A number of attempts or crashes.
struct Count(u16);

/// A state, read from its number, and whether it waits until its time.
pub(super) struct Stage(pub(super) State, pub(super) bool);

/// The standing of an effect, read from its number.
pub(super) struct Stands(pub(super) Standing);

/// JSON text to send. It was checked when it became a [`Json`].
#[derive(Debug)]
pub(crate) struct JsonText<T>(pub(crate) T);

impl<T: AsRef<str> + fmt::Debug> ToSql for JsonText<T> {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Failure> {
        out.extend_from_slice(self.0.as_ref().as_bytes());
        Ok(IsNull::No)
    }

    accepts!(JSON);
    to_sql_checked!();
}

impl ToSql for Fingerprint {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Failure> {
        out.extend_from_slice(&self.0);
        Ok(IsNull::No)
    }

    accepts!(BYTEA);
    to_sql_checked!();
}

/// Implements reading of columns as types of the library.
macro_rules! reads {
    ($($name:ty, $kind:ident, $column:ty => $make:expr;)*) => {$(
        impl<'a> FromSql<'a> for $name {
            fn from_sql(kind: &Type, raw: &'a [u8]) -> Result<Self, Failure> {
                let make: fn($column) -> Result<$name, Failure> = $make;
                make(<$column>::from_sql(kind, raw)?)
            }

            accepts!($kind);
        }
    )*};
}

reads! {
    JobId, INT8, i64 => |number| Ok(JobId(number));
    Token, INT8, i64 => |number| Ok(Token(number));
    Timestamp, INT8, i64 => |millis| Ok(Timestamp::from_millis(millis));
    Count, INT4, i32 => |number| Ok(Count(u16::try_from(number)?));
    Stage, INT2, i16 => |code| {
        let (state, waiting) = spelling::state(i64::from(code)).ok_or_else(|| format!("unknown state {code}"))?;
        Ok(Stage(state, waiting))
    };
    State, TEXT, String => |name| name.parse().map_err(|_| format!("unknown state {name}").into());
    Stands, INT2, i16 => |code| {
        let standing = usize::try_from(code).ok().and_then(|code| Standing::ALL.get(code).copied());
        standing.map(Stands).ok_or_else(|| format!("unknown standing {code}").into())
    };
    Rule, TEXT, String => |name| Ok(Rule::named(&name));
    Name, TEXT, String => |text| Ok(Name::trusted(text));
    Tenant, TEXT, String => |text| Ok(Tenant::trusted(text));
    WorkerId, TEXT, String => |text| Ok(WorkerId::trusted(text));
    Verb, TEXT, String => |name| Ok(Verb::named(&name));
}

impl<'a> FromSql<'a> for Json {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Failure> {
        Ok(Json::trusted(std::str::from_utf8(raw)?.to_owned()))
    }

    accepts!(JSON);
}

impl<'a> FromSql<'a> for Extras {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Failure> {
        Ok(Extras::read(Some(std::str::from_utf8(raw)?)))
    }

    accepts!(JSON);
}

impl<'a> FromSql<'a> for RetryPolicy {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Failure> {
        Ok(spelling::retry(Some(std::str::from_utf8(raw)?)))
    }

    accepts!(JSON);
}
