//! Progress: records how far a job is, under its token.

use postgres::types::Type;

use super::schema::Schema;
use super::session::Session;
use super::{row, settle};
use crate::store::row::progress_columns;
use crate::store::{Report, Reported};

pub(super) fn progress(
    session: &mut Session,
    schema: &Schema,
    reports: &[Report],
) -> Result<Vec<Reported>, postgres::Error> {
    const PROGRESS: &str =
        "SELECT n, verdict, token, state FROM tenure.progress_many($1, $2, $3, $4)";
    let (jobs, tokens) = settle::lists(reports.iter().map(|report| report.fence));
    let columns = reports.iter().map(|report| progress_columns(Some(&report.progress)));
    let (permille, notes): (Vec<_>, Vec<_>) = columns.unzip();
    let rows = session.query(
        &schema.apply(PROGRESS),
        &[
            (&jobs, Type::INT8_ARRAY),
            (&tokens, Type::INT8_ARRAY),
            (&permille, Type::INT2_ARRAY),
            (&notes, Type::TEXT_ARRAY),
        ],
    )?;
    let mut answers = vec![Reported::NotFound; reports.len()];
    for row in &rows {
        let at = row::place(row, "n")?;
        answers[at] = match row.try_get("verdict")? {
            "noted" => Reported::Noted,
            "stale" => Reported::Stale(settle::stale(reports[at].fence, row)?),
            "busy" => Reported::Busy,
            _ => Reported::NotFound,
        };
    }
    Ok(answers)
}
