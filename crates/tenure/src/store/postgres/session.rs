//! Statements over one connection, and transactions that never stay open.
//!
//! A statement takes one round trip: parsed, bound and run in one message, or, from its second use
//! on, prepared and kept. Preparing saves the server the parsing, a quarter of a short call. But
//! statements are prepared only in a direct session. The driver names them `s0`, `s1`, … in every
//! process, so that in a session that a pooler lends to many clients, `s7` may be the statement of
//! another client: it would run, without any error.

use std::collections::HashMap;
use std::time::Duration;

use postgres::types::{ToSql, Type};
use postgres::{Client, Row, Statement};

use crate::clock::millis;

/// A parameter and its type. The type is needed so that an unprepared statement takes only one
/// round trip.
pub(crate) type Param<'a> = (&'a (dyn ToSql + Sync), Type);

/// The driver's method for a prepared statement.
type Prepared<T> =
    fn(&mut Client, &Statement, &[&(dyn ToSql + Sync)]) -> Result<T, postgres::Error>;

/// The driver's method for an unprepared statement: one message, without a name.
type Typed<T> = fn(&mut Client, &str, &[Param<'_>]) -> Result<T, postgres::Error>;

/// One connection, until it is lost.
pub(super) struct Session {
    // Declared first, so that it is dropped first: then dropping the statements sends no message to
    // the server.
    client: Client,
    /// By text: `None` if the text was used once, otherwise the prepared statement. The engine has
    /// few texts, so none is evicted.
    statements: HashMap<String, Option<Statement>>,
    may_prepare: bool,
    standing: Standing,
}

/// The state of the session's transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    Idle,
    Open,
    /// A statement failed, so that the server would answer a COMMIT by rolling back everything.
    Failed,
}

/// What a transaction sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Isolation {
    /// Every statement sees what was committed before it; may write.
    ReadCommitted,
    /// All statements see the same snapshot; may only read.
    Snapshot,
}

impl Session {
    /// A session that prepares nothing until it is known to be direct.
    pub(super) fn new(client: Client) -> Session {
        Session { client, statements: HashMap::new(), may_prepare: false, standing: Standing::Idle }
    }

    /// From now on, statements may be prepared.
    pub(super) fn allow_preparing(&mut self) {
        self.may_prepare = true;
    }

    pub(super) fn may_prepare(&self) -> bool {
        self.may_prepare
    }

    /// Whether the session can be used: connected as far as is known, and in no transaction.
    pub(super) fn is_usable(&self) -> bool {
        !self.client.is_closed() && self.standing == Standing::Idle
    }

    pub(super) fn client(&mut self) -> &mut Client {
        &mut self.client
    }

    /// Runs a statement and returns its rows.
    pub(super) fn query(
        &mut self,
        sql: &str,
        params: &[Param<'_>],
    ) -> Result<Vec<Row>, postgres::Error> {
        self.run(sql, params, Client::query::<Statement>, Client::query_typed)
    }

    /// Like [`Session::query`], with a limit for how long the statement waits for each lock, if one
    /// is given. The limit is part of the statement, because that costs no round trip, and because
    /// behind a pooler a setting of the session would not hold. The statement must call a function
    /// with `$1` as its first argument: arguments are evaluated before the function runs.
    pub(super) fn query_within(
        &mut self,
        sql: &str,
        params: &[Param<'_>],
        wait: Option<Duration>,
    ) -> Result<Vec<Row>, postgres::Error> {
        let Some(wait) = wait else { return self.query(sql, params) };
        // Zero would mean no limit.
        let (wait, place) = (millis(wait).max(1).to_string(), params.len() + 1);
        let limited = format!(
            "CASE WHEN pg_catalog.set_config('lock_timeout', ${place}, true) IS NOT NULL THEN $1 END"
        );
        let mut all = params.to_vec();
        all.push((&wait, Type::TEXT));
        self.query(&sql.replacen("$1", &limited, 1), &all)
    }

    /// Runs a statement that returns one row; any other number is an error.
    pub(super) fn query_one(
        &mut self,
        sql: &str,
        params: &[Param<'_>],
    ) -> Result<Row, postgres::Error> {
        self.run(sql, params, Client::query_one::<Statement>, Client::query_typed_one)
    }

    /// Runs a statement and returns how many rows it changed.
    pub(super) fn execute(
        &mut self,
        sql: &str,
        params: &[Param<'_>],
    ) -> Result<u64, postgres::Error> {
        self.run(sql, params, Client::execute::<Statement>, Client::execute_typed)
    }

    /// Runs several statements without parameters, as a migration does. They must not begin or end
    /// a transaction.
    pub(super) fn batch(&mut self, sql: &str) -> Result<(), postgres::Error> {
        let answer = self.client.batch_execute(sql);
        self.note(&answer);
        answer
    }

    /// Runs `work` in a transaction and commits it, or rolls it back. Costs two round trips in
    /// addition to those of the work.
    pub(super) fn transaction<T>(
        &mut self,
        isolation: Isolation,
        work: impl FnOnce(&mut Session) -> Result<T, postgres::Error>,
    ) -> Result<T, postgres::Error> {
        // Set before BEGIN: if anything ends this function early, even a panic, the session is not
        // used again.
        self.standing = Standing::Open;
        let answer = self
            .client
            .batch_execute(match isolation {
                Isolation::ReadCommitted => "BEGIN ISOLATION LEVEL READ COMMITTED",
                Isolation::Snapshot => "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",
            })
            .and_then(|()| work(self))
            .and_then(|value| self.commit().map(|()| value));
        if answer.is_ok() || self.client.batch_execute("ROLLBACK").is_ok() {
            self.standing = Standing::Idle;
        }
        answer
    }

    fn commit(&mut self) -> Result<(), postgres::Error> {
        if self.standing == Standing::Failed {
            // A COMMIT would roll everything back and report no error. This statement fails then,
            // unless the work has gone back to a savepoint.
            self.client.batch_execute("SELECT")?;
        }
        self.client.batch_execute("COMMIT")
    }

    fn run<T>(
        &mut self,
        sql: &str,
        params: &[Param<'_>],
        prepared: Prepared<T>,
        typed: Typed<T>,
    ) -> Result<T, postgres::Error> {
        let mut answer = match self.prepare(sql, params) {
            Ok(None) => typed(&mut self.client, sql, params),
            Ok(Some(statement)) => {
                let values: Vec<_> = params.iter().map(|(value, _)| *value).collect();
                prepared(&mut self.client, &statement, &values)
            }
            Err(cause) => Err(cause),
        };
        if let Err(cause) = &answer
            && self.forget(sql, cause)
            && self.standing == Standing::Idle
        {
            // The server refused the prepared statement, so it did not run. Run it unprepared.
            answer = typed(&mut self.client, sql, params);
        }
        self.note(&answer);
        answer
    }

    /// The prepared statement, if this text has been used before.
    fn prepare(
        &mut self,
        sql: &str,
        params: &[Param<'_>],
    ) -> Result<Option<Statement>, postgres::Error> {
        if !self.may_prepare {
            return Ok(None);
        }
        match self.statements.get_mut(sql) {
            Some(Some(statement)) => Ok(Some(statement.clone())),
            // A program that runs every statement once, as a command does, never pays for
            // preparing.
            None => {
                self.statements.insert(sql.to_owned(), None);
                Ok(None)
            }
            Some(seen) => {
                let types: Vec<_> = params.iter().map(|(_, kind)| kind.clone()).collect();
                let statement = self.client.prepare_typed(sql, &types)?;
                *seen = Some(statement.clone());
                Ok(Some(statement))
            }
        }
    }

    /// Whether the error is about the prepared statement, not about its content. Then the statement
    /// is not used again.
    fn forget(&mut self, sql: &str, cause: &postgres::Error) -> bool {
        match cause.code().map(|code| code.code()) {
            // The name does not exist, or exists already: the session is not direct after all.
            Some("26000" | "42P05") => {
                // Keep the other prepared statements, unused: dropping them would close by name
                // what may belong to another client.
                self.may_prepare = false;
                true
            }
            // The result has other columns now: a migration ran.
            Some("0A000") => self.statements.remove(sql).flatten().is_some(),
            _ => false,
        }
    }

    fn note<T>(&mut self, answer: &Result<T, postgres::Error>) {
        if answer.is_err() && self.standing == Standing::Open {
            self.standing = Standing::Failed;
        }
    }
}
