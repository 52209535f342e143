//! The user's own transaction: the user's tables and Tenure's verbs in one commit.

use std::cell::RefCell;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

use rusqlite::{Connection, ErrorCode};

use super::tx::Tx;
use super::watch::Watched;
use super::writer::{Urgency, in_savepoint};
use super::{Sqlite, error};
use crate::clock;
use crate::job::NewJob;
use crate::lease::Fence;
use crate::lifecycle::Verb;
use crate::store::{Enqueued, Error, Result, Settled, Settlement, check_jobs, check_settlements};

const DOING: &str = "run a transaction";

/// The user's own transaction on the store's file: the user's tables and Tenure's verbs in one
/// commit.
///
/// It lends the writer's connection for the duration of [`Sqlite::transact`], with every method of
/// [`rusqlite::Connection`] that takes `&self`. A savepoint may be opened in it. SQL that ends the
/// transaction, attaches other files or changes settings is refused, and then the whole transaction
/// is rolled back. A temporary table stays with the connection, which the whole process uses: drop
/// it.
pub struct Transaction<'a> {
    store: &'a Sqlite,
    connection: &'a Watched<'a>,
    heard: RefCell<Vec<Call>>,
    refused: &'a RefCell<Vec<Call>>,
}

/// A settlement, identified by its fence and its verb.
type Call = (Fence, Verb);

impl Sqlite {
    /// Runs `work` in its own transaction, and returns once the transaction is durable. If `work`
    /// returns an error or panics, everything it wrote is rolled back. The same happens if it takes
    /// longer than `limit`; a statement that runs at that time is interrupted.
    ///
    /// Meanwhile no other caller in any process can write, not even to renew a lease: do slow work
    /// before, and keep the limit short compared to your leases. `work` can use the store only
    /// through the [`Transaction`]: another call on this thread is refused, and waiting for another
    /// thread that calls the store would wait for ever.
    ///
    /// A refused settlement is recorded in the job's timeline even if everything else is rolled
    /// back.
    pub fn transact<T, E>(
        &mut self,
        limit: Duration,
        work: impl FnOnce(&Transaction<'_>) -> Result<T, E>,
    ) -> Result<Result<T, E>> {
        let refused = RefCell::default();
        let answer = catch_unwind(AssertUnwindSafe(|| {
            self.writer.alone(DOING, Urgency::Normal, |connection| {
                let watched =
                    self.writer.watch.over(connection, clock::monotonic().checked_add(limit))?;
                let tx = Transaction {
                    store: self,
                    connection: &watched,
                    heard: RefCell::default(),
                    refused: &refused,
                };
                let answer = work(&tx);
                if let Some(problem) = tx.problem(limit) {
                    return Err(Undone::Ours(problem));
                }
                let answer = answer.map_err(Undone::Theirs)?;
                if watched.has_ended() {
                    return Err(Undone::Ours(tx.has_ended()));
                }
                drop(watched);
                // Record the refusals again: the work may have rolled them back with a savepoint of
                // its own.
                self.remember(connection, &refused.borrow())?;
                Ok(answer)
            })
        }));
        if !matches!(answer, Ok(Ok(Ok(_)))) && !refused.borrow().is_empty() {
            // The refusal was rolled back with the rest. If recording it fails too, the caller
            // still has the answer.
            let _ = self.writer.write_alone("record a refusal", Urgency::Normal, |connection| {
                self.remember(connection, &refused.borrow())
            });
        }
        match answer.unwrap_or_else(|panic| resume_unwind(panic))? {
            Ok(answer) => Ok(Ok(answer)),
            Err(Undone::Theirs(error)) => Ok(Err(error)),
            Err(Undone::Ours(problem)) => Err(problem),
            Err(Undone::Sqlite(cause)) => Err(self.at_commit(cause)),
        }
    }

    /// Records refusals in the timelines of their jobs, as far as they are still stale.
    fn remember(&self, connection: &Connection, refused: &[Call]) -> rusqlite::Result<()> {
        let tx = Tx { connection, sql: &self.sql, now: self.clock.now() };
        refused.iter().try_for_each(|(fence, verb)| tx.refuse_if_stale(*fence, *verb).map(drop))
    }

    fn at_commit(&self, cause: rusqlite::Error) -> Error {
        if cause.sqlite_error_code() != Some(ErrorCode::ConstraintViolation) {
            return self.writer.error(DOING, cause);
        }
        Error::Undone {
            target: self.writer.target.clone(),
            problem: format!("a deferred constraint did not hold at the commit ({cause})"),
            next: "see that what the rows refer to is there before the work ends".to_owned(),
        }
    }
}

impl Transaction<'_> {
    /// Stores jobs, all or none, and answers for each. They become visible when the transaction
    /// commits.
    pub fn enqueue(&self, jobs: &[NewJob]) -> Result<Vec<Enqueued>> {
        check_jobs(jobs, &self.store.limits)?;
        self.run("enqueue", |tx| tx.enqueue(jobs))
    }

    /// Ends an attempt together with everything else in this transaction. Unless the answer is
    /// [`Settled::Applied`], this attempt no longer holds the job: return an error, so that nothing
    /// is written in its name.
    ///
    /// A settlement that an *earlier* transaction has made is refused as already settled: otherwise
    /// what this one writes beside it would be written twice.
    pub fn settle(&self, settlement: &Settlement) -> Result<Settled> {
        check_settlements(std::slice::from_ref(settlement), &self.store.limits)?;
        let call = (settlement.fence, settlement.outcome.verb());
        let here = self.heard.borrow().contains(&call);
        let answer = self.run("settle", |tx| tx.settle_beside(settlement, here))?;
        match answer {
            Settled::Applied(_) => self.heard.borrow_mut().push(call),
            Settled::Stale(_) => self.refused.borrow_mut().push(call),
            Settled::NotFound => {}
        }
        Ok(answer)
    }

    /// Runs a verb. If the verb fails half-way and the work goes on, nothing of the verb is left.
    fn run<T>(
        &self,
        doing: &'static str,
        verb: impl FnOnce(&Tx<'_>) -> rusqlite::Result<T>,
    ) -> Result<T> {
        if self.connection.has_ended() {
            return Err(self.has_ended());
        }
        let Sqlite { sql, clock, .. } = self.store;
        in_savepoint(self.connection, |connection| verb(&Tx { connection, sql, now: clock.now() }))
            .map_err(|cause| error::from_sqlite(&self.store.writer.target, doing, cause))
    }

    /// Why this transaction must be rolled back, whatever the work returns.
    fn problem(&self, limit: Duration) -> Option<Error> {
        if let Some(tried) = self.connection.tried() {
            return Some(self.undone(
                format!("{tried} is not for the work to do"),
                "return Ok to commit and Err to undo everything; files are attached and settings changed on a \
                 connection of your own",
            ));
        }
        self.connection.is_late().then(|| {
            self.undone(
                format!("the work took longer than its limit of {limit:?}"),
                "do what is slow before the transaction, and only write in it; or give it a longer limit, \
                 during which nobody else can write",
            )
        })
    }

    fn has_ended(&self) -> Error {
        self.undone(
            "a statement has rolled the transaction back (as ON CONFLICT ROLLBACK does)".to_owned(),
            "return the error of that statement, or let it fail alone with ON CONFLICT ABORT",
        )
    }

    fn undone(&self, problem: String, next: &str) -> Error {
        Error::Undone { target: self.store.writer.target.clone(), problem, next: next.to_owned() }
    }
}

impl Deref for Transaction<'_> {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        self.connection
    }
}

/// The source of the error that rolls everything back.
enum Undone<E> {
    Theirs(E),
    Ours(Error),
    Sqlite(rusqlite::Error),
}

impl<E> From<rusqlite::Error> for Undone<E> {
    fn from(cause: rusqlite::Error) -> Undone<E> {
        Undone::Sqlite(cause)
    }
}
