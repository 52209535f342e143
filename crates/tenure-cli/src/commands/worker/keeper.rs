//! Keeps a helper process for a worker: starts it when the first command needs it, and another one
//! when it has died. This file knows nothing of jobs: it hands descriptors over.

use std::ffi::OsString;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream as Pair;
use std::path::PathBuf;
use std::pin::pin;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::process::{Child, Command};
use tokio::sync::{Notify, watch};
use tokio::time::timeout;

use super::helper::HELPER;
use super::messages;

/// Has one helper at a time.
pub(crate) struct Keeper {
    /// The program that becomes the helper: this one, again.
    program: PathBuf,
    /// The command that it starts for each job.
    command: Vec<OsString>,
    silence: Duration,
    helper: Mutex<Option<Arc<Helper>>>,
}

/// A helper process. It ends by itself when this value is dropped and its last command has ended.
pub(crate) struct Helper {
    control: UnixStream,
    silence: Duration,
    kill: Arc<Notify>,
    /// How it ended; nothing while it runs.
    status: watch::Receiver<Option<ExitStatus>>,
}

impl Keeper {
    /// A helper answers at once. If it is silent for so long, it is stopped or broken.
    pub(crate) const SILENCE: Duration = Duration::from_secs(30);

    pub(crate) fn new(program: PathBuf, command: Vec<OsString>, silence: Duration) -> Keeper {
        Keeper { program, command, silence, helper: Mutex::new(None) }
    }

    pub(crate) fn command(&self) -> &[OsString] {
        &self.command
    }

    /// Gives a helper what belongs to a command: its lifeline, its stdout and its stderr. The
    /// helper may die before it has looked at them; the other end of the lifeline is closed then.
    pub(crate) async fn hand_over(&self, given: [BorrowedFd<'_>; 3]) -> io::Result<Arc<Helper>> {
        let helper = self.helper(None)?;
        match helper.take(given).await {
            Ok(()) => Ok(helper),
            Err(cause) if is_gone(&cause) => {
                let helper = self.helper(Some(&helper))?;
                helper.take(given).await.map(|()| helper)
            }
            Err(cause) => Err(cause),
        }
    }

    /// The present helper. A new one if there is none, or if the present one is `dead`.
    fn helper(&self, dead: Option<&Arc<Helper>>) -> io::Result<Arc<Helper>> {
        let mut kept = self.kept();
        match &*kept {
            Some(helper) if dead.is_none_or(|dead| !Arc::ptr_eq(dead, helper)) => {
                Ok(Arc::clone(helper))
            }
            _ => {
                let helper = Arc::new(Helper::start(self)?);
                *kept = Some(Arc::clone(&helper));
                Ok(helper)
            }
        }
    }

    fn kept(&self) -> MutexGuard<'_, Option<Arc<Helper>>> {
        self.helper.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether the other end of the control socket is closed.
fn is_gone(cause: &io::Error) -> bool {
    matches!(cause.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}

impl Helper {
    fn start(keeper: &Keeper) -> io::Result<Helper> {
        let (ours, theirs) = Pair::pair()?;
        ours.set_nonblocking(true)?;
        let child = Command::new(&keeper.program)
            .arg0("tenure")
            .args([HELPER, "--"])
            .args(&keeper.command)
            // Ctrl-C in a terminal reaches a whole process group. It must not reach the helper:
            // only the worker decides what becomes of its jobs.
            .process_group(0)
            .stdin(OwnedFd::from(theirs))
            // The helper prints nothing, and must not keep the worker's pipes open.
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let (tell, status) = watch::channel(None);
        let kill = Arc::new(Notify::new());
        tokio::spawn(reap(child, Arc::clone(&kill), tell));
        Ok(Helper { control: UnixStream::from_std(ours)?, silence: keeper.silence, kill, status })
    }

    async fn take(&self, given: [BorrowedFd<'_>; 3]) -> io::Result<()> {
        let send = || messages::hand_over(&self.control, given);
        // Sending waits while the socket is full of commands that the helper has not received yet.
        match self.answer(self.control.async_io(Interest::WRITABLE, send)).await {
            Some(sent) => sent,
            None => Err(io::Error::other("tenure __helper does not answer")),
        }
    }

    /// Waits for something that a helper does at once. If the helper does not do it in time, it is
    /// killed, so that its commands end and their jobs run again.
    pub(crate) async fn answer<T>(&self, answer: impl Future<Output = T>) -> Option<T> {
        let mut answer = pin!(answer);
        // Waits in two halves. If the worker and the helper were both stopped for a long time, the
        // first half is over before the helper could answer.
        for _ in 0..2 {
            if let Ok(answer) = timeout(self.silence / 2, &mut answer).await {
                return Some(answer);
            }
        }
        self.kill.notify_one();
        None
    }

    /// How it ended, if it ends soon.
    pub(crate) async fn status(&self) -> Option<ExitStatus> {
        let mut status = self.status.clone();
        let ended = status.wait_for(Option::is_some);
        timeout(Duration::from_secs(1), ended).await.ok()?.ok().and_then(|status| *status)
    }
}

/// Waits for the end of a helper, and kills it when `kill` is notified.
async fn reap(mut child: Child, kill: Arc<Notify>, tell: watch::Sender<Option<ExitStatus>>) {
    let status = tokio::select! {
        biased;
        status = child.wait() => status,
        () = kill.notified() => child.kill().await.and(child.wait().await),
    };
    tell.send_replace(status.ok());
}
