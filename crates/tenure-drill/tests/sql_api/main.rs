//! Every case of the SQL API, and those that need more than a database: a server of their own,
//! Python, or more time.

#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]

mod crowd;
mod moved;
mod page;

use libtest_mimic::{Arguments, Trial};
use tenure_drill::sql_api::cases;

fn main() {
    let mut all = cases();
    all.extend([crowd::CASES, moved::CASES, page::CASES].concat());
    let trial = |case: tenure_drill::sql_api::Case| {
        Trial::test(format!("{}::{}", case.chapter, case.name), move || {
            (case.run)();
            Ok(())
        })
    };
    libtest_mimic::run(&Arguments::from_args(), all.into_iter().map(trial).collect()).exit();
}
