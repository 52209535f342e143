//! Wake-ups: notifications of other connections (NOTIFY), received without polling.
//!
//! A notification is only a hint. Those sent while the connection was down are lost, so every new
//! connection is itself a reason to look. Behind a pooler no notification arrives, and a LISTEN
//! would stay behind in a session of another client. So this module sends no LISTEN there, and
//! [`Link::hears`] is false, so that the caller polls.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use postgres::Notification;
use postgres::fallible_iterator::FallibleIterator;

use super::error;
use super::link::Link;
use super::session::Session;
use crate::clock;
use crate::store::Result;

/// A notification.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Notice {
    pub(super) channel: String,
    pub(super) payload: String,
}

/// The result of a wait.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Heard {
    /// The deadline has passed.
    Nothing,
    /// These notifications, each once, however often they were sent.
    Notices(BTreeSet<Notice>),
    /// The connection was lost or is new: any notification may have been missed.
    Gap,
}

/// What a link listens to, across its sessions.
#[derive(Debug, Default)]
pub(super) struct Ears {
    channels: Vec<String>,
    /// A set, so that a worker that is busy for an hour does not collect an hour of notifications.
    heard: BTreeSet<Notice>,
    /// Whether a session was lost since the last wait.
    missed: bool,
}

impl Ears {
    /// Listens again in a new session.
    pub(super) fn attach(
        &mut self,
        session: &mut Session,
        is_direct: bool,
    ) -> Result<(), postgres::Error> {
        self.missed = true;
        if !is_direct || self.channels.is_empty() {
            return Ok(());
        }
        let all: String = self.channels.iter().map(|channel| listen(channel)).collect();
        session.batch(&all)
    }

    /// Takes the notifications that arrived during a call.
    pub(super) fn collect(&mut self, session: &mut Session) {
        let mut arrived = session.client().notifications();
        // Only those that are already here: asking for more would poll the socket on every call.
        while !arrived.is_empty()
            && let Ok(Some(notice)) = arrived.iter().next()
        {
            self.heard.insert(notice.into());
        }
    }

    /// Blocks until a notification arrives, the connection is lost, or the time is up.
    fn hear(&mut self, session: &mut Session, left: Duration) -> Result<(), postgres::Error> {
        let mut arriving = session.client().notifications();
        // Returns `None` both when the time is up and when the server has closed the connection.
        let first = match left {
            Duration::ZERO => arriving.iter().next()?,
            left => arriving.timeout_iter(left).next()?,
        };
        self.heard.extend(first.map(Notice::from));
        Ok(())
    }
}

impl From<Notification> for Notice {
    fn from(said: Notification) -> Notice {
        Notice { channel: said.channel().to_owned(), payload: said.payload().to_owned() }
    }
}

impl Link {
    /// From now on receives the notifications of this channel, also after a reconnect.
    pub(super) fn listen(&mut self, channel: &str) -> Result<()> {
        if self.ears.channels.iter().any(|known| known == channel) {
            return Ok(());
        }
        if self.hears() {
            self.run("listen for changes", |session| session.batch(&listen(channel)))?;
        }
        self.ears.channels.push(channel.to_owned());
        Ok(())
    }

    /// Whether notifications arrive. If not, a wait always lasts its full time.
    pub(super) fn hears(&self) -> bool {
        self.facts().is_direct
    }

    /// Reconnects at once if a worker's guard was lost with the connection, instead of at the next
    /// call, which may be a second later. If that does not succeed before `until`, the next call
    /// returns the reason.
    pub(super) fn come_back(&mut self, until: Instant) {
        const PAUSE: Duration = Duration::from_millis(50);
        while self.has_guards() && !self.is_connected() {
            if let Ok(session) = self.take_session() {
                self.give_back(session, None);
                continue;
            }
            let left = until.saturating_duration_since(clock::monotonic());
            if left.is_zero() {
                return;
            }
            std::thread::park_timeout(PAUSE.min(left));
        }
    }

    /// Blocks until a notification arrives, the connection is lost, or `until`. With a time in the
    /// past, takes what has arrived.
    pub(super) fn wait(&mut self, until: Instant) -> Result<Heard> {
        self.come_back(until);
        let mut session = self.take_session()?;
        let answer = if self.ears.missed || !self.ears.heard.is_empty() {
            Ok(())
        } else {
            let left = until.saturating_duration_since(clock::monotonic());
            self.ears.hear(&mut session, left)
        };
        self.give_back(session, answer.as_ref().err());
        self.come_back(until);
        if !self.is_connected() || std::mem::take(&mut self.ears.missed) {
            self.ears.heard.clear();
            return Ok(Heard::Gap);
        }
        answer.map_err(|cause| error::from_postgres(self.target(), "wait for changes", cause))?;
        match std::mem::take(&mut self.ears.heard) {
            heard if heard.is_empty() => Ok(Heard::Nothing),
            heard => Ok(Heard::Notices(heard)),
        }
    }
}

/// The LISTEN statement. The channel is quoted, because it is the name of a schema, which may have
/// spaces and capitals.
fn listen(channel: &str) -> String {
    format!("LISTEN \"{}\";", channel.replace('"', "\"\""))
}

#[cfg(test)]
mod tests;
