//! What `tenure worker` keeps and shows of its commands' output.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod shell;

use serde_json::{Value, json};
use shell::{Ran, Shell};

/// Enqueues this many jobs, runs a worker with these options until nothing is due, and returns its
/// output.
fn drain(shell: &Shell, jobs: &str, options: &[&str], script: &str) -> Ran {
    shell.ok(&["enqueue", "k", "--count", jobs]);
    let ran = shell.run(&[&["worker", "--drain"], options, &["--", "sh", "-c", script]].concat());
    assert_eq!(ran.code, 0, "{ran:?}");
    ran
}

fn result(shell: &Shell, id: &str) -> Value {
    shell.json(&["jobs", "show", id])["result"].clone()
}

#[test]
fn stdout_that_is_not_json_is_pointed_out_once() {
    let shell = Shell::new();
    let ran = drain(&shell, "3", &["--concurrency", "1"], "echo all done");
    let warnings: Vec<&str> =
        ran.stderr.lines().filter(|line| line.starts_with("warning: ")).collect();
    assert_eq!(
        warnings,
        ["warning: job 1 has no result, because what its command wrote to stdout is not JSON; \
          write one JSON value and log to stderr, or use --result last-line (this is said once, \
          and holds for other jobs too)"],
        "{ran:?}"
    );
    assert_eq!(result(&shell, "3"), json!(null));
    for silent in ["true", "echo 7", "echo all done; exit 65"] {
        let ran = drain(&shell, "1", &[], silent);
        assert!(!ran.stderr.contains("warning: "), "{silent}: {ran:?}");
    }
}

#[test]
fn a_log_for_programs_has_events_only() {
    let shell = Shell::new();
    let ran = drain(&shell, "1", &["--log", "json"], "echo all done; echo complaint >&2");
    for line in ran.stderr.lines() {
        assert!(serde_json::from_str::<Value>(line).is_ok(), "{line}");
    }
}

#[test]
fn with_last_line_a_command_may_write_anything_before_its_result() {
    let shell = Shell::new();
    let options = ["--result", "last-line"];
    let ran = drain(&shell, "1", &options, "echo begun; echo '{\"n\": 7}'; echo");
    assert!(!ran.stderr.contains("warning: "), "{ran:?}");
    assert_eq!(result(&shell, "1"), json!({"n": 7}));
    let ran = drain(&shell, "1", &options, "echo '{\"n\": 7}'; echo ended");
    assert!(ran.stderr.contains("because the last line that its command wrote to"), "{ran:?}");
    assert_eq!(result(&shell, "2"), json!(null));
}

/// The lines of stderr that are not events.
fn shown(ran: &Ran) -> Vec<&str> {
    ran.stderr.lines().filter(|line| line.contains("line")).collect()
}

#[test]
fn lines_of_several_commands_say_whose_they_are_and_stay_whole() {
    let shell = Shell::new();
    // Each command writes half of its line, and the rest only when the other has written its half
    // too.
    let script = "printf 'line of ' >&2; touch begun-$TENURE_JOB_ID
        while ! [ -e begun-1 -a -e begun-2 ]; do sleep 0.01; done
        echo $TENURE_JOB_ID >&2; echo >&2";
    let ran = drain(&shell, "2", &["--concurrency", "2"], script);
    let mut lines = shown(&ran);
    lines.sort_unstable();
    assert_eq!(lines, ["[job 1] line of 1", "[job 2] line of 2"], "{ran:?}");
    assert!(ran.stderr.contains("\n[job 1]\n"), "an empty line is one too: {ran:?}");
}

#[test]
fn lines_of_one_command_at_a_time_are_shown_as_they_are_unless_asked_otherwise() {
    let shell = Shell::new();
    let script = "echo a line >&2";
    for (options, line) in [
        (&["--concurrency", "1"][..], "a line"),
        (&["--concurrency", "1", "--stderr", "prefix"], "[job 2] a line"),
        (&["--concurrency", "4", "--stderr", "plain"], "a line"),
        (&[], "[job 4] a line"),
    ] {
        let ran = drain(&shell, "1", options, script);
        assert_eq!(shown(&ran), [line], "{options:?}");
    }
}
