//! Wake-ups: what other connections say with NOTIFY, heard without asking again and again.
//!
//! A wake-up is a hint, never a fact. What was said while we were not connected is lost, so every
//! new connection is itself a reason to look. Through a pooler nothing is heard at all, and LISTEN
//! would stay behind in a session of somebody else: there we do not even say it, and
//! [`Link::hears`] tells that one must look by oneself.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use postgres::Notification;
use postgres::fallible_iterator::FallibleIterator;

use super::error;
use super::link::Link;
use super::session::Session;
use crate::clock;
use crate::store::Result;

/// Something that was said.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Notice {
    pub(super) channel: String,
    pub(super) payload: String,
}

/// What a wait heard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Heard {
    /// The time is up.
    Nothing,
    /// These, each once, however often they were said.
    Notices(BTreeSet<Notice>),
    /// The connection was lost or is new: anything may have been said.
    Gap,
}

/// What a link listens to, over all its sessions.
#[derive(Debug, Default)]
pub(super) struct Ears {
    channels: Vec<String>,
    /// A set, because a worker that is busy for an hour must not hoard an hour of notices.
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

    /// Takes what arrived during a call.
    pub(super) fn collect(&mut self, session: &mut Session) {
        let mut arrived = session.client().notifications();
        // Only what is here: asking for more would poll the socket on every call.
        while !arrived.is_empty()
            && let Ok(Some(notice)) = arrived.iter().next()
        {
            self.heard.insert(notice.into());
        }
    }

    /// Blocks until something is said, the connection is lost, or the time is up.
    fn hear(&mut self, session: &mut Session, left: Duration) -> Result<(), postgres::Error> {
        let mut arriving = session.client().notifications();
        // It ends with None both when the time is up and when the server has hung up.
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
    /// Hears from now on what is said in this channel, also after the connection was made anew.
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

    /// Whether wake-ups arrive. If not, a wait lasts its full time whatever happens.
    pub(super) fn hears(&self) -> bool {
        self.facts().is_direct
    }

    /// Makes a lost connection again at once if somebody's guard was lost with it, and not when it is used
    /// again, which may be a second later. If it cannot until then, the next call tells why.
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

    /// Blocks until something is said, the connection is lost, or `until`. A time in the past takes
    /// what has arrived.
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

/// A channel's name is quoted, because it is a schema's, with spaces and capitals perhaps.
fn listen(channel: &str) -> String {
    format!("LISTEN \"{}\";", channel.replace('"', "\"\""))
}

#[cfg(test)]
mod tests;
