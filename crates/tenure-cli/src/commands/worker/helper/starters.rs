//! The threads that start commands. They are apart from the guards, because an exec may take long
//! (a network file system that does not answer), and the guards must not wait for it. There is more
//! than one, because most of the time of a start is waiting for the new process.
//!
//! The threads live as long as the helper: the kernel kills a command when the thread that started
//! it ends.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use rustix::process::{Pid, getpid};
use tokio::sync::oneshot;

use super::birth;

/// Hands orders to the threads.
#[derive(Clone)]
pub(super) struct Starters {
    orders: Sender<Start>,
    command: Arc<[OsString]>,
    helper: Pid,
}

/// A command to start, and where the result goes.
struct Start {
    command: Command,
    started: oneshot::Sender<io::Result<Child>>,
}

impl Starters {
    /// Starts the threads, for this command.
    pub(super) fn begin(command: &[OsString]) -> io::Result<Starters> {
        let (orders, queue) = channel();
        let queue = Arc::new(Mutex::new(queue));
        for _ in 0..threads() {
            let queue = Arc::clone(&queue);
            thread::Builder::new().spawn(move || start_all(&queue))?;
        }
        Ok(Starters { orders, command: command.into(), helper: getpid() })
    }

    /// Starts the command in a group of its own. Before the new process becomes the command, it
    /// reports itself over `lifeline`.
    pub(super) async fn start(
        &self,
        environment: Vec<(String, String)>,
        [stdin, stdout, stderr]: [OwnedFd; 3],
        lifeline: OwnedFd,
    ) -> io::Result<Child> {
        let (name, args) = self.command.split_first().ok_or(io::ErrorKind::InvalidInput)?;
        let mut command = Command::new(name);
        command.args(args).envs(environment).process_group(0);
        command.stdin(stdin).stdout(stdout).stderr(stderr);
        birth::announce(&mut command, lifeline, self.helper);
        let (tell, started) = oneshot::channel();
        let gone = |_| io::Error::other("the threads that start commands have ended");
        self.orders.send(Start { command, started: tell }).map_err(|_| gone(()))?;
        started.await.map_err(|_| gone(()))?
    }
}

/// A thread for each core, up to eight. There are two even on one core, so that a start that hangs
/// for a while does not hold up all others.
fn threads() -> usize {
    thread::available_parallelism().map_or(2, usize::from).clamp(2, 8)
}

fn start_all(queue: &Mutex<Receiver<Start>>) {
    loop {
        let next = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(Start { mut command, started }) = next else { return };
        let child = command.spawn();
        // Closes this process's copies of the command's descriptors before the guard hears of the
        // command.
        drop(command);
        let _ = started.send(child);
    }
}
