//! A command that runs for each job: args on stdin, the result on stdout, errors on stderr, and the
//! exit code says how it went. This file knows nothing of stores and leases: it runs one attempt,
//! and returns how that ended.

use std::convert::Infallible;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::future::pending;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream as Pair;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use rustix::fs::Access;
use rustix::process::Signal;
use tenure::Json;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::net::UnixStream;
use tokio::net::unix::pipe;
use tokio::sync::oneshot;

use super::captured::{Output, ResultFrom, Stderr, Stdout};
use super::helper;
use super::keeper::Keeper;
use super::lifeline::{End, Lifeline};
use super::messages::Order;
use crate::args::BadInput;

/// What runs for each job.
pub(crate) struct Program {
    /// Keeps the helper, the process that starts the command.
    keeper: Keeper,
    /// How long a command may take to end after it is asked to.
    patience: Duration,
    /// Which part of its stdout is the result.
    result: ResultFrom,
}

/// One attempt, as the command sees it.
pub(crate) struct Assignment {
    pub(crate) args: String,
    pub(crate) environment: Vec<(&'static str, String)>,
    pub(crate) result_limit: usize,
}

/// How a command ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Finished {
    /// Success. Without a result, it wrote nothing to stdout.
    Done { result: Option<Json> },
    /// Success, but stdout is not JSON, so there is no result.
    NotJson,
    /// Success, but the result is too large to be stored.
    TooLarge { size: usize, limit: usize },
    /// The command reports that another attempt is useless.
    Fatal { error: String },
    /// Any other end, or the command could not be run.
    Failed { error: String },
}

/// `EX_DATAERR` of sysexits.h: the input is wrong, and will be wrong again.
const FATAL: u8 = 65;

impl Program {
    /// The time between TERM and KILL in tests. `tenure worker` always sets one.
    pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

    /// Looks for the command, so that a typo is reported once at the start and not by every job.
    pub(crate) fn find(words: Vec<OsString>) -> Result<Program> {
        Program::find_with(words, helper::this_program()?, Keeper::SILENCE)
    }

    /// The same with another helper program, which may be silent for at most `silence`; for tests.
    pub(crate) fn find_with(
        words: Vec<OsString>,
        helper: PathBuf,
        silence: Duration,
    ) -> Result<Program> {
        let Some(name) = words.first().filter(|name| !name.is_empty()) else {
            let why = "no command to run; write it after --, such as: tenure worker -- ./resize.sh";
            return Err(BadInput(why.into()).into());
        };
        look_for(name, std::env::var_os("PATH").as_deref()).map_err(BadInput)?;
        let keeper = Keeper::new(helper, words, silence);
        Ok(Program { keeper, patience: Program::PATIENCE, result: ResultFrom::Stdout })
    }

    /// Sets how long commands may take to end.
    pub(crate) fn patience(self, patience: Duration) -> Program {
        Program { patience, ..self }
    }

    /// Takes the result from this part of stdout.
    pub(crate) fn result(self, result: ResultFrom) -> Program {
        Program { result, ..self }
    }

    /// Runs the command for one attempt, and shows what it writes to stderr line by line. When
    /// `stop` is ready, or this future is dropped, the helper ends the command and its whole
    /// process group: by TERM, and by KILL when patience is over, even if this process is gone by
    /// then. With `stop`, this function waits for the end.
    pub(crate) async fn run(
        &self,
        job: &Assignment,
        show: impl FnMut(&str) + Send + 'static,
        stop: impl Future<Output = ()>,
    ) -> Finished {
        let running = match self.start().await {
            Ok(running) => running,
            Err(cause) => return Finished::Failed { error: self.cannot_run(&cause) },
        };
        // A task of its own follows the command, and outlives the caller: a command that writes
        // something while it ends must not die of a closed pipe.
        let (caller, gone) = oneshot::channel();
        let environment = job.environment.iter().map(|(name, value)| (*name, value.as_str()));
        let order = Order::message(&job.args, environment);
        let stdout = Stdout::new(self.result, job.result_limit);
        let cannot_run = self.explain();
        let followed = running.follow(order, stdout, Stderr::new(show), gone, cannot_run.clone());
        let mut followed = tokio::spawn(followed);
        let ended = tokio::select! {
            biased;
            ended = &mut followed => ended,
            () = stop => {
                drop(caller);
                followed.await
            }
        };
        match ended {
            Ok(Ended { end: End::NotRun(error), .. }) => {
                Finished::Failed { error: cannot_run(error) }
            }
            Ok(Ended { end, stdout, stderr }) => judge(end, stdout, &stderr, job.result_limit),
            Err(cause) => Finished::Failed { error: self.cannot_run(&cause) },
        }
    }

    /// Makes the pipes of a command and hands the command's ends over to the helper.
    async fn start(&self) -> io::Result<Running> {
        let (ours, theirs) = Pair::pair()?;
        ours.set_nonblocking(true)?;
        let (stdout, their_stdout) = io::pipe()?;
        let (stderr, their_stderr) = io::pipe()?;
        let given = [theirs.as_fd(), their_stdout.as_fd(), their_stderr.as_fd()];
        let helper = self.keeper.hand_over(given).await?;
        Ok(Running {
            lifeline: Lifeline::new(UnixStream::from_std(ours)?, helper, self.patience),
            stdout: pipe::Receiver::from_owned_fd(stdout.into())?,
            stderr: pipe::Receiver::from_owned_fd(stderr.into())?,
        })
    }

    fn cannot_run(&self, why: &impl fmt::Display) -> String {
        format!("cannot run {}: {why}", self.name())
    }

    /// A function that turns an error number of the system into a message: why the command could
    /// not be run.
    fn explain(&self) -> impl Fn(i32) -> String + Clone + Send + 'static {
        let name = self.name();
        move |error| format!("cannot run {name}: {}", io::Error::from_raw_os_error(error))
    }

    fn name(&self) -> String {
        self.keeper.command().first().map(|name| name.display().to_string()).unwrap_or_default()
    }
}

/// Combines the exit code and the output into one answer.
fn judge(end: End, stdout: Output, stderr: &str, limit: usize) -> Finished {
    let how = match end {
        End::Exited(0) => {
            return match stdout {
                Output::Result(json) => Finished::Done { result: Some(json) },
                Output::Nothing => Finished::Done { result: None },
                Output::NotJson => Finished::NotJson,
                Output::TooLarge { size } => Finished::TooLarge { size, limit },
            };
        }
        End::Exited(FATAL) => {
            return Finished::Fatal { error: with(format!("exit code {FATAL}"), stderr) };
        }
        End::Exited(code) => format!("exit code {code}"),
        End::Killed(signal) => format!("killed by {}", signal_name(signal)),
        // What a shell says of a command that cannot be run.
        End::NoCommand(error) => format!("exit code {}", exit_code(error)),
        End::NotRun(error) => io::Error::from_raw_os_error(error).to_string(),
        End::Lost(Some(status)) => format!("tenure __helper ended before it ({status})"),
        End::Lost(None) => "tenure __helper gave it up".to_owned(),
    };
    Finished::Failed { error: with(how, stderr) }
}

/// The exit codes of shells for a command that cannot be run.
fn exit_code(error: i32) -> u8 {
    const NOT_RUN: u8 = 126;
    const NOT_FOUND: u8 = 127;
    match io::Error::from_raw_os_error(error).kind() {
        io::ErrorKind::NotFound => NOT_FOUND,
        _ => NOT_RUN,
    }
}

fn with(how: String, stderr: &str) -> String {
    if stderr.is_empty() { how } else { format!("{how}: {stderr}") }
}

fn signal_name(signal: i32) -> String {
    let name = match Signal::from_named_raw(signal) {
        Some(Signal::HUP) => "HUP",
        Some(Signal::INT) => "INT",
        Some(Signal::QUIT) => "QUIT",
        Some(Signal::ILL) => "ILL",
        Some(Signal::ABORT) => "ABRT",
        Some(Signal::BUS) => "BUS",
        Some(Signal::FPE) => "FPE",
        Some(Signal::KILL) => "KILL",
        Some(Signal::SEGV) => "SEGV",
        Some(Signal::PIPE) => "PIPE",
        Some(Signal::ALARM) => "ALRM",
        Some(Signal::TERM) => "TERM",
        Some(Signal::XCPU) => "XCPU",
        Some(Signal::XFSZ) => "XFSZ",
        Some(Signal::SYS) => "SYS",
        _ => return format!("signal {signal}"),
    };
    format!("signal {signal} ({name})")
}

// ── one attempt ──────────────────────────────────────────────────────────────────────────────────

/// A command that was handed over, and the worker's ends of its pipes.
struct Running {
    lifeline: Lifeline,
    stdout: pipe::Receiver,
    stderr: pipe::Receiver,
}

/// What is known of a command that has ended.
struct Ended {
    end: End,
    stdout: Output,
    stderr: String,
}

impl Running {
    /// Follows the command to its end, and asks it to end when `caller` is gone. `explain` turns an
    /// error of the system into what a shell would print.
    async fn follow(
        mut self,
        order: Vec<u8>,
        mut stdout: Stdout,
        mut stderr: Stderr<impl FnMut(&str)>,
        caller: oneshot::Receiver<()>,
        explain: impl Fn(i32) -> String,
    ) -> Ended {
        let reading = async {
            tokio::join!(
                read(&mut self.stdout, |bytes| stdout.take(bytes)),
                read(&mut self.stderr, |bytes| stderr.take(bytes)),
            );
            pending::<Infallible>().await
        };
        let end = tokio::select! {
            biased;
            end = self.lifeline.talk(&order, caller) => end,
            never = reading => match never {},
        };
        // A process that left the group may hold the pipes open for ever. By now they contain what
        // the command wrote.
        read_what_is_there(&mut self.stdout, |bytes| stdout.take(bytes)).await;
        read_what_is_there(&mut self.stderr, |bytes| stderr.take(bytes)).await;
        if let End::NoCommand(error) = end {
            stderr.take(format!("{}\n", explain(error)).as_bytes());
        }
        Ended { end, stdout: stdout.finish(), stderr: stderr.finish() }
    }
}

/// Reads to the end. If the future is dropped before that, nothing that was read is lost.
async fn read(from: &mut (impl AsyncRead + Unpin), mut take: impl FnMut(&[u8])) {
    let mut buffer = vec![0; 8 * 1024];
    while let Ok(length @ 1..) = from.read(&mut buffer).await {
        take(&buffer[..length]);
    }
}

/// Reads what has been written up to now.
async fn read_what_is_there(from: &mut (impl AsyncRead + AsFd + Unpin), take: impl FnMut(&[u8])) {
    let there = rustix::io::ioctl_fionread(&*from).unwrap_or(0);
    read(&mut from.take(there), take).await;
}

// ── the command ──────────────────────────────────────────────────────────────────────────────────

/// Whether this can be run, and what to do if not.
fn look_for(name: &OsStr, path: Option<&OsStr>) -> Result<(), String> {
    let shown = name.display();
    if name.as_encoded_bytes().contains(&b'/') {
        return match Found::at(Path::new(name)) {
            Found::Program => Ok(()),
            Found::NotExecutable => {
                Err(format!("{shown} is not executable; allow it with: chmod +x {shown}"))
            }
            Found::Directory => Err(format!("{shown} is a directory; name a program in it")),
            Found::Nothing => {
                Err(format!("there is no {shown}; check the path, which begins where you are"))
            }
        };
    }
    let path = path.unwrap_or(OsStr::new("/usr/bin:/bin"));
    let found: Vec<Found> =
        std::env::split_paths(path).map(|dir| Found::at(&dir.join(name))).collect();
    if found.contains(&Found::Program) {
        Ok(())
    } else if Found::at(Path::new(name)) == Found::Program {
        Err(format!("{shown} is here, but not in PATH; write it as ./{shown}"))
    } else if name.to_string_lossy().contains(char::is_whitespace) {
        Err(format!("no program is called {shown:?}; a line for the shell goes: sh -c {shown:?}"))
    } else {
        Err(format!(
            "no program in PATH is called {shown}; check its name, or write its whole path"
        ))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Found {
    Program,
    NotExecutable,
    Directory,
    Nothing,
}

impl Found {
    fn at(path: &Path) -> Found {
        match path.metadata() {
            Err(_) => Found::Nothing,
            Ok(data) if data.is_dir() => Found::Directory,
            Ok(_) if rustix::fs::access(path, Access::EXEC_OK).is_err() => Found::NotExecutable,
            Ok(_) => Found::Program,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn refusal(name: impl AsRef<OsStr>, path: &Path) -> String {
        look_for(name.as_ref(), Some(path.as_os_str())).unwrap_err()
    }

    #[test]
    fn a_command_that_cannot_run_is_refused_with_the_next_step() {
        let dir = tempfile::tempdir().unwrap();
        let script = dir.path().join("resize");
        fs::write(&script, "").unwrap();
        assert!(refusal(&script, dir.path()).contains("allow it with: chmod +x "));
        assert!(refusal("resize", dir.path()).contains("no program in PATH is called resize"));
        assert!(refusal("./nowhere", dir.path()).contains("there is no ./nowhere; check the path"));
        assert!(refusal(dir.path(), dir.path()).contains("is a directory"));
        let line = refusal("convert -resize", dir.path());
        assert!(line.ends_with("sh -c \"convert -resize\""), "{line}");
        let error = Program::find(Vec::new()).err().unwrap();
        assert!(error.is::<BadInput>() && error.to_string().contains("after --"), "{error}");
    }

    #[test]
    fn a_command_is_found_by_its_path_or_in_path() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let script = dir.path().join("resize");
        fs::write(&script, "").unwrap();
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(look_for(script.as_os_str(), None), Ok(()));
        assert_eq!(look_for(OsStr::new("resize"), Some(dir.path().as_os_str())), Ok(()));
        assert_eq!(look_for(OsStr::new("sh"), None), Ok(()));
    }

    #[test]
    fn the_error_says_how_it_ended_and_then_what_it_complained_of() {
        let failed = |report| match judge(report, Output::Nothing, "no disk", 1024) {
            Finished::Failed { error } => error,
            other => panic!("{other:?}"),
        };
        assert_eq!(failed(End::Exited(3)), "exit code 3: no disk");
        assert_eq!(failed(End::Killed(9)), "killed by signal 9 (KILL): no disk");
        assert_eq!(failed(End::Killed(34)), "killed by signal 34: no disk");
        let silent = judge(End::Exited(65), Output::NotJson, "", 1024);
        assert_eq!(silent, Finished::Fatal { error: "exit code 65".into() });
    }
}
