//! The SQLite engine: jobs in one file, nothing to install, many processes on one machine.
//!
//! All writes of a process to one file go through one writer, which commits the work of many
//! callers at once; each connection reads with its own reader. The verbs are one file each, in the
//! order of a job's life: enqueue, claim, renew, progress, settle, lapse, then operate and look.
//! There is no policy here, and the time always comes from the clock.

mod check;
mod claim;
#[cfg(feature = "drill")]
mod drill;
mod enqueue;
mod error;
mod file;
mod guard;
mod health;
mod lapse;
mod ledger;
mod look;
mod mount;
mod moved;
mod operate;
mod progress;
mod renew;
mod row;
mod settle;
mod statements;
#[cfg(test)]
mod tests;
mod transact;
mod turn;
mod tx;
mod watch;
mod witness;
mod writer;

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use rusqlite::Connection;

use self::file::Foreign;
use self::guard::Guards;
pub use self::health::Beside;
use self::moved::{FileIdentity, identity};
use self::statements::Statements;
pub use self::transact::Transaction;
use self::tx::Tx;
use self::writer::{Urgency, Writer};
use super::{
    AsSeen, Attempt, Beat, Changed, Claim, Claimed, Enqueued, Guarded, Lapse, Lapsed, Operate,
    Pruned, QueueChange, Registration, Renewed, Report, Reported, Resolved, Result, Settled,
    Settlement, Wake, Work, check_batch, check_claim, check_entries, check_guard_gap, check_jobs,
    check_lease, check_resolution, check_settlements, migrate, sealed,
};
use crate::clock::{self, Clock};
use crate::inspect::{Current, QueueSettings};
use crate::job::{JobId, Limits, Name, NewJob};
use crate::lease::{Fence, WorkerId};
use crate::ledger::{Answer, Entry, Resolution};

pub use super::StoreOptions;

/// The settings and version of SQLite that a store runs with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileFacts {
    /// The version of SQLite in this process.
    pub version: &'static str,
    /// `wal`, unless it was changed by hand.
    pub journal_mode: String,
    /// Whether a commit is on disk before it is acknowledged.
    pub is_synced: bool,
}

/// One connection to a store in a SQLite file. The connections of one process to one file share one
/// writer.
pub struct Sqlite {
    writer: Arc<Writer>,
    /// `None` for a store in memory, where everything goes through the writer.
    reader: Option<Connection>,
    sql: Arc<Statements>,
    clock: Clock,
    limits: Limits,
    /// The version that the last claim or wait saw; a change since then ends the next wait.
    seen: Version,
    /// The worker locks that this connection holds; also checks the locks of other workers.
    guards: Guards,
    /// When the last change was seen; decides how often `wait` polls.
    active: Instant,
}

/// The version of a store: how many commits this process has made, and SQLite's `data_version`,
/// which changes with the commits of other processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Version {
    ours: u64,
    others: i64,
}

impl Sqlite {
    /// Opens a file, creates it if it does not exist, and brings its schema up to date. A file that
    /// is created here can be read by its owner only.
    pub fn open(path: impl AsRef<Path>, options: &StoreOptions) -> Result<Sqlite> {
        Sqlite::open_file(path.as_ref(), options, Foreign::Refuse)
    }

    /// Like [`Sqlite::open`], for a database that has other tables: Tenure's tables are added to
    /// them.
    pub fn adopt(path: impl AsRef<Path>, options: &StoreOptions) -> Result<Sqlite> {
        Sqlite::open_file(path.as_ref(), options, Foreign::Adopt)
    }

    /// A store that lives as long as its connections: for tests and simulations.
    pub fn in_memory(options: &StoreOptions) -> Result<Sqlite> {
        Sqlite::in_memory_with(options, embedded(), |_, text| text.to_owned())
    }

    /// Another connection to the same store, in a file or in memory. Both share the writer.
    pub fn share(&self) -> Result<Sqlite> {
        let reader = match self.guards.database() {
            None => None,
            Some(path) => {
                self.writer.check_place()?;
                let reader = file::open_reader(path, &self.writer.target)?;
                // Check again: otherwise the reader could have opened a file that replaced the
                // first one.
                self.writer.check_place()?;
                Some(reader)
            }
        };
        Ok(Sqlite {
            writer: Arc::clone(&self.writer),
            reader,
            sql: Arc::clone(&self.sql),
            clock: self.clock.clone(),
            limits: self.limits,
            seen: Version::default(),
            guards: self.guards.share(),
            active: clock::monotonic(),
        })
    }

    /// Reads the settings that this store's guarantees depend on.
    pub fn facts(&self) -> Result<FileFacts> {
        self.writer.write("look at the settings", Urgency::Normal, |connection| {
            let synchronous =
                connection.pragma_query_value(None, "synchronous", |row| row.get::<_, i64>(0))?;
            let journal_mode =
                connection.pragma_query_value(None, "journal_mode", |row| row.get(0))?;
            Ok(FileFacts {
                version: rusqlite::version(),
                journal_mode,
                is_synced: synchronous >= 2,
            })
        })
    }

    /// The state of a file's schema. Changes nothing.
    pub fn status(path: impl AsRef<Path>) -> Result<Vec<migrate::Status>> {
        file::status(path.as_ref())
    }

    fn open_file(path: &Path, options: &StoreOptions, foreign: Foreign) -> Result<Sqlite> {
        let path = &file::resolve(path);
        let writer = shared_writer(path, options, foreign)?;
        let reader = file::open_reader(path, &writer.target)?;
        writer.check_place()?;
        Ok(Sqlite::new(writer, Some((path, reader)), options, embedded()))
    }

    fn in_memory_with(
        options: &StoreOptions,
        sql: Arc<Statements>,
        edit: impl Fn(&str, &str) -> String,
    ) -> Result<Sqlite> {
        let target = "in-memory store";
        let failed = |cause| error::from_sqlite(target, "open the store", cause);
        let mut connection = Connection::open_in_memory().map_err(failed)?;
        file::prepare(&connection).map_err(failed)?;
        file::migrate_up_edited(&mut connection, target, &options.clock, Foreign::Refuse, edit)?;
        let writer = Arc::new(Writer::new(target.into(), connection, None, &options.clock));
        Ok(Sqlite::new(writer, None, options, sql))
    }

    fn new(
        writer: Arc<Writer>,
        file: Option<(&Path, Connection)>,
        options: &StoreOptions,
        sql: Arc<Statements>,
    ) -> Sqlite {
        let StoreOptions { clock, limits } = options.clone();
        let (path, reader) = file.unzip();
        Sqlite {
            writer,
            reader,
            sql,
            clock,
            limits,
            guards: Guards::new(path),
            seen: Version::default(),
            active: clock::monotonic(),
        }
    }

    fn write<T>(
        &self,
        doing: &'static str,
        urgency: Urgency,
        verb: impl Fn(&Tx<'_>) -> rusqlite::Result<T>,
    ) -> Result<T> {
        self.writer.write(doing, urgency, |connection| {
            // Read the time here, inside the transaction: it would be old after waiting for the
            // lock.
            verb(&Tx { connection, sql: &self.sql, now: self.clock.now() })
        })
    }

    fn read<T>(
        &self,
        doing: &'static str,
        look: impl Fn(&Tx<'_>) -> rusqlite::Result<T>,
    ) -> Result<T> {
        let Some(connection) = &self.reader else {
            return self.write(doing, Urgency::Normal, look);
        };
        let answer = || {
            let snapshot = connection.unchecked_transaction()?;
            let answer =
                look(&Tx { connection: &snapshot, sql: &self.sql, now: self.clock.now() })?;
            snapshot.finish()?;
            Ok(answer)
        };
        let answer = answer().map_err(|cause| self.writer.error(doing, cause))?;
        // Return nothing from a file that is no longer the one at its path.
        self.writer.check_place()?;
        Ok(answer)
    }

    fn version(&self) -> Result<Version> {
        let others = match &self.reader {
            None => 0,
            Some(reader) => reader
                .prepare_cached("PRAGMA data_version")
                .and_then(|mut version| version.query_row([], |row| row.get(0)))
                .map_err(|cause| self.writer.error("look for changes", cause))?,
        };
        Ok(Version { ours: self.writer.commits(), others })
    }

    /// Records a jump of the clock, if there was one, before any decision depends on the time.
    fn notice_break(&self) -> Result<()> {
        if let Some(ahead) = self.writer.notices_break() {
            self.write("note a jump of the clock", Urgency::First, |tx| tx.break_time())?;
            self.writer.noted_break(ahead);
        }
        Ok(())
    }

    /// The answer to a claim that finds nothing; `None` if the claim might find something.
    /// Remembers the version that it looked at, so that a later change ends a wait.
    fn finds_nothing(&mut self, ask: &Claim) -> Result<Option<Claimed>> {
        self.seen = self.version()?;
        self.read("look for due jobs", |tx| tx.finds_nothing(ask))
    }
}

impl sealed::Sealed for Sqlite {}

impl Work for Sqlite {
    fn enqueue(&mut self, jobs: &[NewJob]) -> Result<Vec<Enqueued>> {
        check_jobs(jobs, &self.limits)?;
        self.write("enqueue", Urgency::Normal, |tx| tx.enqueue(jobs))
    }

    fn claim(&mut self, ask: &Claim) -> Result<Claimed> {
        check_claim(ask)?;
        self.notice_break()?;
        match self.finds_nothing(ask)? {
            Some(nothing) => Ok(nothing),
            None => self.write("claim", Urgency::Normal, |tx| tx.claim(ask)),
        }
    }

    fn held(&mut self, worker: &WorkerId, request: Option<i64>) -> Result<Vec<Attempt>> {
        self.read("look for held jobs", |tx| tx.held(worker, request))
    }

    fn renew(&mut self, fences: &[Fence], length: Duration) -> Result<Vec<Renewed>> {
        check_batch(fences.len())?;
        check_lease(length)?;
        let guarded = self.guards.all();
        self.write("renew", Urgency::First, |tx| {
            guarded.iter().try_for_each(|worker| tx.keep_guard(worker))?;
            tx.renew(fences, length)
        })
    }

    fn progress(&mut self, reports: &[Report]) -> Result<Vec<Reported>> {
        check_batch(reports.len())?;
        self.write("note progress", Urgency::Normal, |tx| tx.progress(reports))
    }

    fn settle(&mut self, settlements: &[Settlement]) -> Result<Vec<Settled>> {
        check_settlements(settlements, &self.limits)?;
        self.write("settle", Urgency::Normal, |tx| tx.settle(settlements))
    }

    fn settle_and_claim(
        &mut self,
        settlements: &[Settlement],
        ask: &Claim,
    ) -> Result<(Vec<Settled>, Claimed)> {
        check_settlements(settlements, &self.limits)?;
        check_claim(ask)?;
        self.notice_break()?;
        self.seen = self.version()?;
        self.write("settle and claim", Urgency::Normal, |tx| {
            Ok((tx.settle(settlements)?, tx.claim(ask)?))
        })
    }

    fn ledger(&mut self, entries: &[Entry]) -> Result<Vec<Answer>> {
        check_entries(entries, &self.limits)?;
        self.write("write to the ledger", Urgency::Normal, |tx| tx.ledger(entries))
    }

    fn register(&mut self, worker: &Registration) -> Result<Guarded> {
        let failed = |cause| error::from_io(&self.writer.target, "guard a worker", cause);
        let guarded = self.guards.take(&worker.worker).map_err(failed)?;
        self.write("register a worker", Urgency::First, |tx| tx.register(worker, guarded))?;
        Ok(guarded)
    }

    fn retire(&mut self, worker: &WorkerId) -> Result<()> {
        self.write("retire a worker", Urgency::Normal, |tx| tx.retire(worker))?;
        self.guards.remove(worker);
        Ok(())
    }

    fn vanished(&mut self, limit: usize) -> Result<Vec<Lapse>> {
        check_batch(limit)?;
        self.notice_break()?;
        let guards = &self.guards;
        if !self.read("look for lost workers", |tx| tx.finds_vanished(guards))? {
            return Ok(Vec::new());
        }
        let (lapses, forgotten) =
            self.write("take jobs from lost workers", Urgency::Normal, |tx| {
                tx.vanished(limit, guards)
            })?;
        forgotten.iter().for_each(|worker| self.guards.remove(worker));
        Ok(lapses)
    }

    fn beat(&mut self) -> Result<Beat> {
        self.notice_break()?;
        let beat = self.read("look at the pulse", |tx| tx.pulse())?;
        if beat.leads {
            self.write("advance the pulse", Urgency::Normal, |tx| tx.advance_pulse())?;
        }
        Ok(beat)
    }

    fn overdue(&mut self, limit: usize, grace: Duration) -> Result<Vec<Fence>> {
        check_batch(limit)?;
        self.notice_break()?;
        self.read("look for lapsed leases", |tx| tx.overdue(limit, grace))
    }

    fn lapse(&mut self, fences: &[Fence]) -> Result<Vec<Lapsed>> {
        check_batch(fences.len())?;
        self.notice_break()?;
        self.write("lapse", Urgency::Normal, |tx| tx.lapse(fences))
    }

    fn prune(&mut self, limit: usize) -> Result<Pruned> {
        check_batch(limit)?;
        let guards = &self.guards;
        self.write("prune", Urgency::Normal, |tx| {
            let pruned = tx.prune(limit)?;
            if pruned.jobs < limit {
                // Read the list of workers in the same transaction: no worker can register between
                // that and the removal of the files.
                tx.sweep_guards(guards)?;
            }
            Ok(pruned)
        })
    }

    fn current(&mut self, jobs: &[JobId]) -> Result<Vec<Option<Current>>> {
        check_batch(jobs.len())?;
        self.read("look up jobs", |tx| jobs.iter().map(|job| tx.stands(*job)).collect())
    }

    fn caution(&mut self) -> Option<String> {
        let problem = self.writer.witness()?.problem()?;
        Some(format!(
            "{problem}, so that a restored file would not be noticed; `tenure doctor` tells what to do"
        ))
    }

    /// Other processes cannot notify this one, so this polls for their commits: often while there
    /// is traffic, seldom when idle.
    fn wait(&mut self, until: Instant) -> Result<Wake> {
        const BRISK: Duration = Duration::from_millis(5);
        const CALM: Duration = Duration::from_millis(25);
        const ACTIVE: Duration = Duration::from_secs(1);
        loop {
            let version = self.version()?;
            self.writer.check_place()?;
            let now = clock::monotonic();
            if version != self.seen {
                (self.seen, self.active) = (version, now);
                return Ok(Wake::Changed);
            }
            if now >= until {
                return Ok(Wake::TimedOut);
            }
            let pause = if now - self.active < ACTIVE { BRISK } else { CALM };
            self.writer.wait_for_commit(version.ours, pause.min(until - now));
        }
    }
}

impl Operate for Sqlite {
    fn cancel(&mut self, jobs: &[JobId]) -> Result<Vec<Changed>> {
        check_batch(jobs.len())?;
        self.write("cancel", Urgency::Normal, |tx| jobs.iter().map(|job| tx.cancel(*job)).collect())
    }

    fn requeue(&mut self, jobs: &[AsSeen]) -> Result<Vec<Changed>> {
        check_batch(jobs.len())?;
        self.write("requeue", Urgency::Normal, |tx| {
            jobs.iter().map(|job| tx.requeue(job)).collect()
        })
    }

    fn resume(&mut self, jobs: &[JobId]) -> Result<Vec<Changed>> {
        check_batch(jobs.len())?;
        self.write("resume", Urgency::Normal, |tx| jobs.iter().map(|job| tx.resume(*job)).collect())
    }

    fn purge(&mut self, jobs: &[AsSeen]) -> Result<Vec<Changed>> {
        check_batch(jobs.len())?;
        self.write("purge", Urgency::Normal, |tx| jobs.iter().map(|job| tx.purge(job)).collect())
    }

    fn configure(&mut self, queue: &Name, change: &QueueChange) -> Result<QueueSettings> {
        self.write("configure a queue", Urgency::Normal, |tx| tx.configure(queue, change))
    }

    fn resolve(&mut self, job: JobId, effect: &Name, how: &Resolution) -> Result<Resolved> {
        check_resolution(how, &self.limits)?;
        self.write("resolve an effect", Urgency::Normal, |tx| tx.resolve(job, effect, how))
    }

    fn raise_epoch(&mut self, reason: &str) -> Result<u32> {
        self.write("raise the epoch", Urgency::Normal, |tx| tx.raise_epoch(tx.epoch()?, reason))
    }

    fn set_guard_gap(&mut self, gap: Duration) -> Result<Duration> {
        check_guard_gap(gap)?;
        self.write("set the guard gap", Urgency::Normal, |tx| tx.set_guard_gap(gap))
    }
}

fn embedded() -> Arc<Statements> {
    static EMBEDDED: OnceLock<Arc<Statements>> = OnceLock::new();
    Arc::clone(EMBEDDED.get_or_init(|| Arc::new(Statements::embedded())))
}

/// The writers of this process, by the identity of their files, not by path: a file that was
/// deleted and created again is another file.
type Writers = HashMap<FileIdentity, Weak<Writer>>;

fn writers() -> MutexGuard<'static, Writers> {
    static WRITERS: OnceLock<Mutex<Writers>> = OnceLock::new();
    WRITERS.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

/// The one writer of this process for a file. Two writers in one process would only wait for each
/// other.
fn shared_writer(path: &Path, options: &StoreOptions, foreign: Foreign) -> Result<Arc<Writer>> {
    let mut writers = writers();
    writers.retain(|_, writer| writer.strong_count() > 0);
    if let Ok(identity) = identity(path)
        && let Some(writer) = writers.get(&identity).and_then(Weak::upgrade)
    {
        return Ok(writer);
    }
    let opened = file::open(path, &options.clock, foreign)?;
    let target = path.display().to_string();
    let identity = opened.beside.whereabouts.files.database;
    let writer =
        Arc::new(Writer::new(target, opened.connection, Some(opened.beside), &options.clock));
    writers.insert(identity, Arc::downgrade(&writer));
    Ok(writer)
}
