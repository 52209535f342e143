//! A worker's connection to the helper about one command. When the worker's end closes, the helper
//! kills the command. When the helper's end closes too early, the worker kills it.

use std::io;
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::sync::oneshot;

use super::keeper::Helper;
use super::messages::{Report, farewell};

/// The worker's end.
pub(crate) struct Lifeline {
    stream: UnixStream,
    helper: Arc<Helper>,
    /// How long the command may take to end after it is asked to.
    patience: Duration,
    /// Whether the helper has the order, and takes the next bytes for a farewell.
    is_sent: bool,
    /// A report of which only a part has arrived.
    part: Vec<u8>,
    /// The command's process group, once there is one.
    group: Option<Pid>,
}

/// How a command ended, or did not begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Exited(u8),
    Killed(i32),
    /// There was a process for it, but it could not become the command: the error of the system.
    NoCommand(i32),
    /// There was not even a process.
    NotRun(i32),
    /// The helper ended before the command, with this status, or sent something that is no report.
    Lost(Option<ExitStatus>),
}

impl Lifeline {
    pub(crate) fn new(stream: UnixStream, helper: Arc<Helper>, patience: Duration) -> Lifeline {
        Lifeline { stream, helper, patience, is_sent: false, part: Vec::new(), group: None }
    }

    /// Sends the order and follows the command to its end. Asks the helper to end it when `caller`
    /// is gone.
    pub(crate) async fn talk(&mut self, order: &[u8], caller: oneshot::Receiver<()>) -> End {
        let end = self.try_talk(order, caller).await;
        self.is_sent = false;
        let Ok(end) = end else {
            // The helper is dead or broken, so it may not have killed the command and what that had
            // started.
            self.kill();
            return End::Lost(self.helper.status().await);
        };
        end
    }

    /// Fails if the helper is gone, or sends something that is no report.
    async fn try_talk(&mut self, order: &[u8], caller: oneshot::Receiver<()>) -> io::Result<End> {
        let helper = Arc::clone(&self.helper);
        let heard = async {
            // Usually the whole order fits into the socket, so that there is nothing to wait for.
            let sent = rustix::io::write(&self.stream, order).unwrap_or(0);
            self.stream.write_all(&order[sent..]).await?;
            self.is_sent = true;
            self.answer().await
        };
        let heard = helper.answer(heard).await;
        let heard = if let Some(heard) = heard { heard? } else { self.last_words().await? };
        if let Some(end) = heard {
            return Ok(end);
        }
        tokio::select! {
            biased;
            end = self.end() => return end,
            _ = caller => self.say_farewell(),
        }
        let heard = helper.answer(self.answer()).await;
        let heard = if let Some(heard) = heard { heard? } else { self.last_words().await? };
        if let Some(end) = heard { Ok(end) } else { self.end().await }
    }

    /// Reads until the helper has answered, or reports the end.
    async fn answer(&mut self) -> io::Result<Option<End>> {
        loop {
            match self.report().await? {
                Report::Heard => return Ok(None),
                report => {
                    if let Some(end) = self.note(report) {
                        return Ok(Some(end));
                    }
                }
            }
        }
    }

    /// Reads until the helper reports the end.
    async fn end(&mut self) -> io::Result<End> {
        loop {
            let report = self.report().await?;
            if let Some(end) = self.note(report) {
                return Ok(end);
            }
        }
    }

    /// Reads what a helper that was killed had still reported. Afterwards it is certain that no
    /// command starts any more.
    async fn last_words(&mut self) -> io::Result<Option<End>> {
        self.end().await.map(Some)
    }

    fn note(&mut self, report: Report) -> Option<End> {
        match report {
            Report::Heard => None,
            Report::Started(group) => {
                self.group = Pid::from_raw(group);
                None
            }
            Report::Exited(code) => Some(End::Exited(code)),
            Report::Killed(signal) => Some(End::Killed(signal)),
            Report::NotRun(error) if self.group.is_some() => Some(End::NoCommand(error)),
            Report::NotRun(error) => Some(End::NotRun(error)),
        }
    }

    /// Reads the next report. If the future is dropped before that, nothing that was read is lost.
    async fn report(&mut self) -> io::Result<Report> {
        let mut buffer = [0; Report::LENGTH];
        loop {
            if let Ok(whole) = <[u8; Report::LENGTH]>::try_from(self.part.as_slice()) {
                self.part.clear();
                return Report::parse(whole).ok_or_else(|| io::ErrorKind::InvalidData.into());
            }
            let missing = Report::LENGTH - self.part.len();
            match self.stream.read(&mut buffer[..missing]).await? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                length => self.part.extend_from_slice(&buffer[..length]),
            }
        }
    }

    /// Asks the helper to end the command, once. The message is short and the helper reads, so the
    /// write does not wait.
    fn say_farewell(&mut self) {
        if std::mem::take(&mut self.is_sent) {
            let _ = rustix::io::write(&self.stream, &farewell(self.patience));
        }
    }

    fn kill(&self) {
        if let Some(group) = self.group {
            // The group may be empty already.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

impl Drop for Lifeline {
    /// If the runtime ends before the command does, asks the helper to end the command without the
    /// worker.
    fn drop(&mut self) {
        self.say_farewell();
    }
}
