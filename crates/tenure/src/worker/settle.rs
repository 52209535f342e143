//! The settler: keeps ended attempts until the store has confirmed their settlement.
//!
//! A settlement may be repeated as often as needed: the store then answers what really happened. So
//! nothing is dropped while an answer is outstanding, however long the store is away.

use std::sync::Arc;
use std::time::Duration;

use super::{Plan, attempt};
use crate::clock::{Moment, millis};
use crate::desk::{Desk, Ended, Found, Returned};
use crate::job::{BATCH_LIMIT, JobId, State};
use crate::lease::Fence;
use crate::lifecycle::Outcome;
use crate::store::{Attempt, Error, Renewed, Result, Settled, Settlement, Work};
use crate::telemetry::Fact;

/// The attempts to settle.
#[derive(Debug, Default)]
pub(super) struct Settler {
    pending: Vec<Ended>,
    /// Attempts whose row another transaction has locked. In a call with others, the others would
    /// have to wait for that lock.
    locked: Vec<Ended>,
    /// The last call found a lock.
    suspects_locks: bool,
    /// When the locked ones are tried again.
    look_at_locked: Moment,
    /// Attempts that their handlers may have completed themselves: the store must be asked.
    unknown: Vec<Ended>,
    /// When to ask the store about them.
    look_up_at: Moment,
    /// How many times in a row the store did not answer that question.
    unanswered: u32,
    /// Whether attempts were given up without knowing how they ended.
    pub(super) has_abandoned: bool,
    /// How many settlements were refused.
    pub(super) refused: u64,
}

impl Settler {
    /// Takes the ended attempts from the desk.
    pub(super) fn gather(&mut self, desk: &Desk, now: Moment) -> Found {
        let found = desk.take(&mut self.pending, now);
        self.drop_lost(desk);
        let is_unknown = |ended: &Ended| ended.returned == Returned::PerhapsCommitted;
        let (unknown, pending) =
            std::mem::take(&mut self.pending).into_iter().partition(is_unknown);
        self.pending = pending;
        self.unknown.extend::<Vec<Ended>>(unknown);
        found
    }

    /// Takes a batch of ended attempts for the [relief](super::relief), and returns how many
    /// attempts it should claim; `None` if there is no batch.
    pub(super) fn gather_relief(&mut self, desk: &Desk, now: Moment) -> Option<usize> {
        let room = desk.take_relief(&mut self.pending, now)?;
        self.drop_lost(desk);
        Some(room)
    }

    /// Hands over the attempts that are still to be settled, for another settler.
    pub(super) fn hand_over(&mut self, was_sent: bool) -> Vec<Ended> {
        let mut pending = std::mem::take(&mut self.pending);
        for ended in &mut pending {
            ended.was_sent |= was_sent;
        }
        pending
    }

    /// A lost job needs no settlement.
    fn drop_lost(&mut self, desk: &Desk) {
        self.pending.retain(|ended| {
            let lost = ended.returned == Returned::Lost;
            if lost {
                desk.forget(ended.fence());
            }
            !lost
        });
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pending.is_empty() && self.locked.is_empty() && self.unknown.is_empty()
    }

    /// Whether there are attempts to send that are not locked.
    pub(super) fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Whether there is something to send or to ask now.
    pub(super) fn is_ready(&self, now: Moment) -> bool {
        !self.pending.is_empty() || self.next_look().is_some_and(|look| now >= look)
    }

    /// When to try the locked attempts again, or to ask about the unknown ones.
    pub(super) fn next_look(&self) -> Option<Moment> {
        let locked = (!self.locked.is_empty()).then_some(self.look_at_locked);
        let unknown = (!self.unknown.is_empty()).then_some(self.look_up_at);
        locked.into_iter().chain(unknown).min()
    }

    /// Sets aside attempts whose row another transaction has locked: a settlement would wait for
    /// the row, and all others in the same call with it. A renewal does not wait, so its answer
    /// shows which rows are locked. The store is asked only after a call that timed out on a lock.
    pub(super) fn pass_by_locked(
        &mut self,
        store: &mut dyn Work,
        lease: Duration,
        now: Moment,
    ) -> Result<()> {
        const PAUSE: Duration = Duration::from_millis(500);
        if now >= self.look_at_locked {
            // Never more than one call accepts: the rest is tried later.
            let room = BATCH_LIMIT.saturating_sub(self.pending.len()).min(self.locked.len());
            self.pending.extend(self.locked.drain(..room));
        }
        if !self.suspects_locks || self.pending.is_empty() {
            return Ok(());
        }
        self.look_at_locked = now + PAUSE;
        let asked = self.pending.iter().take(BATCH_LIMIT);
        let fences: Vec<Fence> = asked.map(Ended::fence).collect();
        let answers = store.renew(&fences, lease)?;
        let mut answers = answers.iter();
        let (locked, free): (Vec<_>, Vec<_>) = std::mem::take(&mut self.pending)
            .into_iter()
            .partition(|_| matches!(answers.next(), Some(Renewed::Busy)));
        self.pending = free;
        // Added to those that are not due for another try yet.
        self.locked.extend(locked);
        self.suspects_locks = !self.locked.is_empty();
        Ok(())
    }

    /// The attempts to send that are not locked, in the order in which they ended.
    pub(super) fn pending(&self) -> &[Ended] {
        &self.pending
    }

    /// The settlements to send. Attempts that their handlers have completed themselves need none.
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

    /// Asks the store about handlers that may have completed their jobs themselves. It asks after
    /// everything else was sent, and again after a pause if the store does not answer, so that
    /// nothing else waits for it. It returns an error only if the worker lacks the right to ask.
    pub(super) fn look_up(
        &mut self,
        store: &mut dyn Work,
        plan: &Plan,
        desk: &Desk,
        now: Moment,
    ) -> Result<()> {
        const PAUSE: Duration = Duration::from_millis(500);
        // An attempt that turns out not to be committed is settled with the next call, which
        // accepts only so many.
        let room = BATCH_LIMIT.saturating_sub(self.pending.len()).min(self.unknown.len());
        if room == 0 || now < self.look_up_at {
            return Ok(());
        }
        let jobs: Vec<JobId> = self.unknown[..room].iter().map(|ended| ended.about.job).collect();
        let answers = match store.current(&jobs) {
            Ok(answers) => answers,
            Err(error) if error.is_forbidden() => return Err(error),
            Err(error) => {
                self.look_up_at = now + PAUSE;
                self.unanswered = self.unanswered.saturating_add(1);
                // Other calls report that the store is lost. This event reports only that these
                // jobs wait.
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
                Some(current) if current.token != ended.about.token => {
                    if current.state == State::Cancelled {
                        tell_cancelled(plan, &ended);
                    }
                    desk.forget(ended.fence());
                }
                Some(current) if current.state == State::Running => {
                    ended.returned = Returned::Settle(not_committed());
                    self.pending.push(ended);
                }
                // With history off, the row of a succeeded job is gone.
                Some(_) | None => done(plan, desk, &ended),
            }
        }
        Ok(())
    }

    /// Gives up the attempts that must be looked up: the worker lacks a right, so the store would
    /// refuse to answer.
    pub(super) fn abandon(&mut self, desk: &Desk) {
        self.has_abandoned |= !self.unknown.is_empty();
        for ended in self.unknown.drain(..) {
            desk.forget(ended.fence());
        }
    }

    /// The store has answered the settlements.
    pub(super) fn heard(&mut self, answers: &[Settled], plan: &Arc<Plan>, desk: &Desk) {
        for (ended, answer) in self.pending.drain(..).zip(answers) {
            let Returned::Settle(outcome) = &ended.returned else { continue };
            match answer {
                Settled::Applied(state) => tell(plan, desk, &ended, outcome, *state),
                // Nothing else has reported the cancellation. If the worker had noticed it before,
                // the handler would have been stopped and its attempt not settled.
                Settled::Stale(stale) if stale.state == State::Cancelled => {
                    tell_cancelled(plan, &ended);
                }
                Settled::Stale(stale) => {
                    self.refused += 1;
                    plan.wake_waiting(ended.about.job, stale.state);
                    plan.tell(&ended.about, Fact::refused(outcome.verb(), stale, ended.ran));
                }
                // With history off, a repeated settlement finds no row if the first one was
                // applied.
                Settled::NotFound if ended.was_sent => {
                    tell(plan, desk, &ended, outcome, State::Succeeded);
                }
                Settled::NotFound => self.refused += 1,
            }
            desk.forget(ended.fence());
        }
    }

    /// The call failed. A settlement that the store can never accept is replaced by one that it
    /// can: the job is buried.
    pub(super) fn unheard(&mut self, error: &Error, store: &mut dyn Work) {
        for ended in &mut self.pending {
            ended.was_sent = true;
        }
        if !error.is_invalid() {
            self.suspects_locks |= matches!(error, Error::Busy { .. });
            return;
        }
        for ended in &mut self.pending {
            let Some(settlement) = settlement(ended) else { continue };
            // Each in a call of its own: in a batch, one invalid settlement blocks all others.
            if let Err(error) = store.settle(&[settlement])
                && error.is_invalid()
            {
                ended.returned = Returned::Settle(Outcome::Bury { reason: error.to_string() });
            }
        }
    }
}

/// Gives back jobs that no slot is free for: a claim whose answer was lost has leased them.
pub(super) fn release(
    store: &mut dyn Work,
    plan: &Plan,
    desk: &Desk,
    attempts: &[Attempt],
) -> Result<()> {
    let release = |attempt: &Attempt| Settlement::new(attempt.lease.fence(), Outcome::Release);
    let answers = store.settle(&attempts.iter().map(release).collect::<Vec<_>>())?;
    for (one, answer) in attempts.iter().zip(answers) {
        let Settled::Applied(state) = answer else { continue };
        let about = Arc::new(one.about());
        plan.tell(&about, attempt::acquired(one));
        let returned = Returned::Settle(Outcome::Release);
        let ended = Ended { about, returned, ran: Duration::ZERO, was_sent: false };
        tell(plan, desk, &ended, &Outcome::Release, state);
    }
    Ok(())
}

fn settlement(ended: &Ended) -> Option<Settlement> {
    match &ended.returned {
        Returned::Settle(outcome) => Some(Settlement::new(ended.fence(), outcome.clone())),
        Returned::Committed | Returned::PerhapsCommitted | Returned::Lost => None,
    }
}

/// The handler has completed its job itself: reports it as a success.
fn done(plan: &Plan, desk: &Desk, ended: &Ended) {
    tell(plan, desk, ended, &Outcome::Complete { result: None }, State::Succeeded);
    desk.forget(ended.fence());
}

fn tell_cancelled(plan: &Plan, ended: &Ended) {
    plan.wake_waiting(ended.about.job, State::Cancelled);
    plan.tell(&ended.about, Fact::JobCancelled { ran_ms: millis(ended.ran) });
}

/// The outcome of an attempt whose handler returned success, but whose own transaction was never
/// committed.
fn not_committed() -> Outcome {
    Outcome::Retry {
        after: Duration::from_secs(1),
        error: "the handler returned, but the transaction in which it completed the job was not \
                 committed; commit it before returning"
            .into(),
    }
}

fn tell(plan: &Plan, desk: &Desk, ended: &Ended, outcome: &Outcome, state: State) {
    let (note, ran_ms) = (|| outcome.note().unwrap_or_default(), millis(ended.ran));
    let dead = || Fact::JobDead { reason: note(), ran_ms: Some(ran_ms) };
    let fact = match (outcome, state) {
        (Outcome::Complete { .. }, _) => Fact::JobSucceeded { ran_ms },
        (_, State::Dead) => dead(),
        (Outcome::Retry { after, .. }, _) => {
            Fact::RetryScheduled { after_ms: millis(*after), error: note(), ran_ms }
        }
        (Outcome::Snooze { after }, _) => Fact::JobSnoozed { after_ms: millis(*after), ran_ms },
        (Outcome::Release, _) => Fact::JobReleased { ran_ms },
        (Outcome::Park { .. }, _) => Fact::JobParked { reason: note(), ran_ms },
        (Outcome::Bury { .. }, _) => dead(),
    };
    desk.count(&fact);
    // Before the event is reported, because observers may take long.
    plan.wake_waiting(ended.about.job, state);
    plan.tell(&ended.about, fact);
}

#[cfg(test)]
mod tests;
