//! What calls cost, by SQLite's own counters: jobs that are not due, have ended, or are of a kind
//! that the claim does not ask for must not make a claim more expensive; and a job's way through
//! the store stays within a budget of statements, commits and written pages.

#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]
#![allow(unsafe_code, reason = "SQLite's counters are only reachable through its C interface")]

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::path::Path;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rusqlite::ffi;
use tenure::WorkerId;
use tenure::engine::clock::Clock;
use tenure::engine::job::{Json, Name, NewJob, Tenant};
use tenure::engine::lifecycle::Outcome;
use tenure::engine::store::sqlite::{Sqlite, StoreOptions};
use tenure::engine::store::{Claim, Settlement, Work};
use tenure_drill::engines::START;

#[derive(Debug, Clone, Copy)]
struct Cost {
    steps: u64,
    pages: u64,
}

fn name(text: &str) -> Name {
    Name::check("name", text).unwrap()
}

fn job(kind: &str) -> NewJob {
    NewJob::new(name(kind), Json::check("args", r#"{"n":1}"#, 100).unwrap())
}

fn ask(kind: &str, n: usize) -> Claim {
    Claim {
        kinds: Some(vec![name(kind)]),
        ..Claim::new(WorkerId::check("ann").unwrap(), n, Duration::from_secs(30))
    }
}

/// A store with 400 ready jobs of four tenants.
fn store() -> Sqlite {
    let mut store =
        Sqlite::in_memory(&StoreOptions { clock: Clock::manual(START), ..StoreOptions::default() })
            .unwrap();
    for n in 0..400 {
        let tenant = Tenant::check(format!("t{}", n % 4)).unwrap();
        store.enqueue(&[job("work").tenant(tenant)]).unwrap();
    }
    store
}

/// Copies the one job of a kind until there are `n` of it, spread over `spread` milliseconds.
fn multiply(store: &mut Sqlite, table: &str, time: &str, kind: &str, n: u64, spread: u64) {
    store.with_connection(|connection| {
        let columns: Vec<String> = connection
            .prepare("SELECT name FROM pragma_table_info(?1)")
            .unwrap()
            .query_map([table], |row| row.get(0))
            .unwrap()
            .collect::<Result<_, _>>()
            .unwrap();
        let copied = |column: &String| match column.as_str() {
            "id" => "(SELECT next_id FROM tenure_meta) + value".to_owned(),
            name if name == time => format!("{name} + value % {spread}"),
            name => name.to_owned(),
        };
        let sql = format!(
            "INSERT INTO {table} ({}) SELECT {} FROM {table},
             (WITH RECURSIVE n(value) AS (SELECT 1 UNION ALL SELECT value + 1 FROM n WHERE value < {n}) SELECT value FROM n)
             WHERE kind = '{kind}'; UPDATE tenure_meta SET next_id = next_id + {n} + 1",
            columns.join(", "),
            columns.iter().map(copied).collect::<Vec<_>>().join(", "),
        );
        connection.execute_batch(&sql).unwrap();
    });
}

/// What one claim of ten jobs costs, measured after three others, so that caches and statements are
/// warm.
fn cost(store: &mut Sqlite) -> Cost {
    let steps = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&steps);
    for _ in 0..3 {
        assert_eq!(store.claim(&ask("work", 10)).unwrap().attempts.len(), 10);
    }
    store.with_connection(|connection| {
        let count = move || {
            counter.fetch_add(1, Ordering::Relaxed);
            false
        };
        connection.progress_handler(1, Some(count)).unwrap();
        pages(connection);
    });
    assert_eq!(store.claim(&ask("work", 10)).unwrap().attempts.len(), 10);
    store.with_connection(|connection| Cost {
        steps: steps.load(Ordering::Relaxed),
        pages: pages(connection),
    })
}

/// Pages read since the last call.
fn pages(connection: &rusqlite::Connection) -> u64 {
    [ffi::SQLITE_DBSTATUS_CACHE_HIT, ffi::SQLITE_DBSTATUS_CACHE_MISS]
        .map(|which| counted(connection, which))
        .into_iter()
        .sum()
}

/// A counter of the connection since the last call with this `which`.
fn counted(connection: &rusqlite::Connection, which: i32) -> u64 {
    let (mut current, mut highest) = (0, 0);
    // SAFETY: the handle is open as long as `connection` is borrowed, and both pointers are to live
    // integers.
    let code = unsafe {
        ffi::sqlite3_db_status(connection.handle(), which, &mut current, &mut highest, 1)
    };
    assert_eq!(code, ffi::SQLITE_OK);
    u64::try_from(current).unwrap()
}

/// What some calls have used.
#[derive(Debug)]
struct Used {
    /// How many statements ran, without those that begin and commit.
    statements: u64,
    commits: u64,
    /// How many statements SQLite compiled, for the first time or again.
    compiled: u64,
    /// Pages written to the log.
    written: u64,
}

/// How often each prepared statement ran and was compiled, by its address and its text.
fn counters(connection: &rusqlite::Connection) -> BTreeMap<(usize, String), (u64, u64)> {
    let mut found = BTreeMap::new();
    let mut statement = ptr::null_mut();
    loop {
        // SAFETY: the handle is open as long as `connection` is borrowed, and no other thread uses
        // it meanwhile, so each statement that it names lives until the next turn of the loop. The
        // text of a prepared statement lives as long as the statement, and is copied.
        let (text, [runs, again]) = unsafe {
            statement = ffi::sqlite3_next_stmt(connection.handle(), statement);
            if statement.is_null() {
                return found;
            }
            let text = CStr::from_ptr(ffi::sqlite3_sql(statement)).to_str().unwrap().to_owned();
            let which = [ffi::SQLITE_STMTSTATUS_RUN, ffi::SQLITE_STMTSTATUS_REPREPARE];
            (text, which.map(|which| ffi::sqlite3_stmt_status(statement, which, 0)))
        };
        let counts = (u64::try_from(runs).unwrap(), u64::try_from(again).unwrap() + 1);
        found.insert((statement.addr(), text), counts);
    }
}

/// What `calls` used.
fn used(store: &mut Sqlite, calls: impl FnOnce(&mut Sqlite)) -> Used {
    let look = |store: &mut Sqlite| {
        store.with_connection(|it| (counters(it), counted(it, ffi::SQLITE_DBSTATUS_CACHE_WRITE)))
    };
    let commits = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&commits);
    store.with_connection(|connection| {
        let count = move || {
            counter.fetch_add(1, Ordering::Relaxed);
            false
        };
        connection.commit_hook(Some(count)).unwrap();
    });
    let (before, _) = look(store);
    calls(store);
    let (after, written) = look(store);
    let commits = commits.load(Ordering::Relaxed);
    let mut used = Used { statements: 0, commits, compiled: 0, written };
    for (statement, (runs, compiled)) in &after {
        let (ran, was) = before.get(statement).copied().unwrap_or_default();
        used.statements += runs - ran;
        used.compiled += compiled - was;
    }
    used
}

/// The jobs that a test of a budget has in one call.
const BATCH: usize = 100;

/// A store in a file, on which the calls of the test have been made before.
fn warm(directory: &Path) -> Sqlite {
    let mut store = Sqlite::open(directory.join("jobs.db"), &StoreOptions::default()).unwrap();
    let mut held = Vec::new();
    for _ in 0..6 {
        store.enqueue(&vec![job("work"); BATCH]).unwrap();
        held = next(&mut store, &held, BATCH);
    }
    assert_eq!(held.len(), BATCH);
    next(&mut store, &held, 1);
    store.enqueue(&[job("work")]).unwrap();
    store
}

/// Completes what is held and claims up to `n` jobs, in one call.
fn next(store: &mut Sqlite, held: &[Settlement], n: usize) -> Vec<Settlement> {
    let (settled, claimed) = store.settle_and_claim(held, &ask("work", n)).unwrap();
    assert_eq!(settled.len(), held.len());
    let complete = |fence| Settlement::new(fence, Outcome::Complete { result: None });
    claimed.attempts.iter().map(|attempt| complete(attempt.lease.fence())).collect()
}

#[test]
fn a_claim_costs_the_same_beside_millions_of_jobs_that_it_does_not_take() {
    let alone = cost(&mut store());
    let mut crowded = store();
    let week = Duration::from_secs(7 * 24 * 60 * 60);
    // As much in the claim's way as possible: of a tenant that is served, and before its other
    // jobs.
    let other = job("other").tenant(Tenant::check("t1").unwrap()).priority(-1);
    crowded.enqueue(&[job("later").delay(week), job("ended"), other]).unwrap();
    let ended = crowded.claim(&ask("ended", 1)).unwrap().attempts[0].lease.fence();
    crowded.settle(&[Settlement::new(ended, Outcome::Complete { result: None })]).unwrap();
    multiply(&mut crowded, "tenure_jobs", "run_at", "later", 1_000_000, 600_000);
    multiply(&mut crowded, "tenure_done", "finished_at", "ended", 1_000_000, 600_000);
    multiply(&mut crowded, "tenure_jobs", "run_at", "other", 300_000, 600_000);
    let beside = cost(&mut crowded);
    println!("alone {alone:?}, beside 2,300,000 others {beside:?}");
    assert!(beside.steps * 10 <= alone.steps * 12, "VM steps: {beside:?} against {alone:?}");
    assert!(beside.pages <= alone.pages * 3, "pages: {beside:?} against {alone:?}");
}

#[test]
fn a_claim_costs_the_same_beside_any_number_of_tenants_whose_jobs_it_cannot_run() {
    let beside = |tenants: usize| {
        let mut store = store();
        let other = |n: usize| job("other").tenant(Tenant::check(format!("o{n}")).unwrap());
        let jobs: Vec<_> = (0..tenants).map(other).collect();
        jobs.chunks(1_000).for_each(|some| drop(store.enqueue(some).unwrap()));
        store.with_connection(|connection| pages(connection));
        assert!(store.claim(&ask("none", 10)).unwrap().attempts.is_empty());
        store.with_connection(|connection| pages(connection))
    };
    let (few, many) = (beside(300), beside(10_000));
    println!("beside 300 such tenants {few} pages, beside 10,000 {many}");
    assert!(many <= 2 * few, "{many} pages against {few}");
}

#[test]
fn a_job_goes_through_the_store_within_a_budget_and_nothing_is_compiled_again() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = warm(directory.path());
    let mut held = next(&mut store, &[], 1);
    let calls = 10;
    let enqueued = used(&mut store, |store| {
        for _ in 0..calls {
            store.enqueue(&vec![job("work"); BATCH]).unwrap();
        }
    });
    let one = used(&mut store, |store| {
        for _ in 0..calls {
            store.enqueue(&[job("work")]).unwrap();
        }
    });
    held = next(&mut store, &held, BATCH);
    let worked = used(&mut store, |store| {
        for _ in 2..calls {
            held = next(store, &held, BATCH);
            assert_eq!(held.len(), BATCH);
        }
    });
    println!("10 x 100 enqueued: {enqueued:?}\n10 x 1: {one:?}\n8 x 100 worked off: {worked:?}");
    for (used, calls, jobs) in [(&enqueued, 10, 1_000), (&one, 10, 10), (&worked, 8, 800)] {
        assert_eq!((used.commits, used.compiled), (calls, 0), "of {jobs} jobs");
    }
    // One INSERT for each job, and the statements of every transaction.
    assert!(enqueued.statements <= 1_000 + 10 * 8, "{enqueued:?}");
    assert!(one.statements <= 10 * 9, "{one:?}");
    // Two for the claim of each job, two for its completion, and the statements of every
    // transaction and every claim.
    assert!(worked.statements <= 800 * 4 + 8 * 20, "{worked:?}");
    // Pages of 4 KiB, of which most have many jobs.
    assert!(enqueued.written <= 10 * 12 && one.written <= 10 * 4, "{enqueued:?}, {one:?}");
    assert!(worked.written <= 8 * 26, "{worked:?}");
}
