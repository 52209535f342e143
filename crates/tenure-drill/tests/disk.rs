//! The power fails after every write and every flush, and nothing that was answered is lost; and
//! another program writes to the file at any time.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test panics where it fails")]

use tenure_drill::disk;
use tenure_drill::mutants::{self, Level};

#[test]
fn a_power_cut_at_any_point_loses_nothing_that_was_answered() {
    let report = disk::run(1).unwrap();
    println!("{report}");
    assert!(
        report.cuts > report.points,
        "everywhere, and more than once where it matters: {report}"
    );
    assert!(report.under_way > 0, "some calls were applied and not answered: {report}");
    assert!(report.new_epochs > 0, "some witnesses were lost: {report}");
    assert!(report.again > 0, "it failed again before the file was open: {report}");
    let again = disk::replay(1, report.points / 2).unwrap();
    assert_eq!((again.calls, again.points), (report.calls, report.points), "a seed repeats itself");
    assert!(again.cuts >= 1);
}

#[test]
fn a_power_cut_loses_nothing_of_callers_that_share_a_commit() {
    let report = disk::run_crowd().unwrap();
    println!("{report}");
    assert!(report.cuts > 0 && report.points > 0, "the power never failed: {report}");
}

#[test]
fn another_program_may_write_to_the_file_at_any_moment_of_a_call() {
    let seen = disk::run_strangers().unwrap();
    println!("{seen}");
    assert!(seen.wrote > 0 && seen.refused > 0, "it came too early, too late, or never: {seen}");
}

#[test]
fn a_file_may_be_replaced_at_any_moment_of_a_call_and_the_caller_is_told() {
    let told = disk::run_replaced().unwrap();
    println!("{told} calls were told");
    assert!(told > 8, "it came too early, too late, or never: {told}");
}

#[test]
fn a_store_that_does_not_flush_or_reads_too_early_is_found_out() {
    let all = mutants::all();
    let hunts: Vec<_> = all.iter().filter(|hunt| hunt.level == Level::Disk).collect();
    assert!(hunts.len() >= 5, "there are mutants to hunt");
    for hunt in hunts {
        let fate = hunt.run();
        println!("{}: {:?}", fate.mutant, fate.killed);
        assert!(
            fate.as_expected,
            "{} survives, or breaks something else: {:?}",
            fate.mutant, fate.killed
        );
    }
}
