//! The worker's machines, many workers of them, under a scheduler that kills, stalls and loses calls.

#![allow(clippy::print_stdout, reason = "a test tells what it saw")]

use tenure_drill::mutants::{self, Level};
use tenure_drill::simulation::{Scenario, Sometimes, fail_each, golden, run};

/// How many seeds are run every day.
const SEEDS: u64 = 50;

#[test]
fn fifty_seeds_keep_every_promise_and_go_every_rare_path() {
    let scenario = Scenario::default();
    let mut sometimes = Sometimes::default();
    for seed in 0..SEEDS {
        let report = run(&scenario, seed);
        println!("{report}");
        assert!(report.violation.is_none(), "{:?}", report.violation);
        sometimes.add(&report.sometimes);
    }
    println!("{sometimes}");
    // What was never reached was never tried.
    assert_eq!(sometimes.never(), Vec::<&str>::new());
}

/// The same machines decide the same on every machine and in every build: `prove` compares the same hashes, optimised.
#[test]
fn a_seed_comes_to_the_trace_that_is_written_down_and_so_it_does_again() {
    golden::compare().unwrap();
    golden::compare().unwrap();
}

#[test]
fn whichever_call_is_lost_every_job_ends_once() {
    let nth = fail_each(|_| {});
    println!("{} calls, {} runs", nth.calls, nth.runs);
    assert!(nth.violation.is_none(), "{:?}", nth.violation);
    assert!(nth.calls > 30, "too few calls to prove anything: {}", nth.calls);
}

/// A worker or a store that lacks something, and what it must be seen to break.
#[test]
fn what_the_simulation_looks_for_it_finds() {
    let mut alive = Vec::new();
    for hunt in mutants::all().iter().filter(|hunt| hunt.level == Level::Simulation) {
        let fate = hunt.run();
        let killed = fate.killed.as_ref().map(|it| (it.invariant, it.states, &it.what));
        println!("{}: {killed:?}", fate.mutant);
        if !fate.as_expected {
            alive.push((fate.mutant, fate.killed));
        }
    }
    assert!(alive.is_empty(), "{alive:#?}");
}
