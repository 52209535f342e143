//! One server process: its log, the moment it is ready, and its end.
//!
//! The log arrives through a pipe, so that waiting for the server means reading its log.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, PipeReader, PipeWriter, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use crate::account::Account;
use crate::error::{Error, run};

/// A server that logs nothing for this long will not start.
const PATIENCE: Duration = Duration::from_secs(120);

/// How much of a log an error shows.
const SHOWN_LINES: usize = 30;

/// A line that this process writes into the log's pipe: when it comes out, everything that the
/// server wrote before it has come out too.
const FENCE: &[u8] = b"=tenure-cluster-fence=\n";

/// A running server.
#[derive(Debug)]
pub(crate) struct Server {
    child: Child,
    log: PipeWriter,
    fences: Mutex<Receiver<()>>,
}

/// What happens while a server starts.
enum Event {
    Said(String),
    Ended,
}

impl Server {
    /// Starts a server, appends its log to the file `log`, and waits until it logs `ready`.
    pub(crate) fn start(command: Command, log: &Path, ready: &str) -> Result<Server, Error> {
        let program = command.get_program().to_string_lossy().into_owned();
        let file = OpenOptions::new().create(true).append(true).open(log);
        let file = file.map_err(|error| Error::at("write", log, &error))?;
        let (mut server, events) = Server::spawn(command, file)
            .map_err(|error| Error::new(format!("cannot run {program}: {error}")))?;
        loop {
            let why = match events.recv_timeout(PATIENCE) {
                Ok(Event::Said(line)) if line.contains(ready) => return Ok(server),
                Ok(Event::Said(_)) => continue,
                Err(RecvTimeoutError::Timeout) => "is not ready, and says nothing more",
                Ok(Event::Ended) | Err(RecvTimeoutError::Disconnected) => {
                    "ended instead of starting"
                }
            };
            server.kill();
            server.catch_up();
            return Err(Error::new(format!("{program} {why}. Its log:\n{}", tail(log))));
        }
    }

    fn spawn(mut command: Command, file: File) -> io::Result<(Server, Receiver<Event>)> {
        let (reader, log) = io::pipe()?;
        // Servers print nothing on stdout. When it closes, the last of their processes has ended.
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log.try_clone()?);
        // A process group of its own: Ctrl-C at a terminal then goes to the tests and not to the
        // server.
        command.process_group(0);
        let mut child = command.spawn()?;
        let (event, events) = channel();
        let (fence, fences) = channel();
        if let Some(mut output) = child.stdout.take() {
            let event = event.clone();
            thread::spawn(move || {
                let _ = io::copy(&mut output, &mut io::sink());
                let _ = event.send(Event::Ended);
            });
        }
        thread::spawn(move || copy(reader, file, &event, &fence));
        Ok((Server { child, log, fences: Mutex::new(fences) }, events))
    }

    /// Waits until everything that the server has logged is in the file.
    pub(crate) fn catch_up(&self) {
        if let Ok(fences) = self.fences.lock()
            && (&self.log).write_all(FENCE).is_ok()
        {
            let _ = fences.recv_timeout(PATIENCE);
        }
    }

    /// Sends a signal and waits for the end.
    pub(crate) fn stop(&mut self, account: Account, signal: &str) -> Result<(), Error> {
        // If the server has ended already, this reaps it, and no signal is sent: its process id may
        // soon be another process's.
        if let Ok(None) = self.child.try_wait() {
            // A server that a test has frozen must be woken to end.
            let kill = format!("kill -{signal} {0} && kill -CONT {0}", self.child.id());
            run(account.command("sh").args(["-c", &kill]))?;
        }
        let waited = self.child.wait();
        self.catch_up();
        waited.map(drop).map_err(|error| Error::new(format!("cannot wait for a server: {error}")))
    }

    /// Kills a server that has nothing to lose.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Copies lines into a file, and sends them while there is a receiver. Ends when the last writer
/// has closed the pipe.
fn copy(from: PipeReader, mut file: File, event: &Sender<Event>, fence: &Sender<()>) {
    let mut from = BufReader::new(from);
    let mut line = Vec::new();
    while from.read_until(b'\n', &mut line).is_ok_and(|length| length > 0) {
        let said = line.strip_suffix(FENCE);
        // The server's output must be read to its end, even if the disk is full.
        let _ = file.write_all(said.unwrap_or(&line));
        if said.is_some() {
            let _ = fence.send(());
        }
        let _ = event.send(Event::Said(String::from_utf8_lossy(&line).into_owned()));
        line.clear();
    }
}

/// All of a log.
pub(crate) fn text(log: &Path) -> String {
    fs::read(log).map(|log| String::from_utf8_lossy(&log).into_owned()).unwrap_or_default()
}

/// The end of a log.
pub(crate) fn tail(log: &Path) -> String {
    let text = text(log);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(SHOWN_LINES)..].join("\n")
}
