//! The proof of the prover: each safeguard is taken out, one at a time, and the explorer must
//! notice.
//!
//! A mutant is a patch of a SQL file, given to a throw-away store in memory. Nothing else can reach
//! it. A comparison that is taken out is replaced by one that is always true, `x != -:x`, so that
//! the statement keeps its parameters.

use tenure::drill::Patch;

use crate::explorer::{Invariant, SCOPES, explore_patched};

/// A store with one safeguard missing.
#[derive(Debug, Clone, Copy)]
pub struct Mutant {
    /// What was taken out.
    pub name: &'static str,
    /// The invariants of which at least one must be seen broken.
    pub broken: &'static [Invariant],
    patches: &'static [Patch],
}

/// How a mutant fared.
#[derive(Debug, Clone)]
pub struct Fate {
    /// The mutant.
    pub mutant: &'static str,
    /// What killed it, in which scope, after how many states; `None` if it survived.
    pub killed: Option<(Invariant, &'static str, usize)>,
    /// The schedule that killed it, for people.
    pub story: String,
}

/// All mutants.
pub const MUTANTS: [Mutant; 9] = [
    Mutant {
        name: "no token bump on claim",
        broken: &[Invariant::I2],
        patches: &[patch(
            "claim",
            "token = max(token, :epoch << 40) + 1",
            "token = max(token, 1, :epoch << 40)",
        )],
    },
    Mutant {
        name: "fence without token",
        broken: &[Invariant::I7],
        patches: &[patch(
            "settle",
            "token = :token AND state = 2",
            "token != -:token AND state = 2",
        )],
    },
    Mutant {
        name: "fence without state",
        broken: &[Invariant::I4, Invariant::I10],
        patches: &[patch("settle", "token = :token AND state = 2", "token = :token")],
    },
    Mutant {
        name: "no fence",
        broken: &[Invariant::I7, Invariant::I10],
        patches: &[patch("settle", "token = :token AND state = 2", "token != -:token")],
    },
    Mutant {
        name: "lapse without re-check of the lease",
        broken: &[Invariant::I8],
        patches: &[patch("lapse", "   AND lease_until <= :now", "   AND lease_until != -:now")],
    },
    Mutant {
        name: "lapse by id only",
        broken: &[Invariant::I8],
        patches: &[
            patch("lapse", "token = :token AND state = 2", "token != -:token AND state = 2"),
            patch("lapse", "   AND lease_until <= :now", "   AND lease_until != -:now"),
        ],
    },
    Mutant {
        name: "renewal unfenced",
        broken: &[Invariant::I7],
        patches: &[patch(
            "renew",
            "token = :token AND state = 2",
            "token != -:token AND state = 2",
        )],
    },
    Mutant {
        name: "attempts counted at failure",
        broken: &[Invariant::I5],
        patches: &[
            patch("claim", "attempt = attempt + 1,", "attempt = attempt,"),
            // A lapse changes the crashes, so this counts settlements only.
            patch("settle", "attempt = :attempt,", "attempt = :attempt + (crashes = :crashes),"),
        ],
    },
    Mutant {
        name: "repeated settlement not recognised",
        broken: &[Invariant::I10],
        patches: &[patch("settle", "verb = :verb AND refused = 0", "verb = :verb AND refused = 9")],
    },
];

const fn patch(file: &'static str, find: &'static str, replace: &'static str) -> Patch {
    Patch { file, find, replace }
}

/// Hunts one mutant through the scopes until something kills it.
pub fn hunt(mutant: &Mutant) -> Fate {
    for scope in &SCOPES {
        if let Err(violation) = explore_patched(scope, mutant.patches) {
            let killed = Some((violation.invariant, scope.name, violation.states));
            return Fate { mutant: mutant.name, killed, story: format!("{violation:?}") };
        }
    }
    Fate { mutant: mutant.name, killed: None, story: "nothing was noticed".into() }
}
