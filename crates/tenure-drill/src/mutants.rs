//! The proof of the prover: each safeguard is taken out, one at a time, and one of the levels must notice.
//!
//! A mutant is a patch of an engine's SQL files, given to a throw-away store, or a worker that leaves something out. It
//! stops at its first violation. Nothing but the drill can reach one: the constructors are behind the library's feature
//! `drill`.

mod disk;
mod explored;
pub mod machine;
mod simulated;
mod stepped;

use std::fmt;

use serde::Serialize;

use crate::verdict::{Invariant, Violation};

/// One safeguard taken out, and who looks for it.
pub struct Hunt {
    /// Its name.
    pub mutant: &'static str,
    /// What was taken out, in a sentence.
    pub removed: &'static str,
    /// Who looks for it.
    pub level: Level,
    /// What it was made of.
    pub stock: Stock,
    /// The invariants of which at least one must be seen broken.
    pub broken: &'static [Invariant],
    run: Box<dyn Fn() -> Option<Violation> + Send + Sync>,
}

/// What a mutant was made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum Stock {
    Sqlite,
    Postgres,
    /// The machines of a worker.
    Worker,
}

impl fmt::Display for Stock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Stock::Sqlite => "sqlite",
            Stock::Postgres => "postgres",
            Stock::Worker => "worker",
        })
    }
}

/// A level of the proof.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Every order of calls.
    Explorer,
    /// Every order of statements.
    Stepper,
    /// The worker's machines, from a seed.
    Simulation,
    /// A disk that loses what was not flushed, and files that others write.
    Disk,
}

impl Level {
    /// All of them.
    pub const ALL: [Level; 4] = [Level::Explorer, Level::Stepper, Level::Simulation, Level::Disk];

    /// What its figures count.
    pub fn unit(self) -> &'static str {
        match self {
            Level::Explorer => "states",
            Level::Stepper => "schedules",
            Level::Simulation => "runs",
            Level::Disk => "cuts",
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Level::Explorer => "explorer",
            Level::Stepper => "stepper",
            Level::Simulation => "simulation",
            Level::Disk => "disk",
        })
    }
}

/// How a mutant fared.
#[derive(Debug, Clone, Serialize)]
pub struct Fate {
    /// The mutant.
    pub mutant: &'static str,
    /// What was taken out.
    pub removed: &'static str,
    /// Who looked for it.
    pub level: Level,
    /// What it was made of.
    pub stock: Stock,
    /// What killed it; `None` if it survived.
    pub killed: Option<Violation>,
    /// Whether it broke what it must break.
    pub as_expected: bool,
}

impl Hunt {
    /// Looks for it until the first violation.
    pub fn run(&self) -> Fate {
        let killed = (self.run)();
        let as_expected = killed.as_ref().is_some_and(|it| self.broken.contains(&it.invariant));
        let Hunt { mutant, removed, level, stock, .. } = *self;
        Fate { mutant, removed, level, stock, killed, as_expected }
    }
}

/// All mutants, of all engines and levels.
pub fn all() -> Vec<Hunt> {
    let explored = explored::hunts().chain(stepped::hunts());
    explored.chain(simulated::hunts()).chain(disk::hunts()).collect()
}
