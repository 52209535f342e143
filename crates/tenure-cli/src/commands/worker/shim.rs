//! The process between a worker and a command. It kills the command when the worker is gone, for
//! whatever reason.
//!
//! ```text
//! worker ═socket═▶ tenure __run ─pipe─▶ tenure __exec, which becomes the command    each in a process group of its own
//! ```
//!
//! The socket is the shim's stdin. The worker sends the args over it and then keeps it open: when
//! it closes, the worker is gone, and the command's whole group is killed. A parent-death signal
//! alone would not do, because it misses grandchildren; but it is set as well, for when worker and
//! shim are killed at once.
//!
//! The shim is started for every job, so it has no runtime, reads no settings and opens no store.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitCode, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};
use tokio::signal::unix::{SignalKind, signal};

use crate::output::say;

/// The shim's first argument. It is not in the help: only a worker can use it.
pub(crate) const RUN: &str = "__run";
const EXEC: &str = "__exec";

/// The exit codes of shells for a command that cannot be run.
const NOT_RUN: u8 = 126;
const NOT_FOUND: u8 = 127;

/// Runs the shim or the exec step, if this process was started for one.
pub(crate) fn play() -> Option<ExitCode> {
    let mut words = std::env::args_os().skip(1);
    let part = words.next()?;
    let part = [RUN, EXEC].into_iter().find(|name| part == *name)?;
    name_this_process();
    let words: Vec<OsString> = words.collect();
    let mut halves = words.splitn(2, |word| word == "--");
    let (settings, command) = (halves.next()?, halves.next()?);
    Some(if part == RUN { run(command) } else { become_command(settings.first(), command) })
}

// ── what worker and shim send each other ─────────────────────────────────────────────────────────

/// The path to start this program again. The link leads to it even after an upgrade has replaced
/// the file.
pub(crate) fn this_program() -> io::Result<PathBuf> {
    let link = Path::new("/proc/self/exe");
    if link.exists() { Ok(link.to_owned()) } else { std::env::current_exe() }
}

/// The worker's first message: the args, after their length.
pub(crate) fn greeting(args: &str) -> Vec<u8> {
    let mut message = (args.len() as u64).to_be_bytes().to_vec();
    message.extend_from_slice(args.as_bytes());
    message
}

/// The worker's message to end the command gracefully. The shim measures the time itself, so that
/// the worker may exit.
pub(crate) fn farewell(patience: Duration) -> [u8; 4] {
    u32::try_from(patience.as_millis()).unwrap_or(u32::MAX).to_be_bytes()
}

/// What the shim reports, one line each.
///
/// How a command was killed is reported here and not by an exit code, which a command may choose
/// itself. Nor does the shim kill itself in the same way: that would look like a shim that was
/// killed from outside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Report {
    /// The command runs, in the process group with this id.
    Started(i32),
    Exited(u8),
    Killed(i32),
    /// It could not be run, and why.
    NotRun(String),
}

impl Report {
    pub(crate) fn line(&self) -> String {
        match self {
            Report::Started(group) => format!("started {group}\n"),
            Report::Exited(code) => format!("exited {code}\n"),
            Report::Killed(signal) => format!("killed {signal}\n"),
            Report::NotRun(why) => format!("not-run {}\n", why.replace('\n', " ")),
        }
    }

    /// Parses a line. An incomplete line yields nothing.
    pub(crate) fn parse(line: &str) -> Option<Report> {
        let (word, rest) = line.strip_suffix('\n')?.split_once(' ')?;
        match word {
            "started" => rest.parse().ok().map(Report::Started),
            "exited" => rest.parse().ok().map(Report::Exited),
            "killed" => rest.parse().ok().map(Report::Killed),
            "not-run" => Some(Report::NotRun(rest.to_owned())),
            _ => None,
        }
    }

    fn of(status: ExitStatus) -> Report {
        match (status.code(), status.signal()) {
            (Some(code), _) => Report::Exited(u8::try_from(code & 0xff).unwrap_or(u8::MAX)),
            (None, signal) => Report::Killed(signal.unwrap_or_default()),
        }
    }

    /// The exit code, for a caller that started the shim without a socket.
    fn exit_code(&self) -> ExitCode {
        match self {
            Report::Exited(code) => ExitCode::from(*code),
            Report::Killed(signal) => ExitCode::from(u8::try_from(128 + signal).unwrap_or(u8::MAX)),
            Report::Started(_) | Report::NotRun(_) => ExitCode::from(NOT_RUN),
        }
    }
}

// ── the shim ─────────────────────────────────────────────────────────────────────────────────────

fn run(command: &[OsString]) -> ExitCode {
    let report = supervise(command).unwrap_or_else(|cause| {
        let name = command.first().map(|name| name.display().to_string()).unwrap_or_default();
        Report::NotRun(format!("cannot run {name}: {cause}"))
    });
    // The reader may be gone, or may have given us a pipe that only goes one way.
    let _ = lifeline().and_then(|mut lifeline| lifeline.write_all(report.line().as_bytes()));
    report.exit_code()
}

fn supervise(command: &[OsString]) -> io::Result<Report> {
    deafen()?;
    let mut lifeline = lifeline()?;
    let args = read_greeting(&mut lifeline)?;
    let mut child = start(command)?;
    let group = Arc::new(Group::of(&child));
    let _ = lifeline.write_all(Report::Started(group.number).line().as_bytes());
    let stdin = child.stdin.take();
    let attended = attend(stdin, args, lifeline, Arc::clone(&group));
    if attended.is_err() {
        group.signal(Signal::KILL);
    }
    let status = group.outlive(&mut child)?;
    attended.map(|()| Report::of(status))
}

/// Stdin, for reading and writing. It is close-on-exec, so the command does not keep it open.
fn lifeline() -> io::Result<File> {
    Ok(File::from(io::stdin().as_fd().try_clone_to_owned()?))
}

fn read_greeting(lifeline: &mut File) -> io::Result<Vec<u8>> {
    let mut length = [0; 8];
    lifeline.read_exact(&mut length)?;
    let length = u64::from_be_bytes(length);
    let mut args = Vec::new();
    lifeline.take(length).read_to_end(&mut args)?;
    if args.len() as u64 == length { Ok(args) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

/// Starts the command, through a process that becomes it. This must happen on the thread that stays
/// alive: a parent-death signal is tied to the thread.
fn start(command: &[OsString]) -> io::Result<Child> {
    let me = std::process::id().to_string();
    Command::new(this_program()?)
        .arg0("tenure")
        .args([EXEC, &me, "--"])
        .args(command)
        .process_group(0)
        .stdin(Stdio::piped())
        .spawn()
}

/// Writes the args to the command and watches the worker, each on a thread of its own: either may
/// take for ever.
fn attend(
    stdin: Option<ChildStdin>,
    args: Vec<u8>,
    lifeline: File,
    group: Arc<Group>,
) -> io::Result<()> {
    thread::Builder::new().spawn(move || watch(lifeline, &group))?;
    thread::Builder::new().spawn(move || {
        // A command need not read its args.
        let _ = stdin.map(|mut stdin| stdin.write_all(&args));
    })?;
    Ok(())
}

/// Ends the command when the worker asks for it or closes the socket.
fn watch(mut lifeline: File, group: &Group) {
    let mut patience = [0; 4];
    if lifeline.read_exact(&mut patience).is_ok() {
        group.signal(Signal::TERM);
        group.wait(Duration::from_millis(u32::from_be_bytes(patience).into()));
    }
    group.signal(Signal::KILL);
}

/// The command and everything it started that did not leave its process group.
struct Group {
    number: i32,
    /// None once the command's process id may belong to another process.
    members: Mutex<Option<Pid>>,
    over: Condvar,
}

impl Group {
    fn of(child: &Child) -> Group {
        let pid = Pid::from_child(child);
        let members = Mutex::new(Some(pid));
        Group { number: pid.as_raw_nonzero().get(), members, over: Condvar::new() }
    }

    fn signal(&self, signal: Signal) {
        if let Some(group) = *self.members() {
            // The group may be empty already.
            let _ = rustix::process::kill_process_group(group, signal);
        }
    }

    /// Waits until the command has ended, or this long.
    fn wait(&self, patience: Duration) {
        let waited =
            self.over.wait_timeout_while(self.members(), patience, |group| group.is_some());
        drop(waited);
    }

    /// Waits for the command, and kills what it left behind.
    fn outlive(&self, child: &mut Child) -> io::Result<ExitStatus> {
        // Its process id stays reserved until it is reaped, so that no other process is killed.
        let ended = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        let pid = WaitId::Pid(Pid::from_child(child));
        rustix::io::retry_on_intr(|| rustix::process::waitid(pid.clone(), ended))?;
        self.signal(Signal::KILL);
        *self.members() = None;
        self.over.notify_all();
        child.wait()
    }

    fn members(&self) -> MutexGuard<'_, Option<Pid>> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Makes this process survive HUP, INT and TERM. A service manager that stops a worker signals all
/// its processes at once, and the worker decides what becomes of its jobs. Ignoring the signals
/// would be inherited by the command; a handler is not.
fn deafen() -> io::Result<()> {
    // Nothing runs on it: tokio installs handlers without unsafe code, and leaves them in place.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let _entered = runtime.enter();
    for kind in [SignalKind::hangup(), SignalKind::interrupt(), SignalKind::terminate()] {
        drop(signal(kind)?);
    }
    Ok(())
}

// ── what becomes the command ─────────────────────────────────────────────────────────────────────

fn become_command(parent: Option<&OsString>, command: &[OsString]) -> ExitCode {
    let Some((name, args)) = command.split_first() else { return ExitCode::from(NOT_RUN) };
    if !die_with(parent) {
        return ExitCode::from(NOT_RUN);
    }
    let cause = Command::new(name).args(args).exec();
    say(&format!("cannot run {}: {cause}", name.display()));
    ExitCode::from(match cause.kind() {
        io::ErrorKind::NotFound => NOT_FOUND,
        _ => NOT_RUN,
    })
}

/// Has this process, and the command it becomes, killed when the shim dies. False if the shim is
/// gone already: then no signal would come.
fn die_with(parent: Option<&OsString>) -> bool {
    #[cfg(target_os = "linux")]
    if rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).is_err() {
        return false;
    }
    let now = rustix::process::getppid().map(|pid| pid.as_raw_nonzero().to_string());
    now.as_deref().map(OsStr::new) == parent.map(OsString::as_os_str)
}

/// Started through a link, the process would be listed under the link's name.
fn name_this_process() {
    #[cfg(target_os = "linux")]
    let _ = rustix::thread::set_name(c"tenure");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_shim_says_is_understood_but_half_a_line_is_not() {
        for report in [
            Report::Started(4_194_304),
            Report::Exited(255),
            Report::Killed(9),
            Report::NotRun("cannot run x: no such file".into()),
        ] {
            let line = report.line();
            assert_eq!(Report::parse(&line), Some(report));
            assert_eq!(Report::parse(line.trim_end()), None, "{line}");
        }
        assert_eq!(Report::parse("exited 3000\n"), None);
    }
}
