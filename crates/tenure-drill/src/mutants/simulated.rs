//! Safeguards whose absence shows in how a worker's machines work together: the simulation looks for them.
//!
//! A worker that leaves something out is a named strategy of the simulation: the scheduler, the connection or the handler
//! does it. The machines themselves have no mutants in them. And some patches of SQLite's files, to show that this level
//! sees them too.

use tenure::drill::Patch;

use super::{Hunt, Level, Stock, explored};
use crate::simulation::{Flaw, Scenario, run_mutant};
use crate::verdict::{Invariant, Violation};

/// How many seeds are tried before a mutant counts as alive.
const SEEDS: u64 = 20;

/// What a worker leaves out, in which world it shows, and what it breaks.
struct Careless {
    name: &'static str,
    removed: &'static str,
    flaw: Flaw,
    /// It shows where nothing goes wrong.
    faultless: bool,
    broken: &'static [Invariant],
}

/// All of them.
pub(super) fn hunts() -> impl Iterator<Item = Hunt> {
    let careless = CARELESS.iter().map(|careless| Hunt {
        mutant: careless.name,
        removed: careless.removed,
        level: Level::Simulation,
        stock: Stock::Worker,
        broken: careless.broken,
        run: Box::new(|| hunt(careless.faultless, Some(careless.flaw), &[])),
    });
    let patched = PATCHED.iter().map(|(mutant, removed, broken)| Hunt {
        mutant,
        removed,
        level: Level::Simulation,
        stock: Stock::Sqlite,
        broken,
        run: Box::new(|| hunt(false, None, explored::sqlite(mutant))),
    });
    careless.chain(patched)
}

fn hunt(faultless: bool, flaw: Option<Flaw>, patches: &[Patch]) -> Option<Violation> {
    let usual = Scenario::default();
    let scenario = if faultless { usual.faultless() } else { usual };
    (0..SEEDS).find_map(|seed| {
        let violation = run_mutant(&scenario, seed, flaw, patches).violation?;
        let runs = usize::try_from(seed + 1).unwrap_or(usize::MAX);
        Some(Violation { states: runs, ..violation })
    })
}

const CARELESS: [Careless; 6] = [
    Careless {
        name: "renewal on the job runtime",
        removed: "leases are renewed on a thread of their own; here a busy handler keeps the renewer waiting",
        flaw: Flaw::RenewsAmongHandlers,
        faultless: true,
        broken: &[Invariant::I6],
    },
    Careless {
        name: "notification needed for progress",
        removed: "a worker looks by itself now and then; here it looks only when it is told",
        flaw: Flaw::NeedsNotification,
        faultless: true,
        broken: &[Invariant::I11],
    },
    Careless {
        name: "silence taken for consent",
        removed: "a settlement is repeated until it is answered; here one that was not answered counts as heard",
        flaw: Flaw::TakesSilenceForConsent,
        faultless: false,
        broken: &[Invariant::I10],
    },
    Careless {
        name: "lost claim not asked for",
        removed: "after a claim without an answer a worker asks what it holds; here it does not",
        flaw: Flaw::ForgetsWhatItHolds,
        faultless: false,
        broken: &[Invariant::I6, Invariant::I11],
    },
    Careless {
        name: "refusal ignored before the effect",
        removed: "a handler that is refused stops; here it goes on to the effect",
        flaw: Flaw::IgnoresRefusal,
        faultless: false,
        broken: &[Invariant::I16],
    },
    Careless {
        name: "worker clock for expiry",
        removed: "only the store's clock decides whether a lease is over; here it is the worker's, 8 s ahead",
        flaw: Flaw::OwnClock,
        faultless: true,
        broken: &[Invariant::I8],
    },
];

/// Mutants that the explorer kills too, by their names there.
const PATCHED: [(&str, &str, &[Invariant]); 7] = [
    ("no token bump on claim", "a claim raises the token; here it keeps it", &[Invariant::I2]),
    (
        "fence without token",
        "whoever settles shows the latest token; here any will do",
        &[Invariant::I7],
    ),
    (
        "renewal unfenced",
        "whoever renews shows the latest token; here any will do",
        &[Invariant::I7],
    ),
    (
        "repeated settlement not recognised",
        "a settlement that is repeated is recognised; here it is refused",
        &[Invariant::I10],
    ),
    (
        "effect written before the fence",
        "whoever writes to the ledger shows the latest token; here any will do",
        &[Invariant::I7],
    ),
    (
        "attempts counted at failure",
        "an attempt is counted when it begins; here only when it fails",
        &[Invariant::I5],
    ),
    (
        "epoch ignored",
        "tokens rise with the epoch when the database went back; here they do not",
        &[Invariant::I2],
    ),
];
