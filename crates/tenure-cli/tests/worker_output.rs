//! What `tenure worker` keeps and shows of what its commands write.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod shell;

use serde_json::{Value, json};
use shell::{Ran, Shell};

/// Enqueues so many jobs, runs a worker with these options until nothing is due, and answers with what it said.
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
