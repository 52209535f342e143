//! `tenure drill simulate`, as a user at a shell sees it. It needs no store, and leaves none
//! behind.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod shell;

use shell::Shell;

#[test]
fn a_seed_prints_what_happened_and_the_same_hash_whenever_it_is_run() {
    let shell = Shell::new();
    let args = ["drill", "simulate", "--seed", "3", "--jobs", "40", "--twice"];
    let told = shell.ok(&args);
    let mut lines = told.lines();
    assert!(lines.next().unwrap().starts_with("seed 3: 4"), "{told}");
    assert!(lines.next().unwrap().starts_with("faults: "), "{told}");
    assert!(told.contains("\nSOMETIMES ") && told.contains("\nstale refused "), "{told}");
    let hash = told.lines().last().unwrap().strip_prefix("trace hash ").unwrap();
    assert!(hash.len() == 32 && hash.bytes().all(|c| c.is_ascii_hexdigit()), "{hash}");
    assert_eq!(shell.ok(&args), told);
    assert_eq!(shell.json(&args)["run"]["trace_hash"], hash);
    assert_eq!(std::fs::read_dir(shell.path(".")).unwrap().count(), 0, "no store was made");
}

#[test]
fn several_seeds_are_counted_together() {
    let told = Shell::new().json(&["drill", "simulate", "--seeds", "3", "--jobs", "10"]);
    assert_eq!(told["seeds"], 3);
    assert!(told["violation"].is_null() && told["run"].is_null(), "{told}");
    assert!(told["sometimes"]["key conflict"].is_u64(), "{told}");
}

#[test]
fn faults_can_be_chosen_by_kind_and_by_number_and_left_out() {
    let shell = Shell::new();
    let faults = |more: &[&str]| {
        let args = ["drill", "simulate", "--seed", "2", "--jobs", "60"];
        shell.json(&[&args, more].concat())["faults"].clone()
    };
    let kills = faults(&["--faults", "kill"]);
    assert_eq!(kills.as_object().unwrap().keys().collect::<Vec<_>>(), ["kill"], "{kills}");
    assert_eq!(faults(&["--only-faults", "1"]).as_object().unwrap().len(), 1);
    assert_eq!(faults(&["--only-faults", "1", "--without", "1"]).as_object().unwrap().len(), 0);
    assert_eq!(faults(&["--lost-in", "0", "--kill-in", "0"]).as_object().unwrap().len(), 0);
}

#[test]
fn each_call_can_be_lost_in_turn_and_one_alone() {
    let shell = Shell::new();
    let told = shell.ok(&["drill", "simulate", "--fail-nth"]);
    assert!(told.contains("every job succeeded in one attempt"), "{told}");
    let one = ["drill", "simulate", "--fail-nth", "17", "--after"];
    assert!(shell.ok(&one).lines().last().unwrap().starts_with("trace hash "));
    assert!(shell.json(&one)["violation"].is_null());
}

#[test]
fn what_makes_no_sense_is_a_matter_of_usage() {
    let shell = Shell::new();
    let run = |more: &[&str]| shell.run(&[&["drill", "simulate"], more].concat());
    run(&["--faults", "quake"]).refused(2, "is none of call, reply, kill");
    run(&["--lease", "10ms"]).refused(2, "--lease: below 1s");
    run(&["--fail-nth", "--after"]).refused(2, "--fail-nth 17 --after");
    run(&["--fail-nth", "3", "--jobs", "5"]).refused(2, "cannot be used with");
}
