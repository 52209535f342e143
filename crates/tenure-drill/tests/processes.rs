//! Real processes on one SQLite file: turns, kill -9, wake-ups, and many processes that open it at
//! once.

#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]

use std::path::Path;
use std::time::Duration;

use tenure::WorkerId;
use tenure::engine::clock::monotonic;
use tenure::engine::store::sqlite::{Sqlite, StoreOptions};
use tenure::engine::store::{Claim, Wake, Work};
use tenure_drill::processes::{Writer, contend};

fn writer() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_tenure-drill-writer"))
}

/// G1, I9: three processes write as fast as they can, and one of them is killed fifty times.
#[test]
fn nothing_acknowledged_is_lost_when_writers_are_killed_and_nobody_starves() {
    let directory = tempfile::tempdir().unwrap();
    let seen = contend(writer(), &directory.path().join("jobs.db"), 50, 1).unwrap();
    println!("{seen:?}");
    assert!(seen.lost.is_empty(), "acknowledged, but not there: {:?}", seen.lost);
    assert_eq!(seen.doubled, 0, "no id is given out twice");
    let [one, other] = seen.steady;
    assert!(one.min(other) * 10 > one.max(other), "one of the two was starved: {:?}", seen.steady);
}

/// G6: on SQLite no process notifies another. One that waits sees the commit in the file.
#[test]
fn a_wait_is_ended_by_another_processs_commit() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("jobs.db");
    let mut store = Sqlite::open(&file, &StoreOptions::default()).unwrap();
    let ask = Claim::new(WorkerId::unique(), 1, Duration::from_secs(30));
    assert!(store.claim(&ask).unwrap().attempts.is_empty());
    let mut other = Writer::start(writer(), &file);
    assert_eq!(store.wait(monotonic() + Duration::from_secs(60)).unwrap(), Wake::Changed);
    assert!(other.listen(1));
    assert_eq!(store.claim(&ask).unwrap().attempts.len(), 1);
    other.stop();
}

#[test]
fn processes_that_open_a_new_file_at_once_all_find_it_ready() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("jobs.db");
    let mut writers: Vec<_> = (0..8).map(|_| Writer::start(writer(), &file)).collect();
    for writer in &mut writers {
        assert!(writer.listen(1), "each of them can write");
    }
    writers.iter_mut().for_each(Writer::stop);
}
