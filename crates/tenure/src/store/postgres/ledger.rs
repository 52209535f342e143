//! Ledger: effects and steps.

use std::time::Duration;

use postgres::Row;
use postgres::types::Type;

use super::row::{self, JsonText, Stage, Stands};
use super::schema::Schema;
use super::session::Session;
use super::settle;
use crate::inspect::{EffectFilter, EffectView};
use crate::job::{JobId, Json, Name};
use crate::ledger::{Answer, Doubt, Entry, Resolution};
use crate::store::Resolved;

pub(super) fn ledger(
    session: &mut Session,
    schema: &Schema,
    entries: &[Entry],
    wait: Option<Duration>,
) -> Result<Vec<Answer>, postgres::Error> {
    const LEDGER: &str = "SELECT n, verdict, result, token, since, standing, state \
        FROM tenure.ledger_many($1, $2, $3, $4, $5, $6)";
    let (jobs, tokens) = settle::lists(entries.iter().map(|entry| entry.fence));
    let verbs: Vec<_> = entries.iter().map(|entry| entry.act.verb().name()).collect();
    let names: Vec<_> = entries.iter().map(|entry| entry.name.as_str()).collect();
    let results: Vec<_> =
        entries.iter().map(|entry| entry.act.result().map(Json::as_str).map(JsonText)).collect();
    let notes: Vec<_> = entries.iter().map(|entry| entry.act.note()).collect();
    let rows = session.query_within(
        &schema.apply(LEDGER),
        &[
            (&jobs, Type::INT8_ARRAY),
            (&tokens, Type::INT8_ARRAY),
            (&verbs, Type::TEXT_ARRAY),
            (&names, Type::TEXT_ARRAY),
            (&results, Type::JSON_ARRAY),
            (&notes, Type::TEXT_ARRAY),
        ],
        wait,
    )?;
    let mut answers = vec![Answer::NotFound; entries.len()];
    for row in &rows {
        let at = row::place(row, "n")?;
        answers[at] = answer(&entries[at], row)?;
    }
    Ok(answers)
}

fn answer(entry: &Entry, row: &Row) -> Result<Answer, postgres::Error> {
    Ok(match row.try_get("verdict")? {
        "opened" => Answer::Opened,
        "committed" => Answer::Committed(row.try_get("result")?),
        "decided" => Answer::Decided(row.try_get("result")?),
        "in_doubt" => {
            Answer::InDoubt(Doubt { token: row.try_get("token")?, since: row.try_get("since")? })
        }
        "recorded" => Answer::Recorded,
        "remembered" => Answer::Remembered(row.try_get("result")?),
        "unknown" => Answer::Unknown,
        "not_allowed" => {
            let stands: Option<Stands> = row.try_get("standing")?;
            Answer::NotAllowed(stands.map(|Stands(standing)| standing))
        }
        "stale" => Answer::Stale(settle::stale(entry.fence, row)?),
        _ => Answer::NotFound,
    })
}

/// Applies an operator's decision about an effect in doubt.
pub(super) fn resolve(
    session: &mut Session,
    schema: &Schema,
    job: JobId,
    effect: &Name,
    how: &Resolution,
) -> Result<Resolved, postgres::Error> {
    const RESOLVE: &str = "SELECT verdict, state, standing FROM tenure.resolve_effect($1, $2, $3)";
    let result = match how {
        Resolution::Committed { result } => Some(JsonText(result.as_str())),
        Resolution::Resend => None,
    };
    let row = session.query_one(
        &schema.apply(RESOLVE),
        &[(&job.0, Type::INT8), (&effect.as_str(), Type::TEXT), (&result, Type::JSON)],
    )?;
    Ok(match row.try_get("verdict")? {
        "applied" => row.try_get("state").map(|Stage(state, _)| Resolved::Applied(state))?,
        "not_in_doubt" => {
            row.try_get("standing").map(|Stands(standing)| Resolved::NotInDoubt(standing))?
        }
        "running" => Resolved::Running,
        "succeeded" => Resolved::Succeeded,
        "no_such_effect" => Resolved::NoSuchEffect,
        _ => Resolved::NotFound,
    })
}

pub(super) fn effects(
    session: &mut Session,
    schema: &Schema,
    filter: &EffectFilter,
    limit: usize,
) -> Result<Vec<EffectView>, postgres::Error> {
    const PAGE: &str = "SELECT job, effect, standing, token, opened_at, ended_at, result, note, in_doubt, state, kind, tenant \
        FROM tenure.effects_page($1, $2, $3, $4)";
    let rows = session.query(
        &schema.apply(PAGE),
        &[
            (&filter.in_doubt, Type::BOOL),
            (&filter.job.map(|job| job.0), Type::INT8),
            (&filter.before.map(|job| job.0), Type::INT8),
            (&i32::try_from(limit).unwrap_or(i32::MAX), Type::INT4),
        ],
    )?;
    rows.iter().map(view).collect()
}

fn view(row: &Row) -> Result<EffectView, postgres::Error> {
    let Stage(state, _) = row.try_get("state")?;
    Ok(EffectView {
        effect: row::effect(row)?,
        in_doubt: row.try_get("in_doubt")?,
        state,
        kind: row.try_get("kind")?,
        tenant: row.try_get("tenant")?,
    })
}
