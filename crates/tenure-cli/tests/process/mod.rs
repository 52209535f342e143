//! A process that the test did not start itself, and whether it still runs.

#![allow(dead_code, reason = "each test file uses what it needs")]

use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, getpgid, kill_process, pidfd_open};

/// Held by a descriptor, so that its process id cannot come to mean another process.
pub(crate) struct Process {
    pid: Pid,
    handle: OwnedFd,
}

impl Process {
    /// The process with this id, which must exist.
    #[track_caller]
    pub(crate) fn of(pid: &str) -> Process {
        let pid = Pid::from_raw(pid.trim().parse().unwrap()).unwrap();
        Process { pid, handle: pidfd_open(pid, PidfdFlags::empty()).unwrap() }
    }

    /// Several processes, by their ids on one line.
    #[track_caller]
    pub(crate) fn all(line: &str) -> Vec<Process> {
        line.split_whitespace().map(Process::of).collect()
    }

    /// Its id, as [`Process::of`] takes it.
    pub(crate) fn id(&self) -> String {
        self.pid.as_raw_nonzero().to_string()
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ends_within(Duration::ZERO)
    }

    /// Waits until it ends, which it must.
    #[track_caller]
    pub(crate) fn ends(&self) {
        assert!(self.ends_within(Duration::from_secs(20)), "process {:?} is still there", self.pid);
    }

    fn ends_within(&self, time: Duration) -> bool {
        let mut polled = [PollFd::new(&self.handle, PollFlags::IN)];
        let time = Timespec::try_from(time).unwrap();
        rustix::io::retry_on_intr(|| poll(&mut polled, Some(&time))).unwrap() > 0
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid, signal).unwrap();
    }

    /// Its process group.
    pub(crate) fn group(&self) -> Pid {
        getpgid(Some(self.pid)).unwrap()
    }
}
