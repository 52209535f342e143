//! What `tenure bench` measures, and how it counts.
//!
//! Stores are used through [`tenure::Tenure`] and [`tenure::Worker`], as a user's program uses
//! them. Beside each figure stands what the machine can do at all: the same work as batched SQL, by
//! the driver alone (`limit.rs`). Every measure runs in a store of its own (`ground.rs`), and counts
//! afterwards whether each job ran exactly once (`stand.rs`).
//!
//! The same work on other queues is in `peers.rs`.
//!
//! This crate knows nothing of terminals: the command shows its [`Progress`] and its [`Report`].

mod address;
mod children;
mod ground;
mod jobs;
mod limit;
mod machine;
mod measures;
mod peers;
mod progress;
mod report;
mod run;
mod stand;
mod stats;
mod svg;

pub use self::children::{Program, work};
pub use self::ground::{Ground, On, is_of_a_bench};
pub use self::machine::Machine;
pub use self::measures::{ALL, Engine, Measure, Unit};
pub use self::peers::{
    Failure, Grounds, Language, Line, Mark, Outcome, PEERS, Peer, PeerPlan, PeerReport, RAW, Store,
    TENURE, Verdict, compare, default_directory, targets,
};
pub use self::progress::Progress;
pub use self::report::{Figure, Of, Own, Report, Summary, shown};
pub use self::run::{Choice, Plan, run};
pub use self::svg::{draw, draw_peers};
