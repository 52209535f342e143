//! Throw-away servers, PostgreSQL, PgBouncer and Redis, for tests and the bench: found on the machine
//! or fetched, started in a directory of their own, and removed when the process that started them
//! ends.
//!
//! ```no_run
//! use tenure_cluster::{Binaries, Cluster, Settings};
//!
//! let cluster = Cluster::start(&Binaries::find_or_install()?, &Settings::new())?;
//! assert_eq!(cluster.psql("SELECT 1")?, "1");
//! # Ok::<(), tenure_cluster::Error>(())
//! ```
//!
//! Only the standard library is used, and every server is a real one: each PostgreSQL is durable
//! (`fsync` is on), none runs as root, and each is reached through a Unix socket. This crate knows
//! nothing of jobs, nor of the drivers that connect to its servers.

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
mod redis;
mod server;
mod settings;
mod standby;

pub use address::Address;
pub use binaries::{Binaries, psql};
pub use cluster::Cluster;
pub use error::Error;
pub use pgbouncer::PgBouncer;
pub use redis::Redis;
pub use settings::Settings;
