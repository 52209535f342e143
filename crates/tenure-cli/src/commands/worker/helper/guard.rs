//! One command, from its order to its end, as the helper sees it.

use std::future::pending;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as Socket;
use std::pin::pin;
use std::process::{Child, ExitStatus};
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::net::unix::pipe;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::super::messages::{self, Handed, Order, Report};
use super::starters::Starters;

/// Starts a command, watches it and its worker, and ends it with everything that it has left in its
/// group.
pub(super) async fn guard(handed: Handed, starters: Starters, deaths: Deaths) {
    // If the worker is gone, there is nothing to start, and no report can arrive.
    let Ok(mut lifeline) = open(handed.lifeline) else { return };
    let Ok(order) = read_order(&mut lifeline).await else { return };
    tell(&lifeline, Report::Heard);
    let report =
        match run(order, handed.stdout, handed.stderr, &mut lifeline, &starters, deaths).await {
            Ok(status) => Report::of(status),
            Err(cause) => Report::NotRun(cause.raw_os_error().unwrap_or(UNKNOWN)),
        };
    tell(&lifeline, report);
}

/// Reported for an error that has no number, as for a variable that the system cannot take.
const UNKNOWN: i32 = rustix::io::Errno::INVAL.raw_os_error();

fn open(lifeline: OwnedFd) -> io::Result<UnixStream> {
    let lifeline = Socket::from(lifeline);
    lifeline.set_nonblocking(true)?;
    UnixStream::from_std(lifeline)
}

async fn read_order(lifeline: &mut UnixStream) -> io::Result<Order> {
    let length = lifeline.read_u32().await?;
    // Room for a usual order. For a larger one, the memory grows with the bytes that arrive, so
    // that a wrong length alone cannot make this process take 4 GiB.
    let mut body = Vec::with_capacity(length.min(4 * 1024) as usize);
    lifeline.take(length.into()).read_to_end(&mut body).await?;
    let is_whole = body.len() as u64 == u64::from(length);
    let order = is_whole.then(|| Order::parse(&body)).flatten();
    order.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// A command has at most four reports of five bytes each. They fit into any socket's buffer, so
/// this never waits. It may fail, because the worker may be gone.
fn tell(lifeline: &UnixStream, report: Report) {
    let _ = rustix::io::write(lifeline, &report.bytes());
}

async fn run(
    order: Order,
    stdout: OwnedFd,
    stderr: OwnedFd,
    lifeline: &mut UnixStream,
    starters: &Starters,
    deaths: Deaths,
) -> io::Result<ExitStatus> {
    let (stdin, args) = Args::into_pipe(order.args.into_bytes())?;
    let reporting = rustix::io::fcntl_dupfd_cloexec(&*lifeline, 0)?;
    let streams = [stdin, stdout, stderr];
    let mut starting = pin!(starters.start(order.environment, streams, reporting));
    let mut wish = pin!(wish(lifeline));
    // An exec can take long. Meanwhile the worker must get an answer if it wants the command to
    // end.
    let mut early = None;
    let child = tokio::select! {
        biased;
        child = &mut starting => child,
        wish = &mut wish => {
            early = Some(wish);
            starting.await
        }
    };
    let group = Group { child: child? };
    let writing = args.write_rest();
    let wish = async { if let Some(wish) = early { wish } else { wish.await } };
    let status = group.outlive(wish, deaths).await;
    drop(writing);
    status
}

/// How the worker wants a command to end.
enum Wish {
    /// By TERM, and by KILL after this time.
    Gently(Duration),
    /// The worker is gone.
    AtOnce,
}

/// Waits until the worker wants the command to end.
async fn wish(lifeline: &mut UnixStream) -> Wish {
    let mut farewell = [0; 4];
    match lifeline.read_exact(&mut farewell).await {
        Ok(_) => {
            tell(lifeline, Report::Heard);
            Wish::Gently(messages::patience(farewell))
        }
        Err(_) => Wish::AtOnce,
    }
}

// ── the args ─────────────────────────────────────────────────────────────────────────────────────

/// What did not fit into the pipe that is the command's stdin.
struct Args {
    rest: Option<(pipe::Sender, Vec<u8>)>,
}

/// Ends the writing when the command has ended.
struct Writing(Option<JoinHandle<()>>);

impl Args {
    /// A pipe with the args. Usually all of them fit into the pipe, and are in it before the
    /// command starts.
    fn into_pipe(mut args: Vec<u8>) -> io::Result<(OwnedFd, Args)> {
        let (reader, writer) = io::pipe()?;
        rustix::io::ioctl_fionbio(&writer, true)?;
        let written = rustix::io::write(&writer, &args).unwrap_or(0);
        args.drain(..written);
        let rest = if args.is_empty() {
            None
        } else {
            Some((pipe::Sender::from_owned_fd(writer.into())?, args))
        };
        Ok((reader.into(), Args { rest }))
    }

    /// Writes the rest while the command reads it. A command need not read its args.
    fn write_rest(self) -> Writing {
        Writing(self.rest.map(|(mut pipe, rest)| {
            tokio::spawn(async move {
                let _ = pipe.write_all(&rest).await;
            })
        }))
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        if let Some(task) = &self.0 {
            task.abort();
        }
    }
}

// ── the group ────────────────────────────────────────────────────────────────────────────────────

/// A command and everything it started that did not leave its process group. The command's process
/// id stays reserved until it is reaped, so a signal to the group cannot reach another group.
struct Group {
    child: Child,
}

impl Group {
    /// Waits for the command, ends it if the worker wants that, and kills what it left behind.
    async fn outlive(
        mut self,
        wish: impl Future<Output = Wish>,
        mut deaths: Deaths,
    ) -> io::Result<ExitStatus> {
        let mut ended = pin!(deaths.of(Pid::from_child(&self.child)));
        let wish = tokio::select! {
            biased;
            () = &mut ended => None,
            wish = wish => Some(wish),
        };
        if let Some(wish) = wish {
            let is_over = match wish {
                Wish::Gently(patience) => {
                    self.signal(Signal::TERM);
                    timeout(patience, &mut ended).await.is_ok()
                }
                Wish::AtOnce => false,
            };
            if !is_over {
                self.signal(Signal::KILL);
                ended.await;
            }
        }
        self.signal(Signal::KILL);
        self.child.wait()
    }

    fn signal(&self, signal: Signal) {
        // The group may be empty already.
        let _ = kill_process_group(Pid::from_child(&self.child), signal);
    }
}

/// Wakes up when some child of this process has ended.
#[derive(Clone)]
pub(super) struct Deaths(watch::Receiver<()>);

impl Deaths {
    /// Must be called before the first command starts, so that no death is missed.
    pub(super) fn watch() -> io::Result<Deaths> {
        let mut deaths = signal(SignalKind::child())?;
        let (tell, told) = watch::channel(());
        tokio::spawn(async move {
            while deaths.recv().await.is_some() {
                tell.send_replace(());
            }
        });
        Ok(Deaths(told))
    }

    /// Waits until this child has ended, without reaping it.
    async fn of(&mut self, child: Pid) {
        let look = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
        loop {
            // Before the look: then a death during the look counts as a change, and ends the wait
            // below.
            self.0.mark_unchanged();
            // It can fail only if there is no such child.
            if !matches!(waitid(WaitId::Pid(child), look), Ok(None)) {
                return;
            }
            if self.0.changed().await.is_err() {
                // The runtime is ending.
                pending::<()>().await;
            }
        }
    }
}
