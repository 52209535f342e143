//! The limit on SQLite, in a file with the same settings as a store: WAL, and each commit waits for
//! the disk.

use std::path::Path;

use anyhow::Result;
use rusqlite::{Connection, TransactionBehavior, params};

use super::{Driver, section};

pub(super) const SQL: &str = include_str!("../../sql/sqlite.sql");

struct Sqlite {
    connection: Connection,
    /// The last id that was given to a row. SQLite would give the id of a deleted row again, but
    /// `done` still has the job with that id.
    last_id: i64,
}

pub(super) fn connect(directory: &str) -> Result<impl Driver + use<>> {
    let connection = Connection::open(Path::new(directory).join("limit.db"))?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.execute_batch(section(SQL, "schema")?)?;
    Ok(Sqlite { connection, last_id: 0 })
}

impl Driver for Sqlite {
    fn insert(&mut self, args: &[String], now: i64) -> Result<()> {
        let tx = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        {
            let mut insert = tx.prepare_cached(section(SQL, "insert")?)?;
            for args in args {
                self.last_id += 1;
                insert.execute(params![self.last_id, args, now])?;
            }
        }
        Ok(tx.commit()?)
    }

    fn claim(&mut self, most: usize, now: i64) -> Result<Vec<i64>> {
        let tx = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let jobs = {
            let mut claim = tx.prepare_cached(section(SQL, "claim")?)?;
            let rows = claim.query_map(params![most as i64, now], |row| {
                // A worker reads the args, so they are read here too.
                row.get::<_, String>(2)?;
                row.get(0)
            })?;
            rows.collect::<Result<_, _>>()?
        };
        tx.commit()?;
        Ok(jobs)
    }

    fn complete(&mut self, jobs: &[i64], now: i64) -> Result<()> {
        let jobs = serde_json::to_string(jobs)?;
        let tx = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        tx.prepare_cached(section(SQL, "complete")?)?.execute(params![jobs, now])?;
        tx.prepare_cached(section(SQL, "delete")?)?.execute(params![jobs])?;
        Ok(tx.commit()?)
    }
}
