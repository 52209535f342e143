//! The long proof: wider scopes and more seeds than the daily test. `cargo xtask prove` runs it,
//! optimised.

use std::path::Path;
use std::time::Duration;

use tenure_drill::differential::run;
use tenure_drill::engines::Engine;
use tenure_drill::explorer::{WIDE_SCOPES, explore};
use tenure_drill::processes::contend;

#[test]
fn every_interleaving_in_the_wide_scopes_keeps_the_invariants() {
    for scope in &WIDE_SCOPES {
        println!("{}", explore(scope).unwrap());
    }
}

#[test]
fn a_thousand_random_sequences_agree_on_all_engines() {
    let directory = tempfile::tempdir().unwrap();
    for seed in 1_000..2_000 {
        run(seed, 300, &[Engine::Model, Engine::SqliteInMemory], directory.path()).unwrap();
    }
}

/// Long enough that whoever starves would show: with a busy handler instead of turns, one process
/// waits for as long as another is busy.
#[test]
fn three_busy_processes_wait_for_each_other_less_than_a_second() {
    let directory = tempfile::tempdir().unwrap();
    let writer = Path::new(env!("CARGO_BIN_EXE_tenure-drill-writer"));
    let seen = contend(writer, &directory.path().join("jobs.db"), 50, 300).unwrap();
    println!("{seen:?}");
    assert!(seen.lost.is_empty() && seen.doubled == 0, "{seen:?}");
    assert!(seen.worst < Duration::from_secs(1), "somebody waited for {:?}", seen.worst);
}
