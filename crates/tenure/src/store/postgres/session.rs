//! What is said over one connection: statements, and transactions that never stay open.
//!
//! A statement is one round trip: parsed, bound and run together and forgotten, or, from its second
//! use on, prepared and kept. Prepared ones save the server the parsing, a quarter of a short call.
//! But they are kept only where the session is ours alone. The driver numbers them `s0`, `s1`, … in
//! every process, so that in a session that a pooler lends to many, `s7` may exist and be the
//! statement of somebody else: it would run, and no error would tell.

use std::collections::HashMap;
use std::time::Duration;

use postgres::types::{ToSql, Type};
use postgres::{Client, Row, Statement};

use crate::clock::millis;

/// A parameter and its type. The type is given, because only then can a statement that is not
/// prepared go in one round trip.
pub(crate) type Param<'a> = (&'a (dyn ToSql + Sync), Type);

/// The driver's way with a statement that is prepared.
type Prepared<T> =
    fn(&mut Client, &Statement, &[&(dyn ToSql + Sync)]) -> Result<T, postgres::Error>;

/// The driver's way with a statement that is not: all in one message, under no name.
type Typed<T> = fn(&mut Client, &str, &[Param<'_>]) -> Result<T, postgres::Error>;

/// One connection, for as long as it lasts.
pub(super) struct Session {
    // Dropped first: statements that outlive it send no farewells.
    client: Client,
    /// By their text: seen once, or prepared. The engine's texts are few, so none is thrown out.
    statements: HashMap<String, Option<Statement>>,
    may_prepare: bool,
    standing: Standing,
}

/// How a session stands with its transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    Idle,
    Open,
    /// Something in it failed, so that the server would answer a COMMIT by undoing everything.
    Failed,
}

/// What a transaction sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Isolation {
    /// Every statement sees what was committed before it; may write.
    ReadCommitted,
    /// All statements see one moment; may only read.
    Snapshot,
}

impl Session {
    /// A session that prepares nothing until it is known to be ours.
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

    /// Whether something more can be said: connected as far as is known, and in no transaction.
    pub(super) fn is_usable(&self) -> bool {
        !self.client.is_closed() && self.standing == Standing::Idle
    }

    pub(super) fn client(&mut self) -> &mut Client {
        &mut self.client
    }

    /// Runs a statement and answers with its rows.
    pub(super) fn query(
        &mut self,
        sql: &str,
        params: &[Param<'_>],
    ) -> Result<Vec<Row>, postgres::Error> {
        self.run(sql, params, Client::query::<Statement>, Client::query_typed)
    }

    /// The same with a limit for how long it waits for each lock, if one is given. The limit goes in the statement itself, because
    /// that costs no round trip, and because through a pooler a setting of the session would not hold. It is for a
    /// statement that calls a function with `$1` as its first argument: arguments are computed before the function runs.
    pub(super) fn query_within(
        &mut self,
        sql: &str,
        params: &[Param<'_>],
        wait: Option<Duration>,
    ) -> Result<Vec<Row>, postgres::Error> {
        let Some(wait) = wait else { return self.query(sql, params) };
        // Zero would be no limit at all.
        let (wait, place) = (millis(wait).max(1).to_string(), params.len() + 1);
        let limited = format!(
            "CASE WHEN pg_catalog.set_config('lock_timeout', ${place}, true) IS NOT NULL THEN $1 END"
        );
        let mut all = params.to_vec();
        all.push((&wait, Type::TEXT));
        self.query(&sql.replacen("$1", &limited, 1), &all)
    }

    /// Runs a statement that answers with one row; any other number is an error.
    pub(super) fn query_one(
        &mut self,
        sql: &str,
        params: &[Param<'_>],
    ) -> Result<Row, postgres::Error> {
        self.run(sql, params, Client::query_one::<Statement>, Client::query_typed_one)
    }

    /// Runs a statement and answers with how many rows it changed.
    pub(super) fn execute(
        &mut self,
        sql: &str,
        params: &[Param<'_>],
    ) -> Result<u64, postgres::Error> {
        self.run(sql, params, Client::execute::<Statement>, Client::execute_typed)
    }

    /// Runs several statements without parameters, as a migration does. It must not begin or end a
    /// transaction.
    pub(super) fn batch(&mut self, sql: &str) -> Result<(), postgres::Error> {
        let answer = self.client.batch_execute(sql);
        self.note(&answer);
        answer
    }

    /// Runs `work` in a transaction and commits it, or undoes all of it. It costs two round trips
    /// besides those of the work.
    pub(super) fn transaction<T>(
        &mut self,
        isolation: Isolation,
        work: impl FnOnce(&mut Session) -> Result<T, postgres::Error>,
    ) -> Result<T, postgres::Error> {
        // Said before it is so: if anything ends this function early, even a panic, the session is
        // not used again.
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
            // A COMMIT would be answered without an error and undo everything. This is answered
            // with the error, unless the work went back to a savepoint.
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
            // An error in answer to one statement means that nothing of it took effect.
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
            // A program that says everything once, as a command does, never pays for preparing.
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

    /// Whether the error is about how the statement was kept, not about what it says.
    fn forget(&mut self, sql: &str, cause: &postgres::Error) -> bool {
        match cause.code().map(|code| code.code()) {
            // It does not exist, or exists already: the session is not ours alone after all.
            Some("26000" | "42P05") => {
                // The others stay where they are, unused: dropping them would close by name what
                // may be somebody else's.
                self.may_prepare = false;
                true
            }
            // Its result has other columns now: a migration ran.
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
