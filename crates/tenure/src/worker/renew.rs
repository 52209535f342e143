//! The renewer: renews the leases of the process, up to a thousand with one call, and stops
//! handlers that must not continue.
//!
//! It has a thread and a connection of its own, so that neither a busy runtime nor a slow claim
//! ever costs a lease. This connection also holds the worker's guard, because it is the one that is
//! used most steadily.

use std::sync::Arc;
use std::time::Duration;

use super::{NextStep, Plan};
use crate::clock::{Moment, millis};
use crate::desk::{Cause, Desk, Hold, Stage};
use crate::job::{BATCH_LIMIT, State};
use crate::lease::{Fence, Reason, Stale};
use crate::lifecycle::Verb;
use crate::store::{Error, Guarded, Registration, Renewed, Result, Work};
use crate::telemetry::Fact;

/// The renewer's state.
#[derive(Debug)]
pub struct Renewer {
    plan: Arc<Plan>,
    desk: Arc<Desk>,
    registered: Option<Guarded>,
    next: Moment,
    /// The caution about the store that it reported last.
    caution: Option<String>,
}

impl Renewer {
    /// The renewer of the worker at this desk.
    pub fn new(plan: Arc<Plan>, desk: Arc<Desk>) -> Renewer {
        Renewer { plan, desk, registered: None, next: Moment::default(), caution: None }
    }

    /// Does what is due, and returns when to call it again.
    pub fn step(&mut self, store: &mut dyn Work, now: Moment) -> NextStep {
        if self.desk.stage() == Stage::Over {
            // A worker that leaves jobs behind does not delete its registration: its guard is
            // released while it is registered, and by that other workers notice its end.
            if self.desk.leaves_nothing() {
                let _ = store.retire(&self.plan.worker);
            }
            return NextStep::Done;
        }
        let revoke = self.desk.revoke(now);
        if now >= self.next {
            let round = self.round(store, now);
            match &round {
                // A round without a call does not show whether the store is back.
                Ok(false) => {}
                Ok(true) => self.plan.tell_answered(&self.desk, true),
                Err(error) => self.plan.tell_of_store(&self.desk, error),
            }
            self.pass_on(store.caution());
            self.next = now + if round.is_ok() { self.plan.renewal() } else { self.plan.hurry() };
        }
        NextStep::At(revoke.map_or(self.next, |revoke| revoke.min(self.next)))
    }

    /// Registers the worker if needed, and renews. A worker that cannot be registered, for example
    /// because its guard file cannot be written, still renews its leases. Only if the store is out
    /// of reach is the second call pointless. Returns whether the store was asked.
    fn round(&mut self, store: &mut dyn Work, now: Moment) -> Result<bool> {
        let registers = self.registered.is_none();
        match self.register(store) {
            Err(error) if error.is_transient() => Err(error),
            registered => {
                let renews = self.renew(store, now)?;
                registered.map(|()| registers || renews)
            }
        }
    }

    /// A wait failed. Reports at once an error that does not pass by itself. Other errors are
    /// reported by the next round, if they last.
    pub(super) fn unheard(&self, error: &Error) {
        if !error.is_transient() {
            self.plan.tell_of_store(&self.desk, error);
        }
    }

    /// Whether the worker drains, or ends already.
    pub(super) fn may_end_soon(&self) -> bool {
        self.plan.drain || self.desk.stage() > Stage::Working
    }

    /// Reports what is wrong with the store, once.
    fn pass_on(&mut self, caution: Option<String>) {
        if let Some(problem) = caution.as_ref().filter(|_| caution != self.caution) {
            let fact = Fact::StoreCaution { problem: problem.clone() };
            self.plan.observer.of_worker(&self.plan.worker, fact);
        }
        self.caution = caution;
    }

    /// Registers the worker, once. The connection itself holds the guard, and takes it again after
    /// it has reconnected.
    pub(super) fn register(&mut self, store: &mut dyn Work) -> Result<()> {
        if self.registered.is_none() {
            let known = Registration {
                kinds: self.plan.kinds.clone(),
                ..Registration::new(self.plan.worker.clone(), self.plan.queues.clone())
            };
            self.registered = Some(store.register(&known)?);
        }
        Ok(())
    }

    /// Renews the leases that are older than half a round. Younger ones can wait for the next
    /// round, and most jobs end before they need it.
    fn renew(&mut self, store: &mut dyn Work, now: Moment) -> Result<bool> {
        let renewal = self.plan.renewal();
        let begun = Moment::default() + now.since(Moment::default() + renewal / 2);
        let holds = self.desk.to_renew(begun, now);
        let mut answered = Ok(!holds.is_empty());
        // There may be more than one call accepts: ended attempts that cannot be settled yet keep
        // their leases beside the running ones.
        for holds in holds.chunks(BATCH_LIMIT) {
            let fences: Vec<Fence> = holds.iter().map(|hold| hold.fence).collect();
            let gone = answered.as_ref().is_err_and(Error::is_transient);
            if gone {
                // The store is out of reach: another call is pointless.
                self.desk.renewed(&fences, &[], now, self.plan.lease);
            } else if let Err(error) = self.renew_part(store, holds, &fences, now) {
                answered = Err(error);
            }
        }
        answered
    }

    /// Renews a part that one call accepts.
    fn renew_part(
        &self,
        store: &mut dyn Work,
        holds: &[Arc<Hold>],
        fences: &[Fence],
        now: Moment,
    ) -> Result<()> {
        let answers = store.renew(fences, self.plan.lease);
        let answered = || holds.iter().zip(answers.iter().flatten());
        let is_held = |(hold, answer): (&Arc<Hold>, &Renewed)| {
            matches!(answer, Renewed::Extended(_)).then_some(hold.fence)
        };
        // Before the events are reported, because observers may take long.
        self.desk.renewed(
            fences,
            &answered().filter_map(is_held).collect::<Vec<_>>(),
            now,
            self.plan.lease,
        );
        for (hold, answer) in answered() {
            match answer {
                Renewed::Extended(until) => {
                    self.plan.tell(&hold.about, Fact::LeaseRenewed { until: *until });
                }
                Renewed::Stale(stale) => self.lost(hold, Some(stale), now),
                Renewed::NotFound => self.lost(hold, None, now),
                // An open transaction has locked the row, so no other worker can take the job: the
                // next round asks again.
                Renewed::Busy => {}
            }
        }
        answers.map(drop)
    }

    fn lost(&self, hold: &Hold, stale: Option<&Stale>, now: Moment) {
        let by_itself = |stale: &Stale| {
            stale.reason == Reason::AlreadySettled && stale.state == State::Succeeded
        };
        if stale.is_some_and(by_itself) {
            // Its handler has completed the job in its own transaction, and continues.
            return self.desk.committed(hold.fence, now);
        }
        let cancelled = stale.is_some_and(|stale| stale.state == State::Cancelled);
        let cause = if cancelled { Cause::Cancelled } else { Cause::Lost };
        if let (true, Some(stale)) = (self.desk.lose(hold.fence, cause), stale) {
            self.plan.wake_waiting(hold.fence.job, stale.state);
            let ran = hold.ran(now);
            let fact = match cause {
                Cause::Cancelled => Fact::JobCancelled { ran_ms: millis(ran) },
                _ => Fact::refused(Verb::Renew, stale, ran),
            };
            self.plan.tell(&hold.about, fact);
        }
    }
}

impl Plan {
    /// How often leases are renewed: several times within each lease, and often enough that a
    /// cancelled job stops soon.
    pub(crate) fn renewal(&self) -> Duration {
        const LONGEST: Duration = Duration::from_secs(5);
        (self.lease / 3).min(LONGEST)
    }

    /// How soon to retry when the store did not answer.
    pub(crate) fn hurry(&self) -> Duration {
        (self.lease / 20).clamp(Duration::from_millis(20), Duration::from_millis(500))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use sha2::{Digest, Sha256};

    use super::*;
    use crate::clock::{Clock, Timestamp};
    use crate::desk::Returned;
    use crate::job::{Json, Limits, Name, NewJob};
    use crate::lease::WorkerId;
    use crate::lifecycle::Outcome;
    use crate::store::sqlite::{Sqlite, StoreOptions};
    use crate::store::{Claim, Look, Operate, Settled, Settlement};
    use crate::telemetry::Observer;

    #[test]
    fn a_worker_that_cannot_be_guarded_keeps_its_leases_all_the_same() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("jobs.db");
        let clock = Clock::manual(Timestamp::from_millis(1_000_000_000_000));
        let options = StoreOptions { clock: clock.clone(), limits: Limits::default() };
        let mut store = Sqlite::open(&file, &options).unwrap();
        let plan = Arc::new(Plan::new(WorkerId::check("ann").unwrap()));
        // A directory is in the way where its guard file should be.
        let hash: String = Sha256::digest("ann")[..8].iter().map(|b| format!("{b:02x}")).collect();
        std::fs::create_dir(directory.path().join(format!("jobs.db-guard-{hash}"))).unwrap();
        let desk = Arc::new(Desk::new(1));
        let mut renewer = Renewer::new(Arc::clone(&plan), Arc::clone(&desk));
        assert!(renewer.register(&mut store).is_err());

        let kind = Name::check("kind", "work").unwrap();
        store.enqueue(&[NewJob::new(kind, Json::check("args", "{}", 10).unwrap())]).unwrap();
        let attempt = store.claim(&ask("ann")).unwrap().attempts.remove(0);
        let start = Moment::after_start(Duration::from_secs(1_000));
        desk.hold(&attempt, start, plan.lease).unwrap();

        let later = Duration::from_secs(10);
        clock.advance(later);
        renewer.step(&mut store, start + later);
        let kept = store.leases(1).unwrap().remove(0).until;
        assert_eq!(kept, attempt.lease.until() + later);
    }

    /// The worker holds more leases than one call accepts, as when its slots are full and it also
    /// holds attempts that have ended and whose rows are locked.
    #[test]
    fn every_lease_is_renewed_however_many_there_are() {
        const HELD: usize = 2 * BATCH_LIMIT + 1;
        let clock = Clock::manual(Timestamp::from_millis(1_000_000_000_000));
        let options = StoreOptions { clock: clock.clone(), limits: Limits::default() };
        let mut store = Sqlite::in_memory(&options).unwrap();
        let plan = Plan { slots: BATCH_LIMIT, ..Plan::new(WorkerId::check("ann").unwrap()) };
        let plan = Arc::new(plan);
        let desk = Arc::new(Desk::new(plan.slots));
        let mut renewer = Renewer::new(Arc::clone(&plan), Arc::clone(&desk));
        let kind = Name::check("kind", "work").unwrap();
        let job = NewJob::new(kind, Json::check("args", "{}", 10).unwrap());
        let start = Moment::after_start(Duration::from_secs(1_000));
        let mut left = HELD;
        while left > 0 {
            let n = left.min(BATCH_LIMIT);
            store.enqueue(&vec![job.clone(); n]).unwrap();
            let ask = Claim {
                queues: plan.queues.clone(),
                ..Claim::new(plan.worker.clone(), n, plan.lease)
            };
            let attempts = store.claim(&ask).unwrap().attempts;
            assert_eq!(attempts.len(), n);
            for attempt in attempts {
                desk.hold(&attempt, start, plan.lease).unwrap();
            }
            left -= n;
        }
        for round in 1..=4 {
            let passed = plan.renewal() * round;
            clock.advance(plan.renewal());
            renewer.step(&mut store, start + passed);
            let soonest = store.leases(1).unwrap().remove(0).until;
            assert_eq!(soonest, clock.now() + plan.lease, "round {round}");
        }
        assert!(desk.to_renew(start, start + plan.lease).is_empty(), "all were renewed");
    }

    /// Ann holds a job, `meanwhile` happens to it, and her renewer renews. Returns the reported
    /// events, why her handler was stopped, and how many attempts are left to settle. A caller that
    /// waits for the job is woken if the renewer finds that it has ended.
    fn renewed_after(
        meanwhile: impl Fn(&mut Sqlite, &Clock, Fence),
    ) -> (Vec<Fact>, Option<Cause>, usize) {
        let clock = Clock::manual(Timestamp::from_millis(1_000_000_000_000));
        let options = StoreOptions { clock: clock.clone(), limits: Limits::default() };
        let mut store = Sqlite::in_memory(&options).unwrap();
        let told: Arc<Mutex<Vec<Fact>>> = Arc::default();
        let seen = Arc::clone(&told);
        let plan = Arc::new(Plan {
            observer: Observer::new(move |event| seen.lock().unwrap().push(event.fact.clone())),
            ..Plan::new(WorkerId::check("ann").unwrap())
        });
        let kind = Name::check("kind", "work").unwrap();
        store.enqueue(&[NewJob::new(kind, Json::check("args", "{}", 10).unwrap())]).unwrap();
        let attempt = store.claim(&ask("ann")).unwrap().attempts.remove(0);
        let desk = Arc::new(Desk::new(1));
        let start = Moment::after_start(Duration::from_secs(1_000));
        let hold = desk.hold(&attempt, start, plan.lease).unwrap();
        meanwhile(&mut store, &clock, hold.fence);
        let waiting = plan.waiters.wait_for(hold.fence.job);
        let mut renewer = Renewer::new(Arc::clone(&plan), Arc::clone(&desk));
        let later = start + Duration::from_secs(10);
        renewer.step(&mut store, later);
        let stopped = hold.trust().stopped;
        assert_eq!(waiting.is_woken(), stopped.is_some());
        // Its handler returns as if nothing had happened.
        let done = Returned::Settle(Outcome::Complete { result: None });
        desk.returned(hold.fence, done, later);
        let mut ended = Vec::new();
        desk.take(&mut ended, later);
        (told.lock().unwrap().drain(..).collect(), stopped, ended.len())
    }

    fn ask(who: &str) -> Claim {
        Claim::new(WorkerId::check(who).unwrap(), 1, Duration::from_secs(30))
    }

    fn complete(store: &mut Sqlite, fence: Fence) {
        let settlement = Settlement::new(fence, Outcome::Complete { result: None });
        assert!(matches!(store.settle(&[settlement]).unwrap()[..], [Settled::Applied(_)]));
    }

    #[test]
    fn a_renewal_that_finds_its_job_cancelled_tells_that_and_nothing_is_settled() {
        let cancel = |store: &mut Sqlite, _: &Clock, fence: Fence| {
            store.cancel(&[fence.job]).unwrap();
        };
        let cancelled = vec![Fact::JobCancelled { ran_ms: 10_000 }];
        assert_eq!(renewed_after(cancel), (cancelled, Some(Cause::Cancelled), 0));
    }

    #[test]
    fn what_another_holder_has_completed_is_not_told_as_ones_own() {
        let by_another = |store: &mut Sqlite, clock: &Clock, fence: Fence| {
            clock.advance(Duration::from_secs(30));
            let theirs = store.claim(&ask("bob")).unwrap().attempts.remove(0).lease.fence();
            assert!(theirs.job == fence.job && theirs.token > fence.token);
            complete(store, theirs);
        };
        let is_blocked = |(told, cause, left): (Vec<Fact>, Option<Cause>, usize)| {
            let [Fact::StaleWriteBlocked { ran_ms, .. }] = told[..] else { panic!("{told:?}") };
            assert_eq!((ran_ms, cause, left), (10_000, Some(Cause::Lost), 0));
        };
        is_blocked(renewed_after(by_another));
        // Its own completion, in its handler's transaction, is settled as such.
        let by_itself = |store: &mut Sqlite, _: &Clock, fence: Fence| complete(store, fence);
        assert_eq!(renewed_after(by_itself), (vec![], None, 1));
        // If its own token buried the job, its handler has nothing left to complete.
        let buried = |store: &mut Sqlite, _: &Clock, fence: Fence| {
            let settlement = Settlement::new(fence, Outcome::Bury { reason: "never".into() });
            assert!(matches!(store.settle(&[settlement]).unwrap()[..], [Settled::Applied(_)]));
        };
        is_blocked(renewed_after(buried));
    }
}
