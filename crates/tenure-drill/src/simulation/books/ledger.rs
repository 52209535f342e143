//! Checks each write to the ledger, and each effect that a handler sends to the outside, against
//! what has really happened.

use tenure::engine::job::{JobId, Name};
use tenure::engine::lease::{Fence, WorkerId};
use tenure::engine::ledger::{Act, Answer, Entry, Resolution};

use super::super::trace::Rare;
use super::super::witness::Heard;
use super::Books;
use crate::verdict::Invariant;

impl Books {
    pub(in super::super) fn ledger(
        &mut self,
        who: &WorkerId,
        entries: &[Entry],
        answers: &[Answer],
    ) {
        for (entry, answer) in entries.iter().zip(answers) {
            self.entry(who, entry, answer);
        }
    }

    fn entry(&mut self, who: &WorkerId, entry: &Entry, answer: &Answer) {
        let Entry { fence, name, act } = entry;
        let (fence, job, verb) = (*fence, fence.job, act.verb());
        let stood = self.stood(who, fence);
        let number = self.number(who, fence);
        // The answer to a late call is dropped, so the handler does not learn of the refusal.
        if let (Answer::Stale(_) | Answer::NotFound, Some(number), false) =
            (answer, number, self.late)
        {
            self.refused.insert((number, name.clone()));
        }
        match answer {
            Answer::Stale(_) => return self.was_refused(stood, verb.name(), who, fence),
            Answer::NotFound => return self.was_gone(verb.name(), fence),
            Answer::NotAllowed(standing) => {
                let told = format!("{verb} {name} of {who} is not allowed: {standing:?}");
                self.tell(job, told.clone());
                // If this claim opened the effect, it may end it. (After a failover both the store
                // and the books may have forgotten that.)
                if self.has_opened(job, name, number) {
                    self.fail(Invariant::I10, job, format!("job {job}: {told}, but it was opened"));
                }
                return;
            }
            Answer::Recorded | Answer::Remembered(_) if self.was_said(job, name, number, act) => {
                self.count(Rare::LedgerHealed);
                return self.tell(job, format!("{who} repeats {verb} {name}, and it counts"));
            }
            _ => {}
        }
        if !self.may(stood, verb.name(), who, fence) {
            return;
        }
        self.tell(job, format!("{who}: {verb} {name} under token {}", fence.token));
        if let Some((invariant, what)) = self.wrote(job, name, number, act, answer) {
            self.fail(invariant, job, format!("{verb} of {name} for job {job}: {what}"));
        }
    }

    /// Whether this claim has already made the same write.
    fn was_said(&self, job: JobId, name: &Name, number: Option<u64>, act: &Act) -> bool {
        let ghost = self.jobs.get(&job).filter(|_| number.is_some());
        ghost.is_some_and(|ghost| match act {
            Act::Commit { .. } | Act::Resolve(Resolution::Committed { .. }) => {
                ghost.effects.get(name).and_then(|effect| effect.committed) == Some(number)
            }
            Act::Fail { .. } => {
                ghost.effects.get(name).is_some_and(|effect| effect.failed == number)
            }
            Act::Remember { .. } => ghost.steps.get(name).is_some_and(|(_, by)| *by == number),
            _ => false,
        })
    }

    /// Whether this claim has opened the effect, and so may end it.
    fn has_opened(&self, job: JobId, name: &Name, number: Option<u64>) -> bool {
        let opened = self.jobs.get(&job).and_then(|ghost| ghost.effects.get(name)?.opened);
        number.is_some() && opened == number
    }

    /// The job's holder has written to the ledger or read from it. Returns the violation, if there
    /// is one.
    fn wrote(
        &mut self,
        job: JobId,
        name: &Name,
        number: Option<u64>,
        act: &Act,
        answer: &Answer,
    ) -> Option<(Invariant, String)> {
        let ghost = self.jobs.get_mut(&job)?;
        match (act, answer) {
            (Act::Recall, Answer::Remembered(told)) => {
                let kept = ghost.steps.get(name).map(|(kept, _)| kept);
                return (kept != Some(told))
                    .then(|| (Invariant::I10, format!("{told:?} is remembered, not {kept:?}")));
            }
            (Act::Recall, _) => {
                let (kept, _) = ghost.steps.get(name)?;
                return Some((Invariant::I10, format!("{kept:?} is forgotten")));
            }
            (Act::Remember { result }, _) => {
                // A step that is already remembered does not change.
                ghost.steps.entry(name.clone()).or_insert_with(|| (result.clone(), number));
                return None;
            }
            _ => {}
        }
        let effect = ghost.effects.entry(name.clone()).or_default();
        let has_happened = effect.committed.is_some();
        let may_send = matches!(answer, Answer::Opened)
            || matches!(act, Act::Commit { .. } | Act::Resolve(_) | Act::Fail { .. });
        // True for an attempt that adopts a person's decision.
        let goes_on = effect.committed == Some(None)
            && matches!(act, Act::Resolve(Resolution::Committed { .. }));
        if has_happened && may_send && !goes_on {
            return Some((Invariant::I1, "but it has happened".into()));
        }
        if matches!(answer, Answer::Committed(_) | Answer::Decided(_)) && !has_happened {
            return Some((Invariant::I10, "it never happened".into()));
        }
        match act {
            Act::Commit { .. } | Act::Resolve(Resolution::Committed { .. }) => {
                (effect.committed, effect.opened) = (Some(number), None);
            }
            Act::Fail { .. } => (effect.failed, effect.opened) = (number, None),
            Act::Resolve(Resolution::Resend) => effect.opened = number,
            Act::Open if *answer == Answer::Opened => {
                (effect.opened, effect.failed) = (number, None);
            }
            _ if matches!(answer, Answer::InDoubt(_)) => self.count(Rare::InDoubt),
            _ => {}
        }
        None
    }

    /// An effect is sent to the outside system. Returns whether that accepted it.
    pub(in super::super) fn send(
        &mut self,
        who: &WorkerId,
        fence: Fence,
        name: &Name,
        number: u64,
    ) -> bool {
        let Fence { job, token } = fence;
        let heard = self.witness.receive(fence, name, number);
        self.tell(job, format!("{who} sends {name} under token {token}: {heard:?}"));
        if self.refused.contains(&(number, name.clone())) {
            let what = format!(
                "{who} sent {name} of job {job} under token {token} after the store had refused it"
            );
            self.fail(Invariant::I16, job, what);
        }
        match heard {
            Heard::First => {}
            Heard::Again => self.count(Rare::Resent),
            Heard::Refused => self.count(Rare::WitnessRefused),
            Heard::OlderClaim => {
                let what =
                    format!("the outside took {name} of job {job} from {who}, not the latest");
                self.fail(Invariant::I16, job, what);
            }
        }
        heard != Heard::Refused
    }
}
