//! The worker's machines under a scheduler: many workers, hundreds of jobs, one thread, one seed.
//!
//! The machines are the real ones, and so is the store: SQLite in memory. The scheduler controls
//! only time and chance: which machine is stepped next, how long a handler takes and how it ends,
//! and which faults ([`Kind`]) happen. The same seed repeats the same run to the last event; the
//! hash of its trace shows that.
//!
//! Every call and answer goes through the books (`books`), which know what really happened. A
//! simulated outside system (`witness`) receives every job's effects. If an invariant is broken,
//! [`shrink`] looks for the smallest scenario that breaks the same one, and gives the command that
//! repeats it.

mod books;
mod faults;
mod faulty;
mod ghosts;
pub mod golden;
mod handlers;
mod late;
mod nth;
mod orders;
mod scenario;
mod shrink;
mod trace;
mod witness;
mod workers;
mod world;

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::Serialize;
use tenure::State;
use tenure::drill::Patch;

pub use self::faults::Kind;
pub use self::faulty::When;
pub use self::nth::{Lost, Nth, fail_each, fail_nth};
pub use self::scenario::Scenario;
pub use self::shrink::{Shrunk, shrink};
pub use self::trace::{Rare, Sometimes};
pub(crate) use self::workers::Flaw;
use self::world::{Drive, Setup, World};
use crate::verdict::Violation;

/// The result of a run.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// The seed that repeats the run.
    pub seed: u64,
    /// The hash of everything that happened, with the simulated times.
    #[serde(rename = "trace_hash")]
    pub hash: String,
    /// How many jobs there were.
    pub jobs: usize,
    /// How many turns of the scheduler the run took.
    pub turns: u64,
    /// How many calls the store received.
    pub calls: u64,
    /// How long the run took, in simulated time.
    #[serde(rename = "took_ms", serialize_with = "in_millis")]
    pub took: Duration,
    /// How often each kind of fault happened.
    pub faults: BTreeMap<Kind, u64>,
    /// How often each rare path was taken.
    pub sometimes: Sometimes,
    /// How often each event was logged.
    pub events: BTreeMap<&'static str, u64>,
    /// The violation, if there is one.
    pub violation: Option<Violation>,
    /// The numbers of the faults that happened.
    #[serde(skip)]
    struck: Vec<u32>,
}

fn in_millis<S: serde::Serializer>(took: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(u64::try_from(took.as_millis()).unwrap_or(u64::MAX))
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { seed, hash, jobs, turns, calls, took, .. } = self;
        let faults: u64 = self.faults.values().sum();
        write!(
            f,
            "seed {seed}: {jobs} jobs, {faults} faults, {turns} turns, {calls} calls, {} s simulated; trace hash {hash}",
            took.as_secs()
        )
    }
}

/// Runs a scenario from a seed, until every job has ended or something is wrong.
pub fn run(scenario: &Scenario, seed: u64) -> Report {
    let replay = scenario.arguments(seed);
    let drive = Drive::Mixture;
    let setup = Setup { scenario, seed, drive, nth: None, flaw: None, patches: &[] };
    finish(setup, Some(replay)).0
}

/// Like `run`, with a worker that has a flaw or a patched store.
pub(crate) fn run_mutant(
    scenario: &Scenario,
    seed: u64,
    flaw: Option<Flaw>,
    patches: &[Patch],
) -> Report {
    let setup = Setup { scenario, seed, drive: Drive::Mixture, nth: None, flaw, patches };
    finish(setup, None).0
}

/// Runs jobs that by chance snooze or kill their worker; nothing else goes wrong. All must be
/// buried, each after as many crashes as it may have.
pub fn run_fickle(seed: u64) -> Report {
    fickle(seed, &[])
}

/// Like `run_fickle`, with a patched store.
pub(crate) fn fickle(seed: u64, patches: &[Patch]) -> Report {
    let scenario = Scenario { workers: 3, jobs: 10, ..Scenario::default() }.faultless();
    let drive = Drive::Only(handlers::FICKLE);
    let setup = Setup { scenario: &scenario, seed, drive, nth: None, flaw: None, patches };
    finish(setup, None).0
}

/// Runs `jobs` jobs, of which `poisons` kill their worker and the others run for several leases;
/// nothing else goes wrong. Also returns how each job ended.
pub fn run_poisoned(seed: u64, poisons: usize, jobs: usize) -> (Report, Vec<State>) {
    let scenario = Scenario { workers: 2, jobs, slots: jobs, ..Scenario::default() }.faultless();
    let drive = Drive::Poisoned(poisons);
    let setup = Setup { scenario: &scenario, seed, drive, nth: None, flaw: None, patches: &[] };
    let (report, world) = finish(setup, None);
    let ends = world.shared.books().jobs.values().map(|ghost| ghost.state).collect();
    (report, ends)
}

/// Runs jobs that arrive one at a time while the workers are idle and are notified. Each job must
/// start at once, and must be deleted when its retention time is over.
pub fn run_steady(seed: u64) -> Report {
    steady(seed, None)
}

/// Like `run_steady`, with a worker that has a flaw.
pub(crate) fn steady(seed: u64, flaw: Option<Flaw>) -> Report {
    let scenario = Scenario { workers: 3, jobs: 20, ..Scenario::default() }.faultless();
    let drive = Drive::Steady;
    finish(Setup { scenario: &scenario, seed, drive, nth: None, flaw, patches: &[] }, None).0
}

/// Runs many jobs at a time on each worker, each job for several leases. No job may be taken from
/// its worker.
pub fn run_crowded(seed: u64) -> Report {
    crowded(seed, None)
}

/// Like `run_crowded`, with a worker that has a flaw.
pub(crate) fn crowded(seed: u64, flaw: Option<Flaw>) -> Report {
    let scenario = Scenario { workers: 2, jobs: 80, slots: 40, ..Scenario::default() }.faultless();
    let drive = Drive::Only(handlers::LONG);
    finish(Setup { scenario: &scenario, seed, drive, nth: None, flaw, patches: &[] }, None).0
}

fn finish(setup: Setup<'_>, replay: Option<String>) -> (Report, World<'_>) {
    let seed = setup.seed;
    let mut world = World::new(setup);
    while !world.is_over() {
        world.turn();
    }
    world.compare();
    let mut faults: BTreeMap<Kind, u64> = BTreeMap::new();
    world.struck.iter().for_each(|(_, kind)| *faults.entry(*kind).or_default() += 1);
    let books = world.shared.books();
    let violation = books.wrong.as_ref().map(|wrong| Violation {
        invariant: wrong.invariant,
        what: wrong.what.clone(),
        schedule: books.trace.story(&wrong.jobs),
        states: usize::try_from(world.turn).unwrap_or(usize::MAX),
        replay,
    });
    let report = Report {
        seed,
        hash: books.trace.hash(),
        jobs: books.jobs.len(),
        turns: world.turn,
        calls: books.calls,
        took: world.elapsed,
        faults,
        sometimes: books.trace.sometimes.clone(),
        events: books.events.clone(),
        violation,
        struck: world.struck.iter().map(|(number, _)| *number).collect(),
    };
    drop(books);
    (report, world)
}
