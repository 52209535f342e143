//! Which claims may write to the ledger, and to a system outside the store.

use tenure::Token;
use tenure::drill::Dump;
use tenure::engine::job::{JobRecord, State};
use tenure::engine::ledger::{self, EffectRecord, Standing};
use tenure::engine::store::Resolved;

use super::super::actors::{Doing, by_claim};
use super::super::call::{Answer, Call};
use super::ghost::Ghost;
use super::{Check, Checked, Seen};
use crate::verdict::Invariant;

impl Ghost {
    /// Checks what a call did to the ledger, and whether the calling claim was allowed to do it.
    pub(super) fn took_effect(
        &mut self,
        before: &JobRecord,
        seen: &Seen<'_>,
        check: &mut Check<'_>,
    ) -> Checked {
        let id = before.id;
        // Times are left out: they are for people, and states that differ only in them count as
        // one.
        let essence =
            |effect: &EffectRecord| (effect.standing, effect.token, effect.result.clone());
        let of = |dump: &Dump| {
            let ours = dump.ledger.iter().filter(|effect| effect.job == id);
            ours.cloned().collect::<Vec<EffectRecord>>()
        };
        let (then, now) = (of(seen.old), of(seen.new));
        let is_committed = |effect: &&EffectRecord| effect.standing == Standing::Committed;
        let committed = now.iter().filter(is_committed).count();
        check.that(Invariant::I1, committed > 0, committed == 1 && now.len() == 1, || {
            let rows = now.len();
            format!("the effect of job {id} was committed {committed} times, in {rows} rows")
        })?;
        let (decided, was): (Vec<_>, Vec<_>) =
            then.iter().filter(is_committed).partition(|effect| effect.can_be_corrected());
        let was = was.first().copied();
        let stays = |was: &EffectRecord| now.iter().any(|is| essence(is) == essence(was));
        check.that(Invariant::I1, was.is_some(), was.is_none_or(stays), || {
            let names: Vec<_> = now.iter().map(|effect| effect.standing.name()).collect();
            format!("the effect of job {id} was committed and became {}", names.join(", "))
        })?;
        // Only a person may change what a person decided; an attempt may only adopt it.
        let word = decided.first().filter(|_| !matches!(seen.call, Call::Resolve(_)));
        let kept = |word: &&&EffectRecord| {
            now.iter().any(|is| is.standing == word.standing && is.result == word.result)
        };
        check.that(Invariant::I1, word.is_some(), word.as_ref().is_none_or(kept), || {
            format!("what a person decided about job {id} was changed by something else")
        })?;
        if let (Call::Resolve(_), Answer::Resolved(Resolved::Applied(_))) = (seen.call, seen.answer)
        {
            self.doing = None;
        }
        let (Call::Ledger(fence, doing), Answer::Ledger(said)) = (seen.call, seen.answer) else {
            return Ok(());
        };
        if fence.job != id {
            return Ok(());
        }
        let (by, verb) = (by_claim(seen.rights, *fence), doing.act().verb());
        let changed = !then.iter().map(essence).eq(now.iter().map(essence));
        let latest = by == self.claims && before.state == State::Running;
        check.that(Invariant::I7, changed, latest, || {
            let claims = self.claims;
            format!("claim {by} wrote {verb} of job {id}, but the latest is claim {claims}")
        })?;
        let other = self.doing.filter(|claim| *claim != by);
        let is_opened = *said == ledger::Answer::Opened;
        check.that(Invariant::I1, is_opened, other.is_none(), || {
            let other = other.unwrap_or_default();
            format!("claim {by} was let do what claim {other} may have done")
        })?;
        let recorded = *said == ledger::Answer::Recorded;
        let heard = self.written.contains(&(by, *doing));
        check.that(Invariant::I10, recorded && !changed, heard, || {
            format!("{verb} of job {id} was answered with yes, but nothing of the kind happened")
        })?;
        let is_final = matches!(doing, Doing::Commit | Doing::FindOut);
        check.that(Invariant::I10, is_final && !recorded, !heard, || {
            format!("{verb} of job {id} was refused, but it had been written")
        })?;
        if recorded {
            self.written.insert((by, *doing));
        }
        match doing {
            Doing::Open | Doing::Resend if is_opened || recorded => self.doing = Some(by),
            Doing::Commit | Doing::Fail | Doing::FindOut if recorded => self.doing = None,
            _ => {}
        }
        Ok(())
    }

    /// I16: the outside system accepts a write if its token is not below the highest one it has
    /// seen.
    pub(super) fn wrote(
        &mut self,
        job: &JobRecord,
        token: Token,
        by: u8,
        check: &mut Check<'_>,
    ) -> Checked {
        let id = job.id;
        let accepted = self.witness.is_none_or(|(highest, _)| token >= highest);
        // After a failover the job may be held under an earlier claim, while the outside system has
        // seen a later one that the store has forgotten. Nothing can repair that. But the last of
        // all claims ever made must be accepted.
        let holds = by == self.claims && self.claims == self.issued && job.state == State::Running;
        check.that(Invariant::I16, holds, accepted, || {
            format!("the witness refused token {token} of the holder of job {id}")
        })?;
        let last = self.witness.map_or(0, |(_, claim)| claim);
        check.that(Invariant::I16, accepted && last > 0, by >= last, || {
            format!("the witness let claim {by} of job {id} write under token {token}, after claim {last}")
        })?;
        if accepted {
            self.witness = Some((token, by));
        }
        Ok(())
    }
}
