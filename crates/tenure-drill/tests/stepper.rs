//! Every order of statements of pairs of sessions, and the mutants that must not survive it.

#![allow(clippy::print_stdout, reason = "whoever runs it with --nocapture reads the figures")]
#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]

use tenure_drill::mutants::{self, Level};
use tenure_drill::stepper::{Case, Isolation, Setting, Stepper, cases, go_through, planted, work};
use tenure_drill::verdict::Invariant;

/// Each pair in one state, where both sessions have something to do if there is such a state; and
/// the chosen cases.
fn daily() -> Vec<Case> {
    cases().into_iter().filter(|case| case.is_first).collect()
}

#[test]
fn whatever_order_statements_are_sent_in_they_come_to_what_some_order_of_calls_comes_to() {
    let report = go_through(&work(&daily(), &[Isolation::ReadCommitted], &[]), &|_| ()).unwrap();
    println!("{report}");
    assert!(report.waits > 500 && report.refusals > 100, "little was put to the test: {report}");
}

/// A sample: the long proof runs all of them.
#[test]
fn a_snapshot_that_is_older_than_others_commits_changes_nothing_about_that() {
    for (n, isolation) in [Isolation::RepeatableRead, Isolation::Serializable, Isolation::Mixed]
        .into_iter()
        .enumerate()
    {
        let pairs = daily().into_iter().filter(Case::is_pair).skip(n * 3);
        let sample: Vec<Case> = pairs.step_by(11).collect();
        let report = go_through(&work(&sample, &[isolation], &[]), &|_| ()).unwrap();
        println!("{}: {report}", isolation.name());
        assert!(report.conflicts > 0, "no snapshot was too old: {report}");
    }
}

#[test]
fn every_script_does_something_where_it_claims_to() {
    assert_eq!(Stepper::new().idle(), Vec::<String>::new());
}

#[test]
fn an_outcome_of_no_order_is_told_with_the_schedule_that_repeats_it() {
    let setting = Setting { isolation: Isolation::ReadCommitted, planner: 0 };
    let mut stepper = Stepper::new();
    let found = stepper.go_through(&planted(), setting).unwrap_err();
    assert_eq!(found.invariant, Invariant::Serial, "{found}");
    let replay = found.replay.as_deref().unwrap();
    let (command, schedule) = replay.rsplit_once(' ').unwrap();
    assert_eq!(
        command,
        "drill step --case queued/planted+planted --isolation rc --planner default --schedule"
    );
    let again = stepper.replay(&planted(), setting, schedule).unwrap_err();
    assert_eq!((again.what, again.schedule), (found.what, found.schedule));
    // One after the other, the calls give the right result.
    stepper.replay(&planted(), setting, "AABB").unwrap();
}

#[test]
fn every_mutant_between_statements_is_killed_by_the_invariant_it_breaks() {
    let all = mutants::all();
    let hunts: Vec<_> = all.iter().filter(|hunt| hunt.level == Level::Stepper).collect();
    assert!(hunts.len() >= 16, "there are mutants to hunt");
    for hunt in hunts {
        let fate = hunt.run();
        let Some(killed) = fate.killed else { panic!("{} survived", hunt.mutant) };
        println!("{:<50} {} after {} schedules", hunt.mutant, killed.invariant, killed.states);
        assert!(fate.as_expected, "{} broke something else: {killed}", hunt.mutant);
    }
}
