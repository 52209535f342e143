//! Lapse: takes a job back when its lease is over, or when its worker's process is gone.

use std::time::Duration;

use postgres::types::Type;

use super::row;
use super::schema::Schema;
use super::session::Session;
use super::settle;
use crate::clock::millis;
use crate::lease::{Fence, WorkerId};
use crate::store::{Beat, Lapse, Lapsed};

pub(super) fn overdue(
    session: &mut Session,
    schema: &Schema,
    limit: usize,
    grace: Duration,
) -> Result<Vec<Fence>, postgres::Error> {
    const OVERDUE: &str = "SELECT job, token FROM tenure.overdue($1, $2)";
    let limit = i32::try_from(limit).unwrap_or(i32::MAX);
    let rows = session
        .query(&schema.apply(OVERDUE), &[(&limit, Type::INT4), (&millis(grace), Type::INT8)])?;
    rows.iter()
        .map(|row| Ok(Fence { job: row.try_get("job")?, token: row.try_get("token")? }))
        .collect()
}

pub(super) fn beat(
    session: &mut Session,
    schema: &Schema,
    wakes: bool,
    seen: &mut Option<String>,
) -> Result<Beat, postgres::Error> {
    const BEAT: &str = "SELECT leads, leases_are_out, workers, seen FROM tenure.beat($1)";
    let row = session.query_one(&schema.apply(BEAT), &[(&*seen, Type::TEXT)])?;
    *seen = row.try_get("seen")?;
    Ok(Beat {
        leads: row.try_get("leads")?,
        leases_are_out: row.try_get("leases_are_out")?,
        workers: row.try_get::<_, i32>("workers")?.unsigned_abs() as usize,
        wakes,
    })
}

pub(super) fn lapse(
    session: &mut Session,
    schema: &Schema,
    fences: &[Fence],
) -> Result<Vec<Lapsed>, postgres::Error> {
    const LAPSE: &str = "SELECT n, verdict, (lapsed).job, (lapsed).token, (lapsed).worker, (lapsed).became, \
        (lapsed).kind, (lapsed).queue, (lapsed).tenant, (lapsed).attempt, (lapsed).extras \
        FROM tenure.lapse_many($1, $2)";
    let (jobs, tokens) = settle::lists(fences.iter().copied());
    let rows = session
        .query(&schema.apply(LAPSE), &[(&jobs, Type::INT8_ARRAY), (&tokens, Type::INT8_ARRAY)])?;
    let mut answers = vec![Lapsed::LeftAlone; fences.len()];
    for row in &rows {
        answers[row::place(row, "n")?] = match row.try_get("verdict")? {
            "taken_back" => Lapsed::TakenBack(row::lapse(row)?),
            "busy" => Lapsed::Busy,
            _ => Lapsed::LeftAlone,
        };
    }
    Ok(answers)
}

pub(super) fn vanished(
    session: &mut Session,
    schema: &Schema,
    limit: usize,
) -> Result<Vec<Lapse>, postgres::Error> {
    const VANISHED: &str = "SELECT job, token, worker, became, kind, queue, tenant, attempt, extras \
        FROM tenure.vanished($1)";
    let limit = i32::try_from(limit).unwrap_or(i32::MAX);
    let rows = session.query(&schema.apply(VANISHED), &[(&limit, Type::INT4)])?;
    rows.iter().map(row::lapse).collect()
}

pub(super) fn retire(
    session: &mut Session,
    schema: &Schema,
    worker: &WorkerId,
) -> Result<(), postgres::Error> {
    const RETIRE: &str = "SELECT tenure.retire($1)";
    session.query(&schema.apply(RETIRE), &[(&worker.as_str(), Type::TEXT)]).map(drop)
}
