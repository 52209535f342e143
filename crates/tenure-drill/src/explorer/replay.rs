//! Repeats one schedule step by step, from the codes of its moves.

use std::fmt;

use serde::Serialize;

use super::lockstep::Lockstep;
use super::scope::Scope;
use super::search::{Node, Search};
use super::words;
use super::{Engines, Merging};
use crate::verdict::{Invariant, Violation};

/// A schedule that was replayed.
#[derive(Debug, Clone, Serialize)]
pub struct Replayed {
    /// The state in which the schedule begins.
    pub beginning: String,
    /// What was done, up to the first violation.
    pub steps: Vec<Step>,
    /// The violation, if there is one.
    pub violation: Option<Violation>,
    /// The codes of the moves that are possible next.
    pub possible: Vec<String>,
}

/// One step of a schedule.
#[derive(Debug, Clone, Serialize)]
pub struct Step {
    /// Its code.
    pub code: String,
    /// What was done and answered.
    pub words: String,
    /// The state afterwards: its jobs and effects, in words.
    pub after: String,
}

/// Why a schedule cannot be replayed.
#[derive(Debug)]
pub enum Unplayable {
    /// A step is not possible when its turn comes.
    Impossible {
        /// Which step, counted from one.
        at: usize,
        /// Its code.
        code: String,
        /// What is possible instead.
        possible: Vec<String>,
    },
    /// The stores cannot be opened.
    Store(tenure::Error),
}

impl fmt::Display for Unplayable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unplayable::Impossible { at, code, possible } => {
                write!(
                    f,
                    "step {at}, {code}, is not possible there; possible are {}",
                    possible.join(", ")
                )
            }
            Unplayable::Store(error) => error.fmt(f),
        }
    }
}

/// Replays exactly this schedule.
///
/// # Errors
/// If a step is not possible when its turn comes, or a store cannot be opened.
pub fn replay(scope: &Scope, engines: Engines, codes: &[&str]) -> Result<Replayed, Unplayable> {
    let stores = Lockstep::new(engines).map_err(Unplayable::Store)?;
    let command = super::command(scope, engines, codes);
    replay_on(scope, stores, codes, Some(&command))
}

/// Like `replay`, on the given stores.
pub(super) fn replay_on(
    scope: &Scope,
    stores: Lockstep,
    codes: &[&str],
    command: Option<&str>,
) -> Result<Replayed, Unplayable> {
    let mut search = Search::new(scope, stores, Merging::Essence);
    let mut node = search.first();
    let mut replayed = Replayed {
        beginning: words::state(search.dump(&node)),
        steps: Vec::new(),
        violation: None,
        possible: Vec::new(),
    };
    let broken = |(invariant, what): (Invariant, String), steps: &[Step]| {
        let schedule = steps.iter().map(|step| step.words.clone()).collect();
        Some(Violation {
            invariant,
            what,
            schedule,
            states: steps.len(),
            replay: command.map(str::to_owned),
        })
    };
    for (at, code) in codes.iter().enumerate() {
        if let Err(what) = search.check_recovery(node.dump) {
            replayed.violation = broken(what, &replayed.steps);
            return Ok(replayed);
        }
        let moves = search.moves(&node);
        let Some(step) = moves.iter().find(|step| step.code() == *code) else {
            let possible = codes_of(&search, &node);
            return Err(Unplayable::Impossible { at: at + 1, code: (*code).to_owned(), possible });
        };
        let (words, after, what) = match search.step(&node, step) {
            Ok((after, answer)) => {
                node = after;
                (step.words(Some(&answer)), words::state(search.dump(&node)), None)
            }
            Err(what) => {
                // The answer is known unless a store itself has failed.
                let heard = search.heard(&node, step);
                let after = heard.as_ref().map_or(String::new(), |(_, state)| words::state(state));
                (step.words(heard.as_ref().map(|(answer, _)| answer)), after, Some(what))
            }
        };
        replayed.steps.push(Step { code: (*code).to_owned(), words, after });
        if let Some(what) = what {
            replayed.violation = broken(what, &replayed.steps);
            return Ok(replayed);
        }
    }
    if let Err(what) = search.check_recovery(node.dump) {
        replayed.violation = broken(what, &replayed.steps);
    }
    replayed.possible = codes_of(&search, &node);
    Ok(replayed)
}

fn codes_of(search: &Search<'_>, node: &Node) -> Vec<String> {
    search.moves(node).iter().map(super::actors::Move::code).collect()
}
