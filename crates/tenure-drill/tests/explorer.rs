//! Every interleaving in the daily scopes, and the mutants that must not survive it.

#![allow(clippy::print_stdout, reason = "whoever runs it with --nocapture reads the figures")]

use tenure_drill::explorer::{SCOPES, Tally, explore};
use tenure_drill::mutants::{self, Stock};

#[test]
fn every_interleaving_keeps_the_invariants() {
    let mut tally = Tally::default();
    // Each in a thread of its own, and so on a database of its own.
    let reports = std::thread::scope(|threads| {
        let searches: Vec<_> =
            SCOPES.iter().map(|scope| threads.spawn(move || explore(scope))).collect();
        searches.into_iter().map(|search| search.join().unwrap()).collect::<Vec<_>>()
    });
    for report in reports {
        let report = report.unwrap();
        println!("{report}");
        assert!(report.states < 50_000, "a scope stays small enough to be gone through whole");
        tally.add(&report.tally);
    }
    assert!(tally.vacuous().is_empty(), "never put to the test: {:?}", tally.vacuous());
}

/// The page that people read says what the hunt finds: the search is deterministic, to the state.
const GUARANTEES: &str = include_str!("../../../docs/guarantees.md");

#[test]
fn every_mutant_of_sqlite_is_killed_by_the_invariant_it_breaks() {
    kill_all(Stock::Sqlite);
}

#[test]
fn every_mutant_of_postgresql_is_killed_by_the_invariant_it_breaks() {
    kill_all(Stock::Postgres);
}

fn kill_all(stock: Stock) {
    println!("{:<40} {:<10} states", "mutant", "killed by");
    for hunt in mutants::all().iter().filter(|hunt| hunt.stock == stock) {
        let fate = hunt.run();
        let Some(killed) = fate.killed else { panic!("{} survived on {stock:?}", hunt.mutant) };
        let (invariant, states) = (killed.invariant, killed.states);
        println!("{:<40} {invariant:<10} {states}", hunt.mutant);
        // The search is deterministic, to the state, and so it is the same on both.
        let row = format!("| {} | {invariant} | {states} states |", hunt.mutant);
        assert!(GUARANTEES.contains(&row), "docs/guarantees.md should say of {stock:?}: {row}");
        let expected = hunt.broken;
        assert!(
            fate.as_expected,
            "{} broke something else than {expected:?}:\n{killed}",
            hunt.mutant
        );
    }
}

#[test]
fn the_documentation_tells_how_many_cases_there_are() {
    let count = format!("{} cases", tenure_drill::conformance::cases().len());
    assert!(GUARANTEES.contains(&count), "docs/guarantees.md should say: {count}");
}
