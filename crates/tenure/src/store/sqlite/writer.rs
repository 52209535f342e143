//! One writer at a time, and one commit for many callers.
//!
//! SQLite has a single write lock and pays one fsync per commit, so callers share both. A caller
//! enters, does its work in a SAVEPOINT of the open transaction, and, if another caller is already
//! at the door, leaves the transaction to that one and waits. The last one commits for all, and
//! nobody is answered before the commit is durable. There is no thread and no channel: every caller
//! works on its own thread with its own data, and a single caller pays for nothing it does not use.
//! That also makes the writer a plain function call in a simulation.
//!
//! Processes that share the file take [turns](super::turn) before they begin,
//! and give it up after [`TURN`], because SQLite's own busy handler lets one process starve
//! another.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use rusqlite::Connection;

use super::error;
use super::turn::Turns;
use crate::clock;
use crate::store::{Error, Result};

/// How long one process keeps the file to itself while others may be waiting.
const TURN: Duration = Duration::from_millis(10);

/// Who goes first when several callers of one process wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Urgency {
    /// Renewals: a lease that is not renewed in time is work done twice.
    First,
    /// Everything else.
    Normal,
}

pub(super) struct Writer {
    /// What errors call the store.
    pub(super) target: String,
    core: Mutex<Core>,
    /// Signalled when a group has ended, or when an urgent caller has entered.
    moved: Condvar,
    /// Callers at the door, urgent ones included. Whoever leaves a group open relies on one of them
    /// to end it.
    waiting: AtomicUsize,
    urgent: AtomicUsize,
    /// The lock by which processes take turns; none for a store in memory.
    turns: Option<Turns>,
    /// Counts commits that changed something, for [`Writer::wait_for_commit`].
    commits: Mutex<u64>,
    committed: Condvar,
}

struct Core {
    connection: Connection,
    group: Option<Group>,
    /// When somebody last found the file locked by another program.
    busy: Option<Instant>,
    /// How many rows had been changed when the last group ended: a commit that changed none wakes
    /// nobody.
    changes: u64,
}

/// An open transaction and those who wait for its commit.
struct Group {
    since: Instant,
    end: Arc<OnceLock<End>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Committed,
    /// It was rolled back as a whole. Everyone in it does their work again, alone.
    Lost,
}

impl Writer {
    pub(super) fn new(target: String, connection: Connection, turns: Option<Turns>) -> Writer {
        Writer {
            target,
            core: Mutex::new(Core {
                changes: connection.total_changes(),
                connection,
                group: None,
                busy: None,
            }),
            moved: Condvar::new(),
            waiting: AtomicUsize::new(0),
            urgent: AtomicUsize::new(0),
            turns,
            commits: Mutex::new(0),
            committed: Condvar::new(),
        }
    }

    /// Runs `work` in a transaction and returns once it is durable. An error of `work` undoes its
    /// own writes and no others. `work` may run twice, the second time as if the first had not
    /// been.
    pub(super) fn write<T>(
        &self,
        doing: &'static str,
        urgency: Urgency,
        work: impl Fn(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T> {
        let arrived = clock::monotonic();
        let mut core = self.enter(urgency);
        if core.group.is_none() {
            self.begin(&mut core, arrived, doing)?;
        }
        let end = core.group.as_ref().map(|group| Arc::clone(&group.end)).unwrap_or_default();
        let answer = catch_unwind(AssertUnwindSafe(|| in_savepoint(&core.connection, &work)));
        if core.connection.is_autocommit() {
            // The error was so grave that SQLite ended the whole transaction.
            self.end(&mut core, End::Lost);
        } else if self.may_leave_open(&core) {
            while end.get().is_none() {
                core = self.moved.wait(core).unwrap_or_else(PoisonError::into_inner);
            }
        } else {
            self.commit(&mut core);
        }
        drop(core);
        let answer = answer.unwrap_or_else(|panic| resume_unwind(panic));
        match (answer, end.get()) {
            (Ok(answer), Some(End::Committed)) => Ok(answer),
            (Err(cause), Some(End::Committed)) => {
                Err(error::from_sqlite(&self.target, doing, cause))
            }
            (_, Some(End::Lost) | None) => self.write_alone(doing, urgency, work),
        }
    }

    /// The same, in a transaction of its own.
    pub(super) fn write_alone<T>(
        &self,
        doing: &'static str,
        urgency: Urgency,
        work: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T> {
        let arrived = clock::monotonic();
        let mut core = self.enter(urgency);
        if core.group.is_some() {
            self.commit(&mut core);
        }
        self.begin(&mut core, arrived, doing)?;
        let answer = catch_unwind(AssertUnwindSafe(|| {
            let answer = work(&core.connection)?;
            core.connection.execute_batch("COMMIT")?;
            Ok(answer)
        }));
        let end = if matches!(answer, Ok(Ok(_))) { End::Committed } else { End::Lost };
        self.end(&mut core, end);
        drop(core);
        let answer = answer.unwrap_or_else(|panic| resume_unwind(panic));
        answer.map_err(|cause| error::from_sqlite(&self.target, doing, cause))
    }

    /// How many commits of this process have changed something through this writer.
    pub(super) fn commits(&self) -> u64 {
        *self.commits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Blocks until there were more commits than `seen`, at most for `length`.
    pub(super) fn wait_for_commit(&self, seen: u64, length: Duration) -> bool {
        let commits = self.commits.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.committed.wait_timeout_while(commits, length, |commits| *commits == seen);
        *waited.unwrap_or_else(PoisonError::into_inner).0 != seen
    }

    /// Lets the proof use the connection while nobody else does.
    #[cfg(feature = "drill")]
    pub(super) fn with_connection<T>(&self, look: impl FnOnce(&mut Connection) -> T) -> T {
        let mut core = self.enter(Urgency::Normal);
        if core.group.is_some() {
            self.commit(&mut core);
        }
        look(&mut core.connection)
    }

    /// Takes the connection. Urgent callers overtake those that wait here.
    fn enter(&self, urgency: Urgency) -> MutexGuard<'_, Core> {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        if urgency == Urgency::First {
            self.urgent.fetch_add(1, Ordering::SeqCst);
        }
        // A caller that panicked has rolled back its own savepoint, so the core is sound.
        let mut core = self.core.lock().unwrap_or_else(PoisonError::into_inner);
        match urgency {
            Urgency::First => {
                self.urgent.fetch_sub(1, Ordering::SeqCst);
                self.moved.notify_all();
            }
            Urgency::Normal => {
                while self.urgent.load(Ordering::SeqCst) > 0 {
                    core = self.moved.wait(core).unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        core
    }

    /// Begins a group. `arrived` is when the caller came to the door.
    fn begin(&self, core: &mut Core, arrived: Instant, doing: &'static str) -> Result<()> {
        if core.busy.is_some_and(|busy| busy > arrived) {
            // Somebody has waited in vain while this caller waited for them. Once is enough.
            let cause = "the file was locked by another program".into();
            return Err(Error::Busy { doing, target: self.target.clone(), source: cause });
        }
        let turn = self.turns.as_ref().map_or(Ok(()), Turns::take);
        turn.map_err(|cause| error::from_io(&self.target, doing, cause))?;
        // IMMEDIATE: a transaction that reads first and then writes would fail at once if another
        // wrote in between.
        let begun = core.connection.execute_batch("BEGIN IMMEDIATE");
        core.busy = begun.as_ref().err().map(|_| clock::monotonic());
        match begun {
            Ok(()) => {
                core.group = Some(Group { since: clock::monotonic(), end: Arc::default() });
                Ok(())
            }
            Err(cause) => {
                self.give_back_turn();
                Err(error::from_sqlite(&self.target, doing, cause))
            }
        }
    }

    fn give_back_turn(&self) {
        if let Some(turns) = &self.turns {
            turns.give_back();
        }
    }

    /// Whether the next caller, who is at the door already, may commit for this one as well.
    fn may_leave_open(&self, core: &Core) -> bool {
        self.waiting.load(Ordering::SeqCst) > 0
            && core.group.as_ref().is_some_and(|group| clock::monotonic() - group.since < TURN)
    }

    fn commit(&self, core: &mut Core) {
        let end = match core.connection.execute_batch("COMMIT") {
            Ok(()) => End::Committed,
            Err(_) => End::Lost,
        };
        self.end(core, end);
    }

    /// Closes the group, tells everyone in it, and lets other processes have their turn.
    fn end(&self, core: &mut Core, end: End) {
        if !core.connection.is_autocommit() {
            // A failure here leaves nothing to undo: SQLite rolls back what was not committed.
            let _ = core.connection.execute_batch("ROLLBACK");
        }
        self.give_back_turn();
        if let Some(group) = core.group.take() {
            let _ = group.end.set(end);
        }
        self.moved.notify_all();
        let changes = core.connection.total_changes();
        if end == End::Committed && std::mem::replace(&mut core.changes, changes) != changes {
            *self.commits.lock().unwrap_or_else(PoisonError::into_inner) += 1;
            self.committed.notify_all();
        }
    }
}

/// Runs `work` so that its failure undoes its own writes only.
fn in_savepoint<T>(
    connection: &Connection,
    work: impl Fn(&Connection) -> rusqlite::Result<T>,
) -> rusqlite::Result<T> {
    connection.prepare_cached("SAVEPOINT caller")?.execute([])?;
    let undo = Undo(connection);
    let answer = work(connection)?;
    connection.prepare_cached("RELEASE caller")?.execute([])?;
    std::mem::forget(undo);
    Ok(answer)
}

/// Undoes a savepoint unless it was released, also when the work panics.
struct Undo<'a>(&'a Connection);

impl Drop for Undo<'_> {
    fn drop(&mut self) {
        // If the whole transaction is gone already, so is the savepoint.
        if !self.0.is_autocommit() {
            let undone = self.0.execute_batch("ROLLBACK TO caller; RELEASE caller");
            if undone.is_err() {
                // Better that the whole group does its work again than that half of this is kept.
                let _ = self.0.execute_batch("ROLLBACK");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    fn writer() -> Writer {
        let connection = Connection::open_in_memory().unwrap();
        connection.execute_batch("CREATE TABLE t (x INTEGER NOT NULL) STRICT").unwrap();
        Writer::new("test".into(), connection, None)
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

    /// Lets time pass in which something may go wrong, and returns as soon as it has.
    fn linger_unless(length: Duration, gone_wrong: impl Fn() -> bool) {
        let since = clock::monotonic();
        while clock::monotonic() - since < length && !gone_wrong() {
            std::thread::yield_now();
        }
    }

    /// Spawns `insert(x)` and returns once it is at the door.
    fn at_the_door<'s>(scope: &'s std::thread::Scope<'s, '_>, writer: &'s Writer, x: i64) {
        let before = writer.waiting.load(Ordering::SeqCst);
        scope.spawn(move || insert(writer, Some(x)).unwrap());
        while writer.waiting.load(Ordering::SeqCst) == before {
            std::thread::yield_now();
        }
    }

    #[test]
    fn two_callers_that_both_write_share_one_commit() {
        // On a busy machine a turn may be over before the second is at the door, but not every time.
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
        // The constraint is looked at by COMMIT, and only there.
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
        let writer = Writer::new("test".into(), ours, None);
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
}
