//! Calls of cargo, and how many tests they ran.
//!
//! The output of child processes is shown as it arrives. Where tests are counted, it passes through
//! here, with one thread for each pipe, so that neither pipe can fill up and block the child.

use std::fmt::{self, Display};
use std::io::{self, BufRead, BufReader, IsTerminal, Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Duration;

use crate::run::{Count, say};

/// How long the last output of a child that has ended may take to arrive.
const GRACE: Duration = Duration::from_secs(1);

/// A call of cargo in the repository.
pub(crate) struct Cargo {
    arguments: Vec<String>,
    env: Option<(&'static str, &'static str)>,
    counted: Option<fn(&str) -> Option<Count>>,
}

impl Cargo {
    /// The arguments as one would type them; none of ours contains a space.
    pub(crate) fn new(command: &str) -> Cargo {
        let arguments = command.split_whitespace().map(str::to_owned).collect();
        Cargo { arguments, env: None, counted: None }
    }

    /// Sets an environment variable.
    pub(crate) fn env(self, name: &'static str, value: &'static str) -> Cargo {
        Cargo { env: Some((name, value)), ..self }
    }

    /// Counts the tests in the output.
    pub(crate) fn counted(self) -> Cargo {
        // Only one style of summary is counted. nextest repeats the output of a failed test, which
        // ends with a summary of the standard harness: that test would be counted twice.
        let nextest = self.arguments.first().is_some_and(|first| first == "nextest");
        Cargo { counted: Some(if nextest { in_nextest } else { in_harness }), ..self }
    }

    /// Whether the call succeeds; shows no output.
    pub(crate) fn works(&self) -> bool {
        let status = self.command().stdout(Stdio::null()).stderr(Stdio::null()).status();
        status.is_ok_and(|status| status.success())
    }

    /// Runs it in the repository, with one more variable if the step has a server.
    pub(crate) fn run(&self, root: &Path, variable: Option<(&str, String)>) -> Count {
        let mut command = self.command();
        command.current_dir(root).envs(variable);
        let outcome = match self.counted {
            Some(summary) => run_counted(&mut command, summary, io::stdout(), io::stderr()),
            None => command.status().map(|status| (status.success(), Some(Count::default()))),
        };
        match outcome {
            Ok((true, Some(count))) => count,
            Ok((true, None)) => {
                say(format_args!("{self} succeeded, but its output tells no number of tests"));
                Count::ONE_FAILED
            }
            Ok((false, count)) => {
                let count = count.unwrap_or_default();
                Count { failed: count.failed.max(1), ..count }
            }
            Err(error) => {
                say(format_args!("cannot run {self}: {error}"));
                Count::ONE_FAILED
            }
        }
    }

    fn command(&self) -> Command {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = Command::new(cargo);
        command.args(&self.arguments).stdin(Stdio::null());
        // A child behind a pipe cannot see that its output ends on a terminal.
        let chosen = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        if std::io::stdout().is_terminal() && !chosen("NO_COLOR") && !chosen("CARGO_TERM_COLOR") {
            command.env("CARGO_TERM_COLOR", "always");
        }
        command.envs(self.env);
        command
    }
}

impl Display for Cargo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some((name, value)) = self.env {
            write!(f, "{name}={value} ")?;
        }
        write!(f, "cargo {}", self.arguments.join(" "))
    }
}

/// Runs a command, passes its output on, and adds up the test summaries in it, if there are any.
fn run_counted(
    command: &mut Command,
    summary: fn(&str) -> Option<Count>,
    out: impl Write + Send + 'static,
    err: impl Write + Send + 'static,
) -> io::Result<(bool, Option<Count>)> {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let (sender, counts) = channel();
    pass_on(child.stdout.take(), out, summary, sender.clone());
    pass_on(child.stderr.take(), err, summary, sender);
    let success = child.wait()?.success();
    let mut total: Option<Count> = None;
    // A process that the tests left behind may hold the pipes open for ever, so this does not wait
    // for their end.
    while let Ok(count) = counts.recv_timeout(GRACE) {
        *total.get_or_insert_default() += count;
    }
    Ok((success, total))
}

/// Copies lines on a thread of its own, and sends the counts in them.
fn pass_on(
    from: Option<impl Read + Send + 'static>,
    mut to: impl Write + Send + 'static,
    summary: fn(&str) -> Option<Count>,
    counts: Sender<Count>,
) {
    let Some(from) = from else { return };
    thread::spawn(move || {
        let mut from = BufReader::new(from);
        let mut line = Vec::new();
        while from.read_until(b'\n', &mut line).is_ok_and(|length| length > 0) {
            // Our own reader may be gone; the child's output must be read to its end nevertheless.
            let _ = to.write_all(&line).and_then(|()| to.flush());
            if let Some(count) = summary(&without_colour(&String::from_utf8_lossy(&line))) {
                let _ = counts.send(count);
            }
            line.clear();
        }
    });
}

/// `Summary [   0.1s] 4 tests run: 3 passed (1 slow), 1 timed out, 0 skipped`
fn in_nextest(line: &str) -> Option<Count> {
    line.trim_start().strip_prefix("Summary [")?.split_once(" run: ").map(|(_, parts)| sum(parts))
}

/// `test result: ok. 3 passed; 0 failed; 0 ignored; …`
fn in_harness(line: &str) -> Option<Count> {
    line.strip_prefix("test result: ")?.split_once(". ").map(|(_, parts)| sum(parts))
}

fn sum(parts: &str) -> Count {
    let mut count = Count::default();
    for part in parts.split([',', ';', '(']) {
        let mut words = part.split_whitespace();
        let Some(number) = words.next().and_then(|word| word.parse::<usize>().ok()) else {
            continue;
        };
        match words.next() {
            Some("passed") => count.passed += number,
            // As in "2 failed", "1 timed out", "1 exec failed".
            Some("failed" | "timed" | "exec") => count.failed += number,
            _ => {}
        }
    }
    count
}

fn without_colour(line: &str) -> String {
    let mut parts = line.split("\u{1b}[");
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        plain.push_str(part.split_once('m').map_or("", |(_, rest)| rest));
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn count(passed: usize, failed: usize) -> Option<Count> {
        Some(Count { passed, failed })
    }

    #[test]
    fn summaries_of_nextest_are_counted() {
        let passed = "     Summary [   0.006s] 3 tests run: 3 passed, 0 skipped\n";
        assert_eq!(in_nextest(passed), count(3, 0));
        let slow = "Summary [  61.2s] 10/12 tests run: 7 passed (1 slow, 2 leaky), 2 failed, 1 timed out, 2 skipped";
        assert_eq!(in_nextest(slow), count(7, 3));
        let coloured = "\u{1b}[32;1m     Summary\u{1b}[0m [   0.0s] \u{1b}[1m1\u{1b}[0m test run: \u{1b}[1m1\u{1b}[0m \u{1b}[32;1mpassed\u{1b}[0m";
        assert_eq!(in_nextest(&without_colour(coloured)), count(1, 0));
        assert_eq!(in_nextest("        PASS [   0.004s] (1/3) xtask run: 1 passed"), None);
    }

    #[test]
    fn summaries_of_the_standard_harness_are_counted() {
        let ok = "test result: ok. 5 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s\n";
        assert_eq!(in_harness(ok), count(5, 0));
        assert_eq!(in_harness("test result: FAILED. 4 passed; 2 failed; 0 ignored"), count(4, 2));
        assert_eq!(in_harness("test job::tests::passed ... ok"), None);
    }

    #[test]
    fn a_failed_test_that_nextest_shows_is_counted_once() {
        let nextest = Cargo::new("nextest run").counted().counted.unwrap();
        assert_eq!(nextest("test result: FAILED. 0 passed; 1 failed; 0 ignored"), None);
    }

    fn run(script: &str) -> (bool, Option<Count>) {
        let mut command = Command::new("bash");
        run_counted(command.args(["-c", script]), in_harness, io::sink(), io::sink()).unwrap()
    }

    #[test]
    fn both_pipes_are_read_to_their_end_and_counted() {
        let script = "seq 50000 >&2; seq 50000
            printf 'test result: ok. 2 passed; 0 failed;'
            echo 'test result: FAILED. 3 passed; 1 failed;' >&2; exit 1";
        assert_eq!(run(script), (false, count(5, 1)));
        assert_eq!(run("echo nothing"), (true, None));
    }

    #[test]
    fn a_process_left_behind_does_not_hold_us_up() {
        assert_eq!(run("sleep 5 & echo 'test result: ok. 1 passed'"), (true, count(1, 0)));
    }
}
