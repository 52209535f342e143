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
//! The helper reads no settings and opens no store. Commands get the helper's environment and
//! directory, which are the worker's.

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

/// The path to start this program again. On Linux it is a link to the running program, which works
/// even after an upgrade has replaced the file.
pub(crate) fn this_program() -> io::Result<PathBuf> {
    let link = Path::new("/proc/self/exe");
    if link.exists() { Ok(link.to_owned()) } else { std::env::current_exe() }
}

fn help(command: &[OsString]) -> io::Result<()> {
    wake_when_the_worker_dies();
    let starters = Starters::begin(command)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(serve(starters))
    // If a thread still starts a command, the end of this process does not wait for it. The kernel
    // kills that command when the thread ends.
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
/// its processes at once, but the worker decides what becomes of its jobs. Commands would inherit
/// signals that are ignored, so a handler is installed instead: commands do not inherit that.
fn deafen() -> io::Result<()> {
    // The handlers do nothing. They are tokio's, because that needs no unsafe code here, and tokio
    // leaves them in place after the drop.
    for kind in [SignalKind::hangup(), SignalKind::interrupt(), SignalKind::terminate()] {
        drop(signal(kind)?);
    }
    Ok(())
}

/// Asks the kernel to send this process CONT when the worker dies. If the helper was stopped
/// (SIGSTOP), it then continues, and kills its commands. A process that runs ignores the signal.
fn wake_when_the_worker_dies() {
    #[cfg(target_os = "linux")]
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::CONT));
}

/// The process was started through the link `/proc/self/exe`. Without this, lists of processes
/// would show it as `exe`.
fn name_this_process() {
    #[cfg(target_os = "linux")]
    let _ = rustix::thread::set_name(c"tenure");
}
