//! The moment between fork and exec, in which a process exists but is not the command yet. The only
//! file of the binary with unsafe code.
//!
//! Two things must happen in this moment, and can happen in no other. The new process reports its
//! group to the worker by itself: so there is no command of which the worker does not know, even if
//! the helper is killed right after the fork. And it asks the kernel to be killed when the helper
//! dies, for the case that worker and helper are killed at once: only a process itself can ask for
//! that, and a fork forgets it.
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

/// Has the process that this starts report itself over the lifeline, and die with its parent. The
/// parent is the thread that starts it, which must live as long as the helper.
pub(super) fn announce(command: &mut Command, lifeline: OwnedFd, helper: Pid) {
    let report = move || {
        die_with_parent()?;
        // If the helper has died before, no signal comes.
        if getppid() != Some(helper) {
            return Err(io::ErrorKind::Interrupted.into());
        }
        let report = Report::Started(getpid().as_raw_nonzero().get());
        // If the worker is gone, this fails, or its signal ends the process: nothing is started.
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
