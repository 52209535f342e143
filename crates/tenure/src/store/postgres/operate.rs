//! Operate: what operators do to jobs and queues.

use std::time::Duration;

use postgres::Row;
use postgres::types::Type;

use super::row::{self, Stage};
use super::schema::Schema;
use super::session::{Param, Session};
use crate::clock::millis;
use crate::inspect::QueueSettings;
use crate::job::{JobId, Name};
use crate::store::{AsSeen, Changed, Pause, Pruned, QueueChange};

/// Requests that name only the job.
#[derive(Debug, Clone, Copy)]
pub(super) enum OfJobs {
    Cancel,
    Resume,
}

/// Requests about ended jobs, in the version that the caller has seen.
#[derive(Debug, Clone, Copy)]
pub(super) enum OfEnded {
    Requeue,
    Purge,
}

pub(super) fn change(
    session: &mut Session,
    schema: &Schema,
    what: OfJobs,
    jobs: &[JobId],
) -> Result<Vec<Changed>, postgres::Error> {
    let sql = match what {
        OfJobs::Cancel => "SELECT n, verdict, state FROM tenure.cancel_many($1)",
        OfJobs::Resume => "SELECT n, verdict, state FROM tenure.resume_many($1)",
    };
    let ids: Vec<_> = jobs.iter().map(|job| job.0).collect();
    answers(jobs.len(), &session.query(&schema.apply(sql), &[(&ids, Type::INT8_ARRAY)])?)
}

pub(super) fn change_ended(
    session: &mut Session,
    schema: &Schema,
    what: OfEnded,
    jobs: &[AsSeen],
) -> Result<Vec<Changed>, postgres::Error> {
    let sql = match what {
        OfEnded::Requeue => "SELECT n, verdict, state FROM tenure.requeue_many($1, $2)",
        OfEnded::Purge => "SELECT n, verdict, state FROM tenure.purge_many($1, $2)",
    };
    let ids: Vec<_> = jobs.iter().map(|seen| seen.job.0).collect();
    let tokens: Vec<_> = jobs.iter().map(|seen| seen.if_token.map(|token| token.0)).collect();
    let params: [Param<'_>; 2] = [(&ids, Type::INT8_ARRAY), (&tokens, Type::INT8_ARRAY)];
    answers(jobs.len(), &session.query(&schema.apply(sql), &params)?)
}

fn answers(size: usize, rows: &[Row]) -> Result<Vec<Changed>, postgres::Error> {
    let mut answers = vec![Changed::NotFound; size];
    for row in rows {
        answers[row::place(row, "n")?] = match row.try_get("verdict")? {
            "applied" => Changed::Applied,
            "refused" => row.try_get("state").map(|Stage(state, _)| Changed::Refused(state))?,
            _ => Changed::NotFound,
        };
    }
    Ok(answers)
}

pub(super) fn configure(
    session: &mut Session,
    schema: &Schema,
    queue: &Name,
    change: &QueueChange,
) -> Result<Option<QueueSettings>, postgres::Error> {
    const CONFIGURE: &str = "SELECT $1 AS queue, paused_at, keep_ms, keep_dead_ms FROM tenure.configure($1, $2, $3, $4)";
    let pause = change.pause.map(|pause| pause == Pause::Pause);
    let rows = session.query(
        &schema.apply(CONFIGURE),
        &[
            (&queue.as_str(), Type::TEXT),
            (&pause, Type::BOOL),
            (&change.keep.map(millis), Type::INT8),
            (&change.keep_dead.map(millis), Type::INT8),
        ],
    )?;
    rows.first().map(row::queue_settings).transpose()
}

pub(super) fn prune(
    session: &mut Session,
    schema: &Schema,
    limit: usize,
) -> Result<Pruned, postgres::Error> {
    const PRUNE: &str = "SELECT jobs, keys FROM tenure.prune($1)";
    let limit = i32::try_from(limit).unwrap_or(i32::MAX);
    let rows = session.query(&schema.apply(PRUNE), &[(&limit, Type::INT4)])?;
    let mut pruned = Pruned { jobs: 0, keys: 0 };
    for row in &rows {
        let number =
            |column| row.try_get::<_, i32>(column).map(|n| usize::try_from(n).unwrap_or(0));
        pruned = Pruned { jobs: number("jobs")?, keys: number("keys")? };
    }
    Ok(pruned)
}

pub(super) fn raise_epoch(
    session: &mut Session,
    schema: &Schema,
    reason: &str,
) -> Result<u32, postgres::Error> {
    const RAISE: &str = "SELECT epoch FROM tenure.raise_epoch($1)";
    let row = session.query_one(&schema.apply(RAISE), &[(&reason, Type::TEXT)])?;
    row::epoch(&row, "epoch")
}

/// Sets the guard gap, and returns the previous one.
pub(super) fn set_guard_gap(
    session: &mut Session,
    schema: &Schema,
    gap: Duration,
) -> Result<Duration, postgres::Error> {
    const SET: &str = "SELECT was AS gap_ms FROM tenure.set_guard_gap($1)";
    row::gap(&session.query_one(&schema.apply(SET), &[(&millis(gap), Type::INT8)])?)
}
