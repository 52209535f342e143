//! Background jobs that survive crashes: embedded on SQLite with nothing to install, or on
//! PostgreSQL for many machines.
//!
//! ```rust,no_run
//! use serde::{Deserialize, Serialize};
//! use tenure::{Context, Fault, Job, Tenure, Worker};
//!
//! #[derive(Serialize, Deserialize)]
//! struct Greet {
//!     name: String,
//! }
//!
//! impl Job for Greet {
//!     const KIND: &'static str = "greet";
//!     type Output = String;
//! }
//!
//! async fn greet(job: Greet, cx: Context) -> Result<String, Fault> {
//!     // Remembered under its name: an attempt after this one does not do it again.
//!     let greeting = cx.step("write", || async { Ok(format!("Hello, {}!", job.name)) }).await?;
//!     Ok(greeting)
//! }
//!
//! #[tokio::main]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let tenure = Tenure::open("tenure.db").await?; // or "postgres://…"
//!     let ann = tenure.enqueue(Greet { name: "Ann".into() }).key("greet-ann").await?;
//!
//!     // Shows what happens, and ends when nothing is due. A service has a subscriber of `tracing` instead
//!     // of .observe, and .run_until(tenure::shutdown_signal()) instead of .drain().run().
//!     let worker = Worker::new(&tenure).handle(greet).observe(|event| eprintln!("{event}"));
//!     worker.drain().run().await?;
//!
//!     println!("job {} says: {}", ann.id(), ann.wait().await?);
//!     Ok(())
//! }
//! ```
//!
//! What a program needs is at the root of the crate. Jobs and your own rows in one commit are in
//! [`sqlite`], and in `postgres` with the feature of that name. [`testing`] is for tests of handlers,
//! and [`json`] for programs that read jobs as JSON. Programs that work below [`Tenure`] find the
//! rest in [`engine`].

#![forbid(unsafe_code)]
#![cfg_attr(
    not(feature = "sqlite"),
    allow(
        dead_code,
        unused_imports,
        reason = "PostgreSQL's functions decide there what the engine of SQLite decides in Rust"
    )
)]

#[cfg(not(any(feature = "sqlite", feature = "postgres")))]
compile_error!(
    "tenure needs an engine: the feature `sqlite`, which is on by default, or `postgres`"
);

mod client;
mod clock;
mod desk;
#[cfg(feature = "drill")]
pub mod drill;
pub mod engine;
mod handler;
mod inspect;
mod job;
pub mod json;
mod lease;
mod ledger;
mod lifecycle;
#[cfg(feature = "postgres")]
pub mod postgres;
mod record;
#[cfg(feature = "sqlite")]
pub mod sqlite;
mod store;
mod telemetry;
#[cfg(feature = "sqlite")]
pub mod testing;
mod worker;

pub use self::client::{Enqueue, Handle, Job, JobError, Tenure};
pub use self::clock::Timestamp;
pub use self::handler::{AnyJob, Context, Effect, EffectCall};
pub use self::inspect::{EffectFilter, Filter, JobDetail, TimelineEntry};
pub use self::job::{JobId, Json, Key, Limits, Name, Progress, RetryPolicy, State, Tenant};
pub use self::lease::{Fence, Token, WorkerId};
pub use self::ledger::Resolution;
pub use self::lifecycle::Fault;
pub use self::store::{Address, Error, Result};
pub use self::telemetry::{Event, Exit, Fact, Level, Observer};
pub use self::worker::{Running, Worker, shutdown_signal};

/// The examples of the README are tests.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

/// The examples on the pages about guarantees and workers are tests too; some need PostgreSQL.
#[cfg(all(doctest, feature = "postgres"))]
#[doc = include_str!("../../../docs/guarantees.md")]
#[doc = include_str!("../../../docs/worker.md")]
struct Pages;
