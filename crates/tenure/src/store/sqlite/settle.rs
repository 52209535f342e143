//! How an attempt ends.

use std::collections::BTreeSet;

use rusqlite::{Result, named_params};

use super::row;
use super::tx::{Ending, Tx, entry};
use crate::inspect::TimelineEntry;
use crate::job::{JobRecord, Name, NewJob, State};
use crate::lease::{Fence, Stale};
use crate::lifecycle::{
    Outcome, Standing, Verb, after_settling, attempt_counts, crashes_after_return, is_own_return,
};
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

    /// Enqueues what is to follow the settlements that will be heard: of several for one job, the
    /// first that shows its token. It comes before any of them, so that a job that is deleted at
    /// once leaves no line behind.
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
        match self.pass_fence(*fence)? {
            Some(job) => Ok(Settled::Yes(self.apply(&job, outcome, forgetful)?)),
            None => self.answer_late(*fence, outcome.verb()),
        }
    }

    /// The running job that this token owns. Here, and nowhere else, it is decided who may settle.
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
        let next = after_settling(&Standing::from(job), outcome);
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
        // An effect in doubt keeps its job: it is all that tells a person what to ask for.
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

    /// Enqueues what was to follow. A follow-up whose key is taken by another request makes no job,
    /// but a line that says so.
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

    /// The answer to a settlement that did not pass the fence: heard before, or stale.
    fn answer_late(&self, fence: Fence, verb: Verb) -> Result<Settled> {
        let Some(stale) = self.current(fence)? else {
            return Ok(Settled::Gone);
        };
        // A success leaves no line in the timeline: the ended job itself tells who completed it.
        let heard = if verb == Verb::Complete {
            (stale.state == State::Succeeded && stale.current == fence.token).then_some(stale.state)
        } else {
            self.heard(fence, verb)?
        };
        match heard {
            Some(became) => Ok(Settled::Yes(became)),
            None => {
                self.refuse(&stale, verb)?;
                Ok(Settled::Stale(stale))
            }
        }
    }

    /// One settlement in a user's own transaction, where a repetition is refused: what is written beside it would be written
    /// twice. `here` tells whether it was this very transaction that has heard it before.
    pub(super) fn settle_beside(&self, settlement: &Settlement, here: bool) -> Result<Settled> {
        let Settlement { fence, outcome, .. } = settlement;
        let holds = self.pass_fence(*fence)?.is_some();
        let answer = self.settle(std::slice::from_ref(settlement))?.pop();
        match answer.unwrap_or(Settled::Gone) {
            Settled::Yes(_) if !holds && !here => {
                let stale = self.refuse_if_stale(*fence, outcome.verb())?;
                Ok(stale.map_or(Settled::Gone, Settled::Stale))
            }
            answer => Ok(answer),
        }
    }

    /// Makes the refusal of a settlement visible, unless the job is held under this token.
    pub(super) fn refuse_if_stale(&self, fence: Fence, verb: Verb) -> Result<Option<Stale>> {
        if self.pass_fence(fence)?.is_some() {
            return Ok(None);
        }
        let Some(stale) = self.current(fence)? else { return Ok(None) };
        self.refuse(&stale, verb)?;
        Ok(Some(stale))
    }

    /// What this verb under this token made of the job, if it was heard before.
    pub(super) fn heard(&self, fence: Fence, verb: Verb) -> Result<Option<State>> {
        self.one(
            &self.sql.settle.heard,
            named_params! { ":job": fence.job.0, ":token": fence.token.0, ":verb": verb.name() },
            |row| Ok(row::state(row.get(0)?)?.0),
        )
    }
}
