//! Which conditions of PostgreSQL's functions held, and which did not, while a case ran.
//!
//! A mutant that makes a condition always true differs from the unchanged function only where the
//! condition did not hold, and one that turns `<` into `<=` only where both sides are equal. So the
//! functions are installed once with a probe around each condition and each comparison, and one at
//! their beginning. Every case runs on them once, and a mutant is hunted only with the cases in
//! which it makes a difference. A probe counts in a sequence, because sequences keep their value
//! when the call fails or is rolled back.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use tenure::Result;
use tenure::engine::store::postgres::{Postgres, ServerAddress};

use super::changes::Edge;
use super::{Mutant, Stock, tokens};
use crate::servers;

/// The conditions that have a probe, by file and place; then the functions, by file and the end of
/// their first BEGIN; then the comparisons, by file. Probes are numbered in this order.
pub(super) struct Probes {
    places: Vec<(&'static str, Range<usize>)>,
    functions: Vec<(&'static str, usize, &'static str)>,
    edges: Vec<(&'static str, Edge)>,
}

/// That a condition held at least once, or that it failed at least once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Flag {
    place: usize,
    held: bool,
}

impl Probes {
    /// Probes for all conditions that a mutant makes constant.
    pub(super) fn of(mutants: &[Mutant]) -> Probes {
        let constants = mutants.iter().filter(|it| it.constant.is_some());
        let mut places: Vec<_> = constants.map(|it| (it.file, it.range.clone())).collect();
        places.sort_by_key(|(file, range)| (*file, range.start, range.end));
        places.dedup();
        let functions = Postgres::texts().into_iter().flat_map(|(file, text)| {
            let begun = move |unit: tokens::Unit| {
                let begin = unit.tokens.iter().find(|token| token.is("BEGIN"))?;
                Some((file, begin.end(), unit.verb))
            };
            tokens::functions(text).into_iter().filter(|unit| unit.verb != "do").filter_map(begun)
        });
        let edges = mutants.iter().filter(|it| it.stock == Stock::Postgres);
        let edges = edges.filter_map(|it| Some((it.file, it.edge.clone()?)));
        Probes { places, functions: functions.collect(), edges: edges.collect() }
    }

    /// The functions that were called, including calls that failed.
    pub(super) fn called(&self, seen: &BTreeSet<Flag>) -> BTreeSet<String> {
        let after = |flag: &Flag| flag.place.checked_sub(self.places.len());
        let functions = seen.iter().filter_map(|flag| self.functions.get(after(flag)?));
        functions.map(|(_, _, name)| (*name).to_owned()).collect()
    }

    /// The sequences of all probes.
    fn sequences(&self) -> impl Iterator<Item = String> {
        let places = 0..self.places.len() + self.functions.len() + self.edges.len();
        places.flat_map(|place| [name(place, true), name(place, false)])
    }

    /// What a case must have seen for this mutant to make a difference in the case; `None` if the
    /// mutant has no probe.
    pub(super) fn needed(&self, mutant: &Mutant) -> Option<Flag> {
        if let Some(edge) = &mutant.edge {
            let is_it = |(file, it): &(&str, Edge)| *file == mutant.file && it == edge;
            let place = self.edges.iter().position(is_it)?;
            let place = self.places.len() + self.functions.len() + place;
            return Some(Flag { place, held: true });
        }
        let is_there =
            |(file, range): &(&str, Range<usize>)| *file == mutant.file && *range == mutant.range;
        let place = self.places.iter().position(is_there)?;
        Some(Flag { place, held: !mutant.constant? })
    }

    /// Creates the probes' sequences and installs all functions with their probes.
    pub(super) fn install(&self, address: &ServerAddress) -> Result<()> {
        let create = |name| format!("CREATE SEQUENCE IF NOT EXISTS tenure.{name};\n");
        let sequences = self.sequences().map(create);
        Postgres::replace_functions(address, &sequences.collect::<String>())?;
        Postgres::replace_functions(address, PROBE)?;
        self.put_in(address)
    }

    /// Replaces all functions by their versions with probes.
    pub(super) fn put_in(&self, address: &ServerAddress) -> Result<()> {
        for (file, whole) in Postgres::texts() {
            Postgres::replace_functions(address, &self.probed(file, whole))?;
        }
        Ok(())
    }

    /// Puts the unchanged functions back.
    pub(super) fn remove(&self, address: &ServerAddress) -> Result<()> {
        for (_, whole) in Postgres::texts() {
            Postgres::replace_functions(address, whole)?;
        }
        let drops =
            self.sequences().map(|name| format!("DROP SEQUENCE IF EXISTS tenure.{name};\n"));
        Postgres::replace_functions(address, &drops.collect::<String>())
    }

    /// A file's text with a probe around each condition. Conditions may be nested.
    fn probed(&self, file: &str, whole: &str) -> String {
        let mut opening: BTreeMap<usize, Vec<(usize, String)>> = BTreeMap::new();
        let mut closing: BTreeMap<usize, usize> = BTreeMap::new();
        for (n, (_, range)) in self.places.iter().enumerate().filter(|(_, it)| it.0 == file) {
            let open = format!("tenure.probe({n}, (");
            opening.entry(range.start).or_default().push((range.end, open));
            *closing.entry(range.end).or_default() += 1;
        }
        let functions = self.functions.iter().zip(self.places.len()..);
        for ((_, at, _), n) in functions.filter(|((of, ..), _)| *of == file) {
            let call = format!(" PERFORM tenure.probe({n}, true);");
            opening.entry(*at).or_default().push((usize::MAX, call));
        }
        let edges = self.edges.iter().zip(self.places.len() + self.functions.len()..);
        for ((_, Edge { range, equal }), n) in edges.filter(|((of, _), _)| *of == file) {
            let open = format!("tenure.probe_equal({n}, ({equal}), (");
            opening.entry(range.start).or_default().push((range.end, open));
            *closing.entry(range.end).or_default() += 1;
        }
        let mut text = String::new();
        let mut copied = 0;
        let ends: BTreeSet<usize> = opening.keys().chain(closing.keys()).copied().collect();
        for at in ends {
            text += &whole[copied..at];
            copied = at;
            text += &"))".repeat(closing.get(&at).copied().unwrap_or_default());
            let mut opened = opening.remove(&at).unwrap_or_default();
            // The probe with the longest range encloses the others, so it opens first.
            opened.sort_by_key(|(end, _)| usize::MAX - end);
            text.extend(opened.into_iter().map(|(_, open)| open));
        }
        text + &whole[copied..]
    }
}

/// The sequence that counts how often a condition held, or did not.
fn name(place: usize, held: bool) -> String {
    format!("probe_{place}_{held}")
}

const PROBE: &str = "CREATE OR REPLACE FUNCTION tenure.probe(place int, value boolean) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM nextval(concat('tenure.probe_', place, '_', CASE WHEN value THEN 'true' ELSE 'false' END)::regclass);
    RETURN value;
END $$;
CREATE OR REPLACE FUNCTION tenure.probe_equal(place int, equal boolean, value boolean) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF equal THEN
        PERFORM nextval(concat('tenure.probe_', place, '_true')::regclass);
    END IF;
    RETURN value;
END $$;";

/// Reads what the probes of one schema have counted. Each look has a session of its own, because
/// `Calls` waits until all other sessions of the database have ended.
pub(super) struct Meter {
    database: String,
    schema: &'static str,
    told: BTreeMap<String, i64>,
}

impl Meter {
    pub(super) fn new(database: &str, schema: &'static str) -> Meter {
        Meter { database: database.to_owned(), schema, told: BTreeMap::new() }
    }

    /// How many functions have a probe.
    pub(super) fn functions(&self) -> i64 {
        const PROBED: &str = "SELECT count(*) FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace \
            WHERE n.nspname = $1 AND p.prosrc LIKE '%.probe(%'";
        let mut client = servers::connect(&self.database);
        client.query_one(PROBED, &[&self.schema]).expect("the server answers").get(0)
    }

    /// The probes that have counted since the last call of this function.
    pub(super) fn since(&mut self) -> BTreeSet<Flag> {
        const COUNTED: &str = "SELECT sequencename::text, last_value FROM pg_sequences \
            WHERE schemaname = $1 AND sequencename LIKE 'probe\\_%' AND last_value IS NOT NULL";
        let mut client = servers::connect(&self.database);
        let rows = client.query(COUNTED, &[&self.schema]).expect("the server answers");
        let all: BTreeMap<String, i64> = rows.iter().map(|it| (it.get(0), it.get(1))).collect();
        let more = all.iter().filter(|(name, count)| self.told.get(*name) != Some(*count));
        let flags = more.filter_map(|(name, _)| flag(name)).collect();
        self.told = all;
        flags
    }
}

fn flag(name: &str) -> Option<Flag> {
    let (place, held) = name.strip_prefix("probe_")?.split_once('_')?;
    Some(Flag { place: place.parse().ok()?, held: held == "true" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probes_stand_around_conditions_and_around_their_parts() {
        let whole = "IF a AND (b OR c) THEN";
        let places = [3..17, 3..4, 10..11, 15..16].map(|range| ("file", range)).to_vec();
        let probes = Probes { places, functions: vec![], edges: vec![] };
        let probed = probes.probed("file", whole);
        let expected = "IF tenure.probe(0, (tenure.probe(1, (a)) AND (tenure.probe(2, (b)) OR \
            tenure.probe(3, (c))))) THEN";
        assert_eq!(probed, expected);
    }

    #[test]
    fn a_comparison_is_asked_whether_its_sides_are_equal() {
        let edge = Edge { range: 3..8, equal: "a = b".into() };
        let (places, functions) = (vec![("file", 3..8)], vec![]);
        let probes = Probes { places, functions, edges: vec![("file", edge)] };
        let expected = "IF tenure.probe(0, (tenure.probe_equal(1, (a = b), (a < b)))) THEN";
        assert_eq!(probes.probed("file", "IF a < b THEN"), expected);
    }

    #[test]
    fn a_call_is_counted_at_the_beginning_of_a_function() {
        let (places, functions) = (vec![("file", 9..10)], vec![("file", 5, "f")]);
        let probes = Probes { places, functions, edges: vec![] };
        let probed = "BEGIN PERFORM tenure.probe(1, true); IF tenure.probe(0, (a)) THEN";
        assert_eq!(probes.probed("file", "BEGIN IF a THEN"), probed);
        let seen = BTreeSet::from([Flag { place: 1, held: true }]);
        assert_eq!(probes.called(&seen), BTreeSet::from(["f".to_owned()]));
    }

    #[test]
    fn a_sequences_name_tells_what_was_seen() {
        let seen = Flag { place: 12, held: false };
        assert_eq!(flag(&name(12, false)), Some(seen));
        assert_eq!(flag("job_id"), None);
    }
}
