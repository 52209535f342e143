//! The worker's lock, which ends with its process: an advisory lock of its session.
//!
//! The server frees the lock when the session ends, and other workers conclude that the worker is
//! dead. So the lock is taken again in every new session before any other call. This file only
//! takes and holds the lock; `sql/postgres/verbs/lapse.sql` decides what a free lock means.

use std::time::{Duration, Instant};

use postgres::types::Type;

use super::schema::Schema;
use super::session::Session;
use crate::clock;
use crate::job::Name;
use crate::lease::WorkerId;
use crate::store::{Guarded, Registration};

/// How long to wait before trying again to take a lock that another session held.
const AGAIN: Duration = Duration::from_secs(1);

/// How often a worker registers again, which counts as taking the lock anew. A free lock means
/// something only if it was taken since the server's start and since its statistics were last
/// reset, which a crash of the server does too. So if a person resets them, a free lock means
/// nothing until the worker registers again. Registering more often would cost: to check whether a
/// session has a lock, the server goes through all locks, which takes 1.4 ms with a thousand.
const STILL_THERE: Duration = Duration::from_secs(300);

/// A worker that this connection guards.
pub(super) struct Guard {
    worker: Registration,
    lock: String,
    ask: String,
    register: String,
    /// When the lock was last tried, and with what result.
    tried: Option<(Instant, Guarded)>,
}

impl Guard {
    pub(super) fn new(schema: &Schema, worker: &Registration) -> Guard {
        let sql = |text| schema.apply(text).into_owned();
        Guard {
            worker: worker.clone(),
            lock: sql("SELECT tenure.guard($1)"),
            ask: sql("SELECT tenure.is_guarding($1)"),
            register: sql("SELECT tenure.register($1, $2, $3, $4)"),
            tried: None,
        }
    }

    pub(super) fn worker(&self) -> &WorkerId {
        &self.worker.worker
    }

    /// Whether the worker takes jobs from this queue. An empty name means all queues.
    pub(super) fn serves(&self, queue: &str) -> bool {
        queue.is_empty() || self.worker.queues.iter().any(|own| own.as_str() == queue)
    }

    /// Takes the lock in this session and registers the worker. Behind a pooler there is no session
    /// that could hold the lock.
    pub(super) fn take(
        &mut self,
        session: &mut Session,
        is_direct: bool,
    ) -> Result<Guarded, postgres::Error> {
        let id = (&self.worker.worker.as_str() as &_, Type::TEXT);
        let mut answers = |question: &str| -> Result<bool, postgres::Error> {
            session.query_one(question, std::slice::from_ref(&id))?.try_get(0)
        };
        let had_it = matches!(self.tried, Some((_, Guarded::ByLock)));
        // In two statements: only a direct session still has the lock in the next statement.
        let is_held = is_direct
            && ((had_it && answers(&self.ask)?) || (answers(&self.lock)? && answers(&self.ask)?));
        let queues: Vec<_> = self.worker.queues.iter().map(Name::as_str).collect();
        let kinds: Option<Vec<_>> =
            self.worker.kinds.as_ref().map(|kinds| kinds.iter().map(Name::as_str).collect());
        session.query(
            &self.register,
            &[id, (&queues, Type::TEXT_ARRAY), (&kinds, Type::TEXT_ARRAY), (&is_held, Type::BOOL)],
        )?;
        let guarded = if is_held { Guarded::ByLock } else { Guarded::ByLeaseAlone };
        self.tried = Some((clock::monotonic(), guarded));
        Ok(guarded)
    }

    /// Takes the lock again if it is time: every few minutes, and every second in a direct session
    /// that did not get it. Not getting it means that another session had the lock, perhaps an
    /// earlier one of this worker whose end the server had not noticed yet.
    pub(super) fn take_if_it_is_time(
        &mut self,
        session: &mut Session,
        is_direct: bool,
    ) -> Result<(), postgres::Error> {
        let is_time = self.tried.is_none_or(|(at, guarded)| {
            let again = guarded == Guarded::ByLeaseAlone && is_direct;
            clock::monotonic() - at >= if again { AGAIN } else { STILL_THERE }
        });
        if is_time { self.take(session, is_direct).map(drop) } else { Ok(()) }
    }

    /// Records that the lock could not even be tried.
    pub(super) fn was_refused(&mut self) {
        self.tried = Some((clock::monotonic(), Guarded::ByLeaseAlone));
    }
}

#[cfg(test)]
mod tests;
