//! What the simulation itself reads and writes in the database. First the rows that handlers write
//! in one transaction with the end of their job, so that each row is there if and only if the job
//! succeeded. Then the pulse.

use std::collections::BTreeMap;
use std::time::Duration;

use rusqlite::{Connection, Result as Answered};
use tenure::engine::store::sqlite::Sqlite;
use tenure::engine::store::{Error, Result, Settled, Settlement};
use tenure::{JobId, Token};

/// The kind of job whose handler writes such a row.
pub(super) const ORDER: &str = "order";

/// Why nothing was committed.
enum Undone {
    Refused(Settled),
    Failed(Error),
}

impl From<Error> for Undone {
    fn from(error: Error) -> Undone {
        Undone::Failed(error)
    }
}

/// Creates the table of these rows.
pub(super) fn create(store: &Sqlite) {
    let made = store.with_connection(|connection| {
        connection
            .execute_batch("CREATE TABLE orders (job INTEGER NOT NULL, token INTEGER NOT NULL)")
    });
    made.expect("a table");
}

/// Completes a job and writes its row, both or neither.
pub(super) fn commit(store: &mut Sqlite, done: &Settlement) -> Result<Settled> {
    let fence = done.fence;
    let both = store.transact(Duration::from_secs(60), |tx| {
        let row = (fence.job.0, fence.token.0);
        tx.execute("INSERT INTO orders (job, token) VALUES (?1, ?2)", row).map_err(|error| {
            Undone::Failed(Error::Engine { doing: "write an order", source: Box::new(error) })
        })?;
        match tx.settle(done)? {
            Settled::Applied(state) => Ok(Settled::Applied(state)),
            refused => Err(Undone::Refused(refused)),
        }
    })?;
    match both {
        Ok(heard) | Err(Undone::Refused(heard)) => Ok(heard),
        Err(Undone::Failed(error)) => Err(error),
    }
}

/// The id of the last row. A copy of the database remembers it, so that the table can go back too.
pub(super) fn last(store: &Sqlite) -> i64 {
    let last = store.with_connection(|connection| {
        connection.query_row("SELECT coalesce(max(rowid), 0) FROM orders", [], |row| row.get(0))
    });
    last.expect("the last row")
}

/// Deletes the rows that were written after this one.
pub(super) fn back_to(store: &Sqlite, last: i64) {
    let gone = store.with_connection(|connection| {
        connection.execute("DELETE FROM orders WHERE rowid > ?1", [last])
    });
    gone.expect("they are gone");
}

/// The store's pulse, which is not in a dump. It is zero if no worker has advanced it yet; then no
/// stall can be noticed.
pub(super) fn pulse(store: &Sqlite) -> i64 {
    let pulse = store.with_connection(|connection| {
        connection.query_row("SELECT pulse FROM tenure_meta", [], |row| row.get(0))
    });
    pulse.expect("the pulse")
}

/// Sets the pulse: a restored copy of the database has the pulse of when it was made.
pub(super) fn set_pulse(store: &Sqlite, to: i64) {
    let set = store.with_connection(|connection| {
        connection.execute("UPDATE tenure_meta SET pulse = ?1", [to])
    });
    set.expect("it is set");
}

/// All rows: the tokens by job.
pub(super) fn all(store: &Sqlite) -> BTreeMap<JobId, Vec<Token>> {
    store.with_connection(|connection| read(connection)).expect("the orders")
}

fn read(connection: &Connection) -> Answered<BTreeMap<JobId, Vec<Token>>> {
    let mut all: BTreeMap<JobId, Vec<Token>> = BTreeMap::new();
    let mut rows = connection.prepare("SELECT job, token FROM orders ORDER BY rowid")?;
    let rows = rows.query_map([], |row| Ok((JobId(row.get(0)?), Token(row.get(1)?))))?;
    for row in rows {
        let (job, token) = row?;
        all.entry(job).or_default().push(token);
    }
    Ok(all)
}
