//! The proof of the prover: each safeguard is removed, one at a time, and the level that looks for
//! it must notice.
//!
//! A mutant is a patch of an engine's SQL files, installed in a throw-away store, or a worker that
//! omits something. A hunt stops at the first violation. Only the drill can build a mutant: the
//! constructors are behind the library's feature `drill`.

mod disk;
mod explored;
pub mod machine;
mod simulated;
mod stepped;

use std::fmt;

use serde::Serialize;

use crate::verdict::{Invariant, Violation};

/// One removed safeguard, and the level that must notice.
pub struct Hunt {
    /// The mutant's name.
    pub mutant: &'static str,
    /// What was removed, in a sentence.
    pub removed: &'static str,
    /// The level that looks for it.
    pub level: Level,
    /// What the mutant is made from.
    pub stock: Stock,
    /// At least one of these invariants must be seen broken.
    pub broken: &'static [Invariant],
    run: Box<dyn Fn() -> Option<Violation> + Send + Sync>,
}

/// What a mutant is made from.
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
    /// A disk that loses what was not flushed, and files that other programs write.
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

/// The result of one hunt.
#[derive(Debug, Clone, Serialize)]
pub struct Fate {
    /// The mutant.
    pub mutant: &'static str,
    /// What was removed.
    pub removed: &'static str,
    /// The level that looked for it.
    pub level: Level,
    /// What the mutant is made from.
    pub stock: Stock,
    /// The violation that killed it; `None` if it survived.
    pub killed: Option<Violation>,
    /// Whether it broke one of the invariants that it must break.
    pub as_expected: bool,
}

impl Hunt {
    /// Looks for the mutant until the first violation.
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
