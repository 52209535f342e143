//! The engines, and a fresh store of each with a clock that the caller moves.

use tenure::Limits;
use tenure::drill::Explorable;
use tenure::engine::clock::{Clock, Timestamp};
use tenure::engine::store::sqlite::{Sqlite, StoreOptions};
use tenure::engine::store::{Result, postgres};

use crate::model::Model;
use crate::servers;

/// Every engine there is. Each case of the suite runs on all of them; there is no way to leave one
/// out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Engine {
    /// The specification.
    Model,
    /// SQLite in memory: one connection, for simulations.
    SqliteInMemory,
    /// SQLite in a file, as people use it.
    SqliteFile,
    /// PostgreSQL, in the schema `tenure`.
    Postgres,
    /// PostgreSQL, in a schema with a name that must be quoted.
    PostgresRenamed,
}

impl Engine {
    /// All of them, the specification first.
    pub const ALL: [Engine; 5] = [
        Engine::Model,
        Engine::SqliteInMemory,
        Engine::SqliteFile,
        Engine::Postgres,
        Engine::PostgresRenamed,
    ];

    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Engine::Model => "model",
            Engine::SqliteInMemory => "sqlite (memory)",
            Engine::SqliteFile => "sqlite (file)",
            Engine::Postgres => "postgres",
            Engine::PostgresRenamed => "postgres (other schema)",
        }
    }

    /// An empty store. A file is made in a new directory below `directory`.
    pub fn fresh(self, directory: &std::path::Path) -> Result<(Box<dyn Explorable>, Clock)> {
        let clock = Clock::manual(START);
        let options = StoreOptions { clock: clock.clone(), limits: Limits::default() };
        let store: Box<dyn Explorable> = match self {
            Engine::Model => Box::new(Model::new(clock.clone(), options.limits)),
            Engine::SqliteInMemory => Box::new(Sqlite::in_memory(&options)?),
            Engine::SqliteFile => {
                let file = format!("{}.db", tenure::engine::clock::unique().simple());
                Box::new(Sqlite::open(directory.join(file), &options)?)
            }
            Engine::Postgres => {
                Box::new(servers::fresh("tenure", &clock, &postgres::PostgresOptions::default())?)
            }
            Engine::PostgresRenamed => Box::new(servers::fresh(
                OTHER_SCHEMA,
                &clock,
                &postgres::PostgresOptions::default(),
            )?),
        };
        Ok((store, clock))
    }
}

/// A schema name that must be quoted: a statement that forgets the quotes fails.
pub const OTHER_SCHEMA: &str = "Job Queue-2";

/// The time on a store's clock when a test begins: a day in 2001, so that no test mistakes it for
/// the present.
pub const START: Timestamp = Timestamp::from_millis(1_000_000_000_000);
