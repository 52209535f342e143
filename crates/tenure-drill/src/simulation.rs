//! The worker's machines under a scheduler: many workers, thousands of jobs, one thread, one seed.
//!
//! The machines are the real ones, and so is the store, SQLite in memory. Only time and chance are the
//! scheduler's: which machine is stepped next, how long a handler takes and what it comes to, and what befalls
//! whom ([`Kind`]). The same seed repeats the same run to the last event, and the hash of its trace says so.
//!
//! Every call and answer goes through the books, which know what really happened; every job's effects are seen by a
//! witness outside. When something is wrong, [`shrink`] looks for the least that is wrong in the same way, and says by
//! which command it is repeated.

mod books;
mod faults;
mod faulty;
mod ghosts;
pub mod golden;
mod handlers;
mod nth;
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
use tenure::drill::Patch;

pub use self::faults::Kind;
pub use self::faulty::When;
pub use self::nth::{Lost, Nth, fail_each, fail_nth};
pub use self::scenario::Scenario;
pub use self::shrink::{Shrunk, shrink};
pub use self::trace::{Rare, Sometimes};
pub(crate) use self::workers::Flaw;
use self::world::{Setup, World};
use crate::verdict::Violation;

/// How a run went.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// The seed that repeats it.
    pub seed: u64,
    /// The hash of all that happened, and when.
    #[serde(rename = "trace_hash")]
    pub hash: String,
    /// How many jobs there were.
    pub jobs: usize,
    /// How many turns it took.
    pub turns: u64,
    /// How many calls the store was asked.
    pub calls: u64,
    /// How long it took, in simulated time.
    #[serde(rename = "took_ms", serialize_with = "in_millis")]
    pub took: Duration,
    /// What befell it, and how often.
    pub faults: BTreeMap<Kind, u64>,
    /// How often the rare paths were gone.
    pub sometimes: Sometimes,
    /// How often each event was told.
    pub events: BTreeMap<&'static str, u64>,
    /// What must not be.
    pub violation: Option<Violation>,
    /// The numbers of what befell it.
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
    let setup = Setup { scenario, seed, kind: None, nth: None, flaw: None, patches: &[] };
    finish(setup, Some(replay)).0
}

/// The same with a worker or a store that lacks something.
pub(crate) fn run_mutant(
    scenario: &Scenario,
    seed: u64,
    flaw: Option<Flaw>,
    patches: &[Patch],
) -> Report {
    let setup = Setup { scenario, seed, kind: None, nth: None, flaw, patches };
    finish(setup, None).0
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
