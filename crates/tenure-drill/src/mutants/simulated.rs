//! Safeguards whose absence shows in how a worker's machines work together: the simulation looks
//! for them.
//!
//! A worker that omits something has a `Flaw`: the scheduler, the connection or the handler of the
//! simulation acts for the worker, and leaves out or changes one thing. The machines themselves
//! contain no mutants. Some patches of SQLite's files are here too, to show that this level notices
//! them as well.

use tenure::drill::Patch;

use super::{Hunt, Level, Stock, explored};
use crate::simulation::{Flaw, Report, Scenario, crowded, fickle, run_mutant, steady};
use crate::verdict::{Invariant, Violation};

/// How many seeds are tried before a mutant counts as a survivor.
const SEEDS: u64 = 60;

/// The explorer's mutant of this name. Here it shows in jobs that by chance snooze or kill.
const FORGOTTEN: &str = "crashes forgotten at once";

/// A flaw of a worker, the world in which it shows, and the invariants that it breaks.
struct Careless {
    name: &'static str,
    removed: &'static str,
    flaw: Flaw,
    shows: Shows,
    broken: &'static [Invariant],
}

/// In which world a mutant shows.
#[derive(Debug, Clone, Copy)]
enum Shows {
    /// A world with all kinds of faults.
    Usually,
    /// A world without faults.
    Faultless,
    /// A world where jobs come one at a time to idle workers.
    Steady,
    /// A world where each worker runs many long jobs at a time.
    Crowded,
}

/// All of them.
pub(super) fn hunts() -> impl Iterator<Item = Hunt> {
    let careless = CARELESS.iter().map(|careless| Hunt {
        mutant: careless.name,
        removed: careless.removed,
        level: Level::Simulation,
        stock: Stock::Worker,
        broken: careless.broken,
        run: Box::new(|| hunt(careless.shows, Some(careless.flaw), &[])),
    });
    let patched = PATCHED.iter().map(|(mutant, removed, broken)| Hunt {
        mutant,
        removed,
        level: Level::Simulation,
        stock: Stock::Sqlite,
        broken,
        run: Box::new(|| hunt(Shows::Usually, None, explored::sqlite(mutant))),
    });
    let fickle = Hunt {
        mutant: FORGOTTEN,
        removed: "crashes count until the last is an hour old; here a handler that comes back clears them, and snoozes and kills for ever",
        level: Level::Simulation,
        stock: Stock::Sqlite,
        broken: &[Invariant::I5],
        run: Box::new(|| first_of(|seed| fickle(seed, explored::sqlite(FORGOTTEN)))),
    };
    let unlapsed = Hunt {
        mutant: "no lapse of a worker that is cut off",
        removed: "a lease that is over is taken back; here only a lost process tells",
        level: Level::Simulation,
        stock: Stock::Sqlite,
        broken: &[Invariant::I11],
        run: Box::new(|| hunt(Shows::Usually, None, NO_LAPSE)),
    };
    let unnoticed = Hunt {
        mutant: "stall of the store not noticed",
        removed: "a pulse that stood still pardons leases; here they run out while the store answers nobody",
        level: Level::Simulation,
        stock: Stock::Sqlite,
        broken: &[Invariant::I6],
        run: Box::new(|| hunt(Shows::Usually, None, NO_BREAK)),
    };
    let side_by_side = Hunt {
        mutant: "suspects side by side",
        removed: "a worker holds one suspect at a time; here a claim does not look whether it has one",
        level: Level::Simulation,
        stock: Stock::Sqlite,
        broken: &[Invariant::I5],
        run: Box::new(|| hunt(Shows::Usually, None, MANY_SUSPECTS)),
    };
    careless.chain(patched).chain([fickle, unlapsed, unnoticed, side_by_side])
}

fn hunt(shows: Shows, flaw: Option<Flaw>, patches: &[Patch]) -> Option<Violation> {
    let (usual, faultless) = (Scenario::default(), Scenario::default().faultless());
    first_of(|seed| match shows {
        Shows::Usually => run_mutant(&usual, seed, flaw, patches),
        Shows::Faultless => run_mutant(&faultless, seed, flaw, patches),
        Shows::Steady => steady(seed, flaw),
        Shows::Crowded => crowded(seed, flaw),
    })
}

/// Hides from the store that a lease is older than the last pulse, so that it never notices a
/// stall.
const NO_BREAK: &[Patch] = &[Patch {
    file: "lapse",
    find: "WHERE state = 2 AND leased_at < :then)",
    replace: "WHERE state = 2 AND leased_at < -:then)",
}];

/// Hides from a claim that its worker already holds a suspect.
const MANY_SUSPECTS: &[Patch] = &[Patch {
    file: "claim",
    find: "<> 0 AND worker = :worker",
    replace: "<> 0 AND worker = :worker AND worker = ''",
}];

/// Neither a sweep nor a claim finds a lease that is over.
const NO_LAPSE: &[Patch] = &[
    Patch {
        file: "lapse",
        find: " WHERE state = 2 AND {over}\n ORDER BY lease_until, id",
        replace: " WHERE state = 2 AND {over} AND 0\n ORDER BY lease_until, id",
    },
    Patch {
        file: "claim",
        find: "WHERE state = 2 AND lease_until <= :over)",
        replace: "WHERE state = 2 AND lease_until < -:over)",
    },
];

/// The first violation in several seeds.
fn first_of(run: impl Fn(u64) -> Report) -> Option<Violation> {
    (0..SEEDS).find_map(|seed| {
        let violation = run(seed).violation?;
        let runs = usize::try_from(seed + 1).unwrap_or(usize::MAX);
        Some(Violation { states: runs, ..violation })
    })
}

const CARELESS: [Careless; 12] = [
    Careless {
        name: "renewal on the job runtime",
        removed: "leases are renewed on a thread of their own; here a busy handler keeps the renewer waiting",
        flaw: Flaw::RenewsAmongHandlers,
        shows: Shows::Faultless,
        broken: &[Invariant::I6],
    },
    Careless {
        name: "notification needed for progress",
        removed: "a worker looks by itself now and then; here it looks only when it is told",
        flaw: Flaw::NeedsNotification,
        shows: Shows::Faultless,
        broken: &[Invariant::I11],
    },
    Careless {
        name: "silence taken for consent",
        removed: "a settlement is repeated until it is answered; here one that was not answered counts as heard",
        flaw: Flaw::TakesSilenceForConsent,
        shows: Shows::Usually,
        broken: &[Invariant::I10],
    },
    Careless {
        name: "lost claim not asked for",
        removed: "after a claim without an answer a worker asks what it holds; here it does not",
        flaw: Flaw::ForgetsWhatItHolds,
        shows: Shows::Usually,
        broken: &[Invariant::I6, Invariant::I11],
    },
    Careless {
        name: "late claim not asked for again",
        removed: "a claim without an answer may still arrive, and a worker asks again; here it asks once",
        flaw: Flaw::AsksOnce,
        shows: Shows::Usually,
        broken: &[Invariant::I6, Invariant::I11],
    },
    Careless {
        name: "refusal ignored before the effect",
        removed: "a handler that is refused stops; here it goes on to the effect",
        flaw: Flaw::IgnoresRefusal,
        shows: Shows::Usually,
        broken: &[Invariant::I16],
    },
    Careless {
        name: "worker clock for expiry",
        removed: "only the store's clock decides whether a lease is over; here it is the worker's, 8 s ahead",
        flaw: Flaw::OwnClock,
        shows: Shows::Faultless,
        broken: &[Invariant::I8],
    },
    Careless {
        name: "few renewals at a time",
        removed: "all leases of a worker are renewed in one round; here 16, and the rest has to wait",
        flaw: Flaw::RenewsFew,
        shows: Shows::Crowded,
        broken: &[Invariant::I6],
    },
    Careless {
        name: "ring cursor stands still",
        removed: "a claim begins after the tenant that was served last; here always at the same one",
        flaw: Flaw::CursorStands,
        shows: Shows::Faultless,
        broken: &[Invariant::Fair],
    },
    Careless {
        name: "no jitter",
        removed: "retries are spread by chance; here all are put off for the same time",
        flaw: Flaw::NoJitter,
        shows: Shows::Faultless,
        broken: &[Invariant::Spread],
    },
    Careless {
        name: "nothing is pruned",
        removed: "a sweeper deletes what need not be kept; here it does not",
        flaw: Flaw::NeverPrunes,
        shows: Shows::Steady,
        broken: &[Invariant::Pruned],
    },
    Careless {
        name: "notification ignored",
        removed: "a worker that is told of a job looks at once; here it looks in its own time",
        flaw: Flaw::IgnoresPokes,
        shows: Shows::Steady,
        broken: &[Invariant::Told],
    },
];

/// Mutants that the explorer kills too, by their names there.
const PATCHED: [(&str, &str, &[Invariant]); 7] = [
    ("no token bump on claim", "a claim raises the token; here it keeps it", &[Invariant::I2]),
    (
        "fence without token",
        "whoever settles shows the latest token; here any will do",
        &[Invariant::I7, Invariant::I6],
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
