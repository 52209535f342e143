//! Your own transaction on SQLite: your tables in the store's file, and jobs, in one commit.
//!
//! A closure runs on the store's writer. The rows that it writes to tables of its own, the jobs
//! that it enqueues and the attempt that it ends are stored together, or none of them is. So a job
//! never exists without the row that it is about. And a job's changes to the database cannot happen
//! twice: if a worker has lost the job, the store refuses its settlement, and its rows with it.
//!
//! ```
//! # use serde::{Deserialize, Serialize};
//! use tenure::{Context, Fault, Job, Tenure, Worker, sqlite};
//!
//! #[derive(Serialize, Deserialize)]
//! struct Ship {
//!     order: i64,
//! }
//!
//! impl Job for Ship {
//!     const KIND: &'static str = "ship";
//!     type Output = i64;
//! }
//!
//! /// An order, and the job that ships it.
//! async fn place_order(tenure: &Tenure) -> tenure::Result<()> {
//!     let ship = tenure.enqueue(Ship { order: 1 }).key("ship-1");
//!     sqlite::transaction(tenure, move |tx| {
//!         tx.execute("INSERT INTO orders (id, shipped) VALUES (1, 0)", [])?;
//!         sqlite::enqueue(tx, ship)?;
//!         Ok(())
//!     })
//!     .await
//! }
//!
//! /// Its handler marks the order and ends the job; if it has lost the job, it does neither.
//! async fn ship(job: Ship, cx: Context) -> Result<i64, Fault> {
//!     sqlite::complete(&cx, move |tx| {
//!         tx.execute("UPDATE orders SET shipped = 1 WHERE id = ?1", [job.order])?;
//!         Ok(job.order)
//!     })
//!     .await
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let directory = tempfile::tempdir()?;
//! # let file = directory.path().join("shop.db");
//! # let tenure = Tenure::open(file.to_str().unwrap()).await?;
//! # sqlite::transaction(&tenure, |tx| {
//! #     Ok(tx.execute_batch("CREATE TABLE orders (id INTEGER PRIMARY KEY, shipped INTEGER)")?)
//! # }).await?;
//! # place_order(&tenure).await?;
//! # Worker::new(&tenure).handle(ship).drain().run().await?;
//! # let shipped = sqlite::transaction(&tenure, |tx| {
//! #     Ok(tx.query_row("SELECT shipped FROM orders", [], |row| row.get::<_, i64>(0))?)
//! # }).await?;
//! # assert_eq!(shipped, 1);
//! # Ok(())
//! # }
//! ```
//!
//! To a file that already has tables, `tenure migrate up` or [`Sqlite::adopt`] adds ours.
//!
//! [`Sqlite::transact`] documents what a closure may not do, and how long it may take.

pub use rusqlite;

pub use crate::store::sqlite::{Sqlite, StoreOptions, Transaction};

use std::error::Error as StdError;
use std::time::Duration;

use serde::Serialize;

use crate::client::{Enqueue, Handle, Tenure};
use crate::desk::Committed;
use crate::handler::Context;
use crate::job::{Invalid, Json};
use crate::lifecycle::{Fault, Outcome};
use crate::store::place::Engine;
use crate::store::{Error, Settled, Settlement};

/// How long a transaction may take: it blocks all other writes.
pub const LIMIT: Duration = Duration::from_secs(5);

/// Runs `work` in a transaction on the store's writer and returns once it is durable. An error of
/// `work`, a panic, or a time above [`LIMIT`] undoes everything it wrote. [`Sqlite::transact`]
/// documents what it may not do.
///
/// `work` may use `?` on errors of any type. The caller gets such an error as [`Error::Yours`], and
/// an error of Tenure's as itself.
pub async fn transaction<T: Send + 'static>(
    tenure: &Tenure,
    work: impl FnOnce(&Transaction<'_>) -> Result<T, Box<dyn StdError + Send + Sync>> + Send + 'static,
) -> Result<T, Error> {
    let told = move |tx: &Transaction<'_>| work(tx).map_err(Error::yours);
    on_writer(tenure, told).await
}

async fn on_writer<T, E>(
    tenure: &Tenure,
    work: impl FnOnce(&Transaction<'_>) -> Result<T, E> + Send + 'static,
) -> Result<T, E>
where
    T: Send + 'static,
    E: From<Error> + Send + 'static,
{
    tenure.0.link.call(move |engine| embedded(engine)?.transact(LIMIT, work)).await?
}

/// Stores a job in this transaction, as `tenure::postgres::enqueue` does on a server. A key that
/// belongs to another request is an error, and leaves the transaction as it is.
pub fn enqueue<T>(tx: &Transaction<'_>, job: Enqueue<T>) -> Result<Handle<T>, Error> {
    let (tenure, job) = job.into_parts()?;
    match tx.enqueue(std::slice::from_ref(&job))?.first() {
        Some(answer) => tenure.handle_on(*answer),
        None => Err(Invalid::Batch { size: 0 }.into()),
    }
}

fn embedded(engine: &mut Engine) -> Result<&mut Sqlite, Error> {
    match engine {
        Engine::Sqlite(store) => Ok(store),
        #[cfg(feature = "postgres")]
        Engine::Postgres(_) => Err(Invalid::Value {
            field: "transaction",
            why: "this store is on PostgreSQL; use a transaction of your own client and tenure::postgres"
                .into(),
        }
        .into()),
    }
}

/// Why nothing was committed.
enum Undone {
    Fault(Fault),
    Refused(Settled),
}

impl From<Error> for Undone {
    fn from(error: Error) -> Undone {
        Undone::Fault(error.into())
    }
}

/// Completes the handler's job, together with what `work` writes to tables of your own, in one
/// commit; the return value of `work` is the job's result. If another worker holds the job by now,
/// nothing is written. On PostgreSQL use `tenure::postgres::complete`. The [module](self) has an
/// example.
pub async fn complete<T, F>(cx: &Context, work: F) -> Result<T, Fault>
where
    T: Serialize + Send + 'static,
    F: FnOnce(&Transaction<'_>) -> Result<T, Fault> + Send + 'static,
{
    let (fence, limit) = (cx.fence(), cx.result_limit());
    let both = move |tx: &Transaction<'_>| {
        let output = work(tx).map_err(Undone::Fault)?;
        let result = Json::of("result", &output, limit)
            .map_err(|invalid| Undone::Fault(Fault::fatal(invalid)))?;
        let done = Outcome::Complete { result: Some(result) };
        match tx.settle(&Settlement::new(fence, done))? {
            Settled::Applied(_) => Ok(output),
            refused => Err(Undone::Refused(refused)),
        }
    };
    match on_writer(cx.tenure(), both).await {
        Ok(output) => {
            cx.set_committed(Committed::Yes);
            Ok(output)
        }
        Err(Undone::Fault(fault)) => Err(fault),
        Err(Undone::Refused(Settled::Stale(stale))) => {
            Err(cx.refused(crate::lifecycle::Verb::Complete, &stale))
        }
        Err(Undone::Refused(_)) => Err(cx.lost()),
    }
}
