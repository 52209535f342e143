//! Generated mutants: every condition, comparison, order, limit, assignment and lock of the
//! engines' SQL is changed, one at a time, and some check must notice.
//!
//! `changes` makes the changes, from texts that `tokens` has read, and `hunter` runs the checks
//! against each. A mutant that no check notices is listed in `survivors.txt` with a reason. A
//! survivor that is not listed fails the run, and so does a listed one that is killed.

mod alone;
mod changes;
mod coverage;
mod hunter;
mod probes;
mod reach;
mod tokens;

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use serde::Serialize;
use tenure::drill::Patch;
use tenure::engine::store::postgres::Postgres;
use tenure::engine::store::sqlite::Sqlite;

use self::changes::{Change, Edge, POSTGRES, SQLITE};
pub use self::hunter::hunt;
use super::Stock;

/// One change of one file.
#[derive(Debug, Clone)]
pub struct Mutant {
    /// The mutant's name: the engine, the file, the verb, and what was changed.
    pub name: String,
    /// The engine that it is made from.
    pub stock: Stock,
    /// The file, without `.sql`.
    pub file: &'static str,
    /// The statement or the function.
    pub verb: &'static str,
    /// Whether a lock clause was changed. Then concurrent sessions hunt the mutant.
    pub is_lock: bool,
    /// The place of the change in the file.
    range: Range<usize>,
    /// The constant value that the condition has now, if a condition was changed.
    constant: Option<bool>,
    /// The comparison that was changed from `<` to `<=` or the like, if one was.
    edge: Option<Edge>,
    patch: Patch,
}

/// The result of a hunt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum End {
    /// Killed, by this check.
    Killed(String),
    /// The database rejects it, with this error.
    Invalid(String),
    /// No check noticed it.
    Survived,
}

/// A mutant and its end.
#[derive(Debug, Clone, Serialize)]
pub struct Fate {
    /// The mutant's name.
    pub mutant: String,
    /// How it ended.
    pub end: End,
    /// The time this took, in milliseconds.
    pub took_ms: i64,
}

impl Fate {
    /// The result of a mutant that is listed in `survivors.txt` and was not tested in this run
    /// (`--unlisted`).
    pub fn trusted(mutant: Mutant) -> Fate {
        Fate { mutant: mutant.name, end: End::Survived, took_ms: 0 }
    }
}

/// All mutants of both engines.
pub fn all() -> Vec<Mutant> {
    let mut all = Vec::new();
    for (file, text) in Sqlite::texts() {
        let units = tokens::statements(text);
        let changes = units.iter().flat_map(|unit| {
            changes::changes(text, unit, SQLITE).into_iter().map(move |change| (unit.verb, change))
        });
        all.extend(changes.map(|change| Mutant::new(Stock::Sqlite, file, text, change)));
    }
    for (file, text) in Postgres::texts() {
        let units = tokens::functions(text);
        let changes = units.iter().filter(|unit| unit.verb != "do").flat_map(|unit| {
            let changes = changes::changes(text, unit, POSTGRES);
            changes.into_iter().map(move |change| (unit.verb, change))
        });
        all.extend(changes.map(|change| Mutant::new(Stock::Postgres, file, text, change)));
    }
    number(&mut all);
    all
}

/// Numbers changes that would have the same name.
fn number(all: &mut [Mutant]) {
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    for mutant in all {
        let times = seen.entry(mutant.name.clone()).or_default();
        *times += 1;
        if *times > 1 {
            mutant.name = format!("{} #{times}", mutant.name);
        }
    }
}

impl Mutant {
    /// The unchanged SQL. No check may report anything about it: if one did, its reports about
    /// mutants would prove nothing.
    fn none(stock: Stock) -> Mutant {
        let texts = if stock == Stock::Sqlite { Sqlite::texts() } else { Postgres::texts() };
        let (file, text) = texts[0];
        let patch = Patch { file, find: text, replace: text };
        let name = format!("{stock} as it is");
        Mutant {
            name,
            stock,
            file,
            verb: "",
            is_lock: false,
            range: 0..0,
            constant: None,
            edge: None,
            patch,
        }
    }

    /// Whether nothing is changed.
    fn is_whole(&self) -> bool {
        self.patch.find == self.patch.replace
    }

    fn new(
        stock: Stock,
        file: &'static str,
        text: &'static str,
        (verb, change): (&'static str, Change),
    ) -> Mutant {
        let name = format!("{stock} {file} {verb}: {}", change.what);
        let patch = patch(file, text, &change);
        let Change { is_lock, range, constant, edge, .. } = change;
        Mutant { name, stock, file, verb, is_lock, range, constant, edge, patch }
    }
}

/// The change as a patch, with enough text around it to be unique in the file.
fn patch(file: &'static str, text: &'static str, change: &Change) -> Patch {
    let (mut start, mut end) = (change.range.start, change.range.end);
    while text.matches(&text[start..end]).count() != 1 || start == end {
        start = text[..start].char_indices().next_back().map_or(0, |(at, _)| at);
        end += text[end..].chars().next().map_or(0, char::len_utf8);
    }
    let (before, after) = (&text[start..change.range.start], &text[change.range.end..end]);
    let replace = format!("{before}{}{after}", change.replace);
    // Leaks one text per change, once per process.
    Patch { file, find: &text[start..end], replace: replace.leak() }
}

/// Why a survivor is accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reason {
    /// No caller can tell the difference.
    Equivalent,
    /// Only time, space or the order of work differ, which is not promised.
    OnlyCost,
    /// It should be noticed, and is not yet.
    NotYetTested,
}

impl Reason {
    const ALL: [(Reason, &str); 3] = [
        (Reason::Equivalent, "equivalent"),
        (Reason::OnlyCost, "only cost"),
        (Reason::NotYetTested, "not yet tested"),
    ];
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word =
            Reason::ALL.iter().find(|(reason, _)| reason == self).map_or("", |(_, word)| word);
        f.pad(word)
    }
}

/// The list of survivors: each name is followed by its reason in words.
const SURVIVORS: &str = include_str!("machine/survivors.txt");

/// The accepted survivors, by name.
///
/// # Panics
///
/// If the list cannot be read.
pub fn survivors() -> BTreeMap<&'static str, Reason> {
    let mut listed = BTreeMap::new();
    let mut name = None;
    for line in SURVIVORS.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let Some(words) = line.strip_prefix("    ") else {
            assert_eq!(name.replace(line), None, "a survivor without a reason before {line:?}");
            continue;
        };
        let reason = Reason::ALL.iter().find(|(_, word)| words.starts_with(word));
        let (reason, _) = reason.unwrap_or_else(|| panic!("no reason that is known: {words:?}"));
        let name = name.take().unwrap_or_else(|| panic!("a reason for no mutant: {words:?}"));
        assert!(listed.insert(name, *reason).is_none(), "{name:?} is listed twice");
    }
    assert_eq!(name, None, "a survivor without a reason at the end");
    listed
}

/// The totals of a run.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Figures {
    /// Mutants hunted.
    pub all: usize,
    /// Mutants that the database rejects.
    pub invalid: usize,
    /// Mutants that were noticed.
    pub killed: usize,
    /// Survivors that are listed as equivalent.
    pub equivalent: usize,
    /// Survivors that differ only in cost.
    pub only_cost: usize,
    /// Survivors that should be noticed.
    pub not_yet_tested: usize,
    /// Survivors that are not listed.
    pub unlisted: Vec<String>,
    /// Listed mutants that no longer survive.
    pub dead: Vec<String>,
}

impl Figures {
    /// Counts the results, and compares them with the list of survivors.
    pub fn of(fates: &[Fate]) -> Figures {
        let listed = survivors();
        let mut figures = Figures { all: fates.len(), ..Figures::default() };
        for fate in fates {
            let reason = listed.get(fate.mutant.as_str());
            match (&fate.end, reason) {
                (End::Survived, Some(Reason::Equivalent)) => figures.equivalent += 1,
                (End::Survived, Some(Reason::OnlyCost)) => figures.only_cost += 1,
                (End::Survived, Some(Reason::NotYetTested)) => figures.not_yet_tested += 1,
                (End::Survived, None) => figures.unlisted.push(fate.mutant.clone()),
                (End::Killed(_), _) => figures.killed += 1,
                (End::Invalid(_), _) => figures.invalid += 1,
            }
            if fate.end != End::Survived && reason.is_some() {
                figures.dead.push(fate.mutant.clone());
            }
        }
        figures
    }

    /// The share of the noticeable mutants that were killed, in thousandths.
    pub fn permille(&self) -> usize {
        let could = self.all - self.invalid - self.equivalent - self.only_cost;
        (self.killed * 1_000).checked_div(could).unwrap_or(1_000)
    }

    /// Whether the run agrees with the list.
    pub fn agree(&self) -> bool {
        self.unlisted.is_empty() && self.dead.is_empty()
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Figures {
            all, invalid, killed, equivalent, only_cost, not_yet_tested, unlisted, ..
        } = self;
        let (whole, tenth) = (self.permille() / 10, self.permille() % 10);
        write!(
            f,
            "{all} mutants: {invalid} invalid, {killed} killed, {equivalent} equivalent, {only_cost} only cost, \
             {not_yet_tested} not yet tested, {} not listed; {whole}.{tenth} % of those that could be noticed",
            unlisted.len()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mutant_has_a_name_of_its_own_and_every_listed_survivor_is_a_mutant() {
        let mutants = all();
        let mut names: Vec<&str> = mutants.iter().map(|mutant| mutant.name.as_str()).collect();
        names.sort_unstable();
        let before = names.len();
        names.dedup();
        assert_eq!(names.len(), before);
        let strangers: Vec<_> =
            survivors().into_keys().filter(|name| names.binary_search(name).is_err()).collect();
        assert!(strangers.is_empty(), "listed, but no mutant: {strangers:#?}");
    }

    #[test]
    fn both_engines_and_every_sort_of_change_are_there() {
        let mutants = all();
        for words in [
            "sqlite claim take: `SET attempt = attempt + 1` dropped",
            "sqlite record holds: `token = :token` is true",
            "postgres verbs/settle hold_many: lock: `FOR NO KEY UPDATE` dropped",
            "postgres verbs/renew renew_many: lock: `SKIP LOCKED` dropped",
            "postgres single/fence check_fence: lock: `FOR NO KEY UPDATE` dropped",
        ] {
            let found = mutants.iter().filter(|mutant| mutant.name.starts_with(words)).count();
            assert!(found > 0, "{words}");
        }
    }
}
