//! Your own transaction on SQLite: your tables in the store's file, and jobs, in one commit.
//!
//! A closure runs on the store's writer. What it writes to tables of its own, the jobs that it enqueues and the attempt that it
//! ends are stored together, or none of it is. So a job is never without the row that it is about, and what a job
//! has done to the database cannot be done twice: whoever lost the job is refused, and their rows with it.
//!
//! ```
//! use std::time::Duration;
//! use tenure::job::{Json, Limits, Name, NewJob};
//! use tenure::lease::WorkerId;
//! use tenure::lifecycle::Outcome;
//! use tenure::sqlite::{Options, Sqlite, rusqlite};
//! use tenure::store::{Claim, Cursor, Settled, Settlement, Store};
//!
//! # let directory = tempfile::tempdir()?;
//! # let file = directory.path().join("shop.db");
//! let mut store = Sqlite::open(file, &Options::default())?;
//! let limit = Duration::from_secs(1);
//!
//! // An order, and the job that ships it.
//! let kind = Name::check("kind", "ship")?;
//! let ship = NewJob::new(kind, Json::check("args", r#"{"order":1}"#, Limits::default().args)?);
//! store.transact(limit, |tx| -> Result<(), Box<dyn std::error::Error>> {
//!     tx.execute_batch("CREATE TABLE orders (id INTEGER PRIMARY KEY, shipped INTEGER)")?;
//!     tx.execute("INSERT INTO orders VALUES (1, 0)", [])?;
//!     tx.enqueue(&[ship])?;
//!     Ok(())
//! })??;
//!
//! // Its worker marks the order and ends the job; if it has lost the job, it does neither.
//! # let ask = Claim {
//! #     worker: WorkerId::unique(), queues: vec![Name::default_queue()], kinds: None, n: 1,
//! #     lease: Duration::from_secs(30), cursor: Cursor::default(), grace: Duration::ZERO,
//! # };
//! let attempt = store.claim(&ask)?.attempts.remove(0);
//! let done = Settlement::new(attempt.lease.fence(), Outcome::Complete { result: None });
//! store.transact(limit, |tx| -> Result<(), Box<dyn std::error::Error>> {
//!     tx.execute("UPDATE orders SET shipped = 1 WHERE id = 1", [])?;
//!     match tx.settle(&done)? {
//!         Settled::Yes(_) => Ok(()),
//!         refused => Err(format!("{refused:?}").into()), // and the order is as it was
//!     }
//! })??;
//! # store.transact(limit, |tx| -> rusqlite::Result<()> {
//! #     let shipped: i64 = tx.query_row("SELECT shipped FROM orders", [], |row| row.get(0))?;
//! #     assert_eq!(shipped, 1);
//! #     Ok(())
//! # })??;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The two question marks: the outer one is for the store, which could not run the closure or had to undo it, the
//! inner one for the closure's own error. A file that has tables already is opened with [`Sqlite::adopt`].
//!
//! [`Sqlite::transact`] says what a closure may not do, and how long it may take.

pub use rusqlite;

pub use crate::store::sqlite::{Options, Sqlite, Transaction};
