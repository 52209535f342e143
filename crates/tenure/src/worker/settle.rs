//! The settler: what has ended, on its way into the store, until the store has answered.
//!
//! A settlement may be repeated as often as needed: the store then tells what really happened. So nothing is
//! dropped while an answer is outstanding, however long the store is gone.

use std::sync::Arc;
use std::time::Duration;

use super::Plan;
use super::desk::{Desk, Ended, Found, Returned};
use crate::clock::{Moment, millis};
use crate::job::{BATCH_LIMIT, JobId, State};
use crate::lease::Fence;
use crate::lifecycle::Outcome;
use crate::store::{Error, Renewed, Result, Settled, Settlement, Store};
use crate::telemetry::Fact;

/// What is to be settled.
#[derive(Debug, Default)]
pub(super) struct Settler {
    pending: Vec<Ended>,
    /// How many of them were sent before, and whether that was heard is unknown.
    repeats: usize,
    /// Something has a row of theirs locked, so that they would keep the others waiting.
    locked: Vec<Ended>,
    /// The last call found something locked.
    suspects_locks: bool,
    /// When those are looked at again.
    look_at_locked: Moment,
    /// Their handlers may have completed them: the store is to be asked.
    unknown: Vec<Ended>,
    /// When it is asked.
    look_up_at: Moment,
    /// How often in a row it did not answer that.
    unanswered: u32,
    /// Whether attempts were given up whose end is not known.
    pub(super) has_abandoned: bool,
    /// How many settlements were refused.
    pub(super) refused: u64,
}

impl Settler {
    /// Takes what has ended from the desk.
    pub(super) fn gather(&mut self, desk: &Desk, now: Moment) -> Found {
        let found = desk.take(&mut self.pending, now);
        // There is nothing to say about what is not ours any more.
        self.pending.retain(|ended| {
            let lost = ended.returned == Returned::Lost;
            if lost {
                desk.forget(ended.fence);
            }
            !lost
        });
        let is_unknown = |ended: &Ended| ended.returned == Returned::PerhapsCommitted;
        let (unknown, pending) =
            std::mem::take(&mut self.pending).into_iter().partition(is_unknown);
        self.pending = pending;
        self.unknown.extend::<Vec<Ended>>(unknown);
        found
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pending.is_empty() && self.locked.is_empty() && self.unknown.is_empty()
    }

    /// Whether something waits to be sent, and is not locked.
    pub(super) fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Whether there is something to send now.
    pub(super) fn is_ready(&self, now: Moment) -> bool {
        !self.pending.is_empty() || self.next_look().is_some_and(|look| now >= look)
    }

    /// When there will be, if only what is locked or has to be looked up is left.
    pub(super) fn next_look(&self) -> Option<Moment> {
        let locked = (!self.locked.is_empty()).then_some(self.look_at_locked);
        let unknown = (!self.unknown.is_empty()).then_some(self.look_up_at);
        locked.into_iter().chain(unknown).min()
    }

    /// Sets aside what somebody else's transaction has locked: a settlement waits for its row, and all that are sent with
    /// it wait too. A renewal does not wait, so it tells. It is asked only after a call that waited in vain.
    pub(super) fn pass_by_locked(
        &mut self,
        store: &mut dyn Store,
        lease: Duration,
        now: Moment,
    ) -> Result<()> {
        const PAUSE: Duration = Duration::from_millis(500);
        if now >= self.look_at_locked {
            // Never more than one call takes: the rest has its turn later.
            let room = BATCH_LIMIT.saturating_sub(self.pending.len()).min(self.locked.len());
            self.pending.extend(self.locked.drain(..room));
        }
        if !self.suspects_locks || self.pending.is_empty() {
            return Ok(());
        }
        self.look_at_locked = now + PAUSE;
        let asked = self.pending.iter().take(BATCH_LIMIT);
        let fences: Vec<Fence> = asked.map(|ended| ended.fence).collect();
        let answers = store.renew(&fences, lease)?;
        let mut answers = answers.iter();
        let (locked, free): (Vec<_>, Vec<_>) = std::mem::take(&mut self.pending)
            .into_iter()
            .partition(|_| matches!(answers.next(), Some(Renewed::Busy)));
        self.pending = free;
        // Beside those that it is not yet time to look at.
        self.locked.extend(locked);
        self.suspects_locks = !self.locked.is_empty();
        Ok(())
    }

    pub(super) fn is_full(&self) -> bool {
        self.pending.len() >= BATCH_LIMIT
    }

    pub(super) fn len(&self) -> usize {
        self.pending.len()
    }

    /// What the store is to hear.
    pub(super) fn settlements(&mut self, plan: &Plan, desk: &Desk) -> Vec<Settlement> {
        self.pending.retain(|ended| {
            let is_done = ended.returned == Returned::Committed;
            if is_done {
                done(plan, desk, ended);
            }
            !is_done
        });
        self.pending.iter().filter_map(settlement).collect()
    }

    /// Asks the store about handlers that may have completed their jobs themselves. It is asked after everything else was
    /// sent, and asked again after a pause if it does not answer, so that nothing else waits for it. It fails only if the
    /// worker may not ask.
    pub(super) fn look_up(
        &mut self,
        store: &mut dyn Store,
        plan: &Plan,
        desk: &Desk,
        now: Moment,
    ) -> Result<()> {
        const PAUSE: Duration = Duration::from_millis(500);
        // What turns out not to be committed is settled with the next call, which takes so many.
        let room = BATCH_LIMIT.saturating_sub(self.pending.len()).min(self.unknown.len());
        if room == 0 || now < self.look_up_at {
            return Ok(());
        }
        let jobs: Vec<JobId> = self.unknown[..room].iter().map(|ended| ended.fence.job).collect();
        let answers = match store.current(&jobs) {
            Ok(answers) => answers,
            Err(error) if error.is_forbidden() => return Err(error),
            Err(error) => {
                self.look_up_at = now + PAUSE;
                self.unanswered = self.unanswered.saturating_add(1);
                // A store that is lost is told by the calls that everything waits for.
                if self.unanswered == 2 {
                    let problem = format!("jobs that their handlers completed wait: {error}");
                    plan.observer.of_worker(&plan.worker, Fact::StoreCaution { problem });
                }
                return Ok(());
            }
        };
        self.unanswered = 0;
        for (mut ended, current) in self.unknown.drain(..room).zip(answers) {
            match current {
                Some(current) if current.token != ended.fence.token => {
                    if current.state == State::Cancelled {
                        plan.tell(ended.fence, Fact::JobCancelled);
                    }
                    desk.forget(ended.fence);
                }
                Some(current) if current.state == State::Running => {
                    ended.returned = Returned::Settle(not_committed());
                    self.pending.push(ended);
                }
                // With history off, a job that has ended well is not there any more.
                Some(_) | None => done(plan, desk, &ended),
            }
        }
        Ok(())
    }

    /// Gives up on what would have to be looked up, since the store will not answer.
    pub(super) fn abandon(&mut self, desk: &Desk) {
        self.has_abandoned |= !self.unknown.is_empty();
        for ended in self.unknown.drain(..) {
            desk.forget(ended.fence);
        }
    }

    /// The store has answered.
    pub(super) fn heard(&mut self, answers: &[Settled], plan: &Arc<Plan>, desk: &Desk) {
        for (at, (ended, answer)) in self.pending.drain(..).zip(answers).enumerate() {
            let Returned::Settle(outcome) = &ended.returned else { continue };
            match answer {
                Settled::Yes(state) => tell(plan, desk, &ended, outcome, *state),
                // It has not been told yet: what was stopped for it is not settled.
                Settled::Stale(stale) if stale.state == State::Cancelled => {
                    plan.tell(ended.fence, Fact::JobCancelled);
                }
                Settled::Stale(stale) => {
                    self.refused += 1;
                    plan.tell(ended.fence, Fact::refused(outcome.verb(), stale));
                }
                // With history off, a repeated settlement finds nothing: then it was heard the first time.
                Settled::Gone if at < self.repeats => {
                    tell(plan, desk, &ended, outcome, State::Succeeded);
                }
                Settled::Gone => self.refused += 1,
            }
            desk.forget(ended.fence);
        }
        self.repeats = 0;
    }

    /// The store has not answered. What it can never accept is settled so that it can.
    pub(super) fn unheard(&mut self, error: &Error, store: &mut dyn Store) {
        self.repeats = self.pending.len();
        if !error.is_invalid() {
            self.suspects_locks |= matches!(error, Error::Busy { .. });
            return;
        }
        for ended in &mut self.pending {
            let Some(settlement) = settlement(ended) else { continue };
            // Each by itself: one that is refused as a whole keeps its fellows waiting.
            if let Err(error) = store.settle(&[settlement])
                && error.is_invalid()
            {
                ended.returned = Returned::Settle(Outcome::Bury { reason: error.to_string() });
            }
        }
    }
}

fn settlement(ended: &Ended) -> Option<Settlement> {
    match &ended.returned {
        Returned::Settle(outcome) => Some(Settlement::new(ended.fence, outcome.clone())),
        Returned::Committed | Returned::PerhapsCommitted | Returned::Lost => None,
    }
}

/// A handler has completed its job itself.
fn done(plan: &Plan, desk: &Desk, ended: &Ended) {
    tell(plan, desk, ended, &Outcome::Complete { result: None }, State::Succeeded);
    desk.forget(ended.fence);
}

/// How an attempt ends whose handler says that it is done, while its own transaction was never committed.
fn not_committed() -> Outcome {
    Outcome::Retry {
        after: Duration::from_secs(1),
        error: "the handler returned, but the transaction in which it completed the job was not \
                 committed; commit it before returning"
            .into(),
    }
}

fn tell(plan: &Plan, desk: &Desk, ended: &Ended, outcome: &Outcome, state: State) {
    let note = || outcome.note().unwrap_or_default();
    let fact = match (outcome, state) {
        (Outcome::Complete { .. }, _) => {
            Fact::JobSucceeded { kind: ended.kind.clone(), ran_ms: millis(ended.ran) }
        }
        (_, State::Dead) => Fact::JobDead { reason: note() },
        (Outcome::Retry { after, .. }, _) => {
            Fact::RetryScheduled { after_ms: millis(*after), error: note() }
        }
        (Outcome::Snooze { after }, _) => Fact::JobSnoozed { after_ms: millis(*after) },
        (Outcome::Release, _) => Fact::JobReleased,
        (Outcome::Park { .. }, _) => Fact::JobParked { reason: note() },
        (Outcome::Bury { .. }, _) => Fact::JobDead { reason: note() },
    };
    desk.count(&fact);
    plan.tell(ended.fence, fact);
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::clock::{Clock, Timestamp};
    use crate::job::{Json, Limits, Name, NewJob};
    use crate::lease::{Token, WorkerId};
    use crate::store::sqlite::{Options, Sqlite};
    use crate::store::{Claim, Cursor};
    use crate::telemetry::Observer;

    fn ended(job: i64) -> Ended {
        Ended {
            fence: Fence { job: JobId(job), token: Token(1) },
            kind: Name::check("kind", "work").unwrap(),
            returned: Returned::Settle(Outcome::Complete { result: None }),
            ran: Duration::ZERO,
        }
    }

    #[test]
    fn what_was_locked_is_never_more_than_one_call_takes_together_with_the_rest() {
        let full = BATCH_LIMIT as i64;
        let mut settler = Settler {
            pending: (1..full).map(ended).collect(),
            locked: vec![ended(full), ended(full + 1)],
            ..Settler::default()
        };
        let mut store = Sqlite::in_memory(&Options::default()).unwrap();
        settler.pass_by_locked(&mut store, Duration::from_secs(1), Moment::now()).unwrap();
        assert_eq!((settler.pending.len(), settler.locked.len()), (BATCH_LIMIT, 1));
    }

    /// A store with one job, and what was told.
    struct Bench {
        clock: Clock,
        store: Sqlite,
        told: Arc<Mutex<Vec<&'static str>>>,
        plan: Arc<Plan>,
        desk: Desk,
    }

    const LEASE: Duration = Duration::from_secs(30);

    impl Bench {
        fn new() -> Bench {
            let clock = Clock::manual(Timestamp::from_millis(1_000_000_000_000));
            let options = Options { clock: clock.clone(), limits: Limits::default() };
            let mut store = Sqlite::in_memory(&options).unwrap();
            let kind = Name::check("kind", "work").unwrap();
            store.enqueue(&[NewJob::new(kind, Json::check("args", "{}", 10).unwrap())]).unwrap();
            let told: Arc<Mutex<Vec<&str>>> = Arc::default();
            let seen = Arc::clone(&told);
            let plan = Plan {
                worker: WorkerId::check("ann").unwrap(),
                queues: vec![Name::default_queue()],
                kinds: None,
                slots: 1,
                lease: LEASE,
                drain: false,
                observer: Observer::new(move |event| seen.lock().unwrap().push(event.fact.name())),
            };
            Bench { clock, store, told, plan: Arc::new(plan), desk: Desk::new(1) }
        }

        /// Claims the job.
        fn take(&mut self, who: &str) -> Fence {
            let ask = Claim {
                worker: WorkerId::check(who).unwrap(),
                queues: vec![Name::default_queue()],
                kinds: None,
                n: 1,
                lease: LEASE,
                cursor: Cursor::default(),
                grace: Duration::ZERO,
                request: 0,
            };
            self.store.claim(&ask).unwrap().attempts.remove(0).lease.fence()
        }

        fn complete(&mut self, fence: Fence) {
            let outcome = Outcome::Complete { result: None };
            let answers = self.store.settle(&[Settlement::new(fence, outcome)]).unwrap();
            assert_eq!(answers, [Settled::Yes(State::Succeeded)]);
        }

        /// Lets Ann's settler settle an attempt that came back so, and answers what it told.
        fn settle(&mut self, fence: Fence, returned: Returned) -> Vec<&'static str> {
            let ended = vec![Ended { fence, returned, ..ended(fence.job.0) }];
            let mut settler = match ended[0].returned {
                Returned::PerhapsCommitted => Settler { unknown: ended, ..Settler::default() },
                _ => Settler { pending: ended, ..Settler::default() },
            };
            let now = Moment::after_start(Duration::from_secs(1_000));
            settler.look_up(&mut self.store, &self.plan, &self.desk, now).unwrap();
            let settlements = settler.settlements(&self.plan, &self.desk);
            let answers = self.store.settle(&settlements).unwrap();
            settler.heard(&answers, &self.plan, &self.desk);
            self.told.lock().unwrap().drain(..).collect()
        }
    }

    #[test]
    fn a_job_that_its_handler_has_perhaps_completed_is_told_as_a_success_only_if_it_has() {
        let mut bench = Bench::new();
        let ours = bench.take("ann");
        bench.clock.advance(LEASE);
        let theirs = bench.take("bob");
        assert!(theirs.job == ours.job && theirs.token > ours.token);
        bench.complete(theirs);
        let told = bench.settle(ours, Returned::PerhapsCommitted);
        assert_eq!(told, [""; 0], "another holder has completed it");
        // And the same question about the one who has.
        assert_eq!(bench.settle(theirs, Returned::PerhapsCommitted), ["job_succeeded"]);
    }

    #[test]
    fn a_settlement_that_finds_its_job_cancelled_tells_that_and_no_blocked_write() {
        for returned in
            [Returned::Settle(Outcome::Complete { result: None }), Returned::PerhapsCommitted]
        {
            let mut bench = Bench::new();
            let fence = bench.take("ann");
            bench.store.cancel(&[fence.job]).unwrap();
            assert_eq!(bench.settle(fence, returned), ["job_cancelled"]);
        }
    }

    #[test]
    fn a_settlement_that_finds_its_job_taken_over_tells_of_a_blocked_write() {
        let mut bench = Bench::new();
        let ours = bench.take("ann");
        bench.clock.advance(LEASE);
        let theirs = bench.take("bob");
        let done = || Returned::Settle(Outcome::Complete { result: None });
        assert_eq!(bench.settle(ours, done()), ["stale_write_blocked"]);
        bench.complete(theirs);
        assert_eq!(bench.settle(ours, done()), ["stale_write_blocked"]);
    }
}
