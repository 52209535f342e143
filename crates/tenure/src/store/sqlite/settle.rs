//! Settle: ends attempts.

use std::collections::BTreeSet;

use rusqlite::{Result, named_params};

use super::row;
use super::tx::{Ending, Tx, entry};
use crate::inspect::TimelineEntry;
use crate::job::{Json, Name, NewJob, State};
use crate::lease::{Fence, Stale};
use crate::lifecycle::{
    Counts, Outcome, Verb, after_settling, attempt_counts, crashes_after_return, is_own_return,
};
use crate::record::JobRecord;
use crate::store::{Enqueued, Settled, Settlement};

impl Tx<'_> {
    pub(super) fn settle(&self, settlements: &[Settlement]) -> Result<Vec<Settled>> {
        if settlements.is_empty() {
            return Ok(Vec::new());
        }
        self.follow_all(settlements)?;
        let forgetful = self.names(&self.sql.settle.forgetful)?;
        settlements.iter().map(|settlement| self.settle_one(settlement, &forgetful)).collect()
    }

    /// Enqueues the follow-ups of the settlements that will be applied. If several settlements are
    /// for one job, that is the first whose token passes. Runs before any settlement is applied: a
    /// refused follow-up adds a timeline entry to the job, which would stay behind if the
    /// settlement had already deleted the job.
    fn follow_all(&self, settlements: &[Settlement]) -> Result<()> {
        let mut heard = BTreeSet::new();
        if settlements.iter().all(|settlement| settlement.then.is_empty()) {
            return Ok(());
        }
        for Settlement { fence, then, .. } in settlements {
            if let Some(job) = self.pass_fence(*fence)?
                && heard.insert(fence.job)
            {
                self.follow(&job, then)?;
            }
        }
        Ok(())
    }

    fn settle_one(&self, settlement: &Settlement, forgetful: &BTreeSet<Name>) -> Result<Settled> {
        let Settlement { fence, outcome, .. } = settlement;
        let applied = match outcome {
            // The everyday case, in two statements.
            Outcome::Complete { result } if forgetful.is_empty() => {
                self.complete(*fence, result.as_ref())?.then_some(State::Succeeded)
            }
            _ => {
                let held = self.pass_fence(*fence)?;
                held.map(|job| self.apply(&job, outcome, forgetful)).transpose()?
            }
        };
        match applied {
            Some(state) => Ok(Settled::Applied(state)),
            None => self.answer_late(*fence, outcome.verb()),
        }
    }

    /// Completes a job if this attempt holds it, and returns whether it does. The fence is the same
    /// as in [`Tx::pass_fence`]: both statements contain the section `holds` of `record.sql`.
    fn complete(&self, fence: Fence, result: Option<&Json>) -> Result<bool> {
        let job = named_params! { ":job": fence.job.0 };
        let ending = named_params! {
            ":job": fence.job.0, ":state": row::code(State::Succeeded, false),
            ":token": fence.token.0, ":ends_under": None::<i64>, ":crashes": None::<u16>,
            ":now": self.now.as_millis(),
            ":result": result.map(Json::as_str), ":reason": None::<&str>,
        };
        let is_held = self.run(&self.sql.settle.complete, ending)? > 0;
        if is_held {
            self.run(&self.sql.settle.remove, job)?;
        }
        Ok(is_held)
    }

    /// The running job that has this token; `None` if there is none. Nothing but this fence decides
    /// whether a settlement may be applied.
    fn pass_fence(&self, fence: Fence) -> Result<Option<JobRecord>> {
        let shown = named_params! { ":job": fence.job.0, ":token": fence.token.0 };
        self.one(&self.sql.settle.fence, shown, row::record)
    }

    fn apply(
        &self,
        job: &JobRecord,
        outcome: &Outcome,
        forgetful: &BTreeSet<Name>,
    ) -> Result<State> {
        let next = after_settling(&Counts::from(job), outcome);
        let became = next.state();
        let note = outcome.note();
        let mut after = job.clone();
        if !attempt_counts(outcome.verb()) {
            after.attempt = after.attempt.saturating_sub(1);
        }
        if is_own_return(outcome.verb()) && !became.has_ended() {
            after.is_suspect = false;
            after.crashes = crashes_after_return(job.crashes, job.crashed_at, self.now);
            after.crashed_at = job.crashed_at.filter(|_| after.crashes > 0);
        }
        if *outcome == Outcome::Release {
            after.token = job.token.next(self.epoch()?);
        }
        // Keep the job if an effect of it is in doubt: without the job's record, an operator could
        // not resolve the effect.
        if became == State::Succeeded && forgetful.contains(&job.queue) && !self.has_open(job.id)? {
            self.run(&self.sql.settle.remove, named_params! { ":job": job.id.0 })?;
            self.forget(job.id)?;
            return Ok(became);
        }
        let result = match outcome {
            Outcome::Complete { result } => result.as_ref().map(|result| result.as_str()),
            _ => None,
        };
        self.move_to(&after, next, Ending { result, reason: note.as_deref() })?;
        if outcome.verb() != Verb::Complete {
            self.note(&TimelineEntry { note, ..entry(job, outcome.verb(), became, self.now) })?;
        }
        Ok(became)
    }

    /// Enqueues the follow-ups of a job. If another request has a follow-up's key, no job is
    /// created, and a timeline entry says so.
    fn follow(&self, job: &JobRecord, then: &[NewJob]) -> Result<()> {
        let follow_ups: Vec<_> = then
            .iter()
            .map(|follow_up| NewJob { parent: Some(job.id), ..follow_up.clone() })
            .collect();
        let conflict = |(answer, follow_up): (&Enqueued, &NewJob)| match answer {
            Enqueued::Conflict(owner) => Some(format!(
                "{} not enqueued: job {owner} has its key for another request",
                follow_up.kind
            )),
            Enqueued::Created(_) | Enqueued::Existing(_) => None,
        };
        let answers = self.enqueue(&follow_ups)?;
        let conflicts: Vec<_> = answers.iter().zip(then).filter_map(conflict).collect();
        if !conflicts.is_empty() {
            let line = entry(job, Verb::Follow, job.state, self.now);
            self.note(&TimelineEntry { refused: true, note: Some(conflicts.join("; ")), ..line })?;
        }
        Ok(())
    }

    /// The answer to a settlement that did not pass the fence: repeated, or stale.
    fn answer_late(&self, fence: Fence, verb: Verb) -> Result<Settled> {
        let Some(stale) = self.current(fence)? else {
            return Ok(Settled::NotFound);
        };
        // A success has no timeline entry: the ended job itself has the token that completed it.
        let heard = if verb == Verb::Complete {
            (stale.state == State::Succeeded && stale.current == fence.token).then_some(stale.state)
        } else {
            self.heard(fence, verb)?
        };
        match heard {
            Some(became) => Ok(Settled::Applied(became)),
            None => {
                self.refuse(&stale, verb)?;
                Ok(Settled::Stale(stale))
            }
        }
    }

    /// One settlement in a user's own transaction. A repeated settlement is refused there, because
    /// what the user writes beside it would be written twice. `here` says whether this same
    /// transaction applied it before.
    pub(super) fn settle_beside(&self, settlement: &Settlement, here: bool) -> Result<Settled> {
        let Settlement { fence, outcome, .. } = settlement;
        let holds = self.pass_fence(*fence)?.is_some();
        let answer = self.settle(std::slice::from_ref(settlement))?.pop();
        match answer.unwrap_or(Settled::NotFound) {
            Settled::Applied(_) if !holds && !here => {
                let stale = self.refuse_if_stale(*fence, outcome.verb())?;
                Ok(stale.map_or(Settled::NotFound, Settled::Stale))
            }
            answer => Ok(answer),
        }
    }

    /// Records the refusal of a settlement, unless the job runs under this token.
    pub(super) fn refuse_if_stale(&self, fence: Fence, verb: Verb) -> Result<Option<Stale>> {
        if self.pass_fence(fence)?.is_some() {
            return Ok(None);
        }
        let Some(stale) = self.current(fence)? else { return Ok(None) };
        self.refuse(&stale, verb)?;
        Ok(Some(stale))
    }

    /// The state that this verb led to under this token, if it was applied before.
    pub(super) fn heard(&self, fence: Fence, verb: Verb) -> Result<Option<State>> {
        self.one(
            &self.sql.settle.heard,
            named_params! { ":job": fence.job.0, ":token": fence.token.0, ":verb": verb.name() },
            |row| Ok(row::state(row.get(0)?)?.0),
        )
    }
}
