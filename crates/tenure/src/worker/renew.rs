//! The renewer: keeps the leases of the process, all with one call, and stops what is not to go on.
//!
//! It has a thread and a connection of its own, so that neither a busy runtime nor a slow claim ever costs a
//! lease. The worker's guard hangs on this connection too: it is the one that is used most steadily.

use std::sync::Arc;
use std::time::Duration;

use super::desk::{Cause, Desk, Stage};
use super::{Next, Plan};
use crate::clock::Moment;
use crate::job::State;
use crate::lease::{Fence, Reason, Stale};
use crate::lifecycle::Verb;
use crate::store::{Guarded, Registration, Renewed, Result, Store};
use crate::telemetry::Fact;

/// The machine.
#[derive(Debug)]
pub struct Renewer {
    plan: Arc<Plan>,
    desk: Arc<Desk>,
    registered: Option<Guarded>,
    next: Moment,
}

impl Renewer {
    /// The renewer of the worker at this desk.
    pub fn new(plan: Arc<Plan>, desk: Arc<Desk>) -> Renewer {
        Renewer { plan, desk, registered: None, next: Moment::default() }
    }

    /// Does what is due, and tells when to be called again.
    pub fn step(&mut self, store: &mut dyn Store, now: Moment) -> Next {
        if self.desk.stage() == Stage::Over {
            // Who leaves jobs behind says nothing: that its lock is free without a word is how others notice.
            if self.desk.leaves_nothing() {
                let _ = store.retire(&self.plan.worker);
            }
            return Next::Done;
        }
        let revoke = self.desk.revoke(now);
        if now >= self.next {
            let round = self.round(store, now);
            self.plan.tell_of_store(&self.desk, round.as_ref().err());
            self.next = now + if round.is_ok() { self.plan.renewal() } else { self.plan.hurry() };
        }
        Next::At(revoke.map_or(self.next, |revoke| revoke.min(self.next)))
    }

    /// A worker that cannot be made known, say because its lock's file cannot be written, keeps its leases all the same.
    /// Only if the store is out of reach there is no use in asking it twice.
    fn round(&mut self, store: &mut dyn Store, now: Moment) -> Result<()> {
        let registered = self.register(store);
        match &registered {
            Err(error) if error.is_transient() => registered,
            _ => self.renew(store, now).and(registered),
        }
    }

    /// Makes the worker known, once; the guard is kept by the connection itself.
    pub(super) fn register(&mut self, store: &mut dyn Store) -> Result<()> {
        if self.registered.is_none() {
            let known = Registration {
                worker: self.plan.worker.clone(),
                queues: self.plan.queues.clone(),
                kinds: self.plan.kinds.clone(),
            };
            self.registered = Some(store.register(&known)?);
        }
        Ok(())
    }

    /// Renews what is older than half a round: what is younger has time until the next, and most jobs end
    /// before they need it.
    fn renew(&mut self, store: &mut dyn Store, now: Moment) -> Result<()> {
        let renewal = self.plan.renewal();
        let begun = Moment::default() + now.since(Moment::default() + renewal / 2);
        let fences = self.desk.to_renew(begun, now);
        let answers =
            if fences.is_empty() { Ok(Vec::new()) } else { store.renew(&fences, self.plan.lease) };
        let answered = || fences.iter().zip(answers.iter().flatten());
        let is_held = |(fence, answer): (&Fence, &Renewed)| {
            matches!(answer, Renewed::Held(_)).then_some(*fence)
        };
        // First of all, because whoever is told takes their time.
        self.desk.renewed(
            &answered().filter_map(is_held).collect::<Vec<_>>(),
            now,
            self.plan.lease,
        );
        for (fence, answer) in answered() {
            match answer {
                Renewed::Held(until) => {
                    self.plan.tell(*fence, Fact::LeaseRenewed { until: *until });
                }
                Renewed::Lost(stale) => self.lost(*fence, Some(stale), now),
                Renewed::Gone => self.lost(*fence, None, now),
                // An open transaction has the row, so nobody can take the job: the next round asks again.
                Renewed::Busy => {}
            }
        }
        answers.map(drop)
    }

    fn lost(&self, fence: Fence, stale: Option<&Stale>, now: Moment) {
        let by_itself = |stale: &Stale| {
            stale.reason == Reason::AlreadySettled && stale.state == State::Succeeded
        };
        if stale.is_some_and(by_itself) {
            // Its handler has completed it in a transaction of its own, and goes on.
            return self.desk.committed(fence, now);
        }
        let cancelled = stale.is_some_and(|stale| stale.state == State::Cancelled);
        let cause = if cancelled { Cause::Cancelled } else { Cause::Lost };
        if let (true, Some(stale)) = (self.desk.lose(fence, cause), stale) {
            self.plan.tell(fence, Fact::refused(Verb::Renew, stale));
        }
    }
}

impl Plan {
    /// How often leases are renewed: several times within each, and often enough that a cancelled job stops
    /// soon.
    pub(crate) fn renewal(&self) -> Duration {
        const LONGEST: Duration = Duration::from_secs(5);
        (self.lease / 3).min(LONGEST)
    }

    /// How soon it is tried again when the store did not answer.
    pub(crate) fn hurry(&self) -> Duration {
        (self.lease / 20).clamp(Duration::from_millis(20), Duration::from_millis(500))
    }
}

#[cfg(test)]
mod tests {
    use sha2::{Digest, Sha256};

    use super::*;
    use crate::clock::{Clock, Timestamp};
    use crate::job::{Json, Limits, Name, NewJob};
    use crate::lease::WorkerId;
    use crate::store::sqlite::{Options, Sqlite};
    use crate::store::{Claim, Cursor};
    use crate::telemetry::Observer;

    #[test]
    fn a_worker_that_cannot_be_guarded_keeps_its_leases_all_the_same() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("jobs.db");
        let clock = Clock::manual(Timestamp::from_millis(1_000_000_000_000));
        let options = Options { clock: clock.clone(), limits: Limits::default() };
        let mut store = Sqlite::open(&file, &options).unwrap();
        let plan = Arc::new(Plan {
            worker: WorkerId::check("ann").unwrap(),
            queues: vec![Name::default_queue()],
            kinds: None,
            slots: 1,
            lease: Duration::from_secs(30),
            drain: false,
            observer: Observer::new(|_| ()),
        });
        // Where its lock should be, something else is in the way.
        let hash: String = Sha256::digest("ann")[..8].iter().map(|b| format!("{b:02x}")).collect();
        std::fs::create_dir(directory.path().join(format!("jobs.db-guard-{hash}"))).unwrap();
        let desk = Arc::new(Desk::new(1));
        let mut renewer = Renewer::new(Arc::clone(&plan), Arc::clone(&desk));
        assert!(renewer.register(&mut store).is_err());

        let kind = Name::check("kind", "work").unwrap();
        store.enqueue(&[NewJob::new(kind, Json::check("args", "{}", 10).unwrap())]).unwrap();
        let ask = Claim {
            worker: plan.worker.clone(),
            queues: plan.queues.clone(),
            kinds: None,
            n: 1,
            lease: plan.lease,
            cursor: Cursor::default(),
            grace: Duration::ZERO,
        };
        let attempt = store.claim(&ask).unwrap().attempts.remove(0);
        let start = Moment::after_start(Duration::from_secs(1_000));
        desk.hold(&attempt, start, plan.lease).unwrap();

        let later = Duration::from_secs(10);
        clock.advance(later);
        renewer.step(&mut store, start + later);
        let kept = store.leases(1).unwrap().remove(0).until;
        assert_eq!(kept, attempt.lease.until() + later);
    }
}
