//! The settler: what has ended, on its way into the store, until the store has answered.
//!
//! A settlement may be repeated as often as needed: the store then tells what really happened. So nothing is
//! dropped while an answer is outstanding, however long the store is gone.

use std::sync::Arc;
use std::time::Duration;

use super::Plan;
use super::desk::{Desk, Ended, Found, Returned};
use crate::clock::{Moment, millis};
use crate::job::{BATCH_LIMIT, State};
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
        found
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pending.is_empty() && self.locked.is_empty()
    }

    /// Whether something waits to be sent, and is not locked.
    pub(super) fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Whether there is something to send now.
    pub(super) fn is_ready(&self, now: Moment) -> bool {
        !self.pending.is_empty() || !self.locked.is_empty() && now >= self.look_at_locked
    }

    /// When there will be, if only what is locked is left.
    pub(super) fn next_look(&self) -> Option<Moment> {
        (!self.locked.is_empty()).then_some(self.look_at_locked)
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

    /// What the store is to hear. Handlers that completed by themselves are looked up first.
    pub(super) fn settlements(
        &mut self,
        store: &mut dyn Store,
        plan: &Plan,
        desk: &Desk,
    ) -> Result<Vec<Settlement>> {
        for at in (0..self.pending.len()).rev() {
            let fence = self.pending[at].fence;
            let is_done = match self.pending[at].returned {
                Returned::Settle(_) | Returned::Lost => continue,
                Returned::Committed => true,
                Returned::PerhapsCommitted => match store.job(fence.job)? {
                    Some(found) if found.job.token != fence.token => false,
                    Some(found) if found.job.state == State::Running => {
                        self.pending[at].returned = Returned::Settle(not_committed());
                        continue;
                    }
                    // With history off, a job that has ended well is not there any more.
                    Some(_) | None => true,
                },
            };
            let ended = self.pending.remove(at);
            if is_done {
                tell(plan, &ended, &Outcome::Complete { result: None }, State::Succeeded);
            }
            desk.forget(fence);
        }
        Ok(self.pending.iter().filter_map(settlement).collect())
    }

    /// The store has answered.
    pub(super) fn heard(&mut self, answers: &[Settled], plan: &Arc<Plan>, desk: &Desk) {
        for (at, (ended, answer)) in self.pending.drain(..).zip(answers).enumerate() {
            let Returned::Settle(outcome) = &ended.returned else { continue };
            match answer {
                Settled::Yes(state) => tell(plan, &ended, outcome, *state),
                Settled::Stale(stale) => {
                    self.refused += 1;
                    plan.tell(ended.fence, Fact::refused(outcome.verb(), stale));
                }
                // With history off, a repeated settlement finds nothing: then it was heard the first time.
                Settled::Gone if at < self.repeats => tell(plan, &ended, outcome, State::Succeeded),
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

/// How an attempt ends whose handler says that it is done, while its own transaction was never committed.
fn not_committed() -> Outcome {
    Outcome::Retry {
        after: Duration::from_secs(1),
        error: "the handler returned, but the transaction in which it completed the job was not \
                 committed; commit it before returning"
            .into(),
    }
}

fn tell(plan: &Plan, ended: &Ended, outcome: &Outcome, state: State) {
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
    plan.tell(ended.fence, fact);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{JobId, Name};
    use crate::lease::Token;
    use crate::store::sqlite::{Options, Sqlite};

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
}
