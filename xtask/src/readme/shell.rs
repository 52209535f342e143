//! One bash for a whole page, so that variables and the working directory persist between commands.
//!
//! After each command the shell prints a line with the exit code, in a form that no other program
//! prints. The shell leads a process group. The group is killed when the shell is dropped, and with
//! it everything that a page has started.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use super::Surroundings;
use super::console::Happened;
use crate::postgres::is_about_servers;
use crate::run::now;

/// The time limit of a command.
const PATIENCE: Duration = Duration::from_secs(120);

const MARK: &str = "=tenure-readme-command-ended=";

/// A running shell.
pub(super) struct Shell {
    child: Child,
    input: ChildStdin,
    lines: Receiver<String>,
}

impl Shell {
    /// Starts a shell in `directory` that finds our programs first.
    pub(super) fn start(directory: &Path, surroundings: &Surroundings) -> io::Result<Shell> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let path = surroundings.programs.iter().cloned().chain(std::env::split_paths(&path));
        let path = std::env::join_paths(path).map_err(io::Error::other)?;
        let mut command = Command::new("bash");
        // The user's settings for their own store must not apply here.
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("TENURE_") || is_about_servers(&name) {
                command.env_remove(name);
            }
        }
        let mut child = command
            .args(["--noprofile", "--norc"])
            .env_remove("BASH_ENV")
            .env("PSQLRC", "/dev/null")
            .envs(surroundings.variables.iter().map(|(name, value)| (name, value)))
            .env("PATH", path)
            .env("NO_COLOR", "1")
            .env("TERM", "dumb")
            .current_dir(directory)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()?;
        let (Some(mut input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(io::Error::other("bash has no pipes"));
        };
        // A reader sees both streams in one terminal.
        writeln!(input, "exec 2>&1")?;
        Ok(Shell { child, input, lines: read(output) })
    }

    /// Runs a command to its end.
    pub(super) fn run(&mut self, command: &str) -> io::Result<Happened> {
        let quoted = command.replace('\'', r"'\''");
        writeln!(self.input, "eval '{quoted}' </dev/null\nprintf '\\n{MARK}%s\\n' $?")?;
        let deadline = now() + PATIENCE;
        let mut output = Vec::new();
        loop {
            match self.lines.recv_timeout(deadline.saturating_duration_since(now())) {
                Ok(line) => match line.strip_prefix(MARK) {
                    Some(exit) => {
                        let exit = exit.parse().map_err(io::Error::other)?;
                        return Ok(Happened { output, exit });
                    }
                    None => output.push(line),
                },
                Err(RecvTimeoutError::Timeout) => {
                    return Err(io::Error::other(format!("still running after {PATIENCE:?}")));
                }
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(io::Error::other("the shell ended with it"));
                }
            }
        }
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        // The shell is not reaped yet, so its process id and its group's cannot belong to another
        // process.
        let kill = format!("kill -KILL -- -{}", self.child.id());
        let _ = Command::new("bash").args(["-c", &kill]).stderr(Stdio::null()).status();
        let _ = self.child.wait();
    }
}

/// Reads lines on a thread of its own, which ends with the last process that holds the pipe.
fn read(output: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, lines) = channel();
    thread::spawn(move || {
        let mut output = BufReader::new(output);
        let mut line = Vec::new();
        while output.read_until(b'\n', &mut line).is_ok_and(|length| length > 0) {
            let text = String::from_utf8_lossy(&line);
            if sender.send(text.trim_end_matches('\n').to_owned()).is_err() {
                return;
            }
            line.clear();
        }
    });
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell() -> Shell {
        Shell::start(&std::env::temp_dir(), &Surroundings::default()).unwrap()
    }

    fn output(shell: &mut Shell, command: &str) -> (String, i32) {
        let happened = shell.run(command).unwrap();
        (happened.output.join("\n").trim_end().to_owned(), happened.exit)
    }

    #[test]
    fn both_streams_and_the_exit_code_are_seen() {
        let mut shell = shell();
        assert_eq!(
            output(&mut shell, "echo \"it's\"; echo b >&2; (exit 4)"),
            ("it's\nb".into(), 4)
        );
        assert_eq!(output(&mut shell, "printf 'no end of line'"), ("no end of line".into(), 0));
        assert_eq!(output(&mut shell, "cat"), (String::new(), 0));
    }

    #[test]
    fn nonsense_fails_and_the_shell_goes_on() {
        let mut shell = shell();
        assert_ne!(output(&mut shell, "if then fi (").1, 0);
        assert_eq!(output(&mut shell, "echo on"), ("on".into(), 0));
        assert!(shell.run("exit 3").is_err());
    }

    #[test]
    fn the_variables_and_programs_of_the_page_come_first() {
        let surroundings = Surroundings {
            programs: vec!["/of/this/page".into()],
            variables: vec![("PGHOST".into(), "/a b".into())],
        };
        let mut shell = Shell::start(&std::env::temp_dir(), &surroundings).unwrap();
        let seen = output(&mut shell, "echo \"$PGHOST ${PATH%%:*}\"");
        assert_eq!(seen, ("/a b /of/this/page".into(), 0));
    }

    #[test]
    fn what_runs_in_the_background_ends_with_the_shell() {
        let mut shell = shell();
        output(&mut shell, "tail -f /dev/null &");
        // The background process holds the pipe open for as long as it lives.
        let lines = std::mem::replace(&mut shell.lines, channel().1);
        drop(shell);
        assert_eq!(lines.recv_timeout(PATIENCE), Err(RecvTimeoutError::Disconnected));
    }
}
