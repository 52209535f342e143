//! A throw-away PostgreSQL for tests: found on the machine or fetched, started in a directory of its own,
//! and gone with whoever started it.
//!
//! ```no_run
//! use tenure_cluster::{Binaries, Cluster, Settings};
//!
//! let cluster = Cluster::start(&Binaries::find_or_install()?, &Settings::new())?;
//! assert_eq!(cluster.psql("SELECT 1")?, "1");
//! # Ok::<(), tenure_cluster::Error>(())
//! ```
//!
//! Only the standard library is used, and every server is a real one: durable (`fsync` is on), not root, and
//! reached through a Unix socket. This crate knows nothing of jobs, and nothing of the drivers that speak to the
//! servers it starts.

mod account;
mod address;
mod apt;
mod binaries;
mod cluster;
mod directory;
mod error;
mod faketime;
mod fetch;
mod keeper;
mod pgbouncer;
mod server;
mod settings;
mod standby;

pub use address::Address;
pub use binaries::{Binaries, psql};
pub use cluster::Cluster;
pub use error::Error;
pub use pgbouncer::PgBouncer;
pub use settings::Settings;
