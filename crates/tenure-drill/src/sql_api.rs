//! The SQL API as other languages use it: plain sessions, without the library. docs/sql-api.md
//! describes this API.
//!
//! The cases are in `src` and not in `tests` because the generated mutants are run against them
//! too.

#![allow(clippy::unwrap_used, reason = "a case is a test: it panics where a promise is broken")]

mod agree;
mod batches;
mod check;
mod claim;
mod dead;
mod durable;
mod edges;
mod enqueue;
mod epoch;
mod fence;
mod guard;
mod installed;
mod isolation;
mod jsons;
mod lease;
mod ledger;
mod locks;
mod marks;
mod notices;
mod operate;
mod progress;
mod pulse;
mod record;
mod repeat;
mod roles;
mod settle;
mod walk;

use std::panic::{self, AssertUnwindSafe};

use postgres::Client;

use crate::sessions::Lab;
use crate::verdict;

/// One claim about the SQL API.
#[derive(Clone, Copy)]
pub struct Case {
    /// The subject of the case.
    pub chapter: &'static str,
    /// The claim.
    pub name: &'static str,
    /// Panics if the claim is wrong.
    pub run: fn(),
}

/// All cases that need a database and nothing else.
pub fn cases() -> Vec<Case> {
    let chapters: [&[Case]; 27] = [
        agree::CASES,
        batches::CASES,
        check::CASES,
        claim::CASES,
        dead::CASES,
        durable::CASES,
        edges::CASES,
        enqueue::CASES,
        epoch::CASES,
        fence::CASES,
        guard::CASES,
        installed::CASES,
        isolation::CASES,
        jsons::CASES,
        lease::CASES,
        ledger::CASES,
        locks::CASES,
        marks::CASES,
        walk::CASES,
        notices::CASES,
        operate::CASES,
        progress::CASES,
        pulse::CASES,
        record::CASES,
        repeat::CASES,
        roles::CASES,
        settle::CASES,
    ];
    chapters.concat()
}

/// The cases of one chapter, by the functions that try them.
#[macro_export]
macro_rules! sql_cases {
    ($chapter:literal: $($name:ident,)+) => {
        &[$($crate::sql_api::Case { chapter: $chapter, name: stringify!($name), run: $name },)+]
    };
}
pub use sql_cases;

/// The role that makes the calls. What holds for the owner must also hold for a role that may
/// execute functions and nothing else.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Who {
    /// The owner of the schema.
    Owner,
    /// A member of `tenure_worker`.
    Worker,
}

impl Who {
    const ALL: [Who; 2] = [Who::Owner, Who::Worker];

    fn session(self, lab: &Lab) -> Client {
        match self {
            Who::Owner => lab.session(),
            Who::Worker => lab.session_as("worker"),
        }
    }
}

/// Runs the same case as the owner and as a worker, each in an empty database.
pub fn as_each(story: impl Fn(&mut Lab, Who)) {
    for who in Who::ALL {
        let told = panic::catch_unwind(AssertUnwindSafe(|| story(&mut Lab::new(), who)));
        if let Err(thrown) = told {
            panic!("as {who:?}: {}", verdict::said(&*thrown));
        }
    }
}

/// A job and the token under which it was claimed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Lease {
    job: i64,
    token: i64,
}

impl Lease {
    /// The SQL of this call on the job, such as `SELECT tenure.complete(7, 3)`.
    pub fn call(self, verb: &str) -> String {
        self.call_with(verb, "")
    }

    /// The same, with more arguments.
    pub fn call_with(self, verb: &str, more: &str) -> String {
        format!("SELECT tenure.{verb}({}, {}{more})", self.job, self.token)
    }

    /// A write to the user's own table.
    pub fn effect(self) -> String {
        format!("INSERT INTO public.effects VALUES ({}, {}, 'mine')", self.job, self.token)
    }
}

/// Enqueues a job of this kind without args and returns its id.
pub fn enqueue(session: &mut Client, kind: &str) -> i64 {
    session.query_one("SELECT tenure.enqueue($1)", &[&kind]).unwrap().get(0)
}

/// Claims up to `n` jobs with a lease of `lease_ms` milliseconds.
pub fn claim_many(session: &mut Client, n: i32, lease_ms: i64) -> Vec<Lease> {
    let ask = "SELECT id, token FROM tenure.claim('ann', n => $1, lease => $2 * interval '1 ms')";
    let rows = session.query(ask, &[&n, &(lease_ms as f64)]).unwrap();
    rows.iter().map(|row| Lease { job: row.get(0), token: row.get(1) }).collect()
}

/// Claims the one job that is due.
pub fn claim(session: &mut Client, lease_ms: i64) -> Lease {
    let leases = claim_many(session, 9, lease_ms);
    assert_eq!(leases.len(), 1, "one job is due");
    leases[0]
}

/// A running job with a lease of 300 ms.
pub fn running(session: &mut Client) -> Lease {
    enqueue(session, "work");
    claim(session, 300)
}

/// Claims the job again, as another worker does once its lease is over.
pub fn take_over(lab: &mut Lab, session: &mut Client) -> Lease {
    lab.advance(300);
    claim(session, 300)
}

/// The job's state, as the view `tenure.job` shows it.
pub fn state(lab: &mut Lab, job: i64) -> String {
    lab.text(&format!("SELECT state FROM tenure.job WHERE id = {job}"))
}

/// How many writes to the user's own table were committed.
pub fn effects(lab: &mut Lab) -> i64 {
    lab.number("SELECT count(*) FROM public.effects")
}
