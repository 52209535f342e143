//! A second connection that holds the workers' locks as their processes would. So a test can
//! release a lock and check that the store notices it.

use std::collections::BTreeSet;

use postgres::types::Type;

use super::super::address::ServerAddress;
use super::super::link::{Link, Timeouts};
use super::super::schema::Schema;
use crate::lease::WorkerId;
use crate::store::Result;

/// The locks that are held, and the connection that holds them.
pub(super) struct Hands {
    address: ServerAddress,
    /// Opened with the first lock: most tests need none.
    link: Option<Link>,
    held: BTreeSet<WorkerId>,
}

impl Hands {
    pub(super) fn new(address: &ServerAddress) -> Hands {
        Hands { address: address.clone(), link: None, held: BTreeSet::new() }
    }

    /// The workers whose locks are held, in order.
    pub(super) fn held(&self) -> Vec<WorkerId> {
        self.held.iter().cloned().collect()
    }

    /// Holds the locks of these workers, and no others.
    pub(super) fn hold(&mut self, schema: &Schema, wanted: &[WorkerId]) -> Result<()> {
        for worker in self.held().iter().filter(|worker| !wanted.contains(worker)) {
            self.let_go(schema, worker)?;
        }
        wanted.iter().try_for_each(|worker| self.take(schema, worker))
    }

    pub(super) fn take(&mut self, schema: &Schema, worker: &WorkerId) -> Result<()> {
        const TAKE: &str = "SELECT pg_advisory_lock(tenure.guard_key($1))";
        if self.held.insert(worker.clone()) {
            self.say(schema, TAKE, worker)?;
        }
        Ok(())
    }

    pub(super) fn let_go(&mut self, schema: &Schema, worker: &WorkerId) -> Result<()> {
        const LET_GO: &str = "SELECT pg_advisory_unlock(tenure.guard_key($1))";
        if self.held.remove(worker) {
            self.say(schema, LET_GO, worker)?;
        }
        Ok(())
    }

    fn say(&mut self, schema: &Schema, sql: &str, worker: &WorkerId) -> Result<()> {
        let worker = worker.as_str();
        let link = match &mut self.link {
            Some(link) => link,
            none => none.insert(Link::open(&self.address, Timeouts::default())?),
        };
        link.run("hold a worker's lock", |session| {
            session.query(&schema.apply(sql), &[(&worker, Type::TEXT)]).map(drop)
        })
    }
}
