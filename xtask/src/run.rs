//! The steps of a command: each is announced, timed and counted, and the first that fails ends the
//! command.

use std::fmt::{self, Display};
use std::io::Write;
use std::ops::AddAssign;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use crate::cargo::Cargo;
use crate::postgres::{Server, Wanted};

/// How many checks passed and failed. A failed step that counts nothing is one failure.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Count {
    pub(crate) passed: usize,
    pub(crate) failed: usize,
}

impl Count {
    pub(crate) const ONE_FAILED: Count = Count { passed: 0, failed: 1 };

    pub(crate) fn exit_code(self) -> ExitCode {
        if self.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

impl AddAssign for Count {
    fn add_assign(&mut self, other: Count) {
        self.passed += other.passed;
        self.failed += other.failed;
    }
}

/// One step of a command.
pub(crate) struct Step {
    title: &'static str,
    work: Work,
    wanted: Option<Wanted>,
}

enum Work {
    Cargo(Cargo),
    Own { repeat: &'static str, check: Check },
}

/// A check of our own, with the server if the step asked for one.
type Check = fn(&Path, Option<&Server>) -> Count;

impl Step {
    /// A step that is a call of cargo.
    pub(crate) fn cargo(title: &'static str, cargo: Cargo) -> Step {
        Step { title, work: Work::Cargo(cargo), wanted: None }
    }

    /// A step of our own, and the command that repeats it alone.
    pub(crate) fn own(title: &'static str, repeat: &'static str, check: Check) -> Step {
        Step { title, work: Work::Own { repeat, check }, wanted: None }
    }

    /// Gives the step a PostgreSQL: the one of an earlier step if that wanted the same.
    pub(crate) fn on(self, wanted: Wanted) -> Step {
        Step { wanted: Some(wanted), ..self }
    }

    fn run(&self, root: &Path, server: Option<&Server>) -> Count {
        match &self.work {
            Work::Cargo(cargo) => cargo.run(root, server.map(Server::variable)),
            Work::Own { check, .. } => check(root, server),
        }
    }
}

impl Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.work, self.wanted) {
            (Work::Cargo(cargo), None) => cargo.fmt(f),
            (Work::Cargo(cargo), Some(wanted)) => write!(f, "{wanted} {cargo}"),
            // Run alone, it starts its server itself.
            (Work::Own { repeat, .. }, _) => f.write_str(repeat),
        }
    }
}

/// Runs the steps in order up to the first that fails. The last line printed is the count.
pub(crate) fn steps(root: &Path, steps: &[Step]) -> ExitCode {
    let began = now();
    let mut total = Count::default();
    let mut server = None;
    for (index, step) in steps.iter().enumerate() {
        say(format_args!("[{}/{}] {}: {step}", index + 1, steps.len(), step.title));
        let start = now();
        let count = match step.wanted.map(|wanted| Server::keep_or_start(&mut server, wanted)) {
            None => step.run(root, None),
            Some(Ok(server)) => step.run(root, Some(server)),
            Some(Err(error)) => {
                say(error);
                Count::ONE_FAILED
            }
        };
        let took = seconds(start.elapsed());
        total += count;
        if count.failed > 0 {
            say(format_args!("\n{} failed after {took}. Repeat it with: {step}", step.title));
            break;
        }
        say(format_args!("      ok in {took}\n"));
    }
    say(format_args!("total {}", seconds(began.elapsed())));
    say(format_args!("{} passed, {} failed", total.passed, total.failed));
    total.exit_code()
}

/// Prints a line. A failure to print is ignored.
pub(crate) fn say(line: impl Display) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// The only clock here.
#[expect(clippy::disallowed_methods, reason = "it times steps for people, and no job sees it")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

fn seconds(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_repeated_with_the_server_it_had() {
        let step = || Step::cargo("tests", Cargo::new("test --doc"));
        assert_eq!(step().to_string(), "cargo test --doc");
        assert_eq!(step().on(Wanted::Any).to_string(), "cargo xtask postgres cargo test --doc");
        let newest = step().on(Wanted::Major(18)).to_string();
        assert_eq!(newest, "cargo xtask postgres --major 18 cargo test --doc");
        let own = Step::own("documents", "cargo xtask readme", |_, _| Count::default());
        assert_eq!(own.on(Wanted::Any).to_string(), "cargo xtask readme");
    }
}
