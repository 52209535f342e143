//! The user's own transaction on SQLite: the user's rows and the jobs are stored together or not at
//! all, whatever happens to the transaction.

#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]

mod refuse;
mod rules;
mod settle;
mod share;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use rusqlite::Connection;
use tempfile::TempDir;
use tenure::engine::clock::{Clock, Timestamp, monotonic};
use tenure::engine::job::{JobId, Json, Name, NewJob};
use tenure::engine::lifecycle::Verb;
use tenure::engine::store::{Attempt, Claim, Enqueued, Error, Look, Work};
use tenure::sqlite::{Sqlite, StoreOptions, Transaction};
use tenure::{Filter, WorkerId};

/// Longer than any test takes.
const LONG: Duration = Duration::from_secs(600);

/// A store with a user's table beside the jobs, and a clock that stands still.
struct Shop {
    store: Sqlite,
    clock: Clock,
    /// The directory of a store in a file.
    directory: Option<TempDir>,
}

impl Shop {
    fn in_memory() -> Shop {
        let clock = Clock::manual(Timestamp::from_millis(1_000_000_000_000));
        let options = StoreOptions { clock: clock.clone(), ..StoreOptions::default() };
        Shop::with_orders(Sqlite::in_memory(&options).unwrap(), clock, None)
    }

    fn in_file() -> Shop {
        let clock = Clock::manual(Timestamp::from_millis(1_000_000_000_000));
        let options = StoreOptions { clock: clock.clone(), ..StoreOptions::default() };
        let directory = tempfile::tempdir().unwrap();
        let store = Sqlite::open(directory.path().join("shop.db"), &options).unwrap();
        Shop::with_orders(store, clock, Some(directory))
    }

    fn with_orders(mut store: Sqlite, clock: Clock, directory: Option<TempDir>) -> Shop {
        let made = store
            .transact(LONG, |tx| tx.execute_batch("CREATE TABLE orders (id INTEGER PRIMARY KEY)"));
        made.unwrap().unwrap();
        Shop { store, clock, directory }
    }

    /// Runs the same test on a store in memory and on one in a file.
    fn each(story: impl Fn(Shop)) {
        story(Shop::in_memory());
        story(Shop::in_file());
    }

    /// How many orders and jobs there are.
    fn counts(&mut self) -> (i64, usize) {
        let orders = |tx: &Transaction<'_>| {
            tx.query_row("SELECT count(*) FROM orders", [], |row| row.get(0))
        };
        let orders = self.store.transact(LONG, orders).unwrap().unwrap();
        (orders, self.store.jobs(&Filter::default(), 1_000).unwrap().len())
    }

    /// A job that is leased for a minute.
    fn attempt(&mut self) -> Attempt {
        self.store.enqueue(&[job()]).unwrap();
        self.claim()
    }

    fn claim(&mut self) -> Attempt {
        self.store.claim(&ask()).unwrap().attempts.remove(0)
    }

    /// Claims the job again, as another worker does once the lease is over.
    fn take_over(&mut self) -> Attempt {
        self.clock.advance(Duration::from_secs(61));
        self.claim()
    }

    /// The verbs that the timeline shows as refused.
    fn refusals(&mut self, job: JobId) -> Vec<Verb> {
        let timeline = self.store.job(job).unwrap().unwrap().timeline;
        timeline.iter().filter(|line| line.refused).map(|line| line.verb).collect()
    }

    /// Everything works as before: no change that a transaction made to the connection is left.
    fn still_works(&mut self) {
        let (orders, jobs) = self.counts();
        self.store.enqueue(&[job()]).unwrap();
        order_and_job(&mut self.store).unwrap().unwrap();
        assert_eq!(self.counts(), (orders + 1, jobs + 2));
        let facts = self.store.facts().unwrap();
        let journal = if self.directory.is_some() { "wal" } else { "memory" };
        assert!(facts.is_synced && facts.journal_mode == journal, "{facts:?}");
    }
}

fn job() -> NewJob {
    NewJob::new(Name::check("kind", "ship").unwrap(), Json::check("args", "{}", 10).unwrap())
}

fn ask() -> Claim {
    Claim::new(WorkerId::unique(), 1, Duration::from_secs(60))
}

/// The usual transaction: a row, and a job about it.
fn both(tx: &Transaction<'_>) -> Vec<Enqueued> {
    tx.execute("INSERT INTO orders DEFAULT VALUES", []).unwrap();
    tx.enqueue(&[job()]).unwrap()
}

fn order_and_job(store: &mut Sqlite) -> Result<Result<Vec<Enqueued>, ()>, Error> {
    store.transact(LONG, |tx| Ok(both(tx)))
}

/// The text of the error with which a transaction was undone.
fn undone<T: std::fmt::Debug>(answer: Result<T, Error>) -> String {
    match answer {
        Err(error @ Error::Undone { .. }) => {
            assert!(!error.is_transient());
            error.to_string()
        }
        other => panic!("{other:?}"),
    }
}

/// A statement that does not end by itself.
const ENDLESS: &str =
    "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT count(*) FROM n";

#[test]
fn a_row_and_a_job_are_stored_together() {
    Shop::each(|mut shop| {
        let answer = order_and_job(&mut shop.store).unwrap().unwrap();
        assert!(matches!(answer[..], [Enqueued::Created(_)]), "{answer:?}");
        assert_eq!(shop.counts(), (1, 1));
    });
}

#[test]
fn they_survive_the_process() {
    let Shop { mut store, directory, .. } = Shop::in_file();
    order_and_job(&mut store).unwrap().unwrap();
    drop(store);
    let file = directory.as_ref().unwrap().path().join("shop.db");
    let store = Sqlite::open(file, &StoreOptions::default()).unwrap();
    let mut shop = Shop { store, clock: Clock::system(), directory };
    assert_eq!(shop.counts(), (1, 1));
}

#[test]
fn an_error_of_the_work_undoes_both_and_comes_back_as_it_is() {
    Shop::each(|mut shop| {
        let answer = shop.store.transact(LONG, |tx| {
            both(tx);
            Err::<(), _>("out of stock")
        });
        assert_eq!(answer.unwrap(), Err("out of stock"));
        assert_eq!(shop.counts(), (0, 0));
        shop.still_works();
    });
}

#[test]
fn a_panic_of_the_work_undoes_both_and_goes_on_to_the_caller() {
    Shop::each(|mut shop| {
        let panic = catch_unwind(AssertUnwindSafe(|| {
            shop.store.transact(LONG, |tx| -> Result<(), ()> {
                both(tx);
                std::panic::panic_any("out of paper")
            })
        }));
        assert_eq!(panic.unwrap_err().downcast_ref(), Some(&"out of paper"));
        assert_eq!(shop.counts(), (0, 0));
        shop.still_works();
    });
}

#[test]
fn a_statement_beyond_the_limit_is_interrupted_and_everything_is_undone() {
    Shop::each(|mut shop| {
        let limit = Duration::from_millis(20);
        let answer = shop.store.transact(limit, |tx| {
            both(tx);
            tx.query_row(ENDLESS, [], |row| row.get::<_, i64>(0))
        });
        let words = undone(answer);
        assert!(
            words.contains("limit of 20ms") && words.contains("before the transaction"),
            "{words}"
        );
        assert_eq!(shop.counts(), (0, 0));
        shop.still_works();
    });
}

#[test]
fn a_write_beyond_the_limit_is_undone_even_if_the_work_goes_on_after_it() {
    Shop::each(|mut shop| {
        let answer = shop.store.transact(Duration::from_millis(20), |tx| {
            both(tx);
            let fill = format!(
                "INSERT INTO orders SELECT x + 1000 FROM ({})",
                ENDLESS.replace("count(*)", "x")
            );
            assert!(tx.execute(&fill, []).is_err());
            // SQLite has rolled everything back. A statement now would be a transaction of its own.
            assert!(tx.execute("INSERT INTO orders DEFAULT VALUES", []).is_err());
            assert!(tx.enqueue(&[job()]).is_err());
            Ok::<_, ()>(())
        });
        assert!(undone(answer).contains("limit of 20ms"));
        assert_eq!(shop.counts(), (0, 0));
        shop.still_works();
    });
}

#[test]
fn work_that_returns_after_its_limit_is_undone_whatever_it_returns() {
    Shop::each(|mut shop| {
        for answer in [Ok(()), Err("no")] {
            let limit = Duration::from_millis(5);
            let late = shop.store.transact(limit, |tx| {
                both(tx);
                let until = monotonic() + limit;
                while monotonic() <= until {
                    std::thread::yield_now();
                }
                answer
            });
            assert!(undone(late).contains("limit of 5ms"));
        }
        assert_eq!(shop.counts(), (0, 0));
        shop.still_works();
    });
}

#[test]
fn a_limit_that_is_over_interrupts_nobody_who_comes_later() {
    let mut shop = Shop::in_memory();
    (0..5).for_each(|_| drop(shop.store.enqueue(&vec![job(); 1_000]).unwrap()));
    undone(shop.store.transact(Duration::ZERO, |_| Ok::<_, ()>(())));
    assert_eq!(shop.store.overview().unwrap().lines[0].ready, 5_000, "after many steps");
}

#[test]
fn a_limit_beyond_all_measure_is_none() {
    let mut shop = Shop::in_memory();
    assert_eq!(shop.store.transact(Duration::MAX, |_| Ok::<_, ()>(7)).unwrap(), Ok(7));
}

#[test]
fn tables_that_were_there_before_are_written_in_the_same_commit() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("shop.db");
    let theirs = Connection::open(&file).unwrap();
    theirs.execute_batch("CREATE TABLE orders (id INTEGER PRIMARY KEY)").unwrap();
    drop(theirs);
    let mut store = Sqlite::adopt(&file, &StoreOptions::default()).unwrap();
    order_and_job(&mut store).unwrap().unwrap();
    let mut shop = Shop { store, clock: Clock::system(), directory: Some(directory) };
    assert_eq!(shop.counts(), (1, 1));
}

#[test]
fn what_is_not_committed_yet_is_seen_by_nobody_else() {
    let mut shop = Shop::in_file();
    let mut other = shop.store.share().unwrap();
    let seen = shop.store.transact(LONG, |tx| {
        both(tx);
        other.jobs(&Filter::default(), 9)
    });
    assert_eq!(seen.unwrap().unwrap(), []);
    assert_eq!(other.jobs(&Filter::default(), 9).unwrap().len(), 1);
}

#[test]
fn transactions_and_plain_calls_of_a_crowd_are_all_heard_once() {
    Shop::each(|mut shop| {
        let (callers, each) = (4, 25);
        std::thread::scope(|scope| {
            for _ in 0..callers {
                let (mut one, mut two) = (shop.store.share().unwrap(), shop.store.share().unwrap());
                scope.spawn(move || {
                    for n in 0..each {
                        let fails = n % 5 == 0;
                        let answer = one.transact(LONG, |tx| {
                            both(tx);
                            if fails { Err(()) } else { Ok(()) }
                        });
                        assert_eq!(answer.unwrap().is_err(), fails);
                    }
                });
                scope.spawn(move || (0..each).for_each(|_| drop(two.enqueue(&[job()]).unwrap())));
            }
        });
        let orders = callers * each / 5 * 4;
        assert_eq!(shop.counts(), (orders, usize::try_from(orders + callers * each).unwrap()));
    });
}
