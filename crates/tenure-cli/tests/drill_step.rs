//! `tenure drill step`, as a user at a shell sees it: on a server that `--db` names.

#![cfg(feature = "drill")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod shell;

use shell::Shell;

const CASE: [&str; 4] = ["drill", "step", "--case", "over/claim+fence-write"];

#[test]
fn a_case_is_gone_through_at_each_level_and_counted() {
    let shell = Shell::before_migrating();
    let ran = shell.run(&CASE);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.stdout.starts_with("ISOLATION"), "{ran:?}");
    assert!(ran.stdout.ends_with("nobody met a deadlock.\n"), "{ran:?}");
    assert!(ran.stderr.contains("rc: 1 of 1 cases"), "{ran:?}");

    let told = shell.json(&[&CASE[..], &["--isolation", "rr", "--planner", "custom"]].concat());
    assert_eq!(told["levels"][0]["isolation"], "rr");
    assert!(told["levels"][0]["conflicts"].as_u64() > Some(0), "{told}");
    assert!(told["violation"].is_null(), "{told}");
}

#[test]
fn one_order_of_statements_is_told_in_words() {
    let shell = Shell::before_migrating();
    let words = shell.ok(&[&CASE[..], &["--schedule", "BBAAB"]].concat());
    let lines: Vec<&str> = words.lines().collect();
    assert!(lines[0].ends_with("B: BEGIN; SELECT tenure.fence(1, 1) → done"), "{words}");
    assert!(lines[4].ends_with("B: COMMIT → refused, TN001"), "{words}");
}

#[test]
fn what_is_not_there_is_wrong_usage_and_says_where_to_look() {
    let shell = Shell::new();
    let list = shell.ok(&["drill", "step", "--list"]);
    assert!(list.lines().any(|name| name == "over/claim+fence-write"), "{list}");
    for (args, hint) in [
        (&["--case", "nothing"][..], "--list --everywhere"),
        (&["--isolation", "none"], "rc, rr, serializable or mixed"),
        (&["--planner", "none"], "no-nestloop"),
        (&["--case", "over/claim+fence-write", "--schedule", "AXB"], "A, B or C"),
        (&["--schedule", "AB"], "--case"),
    ] {
        let ran = shell.run(&[&["drill", "step"], args].concat());
        assert_eq!(ran.code, 2, "{args:?}: {ran:?}");
        assert!(ran.stderr.contains(hint), "{args:?}: {ran:?}");
    }
}
