//! Every interleaving of a few actors' calls on real stores, with crashes, lost replies and worse.
//!
//! A state is the store's whole dump, what each actor knows, and the ghosts: facts about the
//! history that the code under test never sees. A transition is one real call. A call is a function
//! of the dump, so each pair of dump and call runs only once, on the model and on the engines in
//! lockstep, and a state that was seen before is not explored again: the search is exact and small.
//! After each step the invariants are checked. The first violation ends the search, and since the
//! search is breadth-first, its schedule is a shortest one.
//!
//! In reading order: how much is explored (`scope`), the actors (`actors`), what they call
//! (`call`), on which stores (`lockstep`), what must hold (`invariants`), the search itself
//! (`search`), and a schedule for people (`words`, `replay`).

mod actors;
mod call;
mod invariants;
mod lockstep;
mod replay;
mod scope;
mod search;
mod words;

use std::fmt;
use std::time::Duration;

use serde::{Serialize, Serializer};
use tenure::drill::Explorable;
use tenure::engine::clock::{Clock, millis, monotonic};

pub use self::actors::Ending;
pub use self::invariants::{EXPLORED, Tally};
use self::lockstep::Lockstep;
pub use self::lockstep::{Engines, Patched};
pub use self::replay::{Replayed, Step, Unplayable, replay};
pub use self::scope::{BOUNDS, Bound, SCOPES, Scope, WIDE_SCOPES};
use self::search::{Found, Search, schedules};
use crate::verdict::{Invariant, Violation};

/// The result of one exhaustive search.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// The scope's name.
    pub scope: &'static str,
    /// Distinct states. States that differ only in which worker is which count as one.
    pub states: usize,
    /// Steps between states.
    pub transitions: usize,
    /// Real calls on each engine: distinct pairs of dump and call.
    pub calls: usize,
    /// How many different schedules the states represent: paths from the first state to a last one.
    pub schedules: f64,
    /// How long it took.
    #[serde(rename = "took_ms", serialize_with = "in_millis")]
    pub took: Duration,
    /// Whether the search covered the whole scope. If not, it proves nothing.
    pub whole: bool,
    /// How often each invariant was checked, and how often its premise was true.
    pub tally: Tally,
    /// Invariants that this scope must test and did not: their premise was never true.
    pub vacuous: Vec<Invariant>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { scope, states, transitions, calls, schedules, took, tally, .. } = self;
        writeln!(
            f,
            "{scope}: {states} states, {transitions} transitions, {schedules:.1e} schedules, {calls} calls, {took:.1?}"
        )?;
        write!(f, "{tally}")
    }
}

fn in_millis<S: Serializer>(took: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_i64(millis(*took))
}

/// How a search is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ways {
    /// The stores to search on.
    pub engines: Engines,
    /// Which states count as one.
    pub merging: Merging,
    /// Stop after this many states.
    pub most: usize,
}

impl Ways {
    /// On these stores, with all merging and without a limit on states.
    pub fn on(engines: Engines) -> Ways {
        Ways { engines, merging: Merging::Alike, most: usize::MAX }
    }
}

/// Which states count as one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Merging {
    /// States that differ only in which worker is which, or only in details that can change neither
    /// an answer nor an invariant.
    Alike,
    /// States that differ only in details that can change neither an answer nor an invariant.
    /// Workers are told apart.
    Essence,
    /// No merging: whole dumps are compared, with every text and time in them.
    Nothing,
}

/// Explores all of `scope` on the model and the engines in lockstep. Calls `tell` from time to time
/// with the number of states so far.
///
/// # Errors
/// The first violation. A store that cannot be opened counts as a violation of the lockstep.
pub fn explore(
    scope: &Scope,
    ways: Ways,
    tell: &mut dyn FnMut(usize),
) -> Result<Report, Violation> {
    let stores = Lockstep::new(ways.engines).map_err(|error| unopened(&error))?;
    search(scope, stores, ways.merging, ways.most, tell).map_err(|found| {
        let codes: Vec<_> = found.steps.iter().map(|(code, _)| code.as_str()).collect();
        let command = command(scope, ways.engines, &codes);
        violation(*found, Some(command))
    })
}

/// Explores `scope` on a store whose SQL was patched. The model does not run beside it: the
/// invariants alone must notice the patch. Do not use [`Merging::Alike`] if the patched store
/// treats workers differently.
///
/// # Errors
/// The first violation.
pub fn explore_patched(
    scope: &Scope,
    target: Patched,
    merging: Merging,
) -> Result<Report, Violation> {
    let stores = Lockstep::patched(target).map_err(|error| unopened(&error))?;
    search(scope, stores, merging, usize::MAX, &mut |_| {}).map_err(|found| violation(*found, None))
}

/// Explores `scope` on the model and on the caller's store beside it, up to `most` states.
///
/// # Errors
/// The first violation.
pub(crate) fn explore_beside_the_model(
    scope: &Scope,
    name: &'static str,
    (store, clock): (Box<dyn Explorable>, Clock),
    most: usize,
) -> Result<Report, Violation> {
    let stores = Lockstep::beside_the_model(name, store, clock);
    search(scope, stores, Merging::Alike, most, &mut |_| {})
        .map_err(|found| violation(*found, None))
}

fn search(
    scope: &Scope,
    stores: Lockstep,
    merging: Merging,
    most: usize,
    tell: &mut dyn FnMut(usize),
) -> Result<Report, Box<Found>> {
    let began = monotonic();
    let mut search = Search::new(scope, stores, merging);
    let graph = search.run(most, tell)?;
    Ok(Report {
        scope: scope.name,
        states: graph.states,
        transitions: graph.edges.iter().map(Vec::len).sum(),
        calls: search.calls(),
        schedules: schedules(&graph.edges),
        took: monotonic() - began,
        whole: graph.whole,
        vacuous: search.tally.vacuous(scope.tests),
        tally: search.tally,
    })
}

fn violation(found: Found, replay: Option<String>) -> Violation {
    let Found { broken: (invariant, what), steps, states } = found;
    let schedule = steps.into_iter().map(|(_, words)| words).collect();
    Violation { invariant, what, schedule, states, replay }
}

fn unopened(error: &tenure::Error) -> Violation {
    let what = error.to_string();
    Violation { invariant: Invariant::Lockstep, what, schedule: vec![], states: 0, replay: None }
}

/// The arguments of `tenure` that repeat exactly this schedule.
fn command(scope: &Scope, engines: Engines, codes: &[&str]) -> String {
    let (scope, engines, codes) = (scope.options(), engines.name(), codes.join(","));
    // The codes are in single quotes, because some contain an exclamation mark, which a shell would
    // expand.
    format!("drill explore {scope} --engine {engines} --replay '{codes}'")
}

#[cfg(test)]
mod tests;
