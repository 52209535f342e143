//! The writer: one writer at a time, and one commit for many callers.
//!
//! SQLite has a single write lock and pays one fsync per commit, so callers share both. A caller
//! enters and does its work in a SAVEPOINT of the open transaction. If another caller already waits
//! to enter, the first one leaves the transaction open for it and waits. The last caller commits
//! for all, and no caller gets its answer before the commit is durable. There is no thread and no
//! channel: every caller works on its own thread with its own data, and a single caller pays for
//! nothing that it does not use. In a simulation, the writer is therefore a plain function call.
//!
//! Processes that share the file take [turns](super::turn) before they begin, and give up their
//! turn after [`TURN`], because SQLite's own busy handler lets one process starve another.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use rusqlite::Connection;

use super::moved::{Moved, Whereabouts};
use super::turn::Turns;
use super::watch::Watch;
use super::witness::{Beat, Witness};
use super::{error, file};
use crate::clock::{self, Clock};
use crate::job::Invalid;
use crate::store::{Error, Result};

/// How long one process keeps the file to itself while others may be waiting.
const TURN: Duration = Duration::from_millis(10);

/// A clock that runs ahead by no more than this is being adjusted, not set.
const BREAK_MS: i64 = 500;

/// Which callers of one process go first when several wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Urgency {
    /// For renewals, registrations and clock breaks: a lease that is not renewed in time means that
    /// a job runs twice.
    First,
    /// Everything else.
    Normal,
}

pub(super) struct Writer {
    /// The name of the store in errors.
    pub(super) target: String,
    core: Mutex<Core>,
    /// Signalled when a group has ended, or when an urgent caller has entered.
    moved: Condvar,
    /// How many callers wait to enter, urgent ones included. A caller that leaves a group open
    /// relies on one of them to end it.
    waiting: AtomicUsize,
    urgent: AtomicUsize,
    /// The files beside the database; `None` for a store in memory.
    beside: Option<Beside>,
    /// Whether the last check found that the file is no longer at its path.
    is_moved: AtomicBool,
    /// How far the clock was ahead of the monotonic time when a break was last recorded.
    ahead: AtomicI64,
    /// The clock that callers read.
    clock: Clock,
    /// Counts commits that changed something, for [`Writer::wait_for_commit`].
    commits: Mutex<u64>,
    committed: Condvar,
    /// The thread that has a transaction of its own. If it entered again, it would wait for itself.
    alone: Mutex<Option<ThreadId>>,
    /// Watches the connection while a user's own SQL runs on it.
    pub(super) watch: Watch,
    /// Set only by `tenure-drill`, to show why groups begin with IMMEDIATE.
    #[cfg(feature = "drill")]
    pub(super) deferred: AtomicBool,
    /// Set only by `tenure-drill`, to show why the file's place is checked.
    #[cfg(feature = "drill")]
    pub(super) blind: AtomicBool,
}

/// The files beside a database that processes share.
pub(super) struct Beside {
    /// The lock for taking turns.
    pub(super) turns: Turns,
    /// The record of the last commit.
    pub(super) witness: Witness,
    /// Which files are open, and where.
    pub(super) whereabouts: Whereabouts,
}

struct Core {
    connection: Connection,
    group: Option<Group>,
    /// The beat that the store has when the open group is committed.
    beat: Option<Beat>,
    /// When a caller last found the file locked by another program.
    busy: Option<Instant>,
    /// How many rows had been changed when the last group ended: a commit that changed none ends no
    /// wait.
    changes: u64,
}

/// An open transaction, and the callers that wait for its commit.
struct Group {
    since: Instant,
    end: Arc<OnceLock<End>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Committed,
    /// Rolled back as a whole. Each caller in it does its work again, alone.
    Lost,
    /// Committed to a file that is no longer at its path: no other process will ever see it.
    Moved(Moved),
}

impl Writer {
    /// A writer for a connection that nothing else writes with. `clock` is the clock that its
    /// callers read.
    pub(super) fn new(
        target: String,
        connection: Connection,
        beside: Option<Beside>,
        clock: &Clock,
    ) -> Writer {
        Writer {
            target,
            core: Mutex::new(Core {
                changes: connection.total_changes(),
                connection,
                group: None,
                beat: None,
                busy: None,
            }),
            moved: Condvar::new(),
            waiting: AtomicUsize::new(0),
            urgent: AtomicUsize::new(0),
            beside,
            is_moved: AtomicBool::new(false),
            ahead: AtomicI64::new(clock.ahead()),
            clock: clock.clone(),
            commits: Mutex::new(0),
            committed: Condvar::new(),
            alone: Mutex::new(None),
            watch: Watch::default(),
            #[cfg(feature = "drill")]
            deferred: AtomicBool::new(false),
            #[cfg(feature = "drill")]
            blind: AtomicBool::new(false),
        }
    }

    /// Runs `work` in a transaction and returns once it is durable. An error of `work` rolls back
    /// its own writes and no others. `work` may run twice; the first run is rolled back then.
    pub(super) fn write<T>(
        &self,
        doing: &'static str,
        urgency: Urgency,
        work: impl Fn(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T> {
        self.refuse_second_entry(doing)?;
        let arrived = clock::monotonic();
        let mut core = self.enter(urgency);
        if core.group.is_none() {
            self.begin(&mut core, arrived, doing)?;
        }
        let end = core.group.as_ref().map(|group| Arc::clone(&group.end)).unwrap_or_default();
        let answer = catch_unwind(AssertUnwindSafe(|| in_savepoint(&core.connection, &work)));
        if core.connection.is_autocommit() {
            // The error was so severe that SQLite ended the whole transaction.
            let _ = self.end(&mut core, End::Lost);
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
            (Err(cause), Some(End::Committed)) => Err(self.error(doing, cause)),
            (_, Some(End::Moved(moved))) => Err(moved.error(&self.target)),
            (_, Some(End::Lost) | None) => self.write_alone(doing, urgency, work),
        }
    }

    /// Like [`Writer::write`], in a transaction of its own.
    pub(super) fn write_alone<T>(
        &self,
        doing: &'static str,
        urgency: Urgency,
        work: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T> {
        let answer = self.alone(doing, urgency, |connection| work(connection))?;
        answer.map_err(|cause| self.error(doing, cause))
    }

    /// Like [`Writer::write_alone`], for work with its own error type: an error rolls back
    /// everything, and so does a panic.
    pub(super) fn alone<T, E: From<rusqlite::Error>>(
        &self,
        doing: &'static str,
        urgency: Urgency,
        work: impl FnOnce(&mut Connection) -> Result<T, E>,
    ) -> Result<Result<T, E>> {
        self.refuse_second_entry(doing)?;
        let arrived = clock::monotonic();
        let mut core = self.enter(urgency);
        if core.group.is_some() {
            self.commit(&mut core);
        }
        self.begin(&mut core, arrived, doing)?;
        self.set_alone(Some(thread::current().id()));
        let answer = catch_unwind(AssertUnwindSafe(|| {
            let answer = work(&mut core.connection)?;
            self.beat(&mut core)?;
            core.connection.execute_batch("COMMIT")?;
            Ok(answer)
        }));
        self.set_alone(None);
        let end = if matches!(answer, Ok(Ok(_))) { End::Committed } else { End::Lost };
        let end = self.end(&mut core, end);
        drop(core);
        if let End::Moved(moved) = end {
            return Err(moved.error(&self.target));
        }
        Ok(answer.unwrap_or_else(|panic| resume_unwind(panic)))
    }

    /// Checks that the file is still at its path. If not, nothing that was read or written before
    /// may be acknowledged.
    pub(super) fn check_place(&self) -> Result<()> {
        self.look().map_err(|moved| moved.error(&self.target))
    }

    fn look(&self) -> Result<(), Moved> {
        #[cfg(feature = "drill")]
        if self.blind.load(Ordering::SeqCst) {
            return Ok(());
        }
        let found = self.beside.as_ref().map_or(Ok(()), |beside| beside.whereabouts.check());
        if found.is_err() {
            self.is_moved.store(true, Ordering::SeqCst);
        }
        found
    }

    /// The error to return for an error of SQLite. If the file is no longer at its path, that is
    /// the cause.
    pub(super) fn error(&self, doing: &'static str, cause: rusqlite::Error) -> Error {
        self.check_place().err().unwrap_or_else(|| error::from_sqlite(&self.target, doing, cause))
    }

    /// The witness; `None` for a store in memory.
    pub(super) fn witness(&self) -> Option<&Witness> {
        self.beside.as_ref().map(|beside| &beside.witness)
    }

    /// How many commits of this process have changed something through this writer.
    pub(super) fn commits(&self) -> u64 {
        *self.commits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Blocks until there are more commits than `seen`, for at most `length`.
    pub(super) fn wait_for_commit(&self, seen: u64, length: Duration) -> bool {
        let commits = self.commits.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.committed.wait_timeout_while(commits, length, |commits| *commits == seen);
        *waited.unwrap_or_else(PoisonError::into_inner).0 != seen
    }

    /// How far the clock is ahead, if it was set forward or the machine slept since a break was
    /// last recorded.
    pub(super) fn notices_break(&self) -> Option<i64> {
        let (ahead, noted) = (self.clock.ahead(), self.ahead.load(Ordering::SeqCst));
        if ahead < noted {
            // The clock was set back: this makes no lease end too early.
            self.ahead.store(ahead, Ordering::SeqCst);
        }
        (ahead - noted > BREAK_MS).then_some(ahead)
    }

    /// Call this when a break that was noticed is recorded.
    pub(super) fn noted_break(&self, ahead: i64) {
        self.ahead.store(ahead, Ordering::SeqCst);
    }

    /// Lets `tenure-drill` use the connection while no other caller does.
    #[cfg(feature = "drill")]
    pub(super) fn with_connection<T>(&self, look: impl FnOnce(&mut Connection) -> T) -> T {
        let mut core = self.enter(Urgency::Normal);
        if core.group.is_some() {
            self.commit(&mut core);
        }
        look(&mut core.connection)
    }

    /// Refuses a caller that is already inside on the same thread; it would wait for itself for
    /// ever.
    fn refuse_second_entry(&self, doing: &'static str) -> Result<()> {
        let alone = *self.alone.lock().unwrap_or_else(PoisonError::into_inner);
        if alone != Some(thread::current().id()) {
            return Ok(());
        }
        let why = format!(
            "cannot {doing} on {} in the middle of a transaction on it; use the transaction's own methods, \
             or do it before or after",
            self.target
        );
        Err(Invalid::Value { field: "transaction", why }.into())
    }

    fn set_alone(&self, who: Option<ThreadId>) {
        *self.alone.lock().unwrap_or_else(PoisonError::into_inner) = who;
    }

    /// Takes the connection. Urgent callers overtake callers that wait here.
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

    /// Begins a group. `arrived` is when the caller began to wait.
    fn begin(&self, core: &mut Core, arrived: Instant, doing: &'static str) -> Result<()> {
        if core.busy.is_some_and(|busy| busy > arrived) {
            // Another caller waited for the lock without success while this one waited for that
            // caller. Do not wait again.
            let cause = "the file was locked by another program".into();
            return Err(Error::Busy { doing, target: self.target.clone(), source: cause });
        }
        if self.is_moved.load(Ordering::SeqCst) {
            // Write nothing more into a file that was moved, unless it is back.
            self.check_place()?;
            self.is_moved.store(false, Ordering::SeqCst);
        }
        let turn = self.beside.as_ref().map_or(Ok(()), |beside| beside.turns.take());
        turn.map_err(|cause| error::from_io(&self.target, doing, cause))?;
        let begun = core.connection.execute_batch(self.beginning()).and_then(|()| self.heed(core));
        core.busy = begun.as_ref().err().map(|_| clock::monotonic());
        match begun {
            Ok(()) => {
                core.group = Some(Group { since: clock::monotonic(), end: Arc::default() });
                Ok(())
            }
            Err(cause) => {
                if !core.connection.is_autocommit() {
                    let _ = core.connection.execute_batch("ROLLBACK");
                }
                self.give_back_turn();
                Err(self.error(doing, cause))
            }
        }
    }

    /// IMMEDIATE takes the write lock at once. Otherwise a transaction that reads first and then
    /// writes would fail if another process wrote in between.
    fn beginning(&self) -> &'static str {
        #[cfg(feature = "drill")]
        if self.deferred.load(Ordering::SeqCst) {
            return "BEGIN";
        }
        "BEGIN IMMEDIATE"
    }

    /// Starts a new epoch if an older state was put into the file while this process had it open.
    /// In this process's turn, the witness cannot be ahead of the file for any other reason.
    fn heed(&self, core: &Core) -> rusqlite::Result<()> {
        match &self.beside {
            Some(beside) => file::heed(&core.connection, &beside.witness, &self.clock).map(drop),
            None => Ok(()),
        }
    }

    fn give_back_turn(&self) {
        if let Some(beside) = &self.beside {
            beside.turns.give_back();
        }
    }

    /// Whether the next caller, which already waits to enter, may commit for this one as well.
    fn may_leave_open(&self, core: &Core) -> bool {
        self.waiting.load(Ordering::SeqCst) > 0
            && core.group.as_ref().is_some_and(|group| clock::monotonic() - group.since < TURN)
    }

    /// Raises the beat in a transaction that has changed something.
    fn beat(&self, core: &mut Core) -> rusqlite::Result<()> {
        core.beat = None;
        if self.beside.is_some() && core.connection.total_changes() != core.changes {
            core.beat = Some(file::beat(&core.connection)?);
        }
        Ok(())
    }

    fn commit(&self, core: &mut Core) {
        let committed = self.beat(core).and_then(|()| core.connection.execute_batch("COMMIT"));
        let end = match committed {
            Ok(()) => End::Committed,
            Err(_) => End::Lost,
        };
        let _ = self.end(core, end);
    }

    /// Closes the group, answers its callers, and lets other processes have their turn.
    fn end(&self, core: &mut Core, end: End) -> End {
        if !core.connection.is_autocommit() {
            // A failure here leaves nothing to undo: SQLite rolls back what was not committed.
            let _ = core.connection.execute_batch("ROLLBACK");
        }
        // Check after the commit and before the answer. If the file is replaced only later, the
        // replaced file contained the commit when it was acknowledged.
        let end = match self.look() {
            Err(moved) if end == End::Committed => End::Moved(moved),
            _ => end,
        };
        // In this process's turn, so that no other process writes the witness in between.
        if let (End::Committed, Some(beat), Some(beside)) = (end, core.beat.take(), &self.beside) {
            beside.witness.write(&beat);
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
        end
    }
}

/// Runs `work` so that its failure rolls back only its own writes.
pub(super) fn in_savepoint<T>(
    connection: &Connection,
    work: impl FnOnce(&Connection) -> rusqlite::Result<T>,
) -> rusqlite::Result<T> {
    connection.prepare_cached("SAVEPOINT caller")?.execute([])?;
    let undo = Undo(connection);
    let answer = work(connection)?;
    connection.prepare_cached("RELEASE caller")?.execute([])?;
    std::mem::forget(undo);
    Ok(answer)
}

/// Rolls back a savepoint unless it was released, also when the work panics.
struct Undo<'a>(&'a Connection);

impl Drop for Undo<'_> {
    fn drop(&mut self) {
        // If the whole transaction is gone already, so is the savepoint.
        if !self.0.is_autocommit() {
            let undone = self.0.execute_batch("ROLLBACK TO caller; RELEASE caller");
            if undone.is_err() {
                // If that fails, roll back everything. The whole group then does its work again,
                // and nothing is left of this caller's unfinished work.
                let _ = self.0.execute_batch("ROLLBACK");
            }
        }
    }
}

#[cfg(test)]
mod tests;
