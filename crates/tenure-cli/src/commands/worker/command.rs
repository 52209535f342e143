//! A command that runs for each job: args on stdin, the result on stdout, errors on stderr, and the
//! exit code says how it went. This file knows nothing of stores and leases: it runs one attempt,
//! and returns how that ended.

use std::convert::Infallible;
use std::ffi::{OsStr, OsString};
use std::future::pending;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream as Pair;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::Result;
use rustix::fs::Access;
use rustix::process::{Pid, Signal};
use tenure::Json;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::process::{Child, ChildStderr, ChildStdout, Command};
use tokio::sync::oneshot;

use super::captured::{Output, ResultFrom, Stderr, Stdout};
use super::shim::{self, Report};
use crate::args::BadInput;

/// What runs for each job.
pub(crate) struct Program {
    words: Vec<OsString>,
    /// How long a command may take to end after it is asked to.
    patience: Duration,
    /// Which part of its stdout is the result.
    result: ResultFrom,
    /// The program started in between: this program, again.
    shim: PathBuf,
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
    /// The time between TERM and KILL, unless an option sets another.
    pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

    /// Looks for the command, so that a typo is reported once at the start and not by every job.
    pub(crate) fn find(words: Vec<OsString>) -> Result<Program> {
        Program::find_below(words, shim::this_program()?)
    }

    /// The same, with this program as the shim.
    pub(crate) fn find_below(words: Vec<OsString>, shim: PathBuf) -> Result<Program> {
        let Some(name) = words.first().filter(|name| !name.is_empty()) else {
            let why = "no command to run; write it after --, such as: tenure worker -- ./resize.sh";
            return Err(BadInput(why.into()).into());
        };
        look_for(name, std::env::var_os("PATH").as_deref()).map_err(BadInput)?;
        Ok(Program { words, patience: Program::PATIENCE, result: ResultFrom::Stdout, shim })
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
    /// `stop` is ready, or the future is dropped, the command and its whole process group are
    /// ended: by TERM, and by KILL when patience is over, even if this process is gone by then.
    /// With `stop` this function waits for the end.
    pub(crate) async fn run(
        &self,
        job: &Assignment,
        show: impl FnMut(&str) + Send + 'static,
        stop: impl Future<Output = ()>,
    ) -> Finished {
        let running = match self.start(job) {
            Ok(running) => running,
            Err(cause) => return Finished::Failed { error: self.cannot_run(&cause.to_string()) },
        };
        // On a task of its own, which outlives the caller: a command that writes something while it
        // ends must not die of a closed pipe.
        let (caller, gone) = oneshot::channel();
        let stdout = Stdout::new(self.result, job.result_limit);
        let followed = running.follow(job.args.clone(), stdout, Stderr::new(show), gone);
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
            Ok(Ended { report: Ok(report), stdout, stderr }) => {
                judge(report, stdout, &stderr, job.result_limit)
            }
            Ok(Ended { report: Err(status), stderr, .. }) => {
                let how = match status {
                    Some(status) => format!("tenure __run ended before it ({status})"),
                    None => "tenure __run ended before it".to_owned(),
                };
                Finished::Failed { error: with(how, &stderr) }
            }
            Err(cause) => Finished::Failed { error: self.cannot_run(&cause.to_string()) },
        }
    }

    fn start(&self, job: &Assignment) -> io::Result<Running> {
        let (ours, theirs) = Pair::pair()?;
        ours.set_nonblocking(true)?;
        let mut child = Command::new(&self.shim)
            .arg0("tenure")
            .args([shim::RUN, "--"])
            .args(&self.words)
            .envs(job.environment.iter().map(|(name, value)| (name, value)))
            // Ctrl-C in a terminal reaches a whole process group; only the worker decides what
            // becomes of its jobs.
            .process_group(0)
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let (Some(stdout), Some(stderr)) = (child.stdout.take(), child.stderr.take()) else {
            return Err(io::Error::other("it has no pipes"));
        };
        let lifeline = Lifeline {
            stream: UnixStream::from_std(ours)?,
            patience: self.patience,
            is_heard: false,
        };
        Ok(Running { lifeline, stdout, stderr, shim: child })
    }

    fn cannot_run(&self, why: &str) -> String {
        let name = self.words.first().map(|name| name.display().to_string()).unwrap_or_default();
        format!("cannot run {name}: {why}")
    }
}

/// Combines the exit code and the output into one answer.
fn judge(report: Report, stdout: Output, stderr: &str, limit: usize) -> Finished {
    match (report, stdout) {
        (Report::Exited(0), Output::Result(json)) => Finished::Done { result: Some(json) },
        (Report::Exited(0), Output::Nothing) => Finished::Done { result: None },
        (Report::Exited(0), Output::NotJson) => Finished::NotJson,
        (Report::Exited(0), Output::TooLarge { size }) => Finished::TooLarge { size, limit },
        (Report::Exited(code @ FATAL), _) => {
            Finished::Fatal { error: with(format!("exit code {code}"), stderr) }
        }
        (Report::Exited(code), _) => {
            Finished::Failed { error: with(format!("exit code {code}"), stderr) }
        }
        (Report::Killed(signal), _) => {
            Finished::Failed { error: with(format!("killed by {}", signal_name(signal)), stderr) }
        }
        (Report::NotRun(why), _) => Finished::Failed { error: why },
        (Report::Started(_), _) => {
            Finished::Failed { error: with("it never ended".into(), stderr) }
        }
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

/// A running command, below its shim.
struct Running {
    lifeline: Lifeline,
    stdout: ChildStdout,
    stderr: ChildStderr,
    shim: Child,
}

/// What is known of a command that has ended.
struct Ended {
    /// Without a report the shim itself has ended, with this status.
    report: Result<Report, Option<ExitStatus>>,
    stdout: Output,
    stderr: String,
}

impl Running {
    /// Follows the command to its end, and asks it to end when `caller` is gone.
    async fn follow(
        mut self,
        args: String,
        mut stdout: Stdout,
        mut stderr: Stderr<impl FnMut(&str)>,
        caller: oneshot::Receiver<()>,
    ) -> Ended {
        let reading = async {
            tokio::join!(
                read(&mut self.stdout, |bytes| stdout.take(bytes)),
                read(&mut self.stderr, |bytes| stderr.take(bytes)),
            );
            pending::<Infallible>().await
        };
        let report = tokio::select! {
            biased;
            report = self.lifeline.talk(&args, caller) => report,
            never = reading => match never {},
        };
        // A process that left the group may hold the pipes open for ever. By now they contain what
        // the command wrote.
        read_what_is_there(&mut self.stdout, |bytes| stdout.take(bytes)).await;
        read_what_is_there(&mut self.stderr, |bytes| stderr.take(bytes)).await;
        let status = self.shim.wait().await.ok();
        Ended { report: report.ok_or(status), stdout: stdout.finish(), stderr: stderr.finish() }
    }
}

/// The connection to the shim. When it is closed, the shim kills the command.
struct Lifeline {
    stream: UnixStream,
    patience: Duration,
    /// Whether the shim has the args, and takes the next bytes for a farewell.
    is_heard: bool,
}

impl Lifeline {
    /// Sends the args, and reads until the shim has ended.
    async fn talk(&mut self, args: &str, caller: oneshot::Receiver<()>) -> Option<Report> {
        // If the write fails, the shim has ended, which the missing report shows.
        let said = self.stream.write_all(&shim::greeting(args)).await;
        self.is_heard = said.is_ok();
        let mut heard = String::new();
        let is_over = tokio::select! {
            biased;
            () = listen(&mut self.stream, &mut heard) => true,
            _ = caller => false,
        };
        if !is_over {
            self.say_farewell();
            listen(&mut self.stream, &mut heard).await;
        }
        self.is_heard = false;
        let mut reports = heard.split_inclusive('\n').filter_map(Report::parse);
        match (reports.next(), reports.next()) {
            // The shim was killed, so it could not kill what the command had started.
            (Some(Report::Started(group)), None) => {
                kill(group);
                None
            }
            (first, second) => second.or(first),
        }
    }

    /// Asks the shim to end the command, once. The message is short and the shim reads, so the
    /// write does not block.
    fn say_farewell(&mut self) {
        if std::mem::take(&mut self.is_heard) {
            let _ = rustix::io::write(&self.stream, &shim::farewell(self.patience));
        }
    }
}

impl Drop for Lifeline {
    /// The runtime ends before the command does: the shim is told to finish alone.
    fn drop(&mut self) {
        self.say_farewell();
    }
}

/// Reads all reports. If it is cancelled, nothing that was read is lost.
async fn listen(stream: &mut UnixStream, heard: &mut String) {
    read(stream, |bytes| heard.push_str(&String::from_utf8_lossy(bytes))).await;
}

fn kill(group: i32) {
    if let Some(group) = Pid::from_raw(group) {
        // The group may be empty already.
        let _ = rustix::process::kill_process_group(group, Signal::KILL);
    }
}

/// Reads to the end. If it is cancelled, nothing that was read is lost.
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
        assert_eq!(failed(Report::Exited(3)), "exit code 3: no disk");
        assert_eq!(failed(Report::Killed(9)), "killed by signal 9 (KILL): no disk");
        assert_eq!(failed(Report::Killed(34)), "killed by signal 34: no disk");
        let silent = judge(Report::Exited(65), Output::NotJson, "", 1024);
        assert_eq!(silent, Finished::Fatal { error: "exit code 65".into() });
    }
}
