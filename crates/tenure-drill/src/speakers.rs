//! A real process that reports each event as a line, and what can be done to it.

pub mod inside;

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use tenure::engine::clock::monotonic;

/// The timeout of every wait. Longer than a busy machine needs, and running into it is always an
/// error.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A process that reports lines. It is killed when this value is dropped.
#[derive(Debug)]
pub struct Speaker {
    process: Child,
    lines: Receiver<(Instant, String)>,
}

impl Speaker {
    /// Starts the process. It should end when its standard input is closed, so that it does not
    /// outlive its test.
    pub fn start(command: &mut Command) -> Speaker {
        let mut process = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|broken| panic!("{command:?} does not start: {broken}"));
        let output = BufReader::new(process.stdout.take().expect("its output"));
        let (tell, lines) = channel();
        std::thread::spawn(move || {
            // This thread ends with the process, or when the receiver is dropped.
            output
                .lines()
                .map_while(std::result::Result::ok)
                .all(|line| tell.send((monotonic(), line)).is_ok())
        });
        Speaker { process, lines }
    }

    /// The id of the process.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Kills it with -9.
    pub fn kill(&mut self) {
        self.process.kill().expect("kill -9");
        self.process.wait().expect("it is gone");
    }

    /// Asks it to end by closing its standard input.
    pub fn close(&mut self) {
        drop(self.process.stdin.take());
    }

    /// Asks it to end, and waits until it has.
    pub fn end(&mut self) -> ExitStatus {
        self.close();
        self.process.wait().expect("it ends")
    }

    /// Whether it has ended by itself.
    pub fn has_ended(&mut self) -> bool {
        self.process.try_wait().expect("its process is ours").is_some()
    }

    /// Sends it a signal, such as `STOP`.
    pub fn signal(&self, name: &str) {
        let sent =
            Command::new("kill").args([&format!("-{name}"), &self.pid().to_string()]).status();
        assert!(sent.expect("kill runs").success());
    }

    /// The next line, and when it was received; none if no line comes until then, or the output has
    /// ended.
    pub fn next(&self, until: Instant) -> Option<(Instant, String)> {
        self.lines.recv_timeout(until.saturating_duration_since(monotonic())).ok()
    }

    /// The lines since the last call.
    pub fn said(&self) -> Vec<String> {
        self.lines.try_iter().map(|(_, line)| line).collect()
    }

    /// Waits for a line that begins like this, and returns all lines up to it.
    pub fn hear(&self, beginning: &str) -> Vec<String> {
        let mut heard = Vec::new();
        while let Some((_, line)) = self.next(monotonic() + PATIENCE) {
            let done = line.starts_with(beginning);
            heard.push(line);
            if done {
                return heard;
            }
        }
        panic!("it never said {beginning}: {heard:?}");
    }
}

impl Drop for Speaker {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
