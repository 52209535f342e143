//! Random sequences on all engines in lockstep.

use tenure_drill::differential::{Answers, SOMETIMES, run};
use tenure_drill::engines::Engine;

/// The seeds of the daily test; `TENURE_DRILL_SEED` repeats one of them alone.
fn seeds() -> Vec<u64> {
    match std::env::var("TENURE_DRILL_SEED").ok().and_then(|seed| seed.parse().ok()) {
        Some(seed) => vec![seed],
        None => (1..=8).collect(),
    }
}

#[test]
fn all_engines_give_the_same_answers_and_come_to_the_same_state() {
    let directory = tempfile::tempdir().unwrap();
    let mut met = Answers::new();
    let seeds = seeds();
    for seed in &seeds {
        let answers = run(*seed, 400, &Engine::ALL, directory.path()).unwrap();
        answers.into_iter().for_each(|(mark, times)| *met.entry(mark).or_default() += times);
    }
    println!("{met:#?}");
    if seeds.len() > 1 {
        // `Decided` is rare: in few sequences an attempt finds an operator's decision about an
        // effect.
        let least = |mark: &str| if mark == "Decided(" { 2 } else { 10 };
        let never: Vec<_> = SOMETIMES.into_iter().filter(|mark| met[mark] < least(mark)).collect();
        assert!(never.is_empty(), "the sequences hardly ever met {never:?}");
    }
}
