//! For programs that work below [`Tenure`](crate::Tenure): tools, tests of engines, other servers.
//!
//! A worker stalls, a second one takes its job over, and then the first wakes up. What happens to
//! its writes? Here they are refused, by the database, and the refusal is visible:
//!
//! ```
//! use std::time::Duration;
//! use tenure::engine::clock::{Clock, Timestamp};
//! use tenure::engine::job::{Json, Limits, Name, NewJob};
//! use tenure::WorkerId;
//! use tenure::engine::lifecycle::Outcome;
//! use tenure::engine::store::sqlite::{Sqlite, StoreOptions};
//! use tenure::engine::store::{Claim, Settled, Settlement, Work};
//!
//! let clock = Clock::manual(Timestamp::from_millis(0));
//! let options = StoreOptions { clock: clock.clone(), ..StoreOptions::default() };
//! let mut store = Sqlite::in_memory(&options)?;
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
//! # Ok::<(), tenure::Error>(())
//! ```

/// How jobs are enqueued.
pub mod client {
    pub use crate::client::*;
}

/// Time and randomness.
pub mod clock {
    pub use crate::clock::*;
}

/// Handlers: plain functions, found by their kind.
pub mod handler {
    pub use crate::handler::*;
}

/// The answers to queries.
pub mod inspect {
    pub use crate::inspect::*;
}

/// What a job is.
pub mod job {
    pub use crate::job::*;
    pub use crate::record::*;
}

/// Lease, token and fence.
pub mod lease {
    pub use crate::lease::*;
}

/// The decisions about effects and steps.
pub mod ledger {
    pub use crate::ledger::*;
}

/// What becomes of a job after a success, a failure or a crash.
pub mod lifecycle {
    pub use crate::lifecycle::*;
}

/// The port, and its engines.
pub mod store {
    pub use crate::store::*;
}

/// Every event: name, level, fields.
pub mod telemetry {
    pub use crate::telemetry::*;
}

/// The worker and its machines.
pub mod worker {
    pub use crate::worker::*;
}

/// The functions of PostgreSQL's engine in a transaction of your own, for a program that has no
/// [`Tenure`](crate::Tenure) and no handler.
#[cfg(feature = "postgres")]
pub mod raw {
    pub use crate::postgres::raw::*;
}
