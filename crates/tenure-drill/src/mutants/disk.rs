//! Safeguards whose absence shows only when the power fails, or when another program writes to the
//! file.
//!
//! Such a mutant is a store with another setting, made behind the library's feature `drill`.

use super::{Hunt, Level, Stock};
use crate::disk::{Begin, Flush, Looks, first_broken, meet, replace};
use crate::verdict::{Invariant, Violation};

/// A seed whose first calls store and claim jobs.
const SEED: u64 = 1;

/// All of them.
pub(super) fn hunts() -> impl Iterator<Item = Hunt> {
    let lost = |flush, invariant| move || first_broken(SEED, flush, invariant);
    [
        hunt(
            "synchronous=NORMAL",
            "a commit is answered before its log is flushed",
            &[Invariant::I9],
            Box::new(lost(Flush::Normal, Invariant::I9)),
        ),
        hunt(
            "synchronous=NORMAL, tokens",
            "the same, looked for until a token is issued twice",
            &[Invariant::I2],
            Box::new(lost(Flush::Normal, Invariant::I2)),
        ),
        hunt(
            "synchronous=OFF",
            "nothing is ever flushed",
            &[Invariant::I9],
            Box::new(lost(Flush::Off, Invariant::I9)),
        ),
        hunt(
            "deferred transaction",
            "a transaction reads before it has the right to write (BEGIN without IMMEDIATE)",
            &[Invariant::I10],
            Box::new(|| meet(Begin::Deferred).err()),
        ),
        hunt(
            "file not looked for",
            "a commit is answered without a look whether the file is still at its path",
            &[Invariant::I9],
            Box::new(|| replace(Looks::Never).err()),
        ),
    ]
    .into_iter()
}

fn hunt(
    mutant: &'static str,
    removed: &'static str,
    broken: &'static [Invariant],
    run: Box<dyn Fn() -> Option<Violation> + Send + Sync>,
) -> Hunt {
    Hunt { mutant, removed, level: Level::Disk, stock: Stock::Sqlite, broken, run }
}
