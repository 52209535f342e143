//! What happens to a store whose files are changed while it is open: replaced, deleted, made
//! unwritable.

#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::Connection;
use tempfile::TempDir;
use tenure::WorkerId;
use tenure::engine::clock::{Clock, Timestamp, monotonic};
use tenure::engine::job::{Json, Name, NewJob};
use tenure::engine::store::sqlite::{Sqlite, StoreOptions};
use tenure::engine::store::{Claim, Error, Guarded, Look, Operate, Registration, Work};

fn place() -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("jobs.db");
    (directory, file)
}

fn open(file: &Path) -> Sqlite {
    Sqlite::open(file, &StoreOptions::default()).unwrap()
}

fn beside(file: &Path, suffix: &str) -> PathBuf {
    PathBuf::from(format!("{}{suffix}", file.display()))
}

fn job() -> NewJob {
    NewJob::new(Name::check("kind", "work").unwrap(), Json::check("args", "{}", 10).unwrap())
}

fn ask() -> Claim {
    Claim::new(WorkerId::unique(), 1, Duration::from_secs(30))
}

/// The text of the error that says what is wrong with the store.
#[track_caller]
fn refusal<T>(answer: Result<T, Error>) -> String {
    match answer {
        Err(error @ Error::Unusable { .. }) => error.to_string(),
        Err(other) => panic!("{other:?}"),
        Ok(_) => panic!("it was answered as if all were well"),
    }
}

/// A consistent copy of the store, as a backup makes it.
fn back_up(file: &Path) -> PathBuf {
    let copy = file.with_file_name("copy.db");
    let sql = format!("VACUUM INTO '{}'", copy.display());
    Connection::open(file).unwrap().execute_batch(&sql).unwrap();
    copy
}

fn jobs_in(file: &Path) -> u64 {
    let count = "SELECT count(*) FROM tenure_jobs";
    Connection::open(file).unwrap().query_row(count, [], |row| row.get(0)).unwrap()
}

/// Makes every sort of call, and expects that each fails with these words.
#[track_caller]
fn is_told_everywhere(store: &mut Sqlite, words: &str) {
    let long = monotonic() + Duration::from_secs(60);
    let told = [
        refusal(store.enqueue(&[job()])),
        refusal(store.enqueue(&[job()])),
        refusal(store.claim(&ask())),
        refusal(store.settle_and_claim(&[], &ask())),
        refusal(store.transact(Duration::from_secs(5), |tx| tx.enqueue(&[job()]))),
        refusal(store.overview()),
        refusal(store.wait(long)),
        refusal(store.share()),
    ];
    assert!(told.iter().all(|told| told.contains(words)), "{told:#?}");
}

#[test]
fn nothing_is_acknowledged_into_a_file_that_another_one_has_replaced() {
    let (_directory, file) = place();
    let mut store = open(&file);
    store.enqueue(&[job(), job()]).unwrap();
    fs::rename(back_up(&file), &file).unwrap();
    is_told_everywhere(&mut store, "another file was put in its place while it was open");
    drop(store);

    let told = refusal(Sqlite::open(&file, &StoreOptions::default()));
    assert!(told.contains("the write-ahead log of the earlier file is still there"), "{told}");
    assert!(Sqlite::status(&file).is_err(), "not even a look may mix the two");
    for suffix in ["-wal", "-shm"] {
        fs::remove_file(beside(&file, suffix)).unwrap();
    }
    let mut store = open(&file);
    assert_eq!(store.identity().unwrap().raises.len(), 0, "nothing that was told is missing");
    store.enqueue(&[job()]).unwrap();
    assert_eq!(jobs_in(&file), 3);
}

#[test]
fn an_older_file_in_its_place_begins_a_new_epoch_when_it_is_opened() {
    let (_directory, file) = place();
    let mut store = open(&file);
    store.enqueue(&[job()]).unwrap();
    let older = back_up(&file);
    store.enqueue(&[job()]).unwrap();
    fs::rename(older, &file).unwrap();
    refusal(store.enqueue(&[job()]));
    drop(store);
    for suffix in ["-wal", "-shm"] {
        fs::remove_file(beside(&file, suffix)).unwrap();
    }
    let mut store = open(&file);
    assert_eq!(store.identity().unwrap().raises.len(), 1);
    assert_eq!(jobs_in(&file), 1);
}

#[test]
fn nothing_is_acknowledged_into_a_file_that_was_deleted_or_moved_until_it_is_back() {
    let (directory, file) = place();
    let mut store = open(&file);
    let aside = directory.path().join("aside.db");
    fs::rename(&file, &aside).unwrap();
    is_told_everywhere(&mut store, "the file was deleted or moved away while it was open");
    fs::rename(&aside, &file).unwrap();
    store.enqueue(&[job()]).unwrap();
    assert_eq!(jobs_in(&file), 2, "the first of those that were refused was on its way already");

    fs::remove_file(&file).unwrap();
    is_told_everywhere(&mut store, "the file was deleted or moved away while it was open");
    let told = refusal(Sqlite::open(&file, &StoreOptions::default()));
    assert!(told.contains("it was deleted, but the write-ahead log"), "{told}");
    assert!(!file.exists(), "nobody makes a new one beside it");
}

#[test]
fn nothing_is_acknowledged_into_a_log_that_was_deleted() {
    for suffix in ["-wal", "-shm"] {
        let (_directory, file) = place();
        let mut store = open(&file);
        store.enqueue(&[job()]).unwrap();
        fs::remove_file(beside(&file, suffix)).unwrap();
        is_told_everywhere(&mut store, "its write-ahead log (-wal, -shm) was deleted or replaced");
    }
}

#[test]
fn all_who_share_a_commit_are_told_that_the_file_is_gone() {
    let (_directory, file) = place();
    let mut store = open(&file);
    let lock = Connection::open(&file).unwrap();
    lock.execute_batch("BEGIN IMMEDIATE").unwrap();
    let mut lines: Vec<_> = (0..4).map(|_| store.share().unwrap()).collect();
    std::thread::scope(|scope| {
        let callers: Vec<_> =
            lines.iter_mut().map(|line| scope.spawn(|| line.enqueue(&[job()]))).collect();
        fs::remove_file(&file).unwrap();
        lock.execute_batch("ROLLBACK").unwrap();
        for caller in callers {
            assert!(refusal(caller.join().unwrap()).contains("deleted"));
        }
    });
    refusal(store.enqueue(&[job()]));
}

fn epochs(file: &Path) -> usize {
    open(file).identity().unwrap().raises.len()
}

#[test]
fn a_witness_that_keeps_nothing_begins_one_epoch_and_is_told_of() {
    type Break = fn(&Path);
    let ways: [(&str, Break); 3] = [
        ("No space left", |witness| symlink("/dev/full", witness).unwrap()),
        ("does not keep what is written", |witness| symlink("/dev/null", witness).unwrap()),
        ("Is a directory", |witness| fs::create_dir(witness).unwrap()),
    ];
    for (words, spoil) in ways {
        let (_directory, file) = place();
        let mut running = open(&file);
        running.enqueue(&[job()]).unwrap();
        assert_eq!(running.caution(), None);
        let witness = beside(&file, "-witness");
        fs::remove_file(&witness).unwrap();
        spoil(&witness);
        for _ in 0..3 {
            running.enqueue(&[job()]).unwrap();
        }
        let told = running.caution().unwrap();
        assert!(
            told.contains("jobs.db-witness cannot be written") && told.contains(words),
            "{told}"
        );
        assert_eq!(running.identity().unwrap().raises.len(), 0, "this process knows how far it is");
        drop(running);
        // A process that opens the store later does not know that. The first such process begins an
        // epoch; those after it begin none.
        for _ in 0..5 {
            let mut store = open(&file);
            store.enqueue(&[job()]).unwrap();
            store.enqueue(&[job()]).unwrap();
            let problem = store.beside(&file).unwrap().problem.unwrap();
            assert!(problem.contains(words), "{problem}");
        }
        assert_eq!(epochs(&file), 1, "{words}");
        // Once the witness can be written again, a new one is made, and that begins one more epoch.
        if witness.is_dir() { fs::remove_dir(&witness) } else { fs::remove_file(&witness) }
            .unwrap();
        for _ in 0..3 {
            let mut store = open(&file);
            store.enqueue(&[job()]).unwrap();
            assert_eq!((store.caution(), store.beside(&file).unwrap().problem), (None, None));
        }
        assert_eq!(epochs(&file), 2, "{words}");
    }
}

#[test]
fn whoever_looks_at_the_witness_is_told_whether_it_is_of_this_store_and_makes_none() {
    let (_directory, file) = place();
    let mut store = open(&file);
    store.enqueue(&[job()]).unwrap();
    assert!(store.beside(&file).unwrap().is_witnessed);
    let witness = beside(&file, "-witness");
    let text = fs::read_to_string(&witness).unwrap();
    let installation = text.split(' ').nth(1).unwrap();
    fs::write(&witness, text.replace(installation, "another")).unwrap();
    assert!(!store.beside(&file).unwrap().is_witnessed);
    fs::remove_file(&witness).unwrap();
    assert!(!store.beside(&file).unwrap().is_witnessed);
    assert!(!witness.exists());
}

#[test]
fn an_older_state_is_noticed_by_a_process_that_has_no_witness() {
    let (_directory, file) = place();
    let mut store = open(&file);
    fs::remove_file(beside(&file, "-witness")).unwrap();
    symlink("/dev/full", beside(&file, "-witness")).unwrap();
    store.enqueue(&[job()]).unwrap();
    store.enqueue(&[job()]).unwrap();
    Connection::open(&file)
        .unwrap()
        .execute_batch("UPDATE tenure_meta SET beat = beat - 1")
        .unwrap();
    store.enqueue(&[job()]).unwrap();
    store.enqueue(&[job()]).unwrap();
    assert_eq!(store.identity().unwrap().raises.len(), 1);
}

#[test]
fn the_guard_files_of_workers_that_nobody_knows_any_more_are_removed_and_held_ones_are_not() {
    let (_directory, file) = place();
    let clock = Clock::manual(Timestamp::from_millis(1_000_000_000_000));
    let options = StoreOptions { clock: clock.clone(), ..StoreOptions::default() };
    let mut store = Sqlite::open(&file, &options).unwrap();
    let known =
        |name: &str| Registration::new(WorkerId::check(name).unwrap(), vec![Name::default_queue()]);
    let guards = |store: &Sqlite| store.beside(&file).unwrap().guards.len();
    let (mut dead, mut alive) = (store.share().unwrap(), store.share().unwrap());
    assert_eq!(dead.register(&known("dead")).unwrap(), Guarded::ByLock);
    drop(dead);
    store.prune(100).unwrap();
    assert_eq!(guards(&store), 1, "one that is known tells of its worker");
    // After a break in time (here: another `steady_since`), a lock that is free does not prove that
    // its worker is gone. Such a worker is forgotten after a day.
    Connection::open(&file)
        .unwrap()
        .execute_batch("UPDATE tenure_meta SET steady_since = 1")
        .unwrap();
    assert_eq!(alive.register(&known("alive")).unwrap(), Guarded::ByLock);
    clock.advance(Duration::from_secs(2 * 86_400));
    Connection::open(&file)
        .unwrap()
        .execute_batch("DELETE FROM tenure_workers WHERE worker = 'alive'")
        .unwrap();
    store.prune(100).unwrap();
    assert!(store.workers().unwrap().is_empty());
    assert_eq!(guards(&store), 1, "that of the living one is held");
    assert_eq!(alive.register(&known("alive")).unwrap(), Guarded::ByLock);
    alive.retire(&known("alive").worker).unwrap();
    assert_eq!(guards(&store), 0);
}

/// How many commits the database and its witness have counted.
fn beats(file: &Path) -> (u64, u64) {
    let beat = "SELECT beat FROM tenure_meta";
    let inside = Connection::open(file).unwrap().query_row(beat, [], |row| row.get(0)).unwrap();
    let witness = fs::read_to_string(beside(file, "-witness")).unwrap();
    let mut words = witness.split_whitespace().skip_while(|word| *word != "beat");
    (inside, words.nth(1).unwrap().parse().unwrap())
}

#[test]
fn every_commit_that_changes_something_is_witnessed() {
    let (_directory, file) = place();
    let mut store = open(&file);
    store.enqueue(&[job()]).unwrap();
    let (inside, outside) = beats(&file);
    assert_eq!(inside, outside);
    store.enqueue(&[job()]).unwrap();
    assert_eq!(beats(&file), (inside + 1, inside + 1));
    let limit = Duration::from_secs(60);
    store.transact(limit, |tx| tx.enqueue(&[job()])).unwrap().unwrap();
    assert_eq!(beats(&file), (inside + 2, inside + 2));
    store.cancel(&[tenure::JobId(404)]).unwrap();
    assert_eq!(beats(&file), (inside + 2, inside + 2), "there is no such job");
}

#[test]
fn a_commit_that_failed_is_not_witnessed_by_the_next_one() {
    let (_directory, file) = place();
    let mut store = open(&file);
    Connection::open(&file)
        .unwrap()
        .execute_batch(
            "CREATE TABLE p (id INTEGER PRIMARY KEY);
             CREATE TABLE c (p INTEGER REFERENCES p DEFERRABLE INITIALLY DEFERRED);",
        )
        .unwrap();
    let limit = Duration::from_secs(60);
    // Only COMMIT checks the constraint.
    let orphan = store.transact(limit, |tx| tx.execute("INSERT INTO c VALUES (404)", []));
    assert!(matches!(orphan, Err(Error::Undone { .. })), "{orphan:?}");
    store.cancel(&[tenure::JobId(404)]).unwrap();
    let (inside, outside) = beats(&file);
    assert_eq!(inside, outside);
    store.enqueue(&[job()]).unwrap();
    assert_eq!(store.identity().unwrap().raises.len(), 0);
}

#[test]
fn a_transaction_of_ones_own_is_not_acknowledged_into_a_file_that_moved_meanwhile() {
    let limit = Duration::from_secs(60);
    let (_directory, file) = place();
    let mut store = open(&file);
    let away = file.with_file_name("away.db");
    let moved = store.transact(limit, |_| {
        fs::rename(&file, &away).unwrap();
        Err::<(), _>("no")
    });
    assert_eq!(moved.unwrap(), Err("no"), "nothing was to be acknowledged");
    fs::rename(&away, &file).unwrap();
    let moved = store.transact(limit, |tx| {
        let stored = tx.enqueue(&[job()]);
        fs::rename(&file, &away).unwrap();
        stored
    });
    assert!(refusal(moved).contains("deleted or moved away"));
}

#[test]
fn a_store_whose_tables_cannot_be_read_keeps_no_lock() {
    let (_directory, file) = place();
    let mut store = open(&file);
    let other = Connection::open(&file).unwrap();
    other.execute_batch("ALTER TABLE tenure_meta RENAME TO elsewhere").unwrap();
    assert!(store.enqueue(&[job()]).is_err());
    let turn = fs::File::open(beside(&file, "-turn")).unwrap();
    turn.try_lock().unwrap();
    turn.unlock().unwrap();
    other.busy_timeout(Duration::ZERO).unwrap();
    other.execute_batch("ALTER TABLE elsewhere RENAME TO tenure_meta").unwrap();
    store.enqueue(&[job()]).unwrap();
}
