//! Guarantees of the embedded store only: about its file, and about threads and connections that
//! share it.

#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::time::Duration;

use rusqlite::Connection;
use tempfile::TempDir;
use tenure::WorkerId;
use tenure::engine::clock::{Clock, Timestamp, monotonic};
use tenure::engine::job::{Json, Name, NewJob};
use tenure::engine::lifecycle::Outcome;
use tenure::engine::store::migrate::MigrationState;
use tenure::engine::store::sqlite::{Sqlite, StoreOptions};
use tenure::engine::store::{
    Claim, Error, Look, Operate, Registration, Settled, Settlement, Wake, Work,
};

fn place() -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("jobs.db");
    (directory, file)
}

fn open(file: &Path) -> Sqlite {
    Sqlite::open(file, &StoreOptions::default()).unwrap()
}

/// Why a file cannot be opened, as the text that its owner would read.
fn refusal(file: &Path) -> String {
    match Sqlite::open(file, &StoreOptions::default()) {
        Err(error @ (Error::Unusable { .. } | Error::Unwritable { .. })) => error.to_string(),
        Err(other) => panic!("{other:?}"),
        Ok(_) => panic!("{} was opened", file.display()),
    }
}

/// A store whose clock stands still until it is moved, and the options to open it once more.
fn timed(file: &Path) -> (Sqlite, Clock, StoreOptions) {
    let clock = Clock::manual(Timestamp::from_millis(1_000_000_000_000));
    let options = StoreOptions { clock: clock.clone(), ..StoreOptions::default() };
    (Sqlite::open(file, &options).unwrap(), clock, options)
}

fn job() -> NewJob {
    NewJob::new(Name::check("kind", "work").unwrap(), Json::check("args", "{}", 10).unwrap())
}

fn ask(n: usize) -> Claim {
    Claim::new(WorkerId::unique(), n, Duration::from_secs(30))
}

#[test]
fn every_file_is_readable_by_its_owner_only() {
    let (directory, file) = place();
    let mut store = open(&file);
    store.enqueue(&[job()]).unwrap();
    let mut names = Vec::new();
    for entry in directory.path().read_dir().unwrap() {
        let entry = entry.unwrap();
        let mode = entry.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o600, "{:?}", entry.file_name());
        names.push(entry.file_name().into_string().unwrap());
    }
    names.sort();
    assert_eq!(names, ["jobs.db", "jobs.db-shm", "jobs.db-turn", "jobs.db-wal", "jobs.db-witness"]);
}

#[test]
fn jobs_survive_the_process_that_enqueued_them() {
    let (_directory, file) = place();
    open(&file).enqueue(&[job(), job()]).unwrap();
    assert_eq!(open(&file).claim(&ask(10)).unwrap().attempts.len(), 2);
}

#[test]
fn a_file_that_is_not_a_database_is_left_alone() {
    let (_directory, file) = place();
    std::fs::write(&file, "dear diary").unwrap();
    assert!(refusal(&file).contains("not a SQLite database"));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "dear diary");
}

#[test]
fn somebody_elses_database_is_left_alone_until_its_owner_asks() {
    let (directory, file) = place();
    Connection::open(&file).unwrap().execute_batch("CREATE TABLE diary (entry TEXT)").unwrap();
    let before = std::fs::read(&file).unwrap();
    assert!(refusal(&file).contains("migrate up"));
    assert_eq!(std::fs::read(&file).unwrap(), before);
    assert_eq!(directory.path().read_dir().unwrap().count(), 1, "nothing was put beside it");
    Sqlite::adopt(&file, &StoreOptions::default()).unwrap().enqueue(&[job()]).unwrap();
    assert_eq!(open(&file).claim(&ask(1)).unwrap().attempts.len(), 1);
}

#[test]
fn a_directory_a_read_only_file_and_a_place_that_does_not_exist_are_refused() {
    let (directory, file) = place();
    assert!(refusal(directory.path()).contains("directory"));
    assert!(refusal(&directory.path().join("no/such/place.db")).contains("create its directory"));
    drop(open(&file));
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o444)).unwrap();
    assert!(refusal(&file).contains("read-only"));
}

#[test]
fn a_file_with_two_names_is_refused_under_both() {
    let (directory, file) = place();
    drop(open(&file));
    let other = directory.path().join("other.db");
    std::fs::hard_link(&file, &other).unwrap();
    for name in [&file, &other] {
        assert!(refusal(name).contains("remove the other name"));
    }
    std::fs::remove_file(&other).unwrap();
    open(&file).enqueue(&[job()]).unwrap();
}

#[test]
fn a_schema_from_the_future_is_refused_only_if_it_says_so() {
    let (_directory, file) = place();
    drop(open(&file));
    let future = Connection::open(&file).unwrap();
    future
        .execute_batch("INSERT INTO tenure_migrations VALUES (99, 'wings', 'abc', 1, 0)")
        .unwrap();
    assert_eq!(open(&file).claim(&ask(1)).unwrap().attempts.len(), 0);
    let status = Sqlite::status(&file).unwrap();
    assert!(matches!(status[0].standing, MigrationState::Applied(_)));
    let last = status.last().unwrap();
    assert!(matches!((last.version, last.standing), (99, MigrationState::Newer(_))));
    future
        .execute_batch("UPDATE tenure_migrations SET min_client = 99 WHERE version = 99")
        .unwrap();
    assert!(refusal(&file).contains("upgrade this binary"));
}

#[test]
fn a_migration_that_was_changed_after_it_was_applied_is_noticed() {
    let (_directory, file) = place();
    assert!(matches!(Sqlite::status(&file).unwrap()[0].standing, MigrationState::Pending));
    assert!(!file.exists(), "asking for the status creates nothing");
    drop(open(&file));
    let tamper = Connection::open(&file).unwrap();
    tamper.execute_batch("UPDATE tenure_migrations SET checksum = 'other'").unwrap();
    drop(tamper);
    assert!(matches!(Sqlite::status(&file).unwrap()[0].standing, MigrationState::Differs(_)));
}

/// This binary's statements are written for other tables.
#[test]
fn a_file_whose_tables_were_made_from_another_text_is_refused_and_left_as_it_is() {
    let (directory, file) = place();
    let tables = "CREATE TABLE tenure_migrations (version INTEGER PRIMARY KEY, name TEXT NOT NULL,
            checksum TEXT NOT NULL, min_client INTEGER NOT NULL, applied_at INTEGER NOT NULL) STRICT;
        INSERT INTO tenure_migrations VALUES (1, 'first', 'of another text', 1, 0);
        CREATE TABLE tenure_jobs (id INTEGER PRIMARY KEY) STRICT";
    Connection::open(&file).unwrap().execute_batch(tables).unwrap();
    let names = || std::fs::read_dir(directory.path()).unwrap().count();
    let before = (std::fs::read(&file).unwrap(), names());
    let words = "its migration 1 (first) differs from this binary's; use the binary that this store was made with";
    let adopted = Sqlite::adopt(&file, &StoreOptions::default()).err().unwrap().to_string();
    for told in [refusal(&file), adopted] {
        assert!(told.contains(words), "{told}");
    }
    assert!(before == (std::fs::read(&file).unwrap(), names()), "nothing is created or changed");
    assert!(matches!(Sqlite::status(&file).unwrap()[0].standing, MigrationState::Differs(_)));
}

#[test]
fn a_wait_is_ended_by_another_connections_commit() {
    let (_directory, file) = place();
    let mut store = open(&file);
    store.claim(&ask(1)).unwrap();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| store.wait(monotonic() + Duration::from_secs(60)));
        open(&file).enqueue(&[job()]).unwrap();
        assert_eq!(waiter.join().unwrap().unwrap(), Wake::Changed);
    });
}

#[test]
fn an_empty_claim_writes_nothing() {
    let (_directory, file) = place();
    let (mut idle, mut other) = (open(&file), open(&file));
    idle.claim(&ask(1)).unwrap();
    other.claim(&ask(1)).unwrap();
    for _ in 0..10 {
        idle.claim(&ask(1)).unwrap();
    }
    assert_eq!(other.wait(monotonic()).unwrap(), Wake::TimedOut);
}

#[test]
fn many_threads_claim_and_settle_each_job_once() {
    let (_directory, file) = place();
    let jobs = 400;
    open(&file).enqueue(&vec![job(); jobs]).unwrap();
    let start = Barrier::new(8);
    let work = || {
        let mut store = open(&file);
        let mut done = Vec::new();
        start.wait();
        loop {
            let attempts = store.claim(&ask(3)).unwrap().attempts;
            if attempts.is_empty() {
                return done;
            }
            for attempt in attempts {
                let settlement =
                    Settlement::new(attempt.lease.fence(), Outcome::Complete { result: None });
                assert!(matches!(store.settle(&[settlement]).unwrap()[0], Settled::Applied(_)));
                done.push(attempt.lease.job());
            }
        }
    };
    let done: Vec<_> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..8).map(|_| scope.spawn(work)).collect();
        workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
    });
    assert_eq!(done.len(), jobs);
    assert_eq!(done.into_iter().collect::<BTreeSet<_>>().len(), jobs);
}

#[test]
fn the_view_for_people_shows_live_and_ended_jobs_by_the_names_of_their_states() {
    let (_directory, file) = place();
    let mut store = open(&file);
    store.enqueue(&[job(), job().delay(Duration::from_secs(9)), job(), job()]).unwrap();
    let attempts = store.claim(&ask(3)).unwrap().attempts;
    let settle = |at: usize, outcome| Settlement::new(attempts[at].lease.fence(), outcome);
    let buried = settle(1, Outcome::Bury { reason: "hopeless".into() });
    store.settle(&[settle(0, Outcome::Complete { result: None }), buried]).unwrap();
    let shell = Connection::open(&file).unwrap();
    let mut view = shell.prepare("SELECT state, kind, args FROM tenure_job ORDER BY id").unwrap();
    let rows: Vec<(String, String, String)> =
        view.query_map([], |row| row.try_into()).unwrap().collect::<Result<_, _>>().unwrap();
    let states: Vec<_> = rows.iter().map(|(state, ..)| state.as_str()).collect();
    assert_eq!(states, ["succeeded", "queued", "dead", "running"]);
    assert!(rows.iter().all(|(_, kind, args)| kind == "work" && args == "{}"));
}

#[test]
fn a_file_that_was_deleted_and_made_anew_is_another_store() {
    let (directory, file) = place();
    let mut old = open(&file);
    old.enqueue(&[job()]).unwrap();
    for entry in directory.path().read_dir().unwrap() {
        std::fs::remove_file(entry.unwrap().path()).unwrap();
    }
    let mut new = open(&file);
    assert!(new.claim(&ask(1)).unwrap().attempts.is_empty());
    new.enqueue(&[job()]).unwrap();
    assert_eq!(open(&file).claim(&ask(9)).unwrap().attempts.len(), 1);
}

#[test]
fn a_store_in_memory_is_nobody_elses() {
    let mut one = Sqlite::in_memory(&StoreOptions::default()).unwrap();
    let mut two = Sqlite::in_memory(&StoreOptions::default()).unwrap();
    one.enqueue(&[job()]).unwrap();
    assert!(two.claim(&ask(1)).unwrap().attempts.is_empty());
}

fn work_off(store: &mut Sqlite, outcome: Outcome) -> tenure::JobId {
    let fence = store.claim(&ask(1)).unwrap().attempts[0].lease.fence();
    store.settle(&[Settlement::new(fence, outcome)]).unwrap();
    fence.job
}

#[test]
fn what_is_forgotten_leaves_no_payload_behind() {
    let (_directory, file) = place();
    let mut store = open(&file);
    let args = Json::check("args", format!("\"{}\"", "x".repeat(3_000)), 4_000).unwrap();
    store.enqueue(&[NewJob::new(Name::check("kind", "work").unwrap(), args)]).unwrap();
    let id = work_off(&mut store, Outcome::Complete { result: None });
    store.purge(&[tenure::engine::store::AsSeen::any(id)]).unwrap();
    let look = Connection::open(&file).unwrap();
    let left: i64 =
        look.query_row("SELECT count(*) FROM tenure_payloads", [], |row| row.get(0)).unwrap();
    assert_eq!(left, 0);
}

#[test]
fn a_page_never_shows_a_job_twice_while_it_moves() {
    let (_directory, file) = place();
    let mut store = open(&file);
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut mover = open(&file);
            for _ in 0..300 {
                mover.enqueue(&[job()]).unwrap();
                work_off(&mut mover, Outcome::Complete { result: None });
            }
            done.store(true, std::sync::atomic::Ordering::SeqCst);
        });
        while !done.load(std::sync::atomic::Ordering::SeqCst) {
            let page = store.jobs(&tenure::Filter::default(), 1_000).unwrap();
            assert!(page.windows(2).all(|two| two[0].id > two[1].id), "a job is there twice");
        }
    });
}

#[test]
fn a_wait_misses_nothing_that_came_after_the_look() {
    let (_directory, file) = place();
    let mut store = open(&file);
    let (tell, told) = std::sync::mpsc::sync_channel(0);
    std::thread::scope(|scope| {
        let file = &file;
        scope.spawn(move || {
            let mut producer = open(file);
            while told.recv().is_ok() {
                producer.enqueue(&[job()]).unwrap();
            }
        });
        for n in 0..400 {
            tell.send(()).unwrap();
            // The check happens sometimes before, sometimes during and sometimes after the commit.
            (0..n % 16).for_each(|_| std::thread::yield_now());
            while store.claim(&ask(1)).unwrap().attempts.is_empty() {
                let until = monotonic() + Duration::from_secs(5);
                assert_eq!(store.wait(until).unwrap(), Wake::Changed, "a wake-up was lost");
            }
        }
        drop(tell);
    });
}

#[test]
fn waiting_for_the_lock_does_not_make_the_time_old() {
    let (directory, file) = place();
    let clock = tenure::engine::clock::Clock::manual(tenure::Timestamp::from_millis(0));
    let options = StoreOptions { clock: clock.clone(), ..StoreOptions::default() };
    let mut store = Sqlite::open(&file, &options).unwrap();
    let turn = std::fs::File::open(directory.path().join("jobs.db-turn")).unwrap();
    turn.lock().unwrap();
    std::thread::scope(|scope| {
        let caller = scope.spawn(|| store.enqueue(&[job()]).unwrap());
        let blocked = || std::fs::read_to_string("/proc/locks").unwrap().contains("-> FLOCK");
        while !blocked() && !caller.is_finished() {
            std::thread::yield_now();
        }
        clock.advance(Duration::from_secs(60));
        turn.unlock().unwrap();
        caller.join().unwrap();
    });
    let enqueued = store.jobs(&tenure::Filter::default(), 1).unwrap()[0].enqueued_at;
    assert_eq!(enqueued, clock.now());
}

#[test]
fn a_lock_that_another_program_holds_for_a_moment_is_waited_for() {
    let (directory, file) = place();
    let mut store = open(&file);
    let foreign = Connection::open(&file).unwrap();
    foreign.execute_batch("BEGIN IMMEDIATE").unwrap();
    std::thread::scope(|scope| {
        let caller = scope.spawn(|| store.enqueue(&[job()]));
        // A connection that is about to write has the turn, and keeps it while it waits for the
        // lock.
        let turn = std::fs::File::open(directory.path().join("jobs.db-turn")).unwrap();
        while turn.try_lock().is_ok() && !caller.is_finished() {
            turn.unlock().unwrap();
            std::thread::yield_now();
        }
        foreign.execute_batch("COMMIT").unwrap();
        assert!(caller.join().unwrap().is_ok());
    });
}

#[test]
fn a_lock_that_another_program_does_not_give_up_is_told_as_such() {
    let (_directory, file) = place();
    let mut store = open(&file);
    let foreign = Connection::open(&file).unwrap();
    foreign.execute_batch("BEGIN IMMEDIATE").unwrap();
    let refused = store.enqueue(&[job()]).unwrap_err();
    assert!(refused.is_transient(), "{refused:?}");
}

#[test]
fn callers_that_wait_for_the_same_lock_in_vain_wait_once() {
    let (_directory, file) = place();
    let _keep = open(&file);
    let foreign = Connection::open(&file).unwrap();
    foreign.execute_batch("BEGIN IMMEDIATE").unwrap();
    let begin = monotonic();
    std::thread::scope(|scope| {
        let callers: Vec<_> =
            (0..4).map(|_| scope.spawn(|| open(&file).enqueue(&[job()]))).collect();
        for caller in callers {
            assert!(caller.join().unwrap().unwrap_err().is_transient());
        }
    });
    // One after the other they would take four times the busy timeout of 5 s.
    assert!(monotonic() - begin < Duration::from_secs(18));
}

/// After an error it is not known whether the call was applied. Jobs without keys could then be
/// stored twice.
#[tokio::test]
async fn enqueues_that_failed_together_are_sent_again_one_by_one_only_if_they_have_keys() {
    let (_directory, file) = place();
    let tenure = tenure::Tenure::open(&file).await.unwrap();
    let foreign = Connection::open(&file).unwrap();
    foreign
        .execute_batch(
            "CREATE TRIGGER refuse BEFORE INSERT ON tenure_jobs WHEN NEW.kind = 'bad'
             BEGIN SELECT RAISE(ABORT, 'not this one'); END",
        )
        .unwrap();
    for keyed in [false, true] {
        let mut failed = 0;
        for round in 0..20 {
            // The first call waits for this lock, and the requests behind it gather.
            foreign.execute_batch("BEGIN IMMEDIATE").unwrap();
            let put = |kind: &str, n: u32| {
                let job = tenure.enqueue_kind(kind, &());
                if keyed {
                    job.key(format!("{round} {n}")).into_future()
                } else {
                    job.into_future()
                }
            };
            let release = async { foreign.execute_batch("COMMIT").unwrap() };
            let (_, good, bad, ()) =
                tokio::join!(put("work", 1), put("work", 2), put("bad", 3), release);
            assert!(bad.is_err());
            failed += usize::from(good.is_err());
        }
        // Without keys, the good one fails in each round in which the two were in one call.
        assert_eq!(failed == 0, keyed, "{failed} of 20 failed");
    }
}

#[test]
fn connections_of_one_process_share_a_writer() {
    let (directory, file) = place();
    let _stores = [open(&file), open(&file)];
    let turn = directory.path().join("jobs.db-turn");
    let open_files = Path::new("/proc/self/fd").read_dir().unwrap();
    let turns =
        open_files.filter(|fd| fd.as_ref().unwrap().path().read_link().is_ok_and(|to| to == turn));
    assert_eq!(turns.count(), 1);
}

#[test]
fn looking_at_a_file_does_not_drop_the_locks_of_this_process_on_it() {
    let (_directory, file) = place();
    let store = open(&file);
    let owner = || {
        let locks = std::fs::read_to_string("/proc/locks").unwrap();
        let inode = std::os::unix::fs::MetadataExt::ino(&file.metadata().unwrap());
        locks
            .lines()
            .filter(|line| line.contains("POSIX") && line.contains(&format!(":{inode} ")))
            .count()
    };
    let held = owner();
    assert!(held > 0, "SQLite holds a lock on a file in WAL mode while it is open");
    Sqlite::status(&file).unwrap();
    drop(open(&file));
    assert_eq!(owner(), held);
    drop(store);
}

#[test]
fn a_link_leads_to_the_same_store_and_the_same_turn() {
    let (directory, file) = place();
    drop(open(&file));
    let link = directory.path().join("link.db");
    std::os::unix::fs::symlink(&file, &link).unwrap();
    open(&link).enqueue(&[job()]).unwrap();
    assert_eq!(open(&file).claim(&ask(1)).unwrap().attempts.len(), 1);
    assert!(!directory.path().join("link.db-turn").exists());
}

/// The clock jumps after the machine was suspended, or when it is set forward. In both cases the
/// holders of leases had no time to renew.
#[test]
fn a_jump_of_the_clock_takes_no_job_from_anybody() {
    let (_directory, file) = place();
    let (mut store, clock, options) = timed(&file);
    store.enqueue(&[job()]).unwrap();
    let lease = store.claim(&ask(1)).unwrap().attempts.remove(0).lease;
    clock.jump(Duration::from_secs(3_600));
    assert!(store.claim(&ask(1)).unwrap().lapsed.is_empty());
    // Another process, which was not running at the time, finds the jump recorded in the file.
    drop(store);
    let mut store = Sqlite::open(&file, &options).unwrap();
    clock.advance(Duration::from_secs(29));
    assert!(store.overdue(9, Duration::ZERO).unwrap().is_empty());
    clock.advance(Duration::from_secs(1));
    assert_eq!(store.overdue(9, Duration::ZERO).unwrap(), [lease.fence()]);
}

#[test]
fn a_guard_that_is_held_over_a_jump_of_the_clock_counts_again_after_a_renewal() {
    let (_directory, file) = place();
    let (mut worker, clock, options) = timed(&file);
    let mut other = Sqlite::open(&file, &options).unwrap();
    let ann = Registration::new(ask(1).worker, vec![]);
    worker.register(&ann).unwrap();
    worker.enqueue(&[job()]).unwrap();
    let fence =
        worker.claim(&Claim { worker: ann.worker, ..ask(1) }).unwrap().attempts[0].lease.fence();
    clock.jump(Duration::from_secs(3_600));
    assert!(other.vanished(9).unwrap().is_empty());
    worker.renew(&[fence], Duration::from_secs(600)).unwrap();
    drop(worker);
    assert!(other.vanished(9).unwrap().is_empty());
    clock.advance(Duration::from_secs(1));
    assert_eq!(other.vanished(9).unwrap().len(), 1);
}

#[test]
fn a_file_from_before_the_first_version_is_refused_with_what_to_do() {
    let (_directory, file) = place();
    drop(open(&file));
    let old = "UPDATE tenure_migrations SET name = 'kernel', checksum = 'of old', min_client = 1;
        INSERT INTO tenure_migrations VALUES (2, 'ledger', 'of old', 2, 0)";
    Connection::open(&file).unwrap().execute_batch(old).unwrap();
    let refusal = refusal(&file);
    assert!(refusal.contains("before the first version"), "{refusal}");
    assert!(refusal.contains("name another file"), "{refusal}");
}

/// A jump that cannot be recorded at once, because the file is locked, is recorded later.
#[test]
fn a_jump_of_the_clock_is_noted_also_when_the_file_was_locked_at_first() {
    let (_directory, file) = place();
    let (mut store, clock, _) = timed(&file);
    store.enqueue(&[job()]).unwrap();
    store.claim(&ask(1)).unwrap();
    clock.jump(Duration::from_secs(3_600));
    let other = Connection::open(&file).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    assert!(store.overdue(9, Duration::ZERO).is_err());
    other.execute_batch("ROLLBACK").unwrap();
    assert!(store.overdue(9, Duration::ZERO).unwrap().is_empty());
}

/// If the clock is set far forward and then back, no lease lasts longer for that.
#[test]
fn a_jump_that_is_taken_back_pardons_nobody() {
    let (_directory, file) = place();
    let (mut store, clock, _) = timed(&file);
    let start = clock.now();
    clock.jump(Duration::from_secs(86_400));
    store.overdue(9, Duration::ZERO).unwrap();
    clock.set(start);
    store.enqueue(&[job()]).unwrap();
    let fence = store.claim(&ask(1)).unwrap().attempts[0].lease.fence();
    clock.advance(Duration::from_secs(30));
    assert_eq!(store.overdue(9, Duration::ZERO).unwrap(), [fence]);
}
