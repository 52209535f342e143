//! The machines of many workers, under a scheduler that kills, stalls and loses calls.

#![allow(clippy::print_stdout, reason = "a test tells what it saw")]

use tenure::State;
use tenure_drill::mutants::{self, Level};
use tenure_drill::simulation::{
    Rare, Scenario, Sometimes, fail_each, golden, run, run_crowded, run_fickle, run_poisoned,
    run_steady,
};

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
    // A path that was never reached was never tested.
    assert_eq!(sometimes.never(), Vec::<&str>::new());
}

/// The same machines decide the same on every computer and in every build: `prove` compares the
/// same hashes, optimised.
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

/// A job whose handler returns is no longer a suspect, but its crashes still count: otherwise these
/// jobs would kill for ever.
#[test]
fn jobs_that_snooze_and_kill_in_turns_are_buried() {
    for seed in 0..20 {
        let report = run_fickle(seed);
        println!("{report}");
        assert!(report.violation.is_none(), "{:?}", report.violation);
        let times = |of: Rare| report.sometimes.iter().find(|(rare, _)| *rare == of).map(|it| it.1);
        let (snoozed, buried) = (times(Rare::Snoozed), times(Rare::CrashCap));
        assert_eq!(buried, Some(10), "seed {seed}");
        assert!(snoozed >= Some(10), "seed {seed}: only {snoozed:?} snoozes");
    }
}

/// Jobs come one at a time to idle workers. The runs check that each is started at once and deleted
/// in time.
#[test]
fn jobs_that_idle_workers_are_told_of_start_at_once_and_are_deleted_in_the_end() {
    for seed in 0..5 {
        let report = run_steady(seed);
        println!("{report}");
        assert!(report.violation.is_none(), "{:?}", report.violation);
        assert_eq!(report.jobs, 20, "seed {seed}");
    }
}

/// More than a hundred renewals a round, and none is late.
#[test]
fn a_worker_keeps_all_of_many_leases() {
    for seed in 0..5 {
        let report = run_crowded(seed);
        println!("{report}");
        assert!(report.violation.is_none(), "{:?}", report.violation);
        let renewals = report.events.get("lease_renewed").copied().unwrap_or(0);
        assert!(renewals > 100, "seed {seed}: only {renewals} renewals");
    }
}

#[test]
fn poison_jobs_are_buried_and_all_beside_them_succeed() {
    for (poisons, jobs) in [(1, 15), (2, 16)] {
        for seed in 0..10 {
            let (report, ends) = run_poisoned(seed, poisons, jobs);
            println!("{report}");
            assert!(report.violation.is_none(), "{:?}", report.violation);
            let expected = |at| if at < poisons { State::Dead } else { State::Succeeded };
            assert_eq!(ends, (0..jobs).map(expected).collect::<Vec<_>>(), "seed {seed}");
        }
    }
}

/// Each mutant is a worker or a store that lacks something, and the simulation must see it break
/// the expected invariant.
#[test]
fn what_the_simulation_looks_for_it_finds() {
    let mut alive = Vec::new();
    let all = mutants::all();
    let hunts: Vec<_> = all.iter().filter(|hunt| hunt.level == Level::Simulation).collect();
    assert!(hunts.len() >= 20, "there are mutants to hunt");
    for hunt in hunts {
        let fate = hunt.run();
        let killed = fate.killed.as_ref().map(|it| (it.invariant, it.states, &it.what));
        println!("{}: {killed:?}", fate.mutant);
        if !fate.as_expected {
            alive.push((fate.mutant, fate.killed));
        }
    }
    assert!(alive.is_empty(), "{alive:#?}");
}
