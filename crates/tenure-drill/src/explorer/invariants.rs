//! What must hold in every state and after every step.
//!
//! The ghosts record what really happened: which claim was the latest, and which claim settled
//! what. The code under test never sees them. Without them the worst mistakes, a token that does
//! not rise and a fence without a token, would go unnoticed.

mod effect;
mod ghost;
mod key;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};
use tenure::Fence;
use tenure::drill::Dump;
use tenure::engine::job::{JobId, State};

use self::ghost::Ghost;
use self::key::Remembered;
use super::call::{Answer, Call};
use crate::verdict::Invariant;

/// The invariants that whole calls on a store can break.
pub const EXPLORED: [Invariant; 13] = [
    Invariant::I1,
    Invariant::I2,
    Invariant::I3,
    Invariant::I4,
    Invariant::I5,
    Invariant::I6,
    Invariant::I7,
    Invariant::I8,
    Invariant::I9,
    Invariant::I10,
    Invariant::I11,
    Invariant::I12,
    Invariant::I16,
];

/// How often each invariant was checked, and how often its premise was true.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tally(BTreeMap<Invariant, (usize, usize)>);

impl Tally {
    pub(super) fn count(&mut self, invariant: Invariant, premise: bool) {
        let (looked, held) = self.0.entry(invariant).or_default();
        *looked += 1;
        *held += usize::from(premise);
    }

    /// Adds the tally of another search.
    pub fn add(&mut self, other: &Tally) {
        for (invariant, (looked, held)) in &other.0 {
            let sum = self.0.entry(*invariant).or_default();
            *sum = (sum.0 + looked, sum.1 + held);
        }
    }

    /// How often an invariant was checked, and how often its premise was true.
    pub fn of(&self, invariant: Invariant) -> (usize, usize) {
        self.0.get(&invariant).copied().unwrap_or_default()
    }

    /// Those of `expected` whose premise was never true: they were not tested at all.
    pub fn vacuous(&self, expected: &[Invariant]) -> Vec<Invariant> {
        expected.iter().copied().filter(|invariant| self.of(*invariant).1 == 0).collect()
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (invariant, (looked, held)) in &self.0 {
            writeln!(
                f,
                "  {invariant:<4} evaluated {looked:>8} times, premise true {held:>8} times"
            )?;
        }
        Ok(())
    }
}

impl Serialize for Tally {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Count {
            evaluated: usize,
            premise_true: usize,
        }
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (invariant, (evaluated, premise_true)) in &self.0 {
            let count = Count { evaluated: *evaluated, premise_true: *premise_true };
            map.serialize_entry(&invariant.to_string(), &count)?;
        }
        map.end()
    }
}

/// The invariant that is broken, and what was seen.
pub(super) type Broken = (Invariant, String);
type Checked = Result<(), Broken>;

/// What really happened, in the order of commits.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Ghosts {
    jobs: BTreeMap<JobId, Ghost>,
    /// The job that owns the key.
    key: Option<Remembered>,
}

/// One call and its result.
pub(super) struct Seen<'a> {
    pub(super) old: &'a Dump,
    pub(super) new: &'a Dump,
    pub(super) call: &'a Call,
    pub(super) answer: &'a Answer,
    /// The fences that the caller holds, each with the claim it comes from.
    pub(super) rights: &'a [(Fence, u8)],
}

impl Ghosts {
    pub(crate) fn new(jobs: u8) -> Ghosts {
        let ghosts = (1..=i64::from(jobs)).map(|id| (JobId(id), Ghost::default()));
        Ghosts { jobs: ghosts.collect(), key: None }
    }

    /// The number of the latest claim of a job.
    pub(crate) fn latest(&self, job: JobId) -> u8 {
        self.jobs.get(&job).map_or(0, |ghost| ghost.claims)
    }

    /// The ghosts after the database has gone back: what happened since `backup` is undone, but the
    /// tokens that were issued since are still known outside.
    pub(crate) fn back_to(&self, backup: &Ghosts) -> Ghosts {
        let back = |(id, then): (&JobId, &Ghost)| {
            (*id, self.jobs.get(id).map_or_else(Ghost::default, |now| now.back_to(then)))
        };
        Ghosts { jobs: backup.jobs.iter().map(back).collect(), key: backup.key.clone() }
    }

    /// Records one call, and checks that it was right.
    pub(super) fn observe(&mut self, seen: &Seen<'_>, tally: &mut Tally) -> Checked {
        let mut check = Check { tally };
        let Seen { old, new, .. } = seen;
        self.enqueued(seen, &mut check)?;
        let ids: Vec<_> = new.jobs.iter().map(|job| job.id.0).collect();
        let all_there = new.jobs.iter().map(|job| &job.id).eq(self.jobs.keys());
        check.that(Invariant::I9, true, all_there, || {
            let owed: Vec<_> = self.jobs.keys().map(|id| id.0).collect();
            format!("the jobs {owed:?} were acknowledged, and there are {ids:?}")
        })?;
        if let (Call::Claim(_, n) | Call::SettleAndClaim(_, _, n), Some(claimed)) =
            (seen.call, seen.answer.claimed())
        {
            let got = claimed.attempts.len();
            check.that(Invariant::I10, got > 0, got <= usize::from(*n), || {
                format!("a claim asked for {n} and was given {got}")
            })?;
        }
        for (before, after) in old.jobs.iter().zip(&new.jobs) {
            let Some(ghost) = self.jobs.get_mut(&after.id) else { continue };
            ghost.moved(before, after, seen, &mut check)?;
        }
        for (before, after) in old.jobs.iter().zip(&new.jobs) {
            let Some(ghost) = self.jobs.get_mut(&after.id) else { continue };
            ghost.called(before, after, seen, &mut check)?;
            ghost.took_effect(before, seen, &mut check)?;
            ghost.holds(after, &mut check)?;
        }
        one_suspect_each(new, &mut check)
    }
}

/// I5: a worker holds at most one suspect at a time. It may take a second one when the first has
/// run for a minute, but no scope lasts that long.
fn one_suspect_each(state: &Dump, check: &mut Check<'_>) -> Checked {
    let suspects = || {
        let held = state.jobs.iter().filter(|job| job.state == State::Running && job.is_suspect);
        held.filter_map(|job| job.worker.as_ref())
    };
    let workers: BTreeSet<_> = suspects().collect();
    let alone = workers.len() == suspects().count();
    check.that(Invariant::I5, !workers.is_empty(), alone, || {
        "a worker holds two suspects at a time".to_owned()
    })
}

pub(super) struct Check<'a> {
    tally: &'a mut Tally,
}

impl Check<'_> {
    fn that(
        &mut self,
        invariant: Invariant,
        premise: bool,
        holds: bool,
        what: impl FnOnce() -> String,
    ) -> Checked {
        self.tally.count(invariant, premise);
        if premise && !holds { Err((invariant, what())) } else { Ok(()) }
    }
}
