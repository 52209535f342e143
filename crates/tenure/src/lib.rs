//! Background jobs that survive crashes: embedded on SQLite with nothing to install, or on
//! PostgreSQL for many machines.
//!
//! A worker stalls, a second one takes its job over, and then the first wakes up. What happens to
//! its writes? Here they are refused, by the database, and the refusal is visible:
//!
//! ```
//! use std::time::Duration;
//! use tenure::clock::{Clock, Timestamp};
//! use tenure::job::{Json, Limits, Name, NewJob};
//! use tenure::lease::WorkerId;
//! use tenure::lifecycle::Outcome;
//! use tenure::store::sqlite::{Options, Sqlite};
//! use tenure::store::{Claim, Settled, Settlement, Work};
//!
//! let clock = Clock::manual(Timestamp::from_millis(0));
//! let mut store = Sqlite::in_memory(&Options { clock: clock.clone(), ..Options::default() })?;
//! let kind = Name::check("kind", "hello")?;
//! store.enqueue(&[NewJob::new(kind, Json::check("args", "{}", Limits::default().args)?)])?;
//!
//! let ask = |worker| Claim::new(worker, 1, Duration::from_secs(30));
//! let first = store.claim(&ask(WorkerId::unique()))?.attempts.remove(0);
//! clock.advance(Duration::from_secs(31)); // the first worker stalls, and its lease is over
//! let second = store.claim(&ask(WorkerId::unique()))?.attempts.remove(0);
//!
//! let done = Outcome::Complete { result: None };
//! let late = store.settle(&[Settlement::new(first.lease.fence(), done.clone())])?;
//! assert!(matches!(late[0], Settled::Stale(stale) if stale.current == second.lease.token()));
//! let heard = store.settle(&[Settlement::new(second.lease.fence(), done)])?;
//! assert!(matches!(heard[0], Settled::Applied(_)));
//! # Ok::<(), tenure::store::Error>(())
//! ```
//!
//! What a program needs is at the root of the crate. The modules are for programs that work below
//! [`Tenure`], such as tools and tests of engines. In reading order:
//!
//! 1. what a job is: [`job`], [`lease`], [`ledger`], [`lifecycle`], [`clock`]
//! 2. how it is stored: [`store`], the port, and then its engines
//! 3. how it is enqueued: [`client`]
//! 4. how it runs: [`handler`], then [`worker`]
//! 5. how it is seen and tested: [`inspect`], [`json`], [`telemetry`], [`testing`]
//! 6. jobs and your own rows in one commit: [`sqlite`], and `postgres` with the feature of that
//!    name

#![forbid(unsafe_code)]

pub mod client;
pub mod clock;
#[cfg(feature = "drill")]
pub mod drill;
pub mod handler;
pub mod inspect;
pub mod job;
pub mod json;
pub mod lease;
pub mod ledger;
pub mod lifecycle;
#[cfg(feature = "postgres")]
pub mod postgres;
pub mod sqlite;
pub mod store;
pub mod telemetry;
pub mod testing;
pub mod worker;

pub use self::client::{Enqueue, Handle, Job, JobError, Tenure};
pub use self::clock::Timestamp;
pub use self::handler::{AnyJob, Context, Effect, EffectCall};
pub use self::inspect::{JobDetail, TimelineEntry};
pub use self::job::{JobId, Json, Key, Name, Progress, RetryPolicy, State, Tenant};
pub use self::lease::{Fence, Token, WorkerId};
pub use self::lifecycle::Fault;
pub use self::store::{Address, Error, Result};
pub use self::telemetry::{Event, Exit, Fact, Level, Observer};
pub use self::worker::{Running, Worker, shutdown_signal};

/// The examples of the README are tests.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

/// So are those of the pages on guarantees and workers; some of them need PostgreSQL.
#[cfg(all(doctest, feature = "postgres"))]
#[doc = include_str!("../../../docs/guarantees.md")]
#[doc = include_str!("../../../docs/worker.md")]
struct Pages;
