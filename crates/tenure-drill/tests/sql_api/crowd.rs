//! Many sessions at once, each with its own random calls.

use tenure_drill::sessions::contend;
use tenure_drill::sql_api::{Case, sql_cases};

pub(crate) const CASES: &[Case] = sql_cases! {
    "crowd":
    eight_sessions_that_do_everything_at_once_leave_no_deadlock_and_no_leftovers,
};

/// I2, I9, and no two calls of Tenure deadlock. `cargo xtask prove` does the same for a minute.
fn eight_sessions_that_do_everything_at_once_leave_no_deadlock_and_no_leftovers() {
    let report = contend(8, 800, 7);
    assert!(report.wrong.is_empty(), "{:#?}", report.wrong);
    // It proves nothing if nothing happened, or if no session ever met another.
    assert!(report.claims > 200 && report.effects > 20, "{report:?}");
    assert!(report.refused.get("TN001").is_some_and(|n| *n > 100), "{report:?}");
    assert!(report.refused.contains_key("TN002"), "{report:?}");
}
