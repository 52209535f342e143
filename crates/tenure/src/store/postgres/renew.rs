//! Renew: extends leases.

use std::time::Duration;

use postgres::types::Type;

use super::schema::Schema;
use super::session::Session;
use super::{row, settle};
use crate::clock::millis;
use crate::lease::Fence;
use crate::store::Renewed;

pub(super) fn renew(
    session: &mut Session,
    schema: &Schema,
    fences: &[Fence],
    length: Duration,
) -> Result<Vec<Renewed>, postgres::Error> {
    const RENEW: &str =
        "SELECT n, verdict, lease_until, token, state FROM tenure.renew_many($1, $2, $3)";
    let (jobs, tokens) = settle::lists(fences.iter().copied());
    let rows = session.query(
        &schema.apply(RENEW),
        &[(&jobs, Type::INT8_ARRAY), (&tokens, Type::INT8_ARRAY), (&millis(length), Type::INT8)],
    )?;
    let mut answers = vec![Renewed::NotFound; fences.len()];
    for row in &rows {
        let at = row::place(row, "n")?;
        answers[at] = match row.try_get("verdict")? {
            "extended" => Renewed::Extended(row.try_get("lease_until")?),
            "stale" => Renewed::Stale(settle::stale(fences[at], row)?),
            "busy" => Renewed::Busy,
            _ => Renewed::NotFound,
        };
    }
    Ok(answers)
}
