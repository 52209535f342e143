//! The PostgreSQL engine: jobs in one database, for many machines.
//!
//! The verbs are functions in the database, in the schema `tenure`, from `sql/postgres/verbs`.
//! psql, a trigger or any driver can call the same functions. So this engine only sends values and
//! reads the answers. The files, in the order of a call: the address (`address`), its encryption
//! (`tls`), how a connection is made (`dial`), what is sent over it (`session`) and how it is kept
//! (`link`); then the verbs, in the order of a job's life.

mod address;
mod claim;
mod dial;
#[cfg(feature = "drill")]
mod drill;
mod enqueue;
mod error;
#[cfg(test)]
mod fake;
mod guard;
mod health;
mod lapse;
mod ledger;
mod link;
mod look;
mod migrate;
mod operate;
mod progress;
mod renew;
mod rights;
mod row;
mod schema;
mod server;
mod session;
mod settle;
mod tls;
mod wake;

use std::time::{Duration, Instant};

pub use self::address::ServerAddress;
#[cfg(feature = "drill")]
pub use self::drill::Rehearsal;
pub(crate) use self::enqueue::Lists;
pub(crate) use self::error::bad_request;
use self::guard::Guard;
pub use self::health::{Durability, Health, Holder, OpenTransaction, Rows, Terms};
use self::link::Link;
pub use self::link::Timeouts;
pub use self::migrate::{Brought, Contents, Migrations, Newer, Roles};
use self::operate::{OfEnded, OfJobs};
pub use self::rights::{Part, Rights};
pub(crate) use self::row::JsonText;
pub(crate) use self::schema::Schema;
pub use self::server::ServerFacts;
pub(crate) use self::session::Param;
use self::session::{Isolation, Session};
use self::wake::Heard;
use super::{
    AsSeen, Attempt, Beat, Changed, Claim, Claimed, Enqueued, Guarded, Lapse, Lapsed, Operate,
    Pruned, QueueChange, Registration, Renewed, Report, Reported, Resolved, Result, Settled,
    Settlement, Wake, Work, check_batch, check_claim, check_entries, check_guard_gap, check_jobs,
    check_lease, check_resolution, check_settlements, sealed,
};
use crate::clock;
use crate::inspect::{Current, QueueSettings};
use crate::job::{JobId, Limits, Name, NewJob};
use crate::lease::{Fence, WorkerId};
use crate::ledger::{Answer, Entry, Resolution};
use crate::lifecycle::Verb;

/// Options for opening a store. There is no clock among them: only the database's clock counts.
#[derive(Debug, Clone, Default)]
pub struct PostgresOptions {
    /// The sizes that the store accepts.
    pub limits: Limits,
    /// How long the server may take.
    pub timeouts: Timeouts,
}

/// One connection to a store in a PostgreSQL database. Its calls block, so use it on a thread of
/// its own, not on one that runs async code.
pub struct Postgres {
    link: Link,
    schema: Schema,
    limits: Limits,
    /// The marks that the last claim returned; the next claim sends them. They show where to begin
    /// in the indexes, while an old transaction keeps dead entries before that place.
    marks: Option<String>,
    /// How far the server was at the last beat. The next beat sends it, so that a server that was
    /// restored to an earlier state is noticed.
    seen: Option<String>,
    patience: Patience,
    /// How long enqueues and ledger writes wait for a lock, if not as long as the session's setting
    /// says.
    lock_wait: Option<Duration>,
    #[cfg(feature = "drill")]
    rehearsal: Rehearsal,
}

impl Postgres {
    /// Connects to a database that already has the schema. Creates nothing; `tenure migrate up`
    /// does.
    pub fn open(address: &ServerAddress, options: &PostgresOptions) -> Result<Postgres> {
        let mut link = Link::open(address, options.timeouts)?;
        let schema = Schema::new(address.schema());
        migrate::check(&mut link, &schema)?;
        Ok(Postgres {
            link,
            schema,
            limits: options.limits,
            marks: None,
            seen: None,
            patience: Patience::default(),
            lock_wait: None,
            #[cfg(feature = "drill")]
            rehearsal: Rehearsal::default(),
        })
    }

    /// The facts about the server that this store's guarantees depend on.
    pub fn facts(&self) -> &ServerFacts {
        self.link.facts()
    }

    /// Limits how long enqueues and ledger writes wait for each lock.
    pub(crate) fn wait_for_locks(&mut self, wait: Duration) {
        self.lock_wait = Some(wait);
    }

    /// Adds the timeline entry for a refusal that was rolled back with a user's own transaction.
    pub(crate) fn refused(&mut self, fence: Fence, verb: Verb) -> Result<()> {
        self.call("record a refusal", |session, schema| {
            settle::refused(session, schema, fence, verb)
        })
    }

    /// Calls one function of the schema. Its work is committed when it returns.
    fn call<T>(
        &mut self,
        doing: &'static str,
        verb: impl FnOnce(&mut Session, &Schema) -> Result<T, postgres::Error>,
    ) -> Result<T> {
        #[cfg(feature = "drill")]
        self.set_test_clock()?;
        let schema = &self.schema;
        self.link.run(doing, |session| verb(session, schema))
    }

    /// Calls several functions in one transaction.
    fn transact<T>(
        &mut self,
        doing: &'static str,
        isolation: Isolation,
        verbs: impl FnOnce(&mut Session, &Schema) -> Result<T, postgres::Error>,
    ) -> Result<T> {
        #[cfg(feature = "drill")]
        if self.rehearsal.is_on() {
            return self.call(doing, verbs);
        }
        self.call(doing, |session, schema| {
            session.transaction(isolation, |session| verbs(session, schema))
        })
    }
}

impl sealed::Sealed for Postgres {}

impl Work for Postgres {
    fn enqueue(&mut self, jobs: &[NewJob]) -> Result<Vec<Enqueued>> {
        check_jobs(jobs, &self.limits)?;
        let wait = self.lock_wait;
        self.call("enqueue", |session, schema| enqueue::enqueue_within(session, schema, jobs, wait))
    }

    fn claim(&mut self, ask: &Claim) -> Result<Claimed> {
        check_claim(ask)?;
        let mut marks = self.marks.take();
        let claimed =
            self.call("claim", |session, schema| claim::claim(session, schema, ask, &mut marks))?;
        self.marks = marks;
        self.patience.found(&claimed);
        Ok(claimed)
    }

    fn held(&mut self, worker: &WorkerId, request: Option<i64>) -> Result<Vec<Attempt>> {
        self.call("look for held jobs", |session, schema| {
            claim::held(session, schema, worker, request)
        })
    }

    fn renew(&mut self, fences: &[Fence], length: Duration) -> Result<Vec<Renewed>> {
        check_batch(fences.len())?;
        check_lease(length)?;
        self.call("renew", |session, schema| renew::renew(session, schema, fences, length))
    }

    fn progress(&mut self, reports: &[Report]) -> Result<Vec<Reported>> {
        check_batch(reports.len())?;
        self.call("note progress", |session, schema| progress::progress(session, schema, reports))
    }

    fn settle(&mut self, settlements: &[Settlement]) -> Result<Vec<Settled>> {
        check_settlements(settlements, &self.limits)?;
        if settlements.iter().all(|settlement| settlement.then.is_empty()) {
            return self
                .call("settle", |session, schema| settle::settle(session, schema, settlements));
        }
        self.transact("settle", Isolation::ReadCommitted, |session, schema| {
            settle::follow(session, schema, settlements)?;
            settle::settle(session, schema, settlements)
        })
    }

    fn settle_and_claim(
        &mut self,
        settlements: &[Settlement],
        ask: &Claim,
    ) -> Result<(Vec<Settled>, Claimed)> {
        check_settlements(settlements, &self.limits)?;
        check_claim(ask)?;
        let doing = "settle and claim";
        let mut marks = self.marks.take();
        let follows = settlements.iter().any(|settlement| !settlement.then.is_empty());
        let mut both = |session: &mut Session, schema: &Schema| {
            claim::settle_and_claim(session, schema, settlements, ask, &mut marks, follows)
        };
        let (settled, claimed) = if !follows {
            self.call(doing, both)?
        } else {
            self.transact(doing, Isolation::ReadCommitted, |session, schema| {
                settle::follow(session, schema, settlements)?;
                both(session, schema)
            })?
        };
        self.marks = marks;
        self.patience.found(&claimed);
        Ok((settled, claimed))
    }

    fn ledger(&mut self, entries: &[Entry]) -> Result<Vec<Answer>> {
        check_entries(entries, &self.limits)?;
        let wait = self.lock_wait;
        self.call("write to the ledger", |session, schema| {
            ledger::ledger(session, schema, entries, wait)
        })
    }

    fn register(&mut self, worker: &Registration) -> Result<Guarded> {
        #[cfg(feature = "drill")]
        if self.rehearsal.is_set() {
            return self.register_by_hand(worker);
        }
        self.link.guard(Guard::new(&self.schema, worker))
    }

    fn retire(&mut self, worker: &WorkerId) -> Result<()> {
        #[cfg(feature = "drill")]
        self.let_go(worker)?;
        self.link.unguard(worker);
        self.call("retire a worker", |session, schema| lapse::retire(session, schema, worker))
    }

    fn vanished(&mut self, limit: usize) -> Result<Vec<Lapse>> {
        check_batch(limit)?;
        self.call("look for vanished workers", |session, schema| {
            lapse::vanished(session, schema, limit)
        })
    }

    fn beat(&mut self) -> Result<Beat> {
        let wakes = self.link.hears();
        let mut seen = self.seen.clone();
        let beat = self.call("advance the pulse", |session, schema| {
            lapse::beat(session, schema, wakes, &mut seen)
        })?;
        self.seen = seen;
        Ok(beat)
    }

    fn overdue(&mut self, limit: usize, grace: Duration) -> Result<Vec<Fence>> {
        check_batch(limit)?;
        self.call("look for lapsed leases", |session, schema| {
            lapse::overdue(session, schema, limit, grace)
        })
    }

    fn lapse(&mut self, fences: &[Fence]) -> Result<Vec<Lapsed>> {
        check_batch(fences.len())?;
        self.call("lapse", |session, schema| lapse::lapse(session, schema, fences))
    }

    fn prune(&mut self, limit: usize) -> Result<Pruned> {
        check_batch(limit)?;
        self.call("prune", |session, schema| operate::prune(session, schema, limit))
    }

    fn current(&mut self, jobs: &[JobId]) -> Result<Vec<Option<Current>>> {
        check_batch(jobs.len())?;
        self.call("look up jobs", |session, schema| look::current(session, schema, jobs))
    }

    /// A notification ends the wait at once. But notifications are only hints: some are left out on
    /// purpose, and behind a pooler none arrive. So a wait also ends after a pause, which grows
    /// while claims find nothing.
    fn wait(&mut self, until: Instant) -> Result<Wake> {
        if let Err(problem) = self.link.listen(self.schema.channel()) {
            let was_lost = !self.link.is_connected();
            self.link.come_back(until);
            return if was_lost && self.link.is_connected() {
                Ok(Wake::Changed)
            } else {
                Err(problem)
            };
        }
        let look_again = self.patience.look_again(self.link.has_guards());
        loop {
            return match self.link.wait(until.min(look_again))? {
                Heard::Nothing if look_again > until => Ok(Wake::TimedOut),
                Heard::Nothing | Heard::Gap => {
                    self.patience.unannounced = None;
                    Ok(Wake::Changed)
                }
                // Notices of queues that this connection's workers do not serve do not end the
                // wait.
                Heard::Notices(said) if !self.link.concerns(&said) => continue,
                Heard::Notices(_) => {
                    self.patience = Patience::default();
                    Ok(Wake::Changed)
                }
            };
        }
    }
}

impl Operate for Postgres {
    fn cancel(&mut self, jobs: &[JobId]) -> Result<Vec<Changed>> {
        check_batch(jobs.len())?;
        self.call("cancel", |session, schema| {
            operate::change(session, schema, OfJobs::Cancel, jobs)
        })
    }

    fn requeue(&mut self, jobs: &[AsSeen]) -> Result<Vec<Changed>> {
        check_batch(jobs.len())?;
        self.call("requeue", |session, schema| {
            operate::change_ended(session, schema, OfEnded::Requeue, jobs)
        })
    }

    fn resume(&mut self, jobs: &[JobId]) -> Result<Vec<Changed>> {
        check_batch(jobs.len())?;
        self.call("resume", |session, schema| {
            operate::change(session, schema, OfJobs::Resume, jobs)
        })
    }

    fn purge(&mut self, jobs: &[AsSeen]) -> Result<Vec<Changed>> {
        check_batch(jobs.len())?;
        self.call("purge", |session, schema| {
            operate::change_ended(session, schema, OfEnded::Purge, jobs)
        })
    }

    fn configure(&mut self, queue: &Name, change: &QueueChange) -> Result<QueueSettings> {
        let set = self.call("configure a queue", |session, schema| {
            operate::configure(session, schema, queue, change)
        })?;
        Ok(set.unwrap_or_else(|| QueueSettings::default_for(queue.clone())))
    }

    fn resolve(&mut self, job: JobId, effect: &Name, how: &Resolution) -> Result<Resolved> {
        check_resolution(how, &self.limits)?;
        self.call("resolve an effect", |session, schema| {
            ledger::resolve(session, schema, job, effect, how)
        })
    }

    fn raise_epoch(&mut self, reason: &str) -> Result<u32> {
        self.call("raise the epoch", |session, schema| {
            operate::raise_epoch(session, schema, reason)
        })
    }

    fn set_guard_gap(&mut self, gap: Duration) -> Result<Duration> {
        check_guard_gap(gap)?;
        self.call("set the guard gap", |session, schema| {
            operate::set_guard_gap(session, schema, gap)
        })
    }
}

/// How long a wait lasts at most. On a connection that guards no worker, pauses start at 5 ms,
/// since most queues that had work have more soon; they double up to 160 ms, and are one second
/// from then on. On a connection that guards a worker, the first pause is 60 ms, for jobs that were
/// enqueued soon after a notification and therefore not announced (`tenure.announce`). The next
/// pauses are one second, because workers also claim without being woken.
#[derive(Debug, Clone, Copy, Default)]
struct Patience {
    /// How many pauses there were since a claim found jobs or a notification arrived.
    in_vain: u32,
    /// When a worker's first pause is over, however many waits it takes until then.
    unannounced: Option<Instant>,
}

impl Patience {
    const FIRST: Duration = Duration::from_millis(5);
    const DOUBLINGS: u32 = 5;
    const LAST: Duration = Duration::from_secs(1);
    const UNANNOUNCED: Duration = Duration::from_millis(60);

    /// When a wait that begins now ends at the latest.
    fn look_again(&mut self, is_workers: bool) -> Instant {
        if let Some(at) = self.unannounced {
            return at;
        }
        let is_first = is_workers && self.in_vain == 0;
        let at = clock::monotonic() + self.next_pause(is_workers);
        self.unannounced = is_first.then_some(at);
        at
    }

    fn next_pause(&mut self, is_workers: bool) -> Duration {
        let pause = if is_workers && self.in_vain == 0 {
            Patience::UNANNOUNCED
        } else if is_workers || self.in_vain > Patience::DOUBLINGS {
            Patience::LAST
        } else {
            Patience::FIRST * 2_u32.pow(self.in_vain)
        };
        self.in_vain = self.in_vain.saturating_add(1);
        pause
    }

    fn found(&mut self, claimed: &Claimed) {
        if !claimed.attempts.is_empty() {
            *self = Patience::default();
        }
    }
}

#[cfg(test)]
mod tests;
