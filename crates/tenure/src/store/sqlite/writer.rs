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

/// A clock that runs ahead by less is being adjusted, not set.
const BREAK_MS: i64 = 500;

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
    /// What stands beside the file; none for a store in memory.
    beside: Option<Beside>,
    /// The file was found elsewhere.
    is_moved: AtomicBool,
    /// How far the clock was ahead of the time that really passed, when a break was last noted.
    ahead: AtomicI64,
    /// Where callers read the time.
    clock: Clock,
    /// Counts commits that changed something, for [`Writer::wait_for_commit`].
    commits: Mutex<u64>,
    committed: Condvar,
    /// Who works in a transaction of their own. If they came to the door again, they would wait for themselves.
    alone: Mutex<Option<ThreadId>>,
    /// Over the connection, while a user's own SQL runs on it.
    pub(super) watch: Watch,
    /// Set by the proof alone, to show why groups begin as they do.
    #[cfg(feature = "drill")]
    pub(super) deferred: AtomicBool,
    /// The same, to show why it is looked where the file is.
    #[cfg(feature = "drill")]
    pub(super) blind: AtomicBool,
}

/// What stands beside a file that processes share.
pub(super) struct Beside {
    /// The lock by which they take turns.
    pub(super) turns: Turns,
    /// What remembers how far the file has come.
    pub(super) witness: Witness,
    /// Which file it is, and where.
    pub(super) whereabouts: Whereabouts,
}

struct Core {
    connection: Connection,
    group: Option<Group>,
    /// How far the store will have come when the open group is committed.
    beat: Option<Beat>,
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
    /// It was committed to a file that is not where it was: nobody else will ever see it.
    Moved(Moved),
}

impl Writer {
    /// A writer for a connection that nobody else writes with. `clock` is where its callers read the time.
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

    /// Runs `work` in a transaction and returns once it is durable. An error of `work` undoes its
    /// own writes and no others. `work` may run twice, the second time as if the first had not
    /// been.
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
            // The error was so grave that SQLite ended the whole transaction.
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

    /// The same, in a transaction of its own.
    pub(super) fn write_alone<T>(
        &self,
        doing: &'static str,
        urgency: Urgency,
        work: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T> {
        let answer = self.alone(doing, urgency, |connection| work(connection))?;
        answer.map_err(|cause| self.error(doing, cause))
    }

    /// The same, for work that has errors of its own: any of them undoes everything, and so does a panic.
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

    /// Makes sure that the file is where it was. Nothing is said of what was read or written before.
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

    /// What an error of SQLite's comes from. In a file that is not where it was, anything may fail.
    pub(super) fn error(&self, doing: &'static str, cause: rusqlite::Error) -> Error {
        self.check_place().err().unwrap_or_else(|| error::from_sqlite(&self.target, doing, cause))
    }

    /// What remembers how far the file has come; none for a store in memory.
    pub(super) fn witness(&self) -> Option<&Witness> {
        self.beside.as_ref().map(|beside| &beside.witness)
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

    /// By how much the clock runs ahead, if it was set forward, or the machine slept, since somebody last noted it.
    pub(super) fn notices_break(&self) -> Option<i64> {
        let (ahead, noted) = (self.clock.ahead(), self.ahead.load(Ordering::SeqCst));
        if ahead < noted {
            // It was set back: nobody's lease is over too early by that.
            self.ahead.store(ahead, Ordering::SeqCst);
        }
        (ahead - noted > BREAK_MS).then_some(ahead)
    }

    /// A break that was noticed is written down.
    pub(super) fn noted_break(&self, ahead: i64) {
        self.ahead.store(ahead, Ordering::SeqCst);
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

    /// Whoever is inside already, on the same thread, is told so instead of waiting for ever.
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
        if self.is_moved.load(Ordering::SeqCst) {
            // Nothing more goes into a file that was found elsewhere, unless it is back.
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

    /// IMMEDIATE: a transaction that reads first and then writes would fail at once if another wrote in between.
    fn beginning(&self) -> &'static str {
        #[cfg(feature = "drill")]
        if self.deferred.load(Ordering::SeqCst) {
            return "BEGIN";
        }
        "BEGIN IMMEDIATE"
    }

    /// Begins a new epoch if somebody has put an older state into the file while we had it open. In our turn the witness
    /// cannot be ahead of it otherwise.
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

    /// Whether the next caller, who is at the door already, may commit for this one as well.
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

    /// Closes the group, tells everyone in it, and lets other processes have their turn.
    fn end(&self, core: &mut Core, end: End) -> End {
        if !core.connection.is_autocommit() {
            // A failure here leaves nothing to undo: SQLite rolls back what was not committed.
            let _ = core.connection.execute_batch("ROLLBACK");
        }
        // After the commit and before the answer: a file that is replaced later had the commit in it.
        let end = match self.look() {
            Err(moved) if end == End::Committed => End::Moved(moved),
            _ => end,
        };
        // In our turn, so that no other process writes down what it knows in between.
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

/// Runs `work` so that its failure undoes its own writes only.
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
mod tests;
