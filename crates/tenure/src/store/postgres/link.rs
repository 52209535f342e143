//! The connection of the engine: reconnects when it is lost, and is clean after every call.
//!
//! A call that was sent is never repeated here: it is unknown whether it was applied, and the port
//! says what a caller may repeat. What can be checked before sending is checked: a connection that
//! has been idle is tested first, because the server may have restarted meanwhile.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::address::ServerAddress;
use super::dial::Dialer;
use super::error;
use super::guard::Guard;
use super::rights::Rights;
use super::schema::Schema;
use super::server::{self, ServerFacts};
use super::session::Session;
use super::wake::{Ears, Notice};
use crate::clock;
use crate::lease::WorkerId;
use crate::store::{Error, Guarded, Result};

/// How long a connection must have been idle before it is tested. For a shorter time the round trip
/// would cost more than it saves.
const IDLE: Duration = Duration::from_secs(1);

/// How long a server may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// To connect, all steps together; `connect_timeout` in the address overrides this.
    pub connect: Duration,
    /// For one statement.
    pub statement: Duration,
    /// To get one lock.
    pub lock: Duration,
    /// Between two statements of a transaction, before the server ends the session.
    pub idle_in_transaction: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Timeouts {
            connect: Duration::from_secs(10),
            statement: Duration::from_secs(60),
            lock: Duration::from_secs(10),
            idle_in_transaction: Duration::from_secs(60),
        }
    }
}

/// One connection to one address, for one thread.
pub(super) struct Link {
    address: ServerAddress,
    /// The address as shown in errors.
    target: String,
    dialer: Dialer,
    /// `None` after the session was lost, until the next call.
    session: Option<Session>,
    facts: ServerFacts,
    /// False once a session turned out to be shared although it looked direct.
    may_prepare: bool,
    used: Instant,
    pub(super) ears: Ears,
    /// The workers that this connection guards.
    guards: Vec<Guard>,
}

impl Link {
    /// Connects, and checks whether the server can hold a store.
    pub(super) fn open(address: &ServerAddress, timeouts: Timeouts) -> Result<Link> {
        let mut dialer = Dialer::new(address, timeouts)?;
        let target = address.to_string();
        let (session, facts) = connect(&mut dialer, address, true)?;
        Ok(Link {
            address: address.clone(),
            target,
            dialer,
            may_prepare: true,
            session: Some(session),
            facts,
            used: clock::monotonic(),
            ears: Ears::default(),
            guards: Vec::new(),
        })
    }

    /// The address as it may be shown.
    pub(super) fn target(&self) -> &str {
        &self.target
    }

    /// The facts about the server at the last connect.
    pub(super) fn facts(&self) -> &ServerFacts {
        &self.facts
    }

    /// Calls `work` with a session, and connects first if there is none. Returns an error of `work`
    /// as [`crate::store::Error`].
    pub(super) fn run<T>(
        &mut self,
        doing: &'static str,
        work: impl FnOnce(&mut Session) -> Result<T, postgres::Error>,
    ) -> Result<T> {
        // Take the session out: if `work` panics, the link then has no session instead of a broken
        // one.
        let mut session = self.take_session()?;
        let answer = work(&mut session);
        self.give_back(session, answer.as_ref().err());
        answer.map_err(|cause| self.told(doing, cause))
    }

    /// The error to return. If a right is missing, looks up which GRANT would help.
    fn told(&mut self, doing: &'static str, cause: postgres::Error) -> Error {
        let mut error = error::from_postgres(&self.target, doing, cause);
        let schema = Schema::new(self.address.schema());
        if let Error::Forbidden { problem, next, .. } = &mut error
            && let Some(session) = &mut self.session
            && let Ok(rights) = Rights::of(session, &schema)
            && let Some(advice) = rights.advice(problem)
        {
            *next = advice;
        }
        error
    }

    /// Whether the session survived the last call.
    pub(super) fn is_connected(&self) -> bool {
        self.session.is_some()
    }

    /// A session that works as far as is known: the current one, or a new one.
    pub(super) fn take_session(&mut self) -> Result<Session> {
        if let Some(mut session) = self.session.take().filter(Session::is_usable) {
            let is_fresh = clock::monotonic() - self.used < IDLE;
            let stands = is_fresh || session.client().check_connection().is_ok();
            if stands && self.stand_guard(&mut session, Guard::take_if_it_is_time).is_ok() {
                return Ok(session);
            }
        }
        let (mut session, facts) = connect(&mut self.dialer, &self.address, self.may_prepare)?;
        self.facts = facts;
        self.ears.attach(&mut session, self.facts.is_direct).map_err(|cause| {
            error::from_postgres(&self.target, "listen for changes again", cause)
        })?;
        self.stand_guard(&mut session, |guard, session, is_direct| {
            guard.take(session, is_direct).map(drop)
        })
        .map_err(|cause| {
            error::from_postgres(&self.target, "take the worker's guard again", cause)
        })?;
        Ok(session)
    }

    /// Calls `take` for each guarded worker. Fails only if the session has ended. If a guard could
    /// not be taken for another reason, work goes on without it, and the lease alone decides about
    /// the worker's jobs.
    fn stand_guard(
        &mut self,
        session: &mut Session,
        take: impl Fn(&mut Guard, &mut Session, bool) -> Result<(), postgres::Error>,
    ) -> Result<(), postgres::Error> {
        let is_direct = self.facts.is_direct;
        for guard in &mut self.guards {
            match take(guard, session, is_direct) {
                Err(cause) if error::ends_connection(&cause) => return Err(cause),
                Err(_) => guard.was_refused(),
                Ok(()) => {}
            }
        }
        Ok(())
    }

    /// From now on this connection guards a worker, and takes the guard again whenever it
    /// reconnects.
    pub(super) fn guard(&mut self, mut guard: Guard) -> Result<Guarded> {
        self.unguard(guard.worker());
        let mut session = self.take_session()?;
        let answer = guard.take(&mut session, self.facts.is_direct);
        self.give_back(session, answer.as_ref().err());
        let guarded = answer.map_err(|cause| self.told("register a worker", cause))?;
        self.guards.push(guard);
        Ok(guarded)
    }

    /// Stops guarding a worker.
    pub(super) fn unguard(&mut self, worker: &WorkerId) {
        self.guards.retain(|guard| guard.worker() != worker);
    }

    /// Whether one of these notices is for a worker that this connection guards. For a connection
    /// that guards none, every notice counts.
    pub(super) fn concerns(&self, said: &BTreeSet<Notice>) -> bool {
        self.guards.is_empty()
            || self.guards.iter().any(|guard| said.iter().any(|it| guard.serves(&it.payload)))
    }

    pub(super) fn has_guards(&self) -> bool {
        !self.guards.is_empty()
    }

    /// Keeps the session, unless it has ended.
    pub(super) fn give_back(&mut self, mut session: Session, failed: Option<&postgres::Error>) {
        self.used = clock::monotonic();
        self.may_prepare &= session.may_prepare() || !self.facts.is_direct;
        self.ears.collect(&mut session);
        if session.is_usable() && !failed.is_some_and(error::ends_connection) {
            self.session = Some(session);
        }
    }
}

fn connect(
    dialer: &mut Dialer,
    address: &ServerAddress,
    may_prepare: bool,
) -> Result<(Session, ServerFacts)> {
    let target = &address.to_string();
    let line = dialer.dial(address)?;
    let mut session = Session::new(line.client);
    let facts = server::look(&mut session, line.mark.as_deref())
        .map_err(|cause| error::from_postgres(target, "look at the server", cause))?;
    server::check(&facts, target)?;
    if facts.is_direct && may_prepare {
        session.allow_preparing();
    }
    Ok((session, facts))
}

#[cfg(test)]
mod tests;
