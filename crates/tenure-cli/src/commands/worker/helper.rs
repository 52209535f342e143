//! The helper: a small process that stays beside a worker, starts its commands, and kills them when
//! the worker is gone, for whatever reason.
//!
//! ```text
//! worker ═control═▶ tenure __helper ─fork─▶ command     each in a process group of its own
//!        ═lifeline═════════▶                            one for each command
//! ```
//!
//! The helper's stdin is the control socket, over which a worker hands over what belongs to a
//! command: its lifeline, its stdout and its stderr. When a lifeline closes, the worker is gone or
//! has given the command up, and the command's whole group is killed. When the control socket
//! closes, the helper ends with its last command.
//!
//! It reads no settings and opens no store. Commands get its environment and its directory, which
//! are the worker's.

mod birth;
mod guard;
mod starters;

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream as Socket;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;

use self::guard::{Deaths, guard};
use self::starters::Starters;
use super::messages::{Received, receive};

/// The helper's first argument. It is not in the help: only a worker can use it.
pub(crate) const HELPER: &str = "__helper";

/// The exit code of shells for something that cannot be run.
const NOT_RUN: u8 = 126;

/// Becomes the helper, if this process was started for that.
pub(crate) fn play() -> Option<ExitCode> {
    let mut words = std::env::args_os().skip(1);
    if words.next()? != HELPER {
        return None;
    }
    let command: Vec<OsString> = words.skip_while(|word| word != "--").skip(1).collect();
    name_this_process();
    Some(match help(&command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::from(NOT_RUN),
    })
}

/// The path to start this program again. The link leads to it even after an upgrade has replaced
/// the file.
pub(crate) fn this_program() -> io::Result<PathBuf> {
    let link = Path::new("/proc/self/exe");
    if link.exists() { Ok(link.to_owned()) } else { std::env::current_exe() }
}

fn help(command: &[OsString]) -> io::Result<()> {
    wake_when_the_worker_dies();
    let starters = Starters::begin(command)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(serve(starters))
    // A thread that still starts a command does not hold up the end of this process, and the
    // command ends with the thread.
}

/// Guards all commands that are handed over, until the worker is gone and the last one has ended.
async fn serve(starters: Starters) -> io::Result<()> {
    deafen()?;
    let deaths = Deaths::watch()?;
    let control = control()?;
    let mut guards = JoinSet::new();
    loop {
        let received = control.async_io(Interest::READABLE, || receive(&control));
        let received = tokio::select! {
            biased;
            received = received => received,
            Some(_) = guards.join_next() => continue,
        };
        match received {
            Ok(Received::Command(handed)) => {
                guards.spawn(guard(handed, starters.clone(), deaths.clone()));
            }
            Ok(Received::Incomplete) => {}
            // After an error the worker notices that this end is closed, and starts another helper.
            Ok(Received::Closed) | Err(_) => break,
        }
    }
    drop(control);
    while guards.join_next().await.is_some() {}
    Ok(())
}

/// Stdin, moved to another descriptor, which no command inherits and which can be closed.
fn control() -> io::Result<UnixStream> {
    let control = Socket::from(io::stdin().as_fd().try_clone_to_owned()?);
    rustix::stdio::dup2_stdin(File::open("/dev/null")?)?;
    control.set_nonblocking(true)?;
    UnixStream::from_std(control)
}

/// Makes this process survive HUP, INT and TERM. A service manager that stops a worker signals all
/// its processes at once, and the worker decides what becomes of its jobs. Ignoring the signals
/// would be inherited by the commands; a handler is not.
fn deafen() -> io::Result<()> {
    // Nothing runs on them: tokio installs handlers without unsafe code, and leaves them in place.
    for kind in [SignalKind::hangup(), SignalKind::interrupt(), SignalKind::terminate()] {
        drop(signal(kind)?);
    }
    Ok(())
}

/// If this process was stopped (SIGSTOP), it continues when the worker dies, and kills what there
/// is to kill. The signal changes nothing for a process that runs.
fn wake_when_the_worker_dies() {
    #[cfg(target_os = "linux")]
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::CONT));
}

/// Started through a link, the process would be listed under the link's name.
fn name_this_process() {
    #[cfg(target_os = "linux")]
    let _ = rustix::thread::set_name(c"tenure");
}
