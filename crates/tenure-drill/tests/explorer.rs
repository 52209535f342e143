//! Every interleaving in the daily scopes, and the mutants that must not survive it.

#![allow(clippy::print_stdout, reason = "whoever runs it with --nocapture reads the figures")]
#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]

mod page;

use std::sync::Mutex;

use tenure::engine::clock::monotonic;
use tenure_drill::explorer::{EXPLORED, Engines, Report, SCOPES, Scope, Tally, Ways, explore};
use tenure_drill::mutants::{self, Fate, Level, Stock};
use tenure_drill::verdict::Invariant;

use self::page::{PROOF, grouped};

/// These two scopes run on PostgreSQL every day, the others in `cargo xtask prove`.
const ON_POSTGRESQL: [&str; 2] = ["lease", "settle"];

/// Explores these scopes, two at a time, each thread on a database of its own.
fn explore_all(scopes: Vec<&Scope>, engines: Engines) -> Vec<Report> {
    let left = Mutex::new(scopes);
    let work = || {
        let mut reports = Vec::new();
        loop {
            let next = left.lock().unwrap().pop();
            let Some(scope) = next else { return reports };
            let report = explore(scope, Ways::on(engines), &mut |_| {}).unwrap();
            println!("{report}");
            assert!(report.states < 50_000, "a scope stays small enough to be gone through whole");
            assert!(report.whole);
            let (name, never) = (report.scope, &report.vacuous);
            assert!(never.is_empty(), "{name} never put to the test: {never:?}");
            reports.push(report);
        }
    };
    std::thread::scope(|threads| {
        let two = [threads.spawn(work), threads.spawn(work)];
        two.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn every_interleaving_keeps_the_invariants() {
    let reports = explore_all(SCOPES.iter().collect(), Engines::Sqlite);
    let mut tally = Tally::default();
    reports.iter().for_each(|report| tally.add(&report.tally));
    let never = tally.vacuous(&EXPLORED);
    assert!(never.is_empty(), "never put to the test: {never:?}");
    let in_order =
        SCOPES.iter().filter_map(|scope| reports.iter().find(|it| it.scope == scope.name));
    let row = |report: &Report| {
        let about = Scope::named(report.scope).unwrap().about;
        let (states, transitions) = (grouped(report.states), grouped(report.transitions));
        let (digits, power) = format!("{:.1e}", report.schedules)
            .split_once('e')
            .map(|(digits, power)| (digits.to_owned(), power.to_owned()))
            .unwrap();
        let (scope, calls) = (report.scope, grouped(report.calls));
        format!("| {scope} | {about} | {states} | {transitions} | {digits}·10^{power} | {calls} |")
    };
    page::says(PROOF, "scopes", |_| true, &in_order.map(row).collect::<Vec<_>>());
    let row = |invariant: &Invariant| {
        let (looked, held) = tally.of(*invariant);
        format!("| {invariant} | {} | {} |", grouped(looked), grouped(held))
    };
    page::says(PROOF, "premises", |_| true, &EXPLORED.iter().map(row).collect::<Vec<_>>());
}

#[test]
fn every_interleaving_of_the_lease_and_settle_scopes_is_the_same_on_postgresql() {
    let daily = |scope: &&Scope| ON_POSTGRESQL.contains(&scope.name);
    let reports = explore_all(SCOPES.iter().filter(daily).collect(), Engines::Both);
    assert_eq!(reports.len(), ON_POSTGRESQL.len());
}

/// On SQLite this mutant gives the job limits that are never reached. So the job also becomes a
/// suspect later, and the search notices that after fewer states.
const SOONER: &str = "no cap in the sweeper";

/// docs/proof.md must agree with what the hunt finds: the search always visits the same number of
/// states.
#[test]
fn every_mutant_is_killed_by_the_invariant_it_breaks_and_the_page_says_so() {
    let hunts = mutants::all();
    let explored: Vec<_> = hunts.iter().filter(|hunt| hunt.level == Level::Explorer).collect();
    let left = Mutex::new(explored.clone());
    let wrong = Mutex::new(Vec::new());
    let work = || {
        let mut fates = Vec::new();
        loop {
            let next = left.lock().unwrap().pop();
            let Some(hunt) = next else { return fates };
            let began = monotonic();
            let fate = hunt.run();
            let (mutant, stock, expected) = (hunt.mutant, hunt.stock, hunt.broken);
            match &fate.killed {
                None => wrong.lock().unwrap().push(format!("{mutant} survived on {stock:?}")),
                Some(killed) if !fate.as_expected => wrong.lock().unwrap().push(format!(
                    "{mutant} on {stock:?} broke something else than {expected:?}:\n{killed}"
                )),
                Some(killed) => {
                    let (invariant, states, took) =
                        (killed.invariant, killed.states, monotonic() - began);
                    println!("{mutant:<40} {stock:<10?} {invariant:<4} {states:>6} {took:.1?}");
                }
            }
            fates.push(fate);
        }
    };
    let fates: Vec<Fate> = std::thread::scope(|threads| {
        let two = [threads.spawn(work), threads.spawn(work)];
        two.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    let wrong = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let mut rows: Vec<String> = Vec::new();
    for hunt in explored {
        let of = |stock: Stock| {
            let ours = fates.iter().find(|it| it.mutant == hunt.mutant && it.stock == stock)?;
            ours.killed.as_ref().map(|killed| (killed.invariant, killed.states))
        };
        // On both engines the mutant dies after the same number of states (except `SOONER`), unless
        // it exists for one engine only.
        let broken = match (of(Stock::Sqlite), of(Stock::Postgres)) {
            (Some(sqlite), Some(postgres)) if sqlite == postgres => sqlite,
            (Some(sqlite), Some(postgres)) if hunt.mutant == SOONER && sqlite.0 == postgres.0 => {
                sqlite
            }
            (Some(one), None) | (None, Some(one)) => one,
            both => panic!("{} dies otherwise on SQLite than on PostgreSQL: {both:?}", hunt.mutant),
        };
        let (invariant, states) = broken;
        let row =
            format!("| {} | {} | explorer | {invariant} | {states} |", hunt.mutant, hunt.removed);
        if !rows.contains(&row) {
            rows.push(row);
        }
    }
    page::says(PROOF, "mutants", |line| line.contains("| explorer |"), &rows);
}

const PAGE: &str = include_str!("../../../docs/proof.md");

/// Mutants of the other levels are compared without their figures, which may differ a little from
/// run to run.
#[test]
fn the_page_lists_every_mutant_with_what_must_kill_it() {
    for hunt in mutants::all() {
        let row =
            |broken| format!("| {} | {} | {} | {broken} |", hunt.mutant, hunt.removed, hunt.level);
        let listed = hunt.broken.iter().any(|broken| PAGE.contains(&row(broken)));
        assert!(listed, "docs/proof.md should say: {}", row(&hunt.broken[0]));
    }
}

const GUARANTEES: &str = include_str!("../../../docs/guarantees.md");

#[test]
fn the_documentation_tells_how_many_cases_there_are() {
    let count = format!("{} cases", tenure_drill::conformance::cases().len());
    assert!(GUARANTEES.contains(&count), "docs/guarantees.md should say: {count}");
}
