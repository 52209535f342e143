//! The lock that ends with a worker's process: an advisory lock of its session.
//!
//! The server frees it when the session ends, and others take that for the worker's death. So it is
//! taken again in every new session before anything else is said there. It is the connection's
//! business alone; what others make of a free lock is decided in `sql/postgres/verbs/lapse.sql`.

use std::time::{Duration, Instant};

use postgres::types::Type;

use super::schema::Schema;
use super::session::Session;
use crate::clock;
use crate::job::Name;
use crate::lease::WorkerId;
use crate::store::{Guarded, Registration};

/// After how long a lock is tried again that somebody else had.
const AGAIN: Duration = Duration::from_secs(1);

/// After how long a worker registers once more. It also counts as another taking, so that a lock tells again after the
/// statistics were reset by which the server's lives are told apart. The server goes through all locks to answer whether
/// a session has one, which takes 1.4 ms beside a thousand: so not more often.
const STILL_THERE: Duration = Duration::from_secs(300);

/// A worker that this connection stands for.
pub(super) struct Guard {
    worker: Registration,
    lock: String,
    ask: String,
    register: String,
    /// When it was last tried, and what came of it.
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

    /// Whether the worker takes jobs from this queue. An empty name stands for all.
    pub(super) fn serves(&self, queue: &str) -> bool {
        queue.is_empty() || self.worker.queues.iter().any(|own| own.as_str() == queue)
    }

    /// Takes the lock in this session and makes the worker known. Through a pooler there is no session
    /// that could hold it.
    pub(super) fn take(
        &mut self,
        session: &mut Session,
        is_direct: bool,
    ) -> Result<Guarded, postgres::Error> {
        let id = (&self.worker.worker.as_str() as &_, Type::TEXT);
        let mut answers = |question: &str| -> Result<bool, postgres::Error> {
            session.query_one(question, std::slice::from_ref(&id))?.try_get(0)
        };
        let had_it = matches!(self.tried, Some((_, Guarded::Yes)));
        // In two statements: whether the lock is there in the next one is what tells a session of our own.
        let is_held = is_direct
            && ((had_it && answers(&self.ask)?) || (answers(&self.lock)? && answers(&self.ask)?));
        let queues: Vec<_> = self.worker.queues.iter().map(Name::as_str).collect();
        let kinds: Option<Vec<_>> =
            self.worker.kinds.as_ref().map(|kinds| kinds.iter().map(Name::as_str).collect());
        session.query(
            &self.register,
            &[id, (&queues, Type::TEXT_ARRAY), (&kinds, Type::TEXT_ARRAY), (&is_held, Type::BOOL)],
        )?;
        let guarded = if is_held { Guarded::Yes } else { Guarded::No };
        self.tried = Some((clock::monotonic(), guarded));
        Ok(guarded)
    }

    /// The same where it is time for it: every few minutes, and more often in a session of our own that had not got it.
    /// Somebody else did for a while, perhaps the server for a session of ours that it did not know to be gone.
    pub(super) fn take_if_it_is_time(
        &mut self,
        session: &mut Session,
        is_direct: bool,
    ) -> Result<(), postgres::Error> {
        let is_time = self.tried.is_none_or(|(at, guarded)| {
            let again = guarded == Guarded::No && is_direct;
            clock::monotonic() - at >= if again { AGAIN } else { STILL_THERE }
        });
        if is_time { self.take(session, is_direct).map(drop) } else { Ok(()) }
    }

    /// It could not even be tried.
    pub(super) fn was_refused(&mut self) {
        self.tried = Some((clock::monotonic(), Guarded::No));
    }
}
