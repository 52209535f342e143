//! Claim: leases due jobs.

use std::time::Duration;

use postgres::Row;
use postgres::types::Type;

use super::row;
use super::schema::Schema;
use super::session::{Param, Session};
use super::settle;
use crate::clock::millis;
use crate::job::Name;
use crate::lease::WorkerId;
use crate::store::{Attempt, Claim, Claimed, Cursor, Settled, Settlement};

pub(super) fn claim(
    session: &mut Session,
    schema: &Schema,
    ask: &Claim,
    marks: &mut Option<String>,
) -> Result<Claimed, postgres::Error> {
    settle_and_claim(session, schema, &[], ask, marks, false).map(|(_, claimed)| claimed)
}

pub(super) fn settle_and_claim(
    session: &mut Session,
    schema: &Schema,
    settlements: &[Settlement],
    ask: &Claim,
    marks: &mut Option<String>,
    is_in_transaction: bool,
) -> Result<(Vec<Settled>, Claimed), postgres::Error> {
    const BOTH: &str = "SELECT what, place, job, token, verdict, became, state, worker, kind, args, \
        queue, tenant, attempt, max_attempts, crashes, max_crashes, retry, max_runtime, run_at, \
        started_at, enqueued_at, lease_until, key, extras, cursor, due_ms, marks \
        FROM tenure.settle_and_claim($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, \
        p_round => $15, p_request => $16, p_suspects => $17, p_in_transaction => $18)";
    let (shown, asked) = (settle::Shown::new(settlements), Asked::new(ask));
    let mut params = shown.params().to_vec();
    params.extend(asked.params(marks));
    // Allows the claim in a transaction that has already written. That is safe here, because the
    // library hands the claimed jobs out only after the COMMIT.
    params.push((&is_in_transaction, Type::BOOL));
    let rows = session.query(&schema.apply(BOTH), &params)?;
    let (settled, claimed) = read(&rows, ask, marks)?;
    Ok((settle::answers(settlements, &settled, "place")?, claimed))
}

pub(super) fn held(
    session: &mut Session,
    schema: &Schema,
    worker: &WorkerId,
    request: Option<i64>,
) -> Result<Vec<Attempt>, postgres::Error> {
    const HELD: &str = row::select_record!("tenure.held($1, $2)");
    let asked: [Param<'_>; 2] = [(&worker.as_str(), Type::TEXT), (&request, Type::INT8)];
    let rows = session.query(&schema.apply(HELD), &asked)?;
    let held = rows.iter().map(row::record).collect::<Result<Vec<_>, _>>()?;
    Ok(held.into_iter().filter_map(Attempt::of).collect())
}

/// The parameters of a claim.
struct Asked<'a> {
    worker: &'a str,
    queues: Vec<&'a str>,
    kinds: Option<Vec<&'a str>>,
    n: i32,
    lease_ms: i64,
    cursor: i64,
    grace_ms: i64,
    round: i64,
    request: i64,
    suspects: bool,
}

impl<'a> Asked<'a> {
    fn new(ask: &'a Claim) -> Asked<'a> {
        Asked {
            worker: ask.worker.as_str(),
            queues: ask.queues.iter().map(Name::as_str).collect(),
            kinds: ask.kinds.as_ref().map(|kinds| kinds.iter().map(Name::as_str).collect()),
            n: i32::try_from(ask.n).unwrap_or(i32::MAX),
            lease_ms: millis(ask.lease),
            cursor: ask.cursor.group,
            grace_ms: millis(ask.grace),
            round: ask.cursor.end(),
            request: ask.request,
            suspects: ask.suspects,
        }
    }

    fn params(&'a self, marks: &'a Option<String>) -> [Param<'a>; 11] {
        [
            (&self.worker, Type::TEXT),
            (&self.queues, Type::TEXT_ARRAY),
            (&self.kinds, Type::TEXT_ARRAY),
            (&self.n, Type::INT4),
            (&self.lease_ms, Type::INT8),
            (&self.cursor, Type::INT8),
            (marks, Type::TEXT),
            (&self.grace_ms, Type::INT8),
            (&self.round, Type::INT8),
            (&self.request, Type::INT8),
            (&self.suspects, Type::BOOL),
        ]
    }
}

/// Splits the rows of an answer into those that answer settlements and those that were claimed.
fn read<'a>(
    rows: &'a [Row],
    ask: &Claim,
    marks: &mut Option<String>,
) -> Result<(Vec<&'a Row>, Claimed), postgres::Error> {
    let mut settled = Vec::new();
    let mut attempts = Vec::new();
    let mut claimed =
        Claimed { attempts: vec![], lapsed: vec![], cursor: ask.cursor, next_due: None };
    for row in rows {
        match row.try_get("what")? {
            "settled" => settled.push(row),
            "lapsed" => {
                claimed.lapsed.push(row::lapse(row)?);
            }
            "claimed" => attempts.push((row::place(row, "place")?, row::attempt(row)?)),
            _ => {
                let is_midway = row.try_get::<_, Option<&str>>("verdict")? == Some("midway");
                let round = is_midway.then_some(ask.cursor.end());
                claimed.cursor = Cursor { group: row.try_get("cursor")?, round };
                let due: Option<i64> = row.try_get("due_ms")?;
                claimed.next_due =
                    due.and_then(|ms| u64::try_from(ms).ok()).map(Duration::from_millis);
                *marks = row.try_get("marks")?;
            }
        }
    }
    // Rows arrive in the order in which the database found the jobs.
    attempts.sort_by_key(|(place, _)| *place);
    claimed.attempts = attempts.into_iter().map(|(_, attempt)| attempt).collect();
    Ok((settled, claimed))
}
