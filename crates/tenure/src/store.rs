//! The port: the trait [`Store`], which every engine implements. It has three parts: [`Work`], what
//! workers call; [`Operate`], what operators do; [`Look`], queries that change nothing.
//!
//! The port is synchronous, takes batches, and returns one answer per item: a lost lease is an
//! answer, not an error. Only the store's clock counts, so callers pass durations, not times.
//! Policy lives in [`crate::lifecycle`]. SQL lives in `sql/<engine>/verbs`, one file per verb,
//! under the names used here.

mod address;
mod checks;
mod error;
#[cfg(feature = "drill")]
pub(crate) mod explore;
pub(crate) mod lane;
mod limits;
mod look;
pub mod migrate;
mod operate;
pub(crate) mod place;
#[cfg(feature = "postgres")]
pub mod postgres;
mod row;
#[cfg(feature = "sqlite")]
pub mod sqlite;
pub(crate) mod thread;
mod work;

pub use self::address::Address;
pub use self::checks::{
    LEASE_LIMIT, check_batch, check_claim, check_entries, check_guard_gap, check_jobs, check_lease,
    check_resolution, check_settlements,
};
pub use self::error::{Error, Incomplete, Result, Verdict};
pub(crate) use self::limits::promote_limit;
pub use self::limits::{
    AFTER_STALL, GROUP_LIMIT, GUARD_GAP, GUARD_GAP_LIMIT, LAPSE_LIMIT, PASS_LIMIT, PROMOTE_LIMIT,
    PULSE, STALL, STALLED_GAP, SUSPICION, WORKER_MEMORY,
};
pub use self::look::Look;
pub use self::operate::{AsSeen, Changed, Operate, Pause, QueueChange, Resolved};
pub use self::place::StoreOptions;
pub use self::work::{
    Attempt, Beat, Claim, Claimed, Cursor, Enqueued, Guarded, Lapse, Lapsed, Pruned, Registration,
    Renewed, Report, Reported, Settled, Settlement, Wake, Work,
};

/// One connection to a store. Every engine passes the same test suite and gives the same answers.
pub trait Store: Work + Operate + Look {}

impl<T: Work + Operate + Look> Store for T {}

pub(crate) mod sealed {
    /// Other crates cannot implement the port: each engine must pass the test suite in
    /// `tenure-drill` and agree with the model there.
    pub trait Sealed {}
}
