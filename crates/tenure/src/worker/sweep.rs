//! The sweeper: takes back jobs that other workers cannot finish, and deletes what is no longer
//! needed.
//!
//! Every worker sweeps for all, so that no other process has to run. A few times a second it asks
//! the store whether it is its turn (`Work::beat`). The worker whose turn it is looks for leases
//! that are over and for lost processes, and a moment later for lost processes once more. So the
//! cost does not grow with the number of workers. Every minute, or less often where there are many
//! workers, it deletes what need not be kept.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use super::{NextStep, Plan};
use crate::clock::Moment;
use crate::desk::{Desk, Stage};
use crate::job::BATCH_LIMIT;
use crate::store::{Beat, Error, GUARD_GAP, Lapsed, Result, Work};

/// How often it asks whether it is its turn. A lost process is found by two checks, [`GUARD_GAP`]
/// apart. Both times together stay well below a second.
const LOOK: Duration = Duration::from_millis(250);
/// How much longer it rests between two such questions for each registered worker: together they
/// ask 40 times a second.
const SHARE: Duration = Duration::from_millis(25);
/// The longest rest. If all but a few workers of a large fleet die together, the others may take
/// this long to notice.
const LONGEST: Duration = Duration::from_secs(20);
/// How often it wakes if it must neglect leases, which only tests want.
const STALLED: Duration = Duration::from_secs(1);
/// How often it looks for what may be deleted.
const PRUNE: Duration = Duration::from_secs(60);
/// How much longer it rests between two such checks for each registered worker: together they check
/// once a second.
const PRUNE_SHARE: Duration = Duration::from_secs(1);
/// The pause between two deletions, while there is more to delete, so that others can use the
/// store.
const BREATH: Duration = Duration::from_millis(10);

/// The sweeper's state.
#[derive(Debug)]
pub struct Sweeper {
    plan: Arc<Plan>,
    desk: Arc<Desk>,
    pub(super) look: Moment,
    /// When to look for lost processes once more, after a look for all workers.
    again: Option<Moment>,
    /// When it last deleted, and whether there was more to delete than one call deletes.
    pruned: Moment,
    has_more: bool,
    /// How many workers are registered.
    workers: u32,
    /// Its rests are multiplied by this many thousandths (500 to 1,499), so that the workers do not
    /// all check at the same time.
    pace: u32,
}

impl Sweeper {
    /// The sweeper of the worker at this desk, starting at `now`.
    pub fn new(plan: Arc<Plan>, desk: Arc<Desk>, now: Moment) -> Sweeper {
        let mut hash = DefaultHasher::new();
        plan.worker.hash(&mut hash);
        let pace = 500 + (hash.finish() % 1_000) as u32;
        Sweeper {
            plan,
            desk,
            look: now,
            again: None,
            pruned: now,
            has_more: false,
            workers: 0,
            pace,
        }
    }

    /// Does what is due, and returns when to call it again.
    pub fn step(&mut self, store: &mut dyn Work, now: Moment) -> NextStep {
        if self.desk.stage() == Stage::Over {
            return NextStep::Done;
        }
        if self.desk.is_stalled() {
            return NextStep::At(now + STALLED);
        }
        // A failed call is tried again in the next round; nothing waits for it.
        if now >= self.look {
            let grace = self.grace(now);
            let rest = self.look_for_all(store, now, grace);
            self.note(rest.as_ref().err());
            self.look = now + rest.unwrap_or(LOOK);
        }
        if self.again.is_some_and(|again| now >= again) {
            self.again = None;
            let seen = self.look(store);
            self.note(seen.as_ref().err());
        }
        if now >= self.next_prune() {
            let full = store.prune(BATCH_LIMIT);
            self.note(full.as_ref().err());
            if full.is_ok() {
                self.plan.tell_answered(&self.desk, true);
            }
            self.has_more = full.is_ok_and(|pruned| pruned.jobs.max(pruned.keys) == BATCH_LIMIT);
            self.pruned = now;
            if !self.has_more {
                // Lost workers that held no jobs must be forgotten too. While no job is running it
                // is no worker's turn to look for all, so nothing else would find them.
                self.again.get_or_insert(now + GUARD_GAP);
                let seen = self.look(store);
                self.note(seen.as_ref().err());
            }
        }
        let next = self.look.min(self.next_prune());
        NextStep::At(self.again.map_or(next, |again| again.min(next)))
    }

    /// The other machines report an outage. A missing right is reported here, since it may be
    /// missing for the sweeper's calls alone.
    fn note(&self, error: Option<&Error>) {
        if let Some(error) = error.filter(|error| error.is_forbidden()) {
            self.plan.tell_of_store(&self.desk, error);
        }
    }

    /// If this sweep runs late (the machine was suspended), give other workers one lease of grace
    /// before lapsing their jobs.
    fn grace(&self, now: Moment) -> Duration {
        let late = now.since(self.look);
        if late > self.plan.lease / 2 { self.plan.lease } else { Duration::ZERO }
    }

    /// Sweeps if it is this worker's turn, and returns how long to rest.
    fn look_for_all(
        &mut self,
        store: &mut dyn Work,
        now: Moment,
        grace: Duration,
    ) -> Result<Duration> {
        let Beat { leads, workers, wakes, .. } = store.beat()?;
        self.desk.set_company(if wakes { workers.max(1) } else { 0 });
        if leads {
            self.again = Some(now + GUARD_GAP);
            self.sweep(store, grace)?;
            self.look(store)?;
        }
        self.workers = u32::try_from(workers).unwrap_or(u32::MAX);
        Ok(self.share(SHARE).clamp(LOOK, LONGEST))
    }

    fn next_prune(&self) -> Moment {
        self.pruned + if self.has_more { BREATH } else { self.share(PRUNE_SHARE).max(PRUNE) }
    }

    /// How long this worker rests if each registered worker adds `each`.
    fn share(&self, each: Duration) -> Duration {
        each * self.workers * self.pace / 1_000
    }

    fn look(&self, store: &mut dyn Work) -> Result<()> {
        let gone = store.vanished(BATCH_LIMIT)?;
        for lapse in &gone {
            self.plan.tell_vanished(lapse);
        }
        if !gone.is_empty() {
            self.desk.poke();
        }
        Ok(())
    }

    fn sweep(&self, store: &mut dyn Work, grace: Duration) -> Result<()> {
        let over = store.overdue(BATCH_LIMIT, grace)?;
        if over.is_empty() {
            return Ok(());
        }
        let answers = store.lapse(&over)?;
        for answer in &answers {
            if let Lapsed::TakenBack(lapse) = answer {
                self.plan.tell_lapsed(lapse);
            }
        }
        self.desk.poke();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{Clock, Timestamp};
    use crate::job::{Json, Limits, Name, NewJob};
    use crate::lease::WorkerId;
    use crate::store::sqlite::{Sqlite, StoreOptions};
    use crate::store::{Enqueued, Look, Operate, Registration};

    fn store() -> (Sqlite, Clock) {
        let clock = Clock::manual(Timestamp::from_millis(1_000_000_000_000));
        let options = StoreOptions { clock: clock.clone(), limits: Limits::default() };
        (Sqlite::in_memory(&options).unwrap(), clock)
    }

    fn sweeper(now: Moment) -> Sweeper {
        let plan = Plan::new(WorkerId::unique());
        Sweeper::new(Arc::new(plan), Arc::new(Desk::new(1)), now)
    }

    #[test]
    fn a_lost_worker_that_held_nothing_is_forgotten_though_no_lease_is_out() {
        let (mut store, clock) = store();
        let mut line = store.share().unwrap();
        let (worker, queues) = (WorkerId::unique(), vec![Name::default_queue()]);
        line.register(&Registration::new(worker, queues)).unwrap();
        drop(line);
        let start = Moment::after_start(Duration::from_secs(1_000));
        let mut sweeper = sweeper(start);
        let mut now = start;
        while !store.workers().unwrap().is_empty() {
            assert!(now.since(start) <= PRUNE * 2, "it is still known after two minutes");
            let NextStep::At(at) = sweeper.step(&mut store, now) else {
                panic!("it has more to do")
            };
            clock.advance(at.since(now));
            now = at;
        }
    }

    #[test]
    fn what_may_be_deleted_is_deleted_without_long_pauses() {
        let (mut store, clock) = store();
        let kind = Name::check("kind", "work").unwrap();
        let job = NewJob::new(kind, Json::check("args", "{}", 10).unwrap());
        for _ in 0..10 {
            let stored = store.enqueue(&vec![job.clone(); BATCH_LIMIT]).unwrap();
            let created = stored.iter().filter_map(|stored| match stored {
                Enqueued::Created(id) => Some(*id),
                Enqueued::Existing(_) | Enqueued::Conflict(_) => None,
            });
            store.cancel(&created.collect::<Vec<_>>()).unwrap();
        }
        clock.advance(Duration::from_secs(365 * 86_400));
        let mut now = Moment::after_start(Duration::from_secs(1_000));
        let mut sweeper = sweeper(now);
        let is_empty = |store: &mut Sqlite| store.jobs(&Default::default(), 1).unwrap().is_empty();
        now = now + PRUNE;
        let begun = now;
        while !is_empty(&mut store) {
            let NextStep::At(at) = sweeper.step(&mut store, now) else {
                panic!("it has more to do")
            };
            assert!(at > now, "others have the store in between");
            now = at;
        }
        // This time is made up: it has only the pauses between the deletions.
        assert!(now.since(begun) <= Duration::from_millis(200), "{:?}", now.since(begun));
    }
}
