//! Ledger: effects and steps.

use rusqlite::{Result, named_params};

use super::row;
use super::tx::{Ending, Tx, entry};
use crate::clock::Timestamp;
use crate::inspect::{EffectFilter, EffectView, TimelineEntry};
use crate::job::{JobId, Json, Name, State};
use crate::lease::{Fence, Token};
use crate::ledger::{
    Act, Answer, Change, EffectRecord, Entry, Resolution, Standing, Step, decide, was_heard,
};
use crate::lifecycle::{Again, Next, Verb};
use crate::record::JobRecord;
use crate::store::Resolved;

impl Tx<'_> {
    /// Applies entries, each under its token. Those that are refused are handled last, in a fixed
    /// order, so that every engine writes the same timeline.
    pub(super) fn ledger(&self, entries: &[Entry]) -> Result<Vec<Answer>> {
        let mut answers = vec![Answer::NotFound; entries.len()];
        let mut refused = Vec::new();
        for (at, entry) in entries.iter().enumerate() {
            let Fence { job, token } = entry.fence;
            let shown = named_params! { ":job": job.0, ":token": token.0 };
            match self.one(&self.sql.ledger.holds, shown, |_| Ok(()))? {
                Some(()) => answers[at] = self.ledger_one(entry)?,
                None => refused.push(at),
            }
        }
        refused.sort_by_key(|at| (entries[*at].fence, entries[*at].act.verb().name()));
        for at in refused {
            answers[at] = self.ledger_late(&entries[at])?;
        }
        Ok(answers)
    }

    /// Applies an entry whose token is the job's, and answers it.
    fn ledger_one(&self, entry: &Entry) -> Result<Answer> {
        let Entry { fence, name, act } = entry;
        match act {
            Act::Recall => {
                let step = self.step(fence.job, name)?;
                Ok(step.map_or(Answer::Unknown, |step| Answer::Remembered(step.result)))
            }
            Act::Remember { result } => self.remember(*fence, name, result),
            Act::Open if self.open(*fence, name)? => Ok(Answer::Opened),
            _ => {
                let found = self.effect(fence.job, name)?;
                let (answer, change) = decide(found.as_ref(), fence.token, act);
                if let (Some(change), Some(found)) = (change, found) {
                    self.write_effect(&found, fence.token, &change)?;
                }
                Ok(answer)
            }
        }
    }

    /// Records the intent, unless there is one already.
    fn open(&self, fence: Fence, name: &Name) -> Result<bool> {
        let opened = self.run(
            &self.sql.ledger.open,
            named_params! {
                ":job": fence.job.0, ":effect": name.as_str(), ":token": fence.token.0,
                ":now": self.now.as_millis(),
            },
        )?;
        Ok(opened > 0)
    }

    fn effect(&self, job: JobId, name: &Name) -> Result<Option<EffectRecord>> {
        let place = named_params! { ":job": job.0, ":effect": name.as_str() };
        self.one(&self.sql.ledger.find, place, row::effect)
    }

    pub(super) fn write_effect(
        &self,
        was: &EffectRecord,
        token: Token,
        change: &Change,
    ) -> Result<()> {
        let is_open = change.standing == Standing::Open;
        let opened_at = if is_open { self.now } else { was.opened_at };
        self.run(
            &self.sql.ledger.write,
            named_params! {
                ":job": was.job.0, ":effect": was.name.as_str(), ":state": row::standing_code(change.standing),
                ":token": token.0, ":opened_at": opened_at.as_millis(),
                ":ended_at": (!is_open).then_some(self.now).map(Timestamp::as_millis),
                ":result": change.result.as_ref().map(Json::as_str), ":note": change.note,
            },
        )?;
        Ok(())
    }

    fn step(&self, job: JobId, name: &Name) -> Result<Option<Step>> {
        let place = named_params! { ":job": job.0, ":step": name.as_str() };
        self.one(&self.sql.ledger.recall, place, row::step)
    }

    fn remember(&self, fence: Fence, name: &Name, result: &Json) -> Result<Answer> {
        self.run(
            &self.sql.ledger.remember,
            named_params! {
                ":job": fence.job.0, ":step": name.as_str(), ":token": fence.token.0,
                ":now": self.now.as_millis(), ":result": result.as_str(),
            },
        )?;
        let kept = self.step(fence.job, name)?;
        Ok(kept.map_or(Answer::Unknown, |step| Answer::Remembered(step.result)))
    }

    /// The answer to an entry that did not pass the fence: recorded before, or stale.
    fn ledger_late(&self, entry: &Entry) -> Result<Answer> {
        let Entry { fence, name, act } = entry;
        if let Act::Remember { .. } = act
            && let Some(step) = self.step(fence.job, name)?
            && step.token == fence.token
        {
            return Ok(Answer::Remembered(step.result));
        }
        if was_heard(self.effect(fence.job, name)?.as_ref(), fence.token, act) {
            return Ok(Answer::Recorded);
        }
        match self.current(*fence)? {
            None => Ok(Answer::NotFound),
            Some(stale) => {
                self.refuse(&stale, act.verb())?;
                Ok(Answer::Stale(stale))
            }
        }
    }

    /// Applies an operator's decision about an effect in doubt.
    pub(super) fn resolve(&self, id: JobId, name: &Name, how: &Resolution) -> Result<Resolved> {
        let Some(job) = self.find(id)? else { return Ok(Resolved::NotFound) };
        let Some(effect) = self.effect(id, name)? else { return Ok(Resolved::NoSuchEffect) };
        let (standing, result) = match how {
            Resolution::Committed { result } => (Standing::Committed, Some(result.clone())),
            Resolution::Resend => (Standing::Resend, None),
        };
        if effect.is_decided() && effect.standing == standing && effect.result == result {
            return Ok(Resolved::Applied(job.state)); // a repeated decision
        }
        if effect.standing != Standing::Open && !effect.can_be_corrected() {
            return Ok(Resolved::NotInDoubt(effect.standing));
        }
        if job.state == State::Running {
            return Ok(Resolved::Running);
        }
        if job.state == State::Succeeded && standing == Standing::Resend {
            return Ok(Resolved::Succeeded);
        }
        let change = Change { standing, result, note: Some(EffectRecord::DECIDED.into()) };
        self.write_effect(&effect, Token::NONE, &change)?;
        if job.state != State::Parked || self.has_open(id)? {
            return Ok(Resolved::Applied(job.state));
        }
        self.resume_resolved(&job, format!("effect {name} resolved: {}", how.name()))
    }

    /// Whether this job has an effect that is open.
    pub(super) fn has_open(&self, job: JobId) -> Result<bool> {
        let of_job = named_params! { ":job": job.0 };
        Ok(self.one(&self.sql.ledger.has_open, of_job, |row| row.get(0))?.unwrap_or(false))
    }

    fn resume_resolved(&self, job: &JobRecord, words: String) -> Result<Resolved> {
        self.move_to(job, Next::Queue(Again::In(std::time::Duration::ZERO)), Ending::default())?;
        let line = entry(job, Verb::Resume, State::Queued, self.now);
        self.note(&TimelineEntry { note: Some(words), ..line })?;
        Ok(Resolved::Applied(State::Queued))
    }

    pub(super) fn effects(&self, filter: &EffectFilter, limit: usize) -> Result<Vec<EffectView>> {
        let sql = match filter.in_doubt {
            true => &self.sql.ledger.effects_in_doubt,
            false => &self.sql.ledger.effects,
        };
        let (first, last) = filter.job.map_or((i64::MIN, i64::MAX), |job| (job.0, job.0));
        let before = filter.before.map_or(i64::MAX, |job| job.0);
        self.all(
            sql,
            named_params! { ":before": before, ":first": first, ":last": last, ":limit": limit },
            row::effect_view,
        )
    }
}
