//! The long proof: wider scopes and more seeds than the daily test. `cargo xtask prove` runs it,
//! optimised.

use tenure_drill::differential::run;
use tenure_drill::engines::Engine;
use tenure_drill::explorer::{WIDE_SCOPES, explore};

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
