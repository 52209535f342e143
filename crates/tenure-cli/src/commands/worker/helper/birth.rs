//! The moment between fork and exec, in which a process exists but is not the command yet. The only
//! file of the binary with unsafe code.
//!
//! Two things can be done only in this moment. The new process reports its process group to the
//! worker by itself, so the worker knows of every command, even if the helper is killed right after
//! the fork. And the new process asks the kernel to kill it when the helper dies, in case worker
//! and helper are killed at once. Only a process itself can ask for that, because a child does not
//! inherit the setting.
//!
//! The safe way is a program that does both and then becomes the command, at the price of a second
//! exec for each command. Decision 0024 has what that was measured to cost.

#![allow(unsafe_code, reason = "CommandExt::pre_exec is unsafe, and nothing safe is called there")]

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use rustix::process::{Pid, getpid, getppid};

use super::super::messages::Report;

/// Makes the process that `command` starts report itself over the lifeline, and die with its
/// parent. The parent is the thread that starts the process, so it must live as long as the helper.
pub(super) fn announce(command: &mut Command, lifeline: OwnedFd, helper: Pid) {
    let report = move || {
        die_with_parent()?;
        // If the helper died before that call, the kernel sends no signal.
        if getppid() != Some(helper) {
            return Err(io::ErrorKind::Interrupted.into());
        }
        let report = Report::Started(getpid().as_raw_nonzero().get());
        // If the worker is gone, the write fails, or SIGPIPE ends this process: no command is
        // started.
        match rustix::io::write(&lifeline, &report.bytes())? {
            Report::LENGTH => Ok(()),
            _ => Err(io::ErrorKind::WriteZero.into()),
        }
    };
    // SAFETY: between fork and exec of a process with several threads, only what is safe in a
    // signal handler may be called. The closure makes system calls (prctl, getppid, getpid, write)
    // and fills an array on the stack. It takes no lock and allocates nothing: its errors are
    // numbers, and what it has captured is not dropped, because the process becomes the command or
    // exits without unwinding. The lifeline is open, because `command` owns it.
    unsafe { command.pre_exec(report) };
}

fn die_with_parent() -> io::Result<()> {
    #[cfg(target_os = "linux")]
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    Ok(())
}
