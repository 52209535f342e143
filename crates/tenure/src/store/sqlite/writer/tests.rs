//! Tests of the writer.

use std::sync::Barrier;

use super::*;

fn writer() -> Writer {
    let connection = Connection::open_in_memory().unwrap();
    connection.execute_batch("CREATE TABLE t (x INTEGER NOT NULL) STRICT").unwrap();
    Writer::new("test".into(), connection, None, &Clock::system())
}

fn insert(writer: &Writer, x: Option<i64>) -> Result<usize> {
    writer.write("insert", Urgency::Normal, |c| c.execute("INSERT INTO t VALUES (?1)", [x]))
}

fn count(writer: &Writer) -> i64 {
    let count = |c: &Connection| c.query_row("SELECT count(*) FROM t", [], |row| row.get(0));
    writer.write("count", Urgency::Normal, count).unwrap()
}

#[test]
fn every_caller_of_a_crowd_is_heard_once() {
    let writer = writer();
    let (callers, each) = (8, 50);
    let start = Barrier::new(callers);
    std::thread::scope(|scope| {
        for _ in 0..callers {
            scope.spawn(|| {
                start.wait();
                (0..each).for_each(|x| assert_eq!(insert(&writer, Some(x)).unwrap(), 1));
            });
        }
    });
    assert_eq!(count(&writer), callers as i64 * each);
}

#[test]
fn one_callers_error_undoes_only_its_own_writes() {
    let writer = writer();
    insert(&writer, Some(1)).unwrap();
    let failed = writer.write("fail", Urgency::Normal, |c| {
        c.execute("INSERT INTO t VALUES (2)", [])?;
        c.execute("INSERT INTO t VALUES (NULL)", [])
    });
    assert!(failed.is_err());
    insert(&writer, Some(3)).unwrap();
    assert_eq!(count(&writer), 2);
}

#[test]
fn work_whose_group_was_lost_is_done_again_alone() {
    let writer = writer();
    let tries = AtomicUsize::new(0);
    let answer = writer.write("lose", Urgency::Normal, |c| {
        c.execute("INSERT INTO t VALUES (1)", [])?;
        if tries.fetch_add(1, Ordering::SeqCst) == 0 {
            c.execute_batch("ROLLBACK")?; // as SQLite does on a full disk
        }
        Ok(())
    });
    assert!(answer.is_ok());
    assert_eq!((tries.into_inner(), count(&writer)), (2, 1));
}

#[test]
fn a_panic_undoes_its_own_writes_and_the_writer_goes_on() {
    let writer = writer();
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        writer.write("panic", Urgency::Normal, |c| -> rusqlite::Result<()> {
            c.execute("INSERT INTO t VALUES (1)", [])?;
            panic!("on purpose")
        })
    }));
    assert!(panicked.is_err());
    assert_eq!(count(&writer), 0);
}

/// Waits for `length`, or until `gone_wrong` is true.
fn linger_unless(length: Duration, gone_wrong: impl Fn() -> bool) {
    let since = clock::monotonic();
    while clock::monotonic() - since < length && !gone_wrong() {
        std::thread::yield_now();
    }
}

/// Spawns `insert(x)` and returns once it waits to enter.
fn at_the_door<'s>(scope: &'s std::thread::Scope<'s, '_>, writer: &'s Writer, x: i64) {
    let before = writer.waiting.load(Ordering::SeqCst);
    scope.spawn(move || insert(writer, Some(x)).unwrap());
    while writer.waiting.load(Ordering::SeqCst) == before {
        std::thread::yield_now();
    }
}

#[test]
fn two_callers_that_both_write_share_one_commit() {
    // On a busy machine a turn may be over before the second caller waits to enter, but not every
    // time.
    let commits = || {
        let writer = writer();
        let writer = &writer;
        std::thread::scope(|scope| {
            let once = std::cell::Cell::new(false);
            let first = |c: &Connection| {
                if !once.replace(true) {
                    at_the_door(scope, writer, 2);
                }
                c.execute("INSERT INTO t VALUES (1)", [])
            };
            writer.write("first", Urgency::Normal, first).unwrap();
        });
        assert_eq!(count(writer), 2);
        writer.commits()
    };
    assert!((0..20).any(|_| commits() == 1));
}

#[test]
fn a_turn_that_was_long_enough_is_not_left_to_the_next() {
    let writer = writer();
    let writer = &writer;
    std::thread::scope(|scope| {
        let first = |c: &Connection| {
            at_the_door(scope, writer, 2);
            linger_unless(TURN, || false);
            c.execute("INSERT INTO t VALUES (1)", [])
        };
        writer.write("first", Urgency::Normal, first).unwrap();
    });
    assert_eq!((writer.commits(), count(writer)), (2, 2));
}

#[test]
fn nobody_is_answered_before_the_commit_that_another_makes_for_them() {
    let writer = writer();
    let writer = &writer;
    let (answered, too_early) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let (answered, too_early) = (&answered, &too_early);
        let last = move |c: &Connection| {
            linger_unless(Duration::from_millis(50), || answered.load(Ordering::SeqCst) > 0);
            if writer.commits() == 0 {
                too_early.store(answered.load(Ordering::SeqCst), Ordering::SeqCst);
            }
            c.execute("INSERT INTO t VALUES (2)", [])
        };
        let first = |c: &Connection| {
            scope.spawn(move || writer.write("last", Urgency::Normal, last).unwrap());
            while writer.waiting.load(Ordering::SeqCst) == 0 {
                std::thread::yield_now();
            }
            c.execute("INSERT INTO t VALUES (1)", [])
        };
        writer.write("first", Urgency::Normal, first).unwrap();
        answered.store(1, Ordering::SeqCst);
    });
    assert_eq!(too_early.into_inner(), 0, "the first was answered while its commit was owed");
}

#[test]
fn a_group_that_is_lost_between_two_others_is_done_again_once_each() {
    let writer = writer();
    let writer = &writer;
    let tries = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let tries = &tries;
        let loses = move |c: &Connection| {
            c.execute("INSERT INTO t VALUES (2)", [])?;
            if tries.fetch_add(1, Ordering::SeqCst) == 0 {
                at_the_door(scope, writer, 3);
                c.execute_batch("ROLLBACK")?; // as SQLite does on a full disk
            }
            Ok(())
        };
        let once = std::cell::Cell::new(false);
        let first = |c: &Connection| {
            if !once.replace(true) {
                scope.spawn(move || writer.write("lose", Urgency::Normal, loses).unwrap());
                while writer.waiting.load(Ordering::SeqCst) == 0 {
                    std::thread::yield_now();
                }
            }
            c.execute("INSERT INTO t VALUES (1)", [])
        };
        writer.write("first", Urgency::Normal, first).unwrap();
    });
    assert_eq!(count(writer), 3);
}

#[test]
fn a_commit_that_fails_is_nobodys_success() {
    let writer = writer();
    let schema = "CREATE TABLE p (id INTEGER PRIMARY KEY);
        CREATE TABLE c (p INTEGER REFERENCES p DEFERRABLE INITIALLY DEFERRED);";
    writer.write_alone("set up", Urgency::Normal, |c| c.execute_batch(schema)).unwrap();
    writer.core.lock().unwrap().connection.execute_batch("PRAGMA foreign_keys = ON").unwrap();
    // Only COMMIT checks the constraint.
    let orphan = |c: &Connection| c.execute("INSERT INTO c VALUES (404)", []);
    assert!(writer.write("orphan", Urgency::Normal, orphan).is_err());
    assert_eq!(insert(&writer, Some(1)).unwrap(), 1);
}

#[test]
fn the_write_lock_is_held_from_the_beginning() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("t.db");
    let (ours, other) = (Connection::open(&file).unwrap(), Connection::open(&file).unwrap());
    ours.execute_batch("PRAGMA journal_mode = WAL; CREATE TABLE t (x INTEGER NOT NULL) STRICT")
        .unwrap();
    other.busy_timeout(Duration::ZERO).unwrap();
    let writer = Writer::new("test".into(), ours, None, &Clock::system());
    let looked = writer.write("look, then write", Urgency::Normal, |c| {
        c.query_row("SELECT count(*) FROM t", [], |row| row.get::<_, i64>(0))?;
        let between = other.execute("INSERT INTO t VALUES (1)", []);
        c.execute("INSERT INTO t VALUES (2)", [])?;
        Ok(between.is_err())
    });
    assert!(looked.unwrap(), "somebody wrote in between");
}

#[test]
fn renewals_overtake_those_who_wait() {
    for _ in 0..20 {
        let writer = writer();
        let writer = &writer;
        let order = Mutex::new(Vec::new());
        let note = |urgency| {
            let order = &order;
            move || {
                writer
                    .write("note", urgency, |_| {
                        order.lock().unwrap().push(urgency);
                        Ok(())
                    })
                    .unwrap();
            }
        };
        std::thread::scope(|scope| {
            let held = writer.core.lock().unwrap();
            scope.spawn(note(Urgency::Normal));
            while writer.waiting.load(Ordering::SeqCst) < 1 {
                std::thread::yield_now();
            }
            scope.spawn(note(Urgency::First));
            while writer.urgent.load(Ordering::SeqCst) < 1 {
                std::thread::yield_now();
            }
            drop(held);
        });
        assert_eq!(order.into_inner().unwrap(), [Urgency::First, Urgency::Normal]);
    }
}

#[test]
fn a_commit_wakes_those_who_wait_for_one_at_once() {
    let writer = writer();
    std::thread::scope(|scope| {
        let begin = clock::monotonic();
        let waiter = scope.spawn(|| writer.wait_for_commit(0, Duration::from_secs(60)));
        linger_unless(Duration::from_millis(20), || false);
        insert(&writer, Some(1)).unwrap();
        assert!(waiter.join().unwrap() && clock::monotonic() - begin < Duration::from_secs(30));
    });
}

#[test]
fn an_urgent_caller_that_enters_after_a_lost_group_works_once() {
    let writer = writer();
    let writer = &writer;
    let tries = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let loses = |c: &Connection| {
            c.execute("INSERT INTO t VALUES (1)", [])?;
            if tries.fetch_add(1, Ordering::SeqCst) == 0 {
                // The urgent caller overtakes the second try of this one.
                let urgent = |c: &Connection| c.execute("INSERT INTO t VALUES (2)", []);
                scope.spawn(move || writer.write("urgent", Urgency::First, urgent).unwrap());
                while writer.urgent.load(Ordering::SeqCst) == 0 {
                    std::thread::yield_now();
                }
                c.execute_batch("ROLLBACK")?; // as SQLite does on a full disk
            }
            Ok(())
        };
        writer.write("lose", Urgency::Normal, loses).unwrap();
    });
    assert_eq!((tries.into_inner(), count(writer)), (2, 2));
}

#[test]
fn work_that_cannot_be_undone_by_itself_is_undone_with_its_group() {
    let writer = writer();
    let failed = writer.write("fail", Urgency::Normal, |c| {
        c.execute("INSERT INTO t VALUES (1)", [])?;
        // Without its savepoint, only the whole transaction can be rolled back.
        c.execute_batch("RELEASE caller")?;
        c.execute("INSERT INTO t VALUES (NULL)", [])
    });
    assert!(failed.is_err());
    assert_eq!(count(&writer), 0);
}

#[test]
fn a_caller_in_a_transaction_of_its_own_cannot_enter_again() {
    let writer = Arc::new(writer());
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let again = || (insert(&writer, Some(1)).is_err(), count_alone(&writer).is_err());
        let refused = writer.write_alone("enter", Urgency::Normal, |_| Ok(again()));
        let _ = tell.send((refused.unwrap(), insert(&writer, Some(1)).is_ok()));
    });
    // If the writer did not refuse it, the thread would wait for itself for ever.
    let told = told.recv_timeout(Duration::from_secs(10)).unwrap();
    assert_eq!(told, ((true, true), true));
}

fn count_alone(writer: &Writer) -> Result<i64> {
    writer.write_alone("count", Urgency::Normal, |c| {
        c.query_row("SELECT count(*) FROM t", [], |row| row.get(0))
    })
}

#[test]
fn a_jump_of_the_clock_is_noticed_until_it_is_noted() {
    let clock = Clock::manual(crate::clock::Timestamp::from_millis(1_000_000_000_000));
    let writer = Writer::new("test".into(), Connection::open_in_memory().unwrap(), None, &clock);
    clock.jump(Duration::from_millis(500));
    assert_eq!(writer.notices_break(), None, "the clock is being adjusted");
    clock.jump(Duration::from_millis(1));
    assert_eq!(writer.notices_break(), Some(501));
    assert_eq!(writer.notices_break(), Some(501), "nobody has noted it");
    writer.noted_break(501);
    assert_eq!(writer.notices_break(), None);
    // As if the clock had been set back since: the next jump counts from there.
    writer.noted_break(5_000);
    assert_eq!(writer.notices_break(), None);
    clock.jump(Duration::from_millis(501));
    assert_eq!(writer.notices_break(), Some(1_002));
}

#[test]
fn a_caller_that_waited_for_one_that_waited_in_vain_does_not_wait_again() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("t.db");
    let (ours, other) = (Connection::open(&file).unwrap(), Connection::open(&file).unwrap());
    ours.execute_batch("PRAGMA journal_mode = WAL; CREATE TABLE t (x INTEGER NOT NULL) STRICT")
        .unwrap();
    ours.busy_timeout(Duration::ZERO).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let writer = Writer::new("test".into(), ours, None, &Clock::system());
    let arrived = clock::monotonic();
    assert!(matches!(insert(&writer, Some(1)), Err(Error::Busy { .. })));
    other.execute_batch("ROLLBACK").unwrap();
    let mut core = writer.enter(Urgency::Normal);
    let told = writer.begin(&mut core, arrived, "insert").unwrap_err();
    assert!(matches!(told, Error::Busy { .. }), "{told:?}");
    drop(core);
    assert_eq!(insert(&writer, Some(1)).unwrap(), 1, "who arrives later tries by itself");
}

#[test]
fn a_wait_for_a_commit_that_does_not_come_ends_without_one() {
    let writer = writer();
    insert(&writer, Some(1)).unwrap();
    assert!(!writer.wait_for_commit(writer.commits(), Duration::ZERO));
    assert!(writer.wait_for_commit(0, Duration::ZERO));
}
