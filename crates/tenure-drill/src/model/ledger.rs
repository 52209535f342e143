//! Effects and steps, as the specification has them.

use tenure::engine::job::{JobId, JobRecord, Name, State};
use tenure::engine::lease::{Fence, Token};
use tenure::engine::ledger::{Act, Answer, Doubt, EffectRecord, Entry, Resolution, Standing, Step};
use tenure::engine::lifecycle::Verb;
use tenure::engine::store::Resolved;

use super::Model;

impl Model {
    pub(super) fn ledger_one(&mut self, entry: &Entry) -> Answer {
        let Entry { fence, name, act } = entry;
        let place = (fence.job, name.clone());
        if self.holds(*fence).is_none() {
            return self.ledger_late(*fence, &place, act);
        }
        match act {
            Act::Open => self.open(place, fence.token),
            Act::Commit { .. } => {
                let mine = self.mine(&place, fence.token);
                self.end_effect(&place, act, mine, &[Standing::Open, Standing::Failed])
            }
            Act::Fail { .. } => {
                let mine = self.mine(&place, fence.token);
                self.end_effect(&place, act, mine, &[Standing::Open])
            }
            Act::Resolve(how) => {
                let doubtful =
                    self.ledger.get(&place).is_some_and(|effect| effect.standing == Standing::Open)
                        && !self.mine(&place, fence.token);
                let again = self.mine(&place, fence.token)
                    && self.ledger[&place].standing == Standing::Open
                    && *how == Resolution::Resend;
                if doubtful || self.goes_on_with(&place, how) {
                    self.take_over(&place, fence.token, how);
                    Answer::Recorded
                } else if again || self.was_written(&place, fence.token, act) {
                    Answer::Recorded
                } else {
                    Answer::NotAllowed(self.ledger.get(&place).map(|effect| effect.standing))
                }
            }
            Act::Recall => match self.steps.get(&place) {
                Some(step) => Answer::Remembered(step.result.clone()),
                None => Answer::Unknown,
            },
            Act::Remember { result } => {
                let (job, name) = place.clone();
                let (token, at) = (fence.token, self.now());
                let new = Step { job, name, token, at, result: result.clone() };
                Answer::Remembered(self.steps.entry(place).or_insert(new).result.clone())
            }
        }
    }

    /// Whether an effect of this job is open, without an outcome. Such a job is not pruned.
    pub(super) fn is_in_doubt(&self, job: JobId) -> bool {
        let open = |effect: &EffectRecord| effect.job == job && effect.standing == Standing::Open;
        self.ledger.values().any(open)
    }

    fn mine(&self, place: &(JobId, Name), token: Token) -> bool {
        self.ledger.get(place).is_some_and(|effect| effect.token == token)
    }

    fn open(&mut self, place: (JobId, Name), token: Token) -> Answer {
        let now = self.now();
        match self.ledger.get(&place) {
            // A person's decision is answered as `Decided` until an attempt adopts the decision,
            // and as `Committed` from then on.
            Some(effect) if effect.standing == Standing::Committed => {
                let by_person = effect.token == Token::NONE;
                let told = if by_person { Answer::Decided } else { Answer::Committed };
                effect.result.clone().map_or(Answer::Opened, told)
            }
            Some(effect) if effect.standing == Standing::Open && effect.token == token => {
                Answer::Opened
            }
            Some(effect) if effect.standing == Standing::Open => {
                Answer::InDoubt(Doubt { token: effect.token, since: effect.opened_at })
            }
            Some(_) | None => {
                let (job, name) = place.clone();
                self.ledger.insert(place, intent(job, name, token, now));
                Answer::Opened
            }
        }
    }

    /// Records how this attempt's own effect ended.
    fn end_effect(
        &mut self,
        place: &(JobId, Name),
        act: &Act,
        mine: bool,
        from: &[Standing],
    ) -> Answer {
        let now = self.now();
        let Some(effect) = self.ledger.get_mut(place) else { return Answer::NotAllowed(None) };
        if mine && from.contains(&effect.standing) {
            effect.standing = match act {
                Act::Commit { .. } => Standing::Committed,
                _ => Standing::Failed,
            };
            effect.result = act.result().cloned();
            effect.note = act.note();
            effect.ended_at = Some(now);
            return Answer::Recorded;
        }
        let standing = effect.standing;
        let token = effect.token;
        if self.was_written(place, token, act) && mine {
            Answer::Recorded
        } else {
            Answer::NotAllowed(Some(standing))
        }
    }

    /// Whether the attempt adopts what a person decided.
    fn goes_on_with(&self, place: &(JobId, Name), how: &Resolution) -> bool {
        let Resolution::Committed { result } = how else { return false };
        self.ledger.get(place).is_some_and(|effect| {
            effect.token == Token::NONE
                && effect.standing == Standing::Committed
                && effect.result.as_ref() == Some(result)
        })
    }

    /// Makes an effect of another attempt (or of a person's decision) this attempt's own.
    fn take_over(&mut self, place: &(JobId, Name), token: Token, how: &Resolution) {
        let now = self.now();
        let Some(effect) = self.ledger.get_mut(place) else { return };
        effect.token = token;
        match how {
            Resolution::Resend => effect.opened_at = now,
            Resolution::Committed { result } => {
                effect.standing = Standing::Committed;
                effect.result = Some(result.clone());
                effect.ended_at = Some(now);
            }
        }
    }

    /// Whether this attempt has already written this outcome.
    fn was_written(&self, place: &(JobId, Name), token: Token, act: &Act) -> bool {
        let standing = match act {
            Act::Commit { .. } | Act::Resolve(Resolution::Committed { .. }) => Standing::Committed,
            Act::Fail { .. } => Standing::Failed,
            _ => return false,
        };
        self.ledger
            .get(place)
            .is_some_and(|effect| effect.token == token && effect.standing == standing)
    }

    fn ledger_late(&mut self, fence: Fence, place: &(JobId, Name), act: &Act) -> Answer {
        if self.was_written(place, fence.token, act) {
            return Answer::Recorded;
        }
        if let (Act::Remember { .. }, Some(step)) = (act, self.steps.get(place))
            && step.token == fence.token
        {
            return Answer::Remembered(step.result.clone());
        }
        self.refuse(fence, act.verb()).map_or(Answer::NotFound, Answer::Stale)
    }

    /// Applies a person's decision about an effect in doubt.
    pub(super) fn resolve_one(&mut self, id: JobId, name: &Name, how: &Resolution) -> Resolved {
        let Some(job) = self.jobs.get(&id).cloned() else { return Resolved::NotFound };
        let now = self.now();
        let place = (id, name.clone());
        let Some(effect) = self.ledger.get_mut(&place) else { return Resolved::NoSuchEffect };
        let by_person = effect.note.as_deref() == Some("a person decided");
        let (standing, result) = match how {
            Resolution::Committed { result } => (Standing::Committed, Some(result)),
            Resolution::Resend => (Standing::Resend, None),
        };
        if by_person && effect.standing == standing && effect.result.as_ref() == result {
            return Resolved::Applied(job.state);
        }
        // A person's decision can be corrected until an attempt has adopted it.
        if effect.standing != Standing::Open && effect.token != Token::NONE {
            return Resolved::NotInDoubt(effect.standing);
        }
        if job.state == State::Running {
            return Resolved::Running;
        }
        if job.state == State::Succeeded && *how == Resolution::Resend {
            return Resolved::Succeeded;
        }
        effect.token = Token::NONE;
        effect.ended_at = Some(now);
        effect.standing = standing;
        effect.result = result.cloned();
        effect.note = Some("a person decided".into());
        let in_doubt = self
            .ledger
            .values()
            .any(|effect| effect.job == id && effect.standing == Standing::Open);
        if job.state == State::Parked && !in_doubt {
            let mut after = JobRecord { reason: None, ..job.clone() };
            super::wait_until(&mut after, now, now);
            self.jobs.insert(id, after);
            let words = format!("effect {name} resolved: {}", how.name());
            self.note(&job, Verb::Resume, State::Queued, Some(words));
            return Resolved::Applied(State::Queued);
        }
        Resolved::Applied(job.state)
    }
}

fn intent(job: JobId, name: Name, token: Token, now: tenure::Timestamp) -> EffectRecord {
    let standing = Standing::Open;
    EffectRecord {
        job,
        name,
        standing,
        token,
        opened_at: now,
        ended_at: None,
        result: None,
        note: None,
    }
}
