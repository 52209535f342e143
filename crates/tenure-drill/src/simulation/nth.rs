//! For N = 1, 2, 3 and so on, the N-th call is lost, before or after it is applied, and nothing
//! else goes wrong: all jobs must reach their end, and nothing may happen twice.

use serde::Serialize;
use tenure::engine::job::{JobId, State};

use super::faulty::When;
use super::handlers::effect;
use super::scenario::Scenario;
use super::world::{Drive, Setup, World};
use super::{Report, finish};
use crate::verdict::{Invariant, Violation};

/// A call that is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lost {
    /// The number of the call, from 1.
    pub call: u64,
    /// Whether it is lost before or after it is applied.
    pub when: When,
}

/// The result of the whole loop.
#[derive(Debug, Clone, Serialize)]
pub struct Nth {
    /// How many calls a run makes in which nothing is lost.
    pub calls: u64,
    /// How many runs there were.
    pub runs: u64,
    /// The first violation.
    pub violation: Option<Violation>,
}

/// Every job has a step and an effect. There are two workers, so that each meets the other's leases
/// and locks.
fn small() -> Scenario {
    Scenario { workers: 2, jobs: 6, slots: 2, ..Scenario::default() }.faultless()
}

/// Loses the first call, then the second, and so on, each in a run of its own, and each both before
/// and after it is applied; until no run makes so many calls. Calls `tell` with the number of each
/// call that was tried.
pub fn fail_each(mut tell: impl FnMut(u64)) -> Nth {
    let (whole, violation) = judged(None);
    let mut nth = Nth { calls: whole.calls, runs: 1, violation };
    for call in 1.. {
        let mut reached = false;
        for when in [When::Before, When::After] {
            if nth.violation.is_some() {
                return nth;
            }
            let (report, violation) = judged(Some(Lost { call, when }));
            reached |= report.calls >= call;
            nth.runs += 1;
            nth.violation = violation;
        }
        if !reached {
            return nth;
        }
        tell(call);
    }
    nth
}

/// Runs with one lost call.
pub fn fail_nth(lost: Lost) -> Report {
    let (report, violation) = judged(Some(lost));
    Report { violation, ..report }
}

fn judged(lost: Option<Lost>) -> (Report, Option<Violation>) {
    let scenario = small();
    let nth = lost.map(|lost| (lost.call, lost.when));
    let setup = Setup {
        scenario: &scenario,
        seed: 0,
        drive: Drive::Only("pay"),
        nth,
        flaw: None,
        patches: &[],
    };
    let replay = lost.map(|Lost { call, when }| {
        let after = if when == When::After { " --after" } else { "" };
        format!("drill simulate --fail-nth {call}{after}")
    });
    let (report, world) = finish(setup, replay.clone());
    let violation = report.violation.clone().or_else(|| once_each(&world, replay));
    (report, violation)
}

/// Each job must have succeeded, in one attempt, with its effect sent once: a single lost call must
/// not cause more than that. But a job that was claimed ahead may be given back before it begins,
/// because the lost call has delayed the attempt in its slot. That costs no attempt.
fn once_each(world: &World<'_>, replay: Option<String>) -> Option<Violation> {
    let books = world.shared.books();
    let wrong = books.jobs.iter().find_map(|(job, ghost)| {
        let sent = books.witness.sent(*job, &effect());
        let begun = ghost.starts - ghost.given_back;
        let what = format!(
            "job {job} is {}, was begun {begun} times, and its effect was sent {sent} times",
            ghost.state
        );
        let invariant = if ghost.state != State::Succeeded {
            Invariant::I11
        } else if (begun, sent) != (1, 1) {
            Invariant::I1
        } else {
            return None;
        };
        Some((*job, invariant, what))
    });
    let (job, invariant, what): (JobId, _, _) = wrong?;
    let schedule = books.trace.story(&[job].into());
    let states = usize::try_from(world.turn).unwrap_or(usize::MAX);
    Some(Violation { invariant, what, schedule, states, replay })
}
