//! How values are stored in columns, the same on every engine: states as numbers, policies as JSON,
//! lists of names as one text with spaces between. The engines' own `row.rs` files read and write
//! the columns; this file uses no database driver.

use crate::job::{Name, Progress, RetryPolicy, State};
use crate::ledger::Standing;

/// The number of a state. `Queued` has two numbers: ready, or waiting until its time.
pub(crate) fn code(state: State, waiting: bool) -> i16 {
    match state {
        State::Queued if waiting => 1,
        State::Queued => 0,
        State::Running => 2,
        State::Parked => 3,
        State::Succeeded => 4,
        State::Dead => 5,
        State::Cancelled => 6,
    }
}

/// The state with this number, and whether it waits until its time.
pub(crate) fn state(code: i64) -> Option<(State, bool)> {
    Some(match code {
        0 => (State::Queued, false),
        1 => (State::Queued, true),
        2 => (State::Running, false),
        3 => (State::Parked, false),
        4 => (State::Succeeded, false),
        5 => (State::Dead, false),
        6 => (State::Cancelled, false),
        _ => return None,
    })
}

/// The column of a retry policy. The default policy is stored as NULL, so that ordinary jobs need
/// no parsing.
pub(crate) fn retry_column(policy: &RetryPolicy) -> Option<String> {
    if *policy == RetryPolicy::default() { None } else { serde_json::to_string(policy).ok() }
}

/// The retry policy in a column. A policy that only a newer release knows is read as the default
/// policy: the job still runs, and the column stays as it is.
pub(crate) fn retry(column: Option<&str>) -> RetryPolicy {
    column.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
}

/// The progress in its two columns.
pub(crate) fn progress(permille: Option<i16>, note: Option<String>) -> Option<Progress> {
    permille.map(|permille| Progress::kept(permille.unsigned_abs(), note))
}

/// The two columns of a progress.
pub(crate) fn progress_columns(progress: Option<&Progress>) -> (Option<i16>, Option<&str>) {
    let permille = progress.and_then(|progress| i16::try_from(progress.permille()).ok());
    (permille, progress.and_then(Progress::note))
}

/// The column of a list of names, which may be empty.
pub(crate) fn names_column(names: &[Name]) -> String {
    names.iter().map(Name::as_str).collect::<Vec<_>>().join(" ")
}

/// The names in a column.
pub(crate) fn names(column: &str) -> Vec<Name> {
    column.split_whitespace().map(|name| Name::trusted(name.into())).collect()
}

/// The number of an effect's standing.
pub(crate) fn standing_code(standing: Standing) -> i16 {
    match standing {
        Standing::Open => 0,
        Standing::Committed => 1,
        Standing::Failed => 2,
        Standing::Resend => 3,
    }
}

/// The standing with this number.
pub(crate) fn standing(code: i64) -> Option<Standing> {
    Standing::ALL.into_iter().find(|standing| i64::from(standing_code(*standing)) == code)
}
