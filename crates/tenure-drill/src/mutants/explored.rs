//! Safeguards whose absence shows in the order of whole calls: the explorer looks for them.
//!
//! A mutant is a patch of an engine's SQL files. On SQLite a removed comparison is replaced by one
//! that is always true, `x != -:x`, so that the statement keeps its parameters. What the library
//! decides in Rust for SQLite cannot be patched. Unless a patch can falsify what the library then
//! writes, such a mutant exists for PostgreSQL only. The patches are in the files below, sorted by
//! what they weaken.

mod fence;
mod lapse;
mod ledger;
mod suspect;
mod takeover;

use tenure::drill::Patch;

use super::{Hunt, Level, Stock};
use crate::explorer::{Merging, Patched, Scope, explore_patched};
use crate::verdict::{Invariant, Violation};

/// A store with one safeguard missing.
#[derive(Debug, Clone, Copy)]
struct Mutant {
    name: &'static str,
    /// What is missing, in a sentence for people.
    removed: &'static str,
    broken: &'static [Invariant],
    /// The scope of the explorer that looks for it.
    scope: &'static str,
    /// Empty if the mutant cannot be made for this engine.
    sqlite: &'static [Patch],
    postgres: &'static [Patch],
}

/// This mutant treats workers differently by their names, so the search must not merge states that
/// differ only in those names.
const TELLS_WORKERS_APART: &str = "worker clock for expiry";

fn all() -> impl Iterator<Item = &'static Mutant> {
    let all = fence::MUTANTS.iter().chain(&takeover::MUTANTS).chain(&lapse::MUTANTS);
    all.chain(&suspect::MUTANTS).chain(&ledger::MUTANTS)
}

/// The patches that make this mutant on SQLite, for another level that must notice it too.
pub(super) fn sqlite(name: &str) -> &'static [Patch] {
    all().find(|mutant| mutant.name == name).expect("a mutant of the explorer's").sqlite
}

/// All of them, of both engines.
pub(super) fn hunts() -> impl Iterator<Item = Hunt> {
    all().flat_map(|mutant| {
        let made = [
            (Stock::Sqlite, mutant.sqlite, Patched::Sqlite(mutant.sqlite)),
            (Stock::Postgres, mutant.postgres, Patched::Postgres(mutant.postgres)),
        ];
        let made = made.into_iter().filter(|(_, patches, _)| !patches.is_empty());
        made.map(move |(stock, _, target)| hunt(mutant, stock, target))
    })
}

fn hunt(mutant: &'static Mutant, stock: Stock, target: Patched) -> Hunt {
    let Mutant { name, removed, broken, .. } = *mutant;
    let run = Box::new(move || look_for(mutant, target));
    Hunt { mutant: name, removed, level: Level::Explorer, stock, broken, run }
}

fn look_for(mutant: &Mutant, target: Patched) -> Option<Violation> {
    let scope = Scope::named(mutant.scope)?;
    let apart = mutant.name == TELLS_WORKERS_APART;
    let merging = if apart { Merging::Essence } else { Merging::Alike };
    explore_patched(&scope, target, merging).err()
}

const fn patch(file: &'static str, find: &'static str, replace: &'static str) -> Patch {
    Patch { file, find, replace }
}
