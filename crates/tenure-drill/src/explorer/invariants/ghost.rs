//! What really happened to one job, and whether each call was right to do it.

use std::collections::BTreeSet;
use std::time::Duration;

use tenure::TimelineEntry;
use tenure::drill::Dump;
use tenure::engine::job::{JobRecord, State};
use tenure::engine::lease::{Fence, Token};
use tenure::engine::lifecycle::{Verb, is_own_return, makes_suspect};
use tenure::engine::store::{
    AFTER_STALL, Attempt, Changed, Renewed, Reported, STALLED_GAP, Settled,
};

use super::super::actors::{Doing, by_claim};
use super::super::call::{Answer, Call, LEASE};
use super::super::words;
use super::{Check, Checked, Seen};
use crate::verdict::Invariant;

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Ghost {
    /// How many claims there ever were, including those undone by a failover.
    pub(super) issued: u8,
    /// The highest token that was ever issued, including those undone by a failover.
    highest: Option<Token>,
    /// The last write that the simulated outside system accepted: its token and its claim. That
    /// system keeps the highest token it has seen, and a failover of the database does not undo it.
    pub(super) witness: Option<(Token, u8)>,
    /// The number of the latest claim.
    pub(super) claims: u8,
    /// The latest claim's token.
    token: Option<Token>,
    /// The claim that may be doing the effect, or may have done it, while its outcome is not
    /// recorded.
    pub(super) doing: Option<u8>,
    /// What was written to the ledger, and by which claim.
    pub(super) written: BTreeSet<(u8, Doing)>,
    /// Which claims were settled, and how.
    settled: BTreeSet<(u8, Verb)>,
    /// Since the last requeue:
    starts: u16,
    given_back: u16,
    crashes: u16,
    successes: u16,
    /// The job has crashed often enough to be a suspect, and its handler has not returned since.
    suspect: bool,
}

impl Ghost {
    /// The ghost after the database has gone back to `then`.
    pub(super) fn back_to(&self, then: &Ghost) -> Ghost {
        let Ghost { issued, highest, witness, .. } = *self;
        Ghost { issued, highest, witness, ..then.clone() }
    }

    /// Checks how a job's record changed, whatever the call was.
    pub(super) fn moved(
        &mut self,
        before: &JobRecord,
        after: &JobRecord,
        seen: &Seen<'_>,
        check: &mut Check<'_>,
    ) -> Checked {
        let id = after.id;
        let requeued = *seen.call == Call::Requeue
            && *seen.answer == Answer::Changed(Changed::Applied)
            && before.state.has_ended();
        check.that(Invariant::I2, before != after, after.token >= before.token, || {
            format!("the token of job {id} fell from {} to {}", before.token, after.token)
        })?;
        self.old_token_is_worthless(before, after, seen, check)?;
        check.that(
            Invariant::I4,
            before.state.has_ended() && !requeued,
            before == after,
            || format!("job {id} was {} and became {}", before.state, after.state),
        )?;
        if requeued {
            check.that(Invariant::I4, true, after.token > before.token, || {
                format!("job {id} was requeued under its old token {}", after.token)
            })?;
            let anew = Ghost { starts: 0, given_back: 0, crashes: 0, successes: 0, ..self.clone() };
            *self = Ghost { suspect: false, ..anew };
            return Ok(());
        }
        if after.crashes > before.crashes {
            self.crashes += 1;
            self.suspect = makes_suspect(self.crashes, after.max_crashes);
            self.taken_back(before, seen, check)?;
        }
        // A crash is taken back when the worker shows its token again.
        let returned = |dump: &Dump| {
            let is_ours = |line: &&TimelineEntry| line.job == id && line.verb == Verb::Return;
            dump.timeline.iter().filter(is_ours).count()
        };
        if returned(seen.new) > returned(seen.old) {
            self.crashes -= 1;
            self.suspect &= makes_suspect(self.crashes, after.max_crashes);
        }
        if before.state != State::Succeeded && after.state == State::Succeeded {
            self.successes += 1;
        }
        Ok(())
    }

    /// I7: after a lapse, cancel, requeue or release, the token that the job had before is never
    /// accepted again.
    fn old_token_is_worthless(
        &self,
        before: &JobRecord,
        after: &JobRecord,
        seen: &Seen<'_>,
        check: &mut Check<'_>,
    ) -> Checked {
        let id = after.id;
        let released = match (seen.call, seen.answer.settled()) {
            (Call::Settle(endings) | Call::SettleAndClaim(endings, ..), Some(settled)) => {
                endings.iter().zip(settled).any(|((fence, ending), answer)| {
                    // Only the holder's first call counts: a repeated release is answered with
                    // `Applied` too.
                    (fence.job, fence.token) == (id, before.token)
                        && ending.outcome().verb() == Verb::Release
                        && matches!(answer, Settled::Applied(_))
                        && before.state == State::Running
                })
            }
            _ => false,
        };
        let lapsed = after.crashes > before.crashes;
        let operated =
            matches!(seen.call, Call::Cancel | Call::Requeue) && before.state != after.state;
        check.that(
            Invariant::I7,
            lapsed || operated || released,
            after.token > before.token,
            || {
                let now = after.state;
                format!(
                    "job {id} was {} and is {now}, and token {} is still its token",
                    before.state, before.token
                )
            },
        )
    }

    /// I8: a job is taken back only from the claim that the call or its answer names, and only if
    /// the lease is over or the worker's process is gone.
    fn taken_back(&self, before: &JobRecord, seen: &Seen<'_>, check: &mut Check<'_>) -> Checked {
        let (id, old) = (before.id, seen.old);
        let by_lock = *seen.call == Call::Vanished;
        let over = if by_lock { is_gone(before, old) } else { is_over(before, old) };
        check.that(Invariant::I8, true, before.state == State::Running && over, || {
            let was = words::job(before);
            format!(
                "at second {} a job was taken back that was not to be: {was}",
                words::second(old.now)
            )
        })?;
        let ours = Fence { job: id, token: before.token };
        let meant = match (seen.call, seen.answer) {
            (Call::Lapse(fences), _) => fences.contains(&ours),
            (_, Answer::Vanished(lapses)) => lapses.iter().any(|lapse| lapse.about.fence() == ours),
            (_, answer) => answer.claimed().is_some_and(|claimed| {
                claimed.lapsed.iter().any(|lapse| lapse.about.fence() == ours)
            }),
        };
        check.that(Invariant::I8, true, meant, || {
            format!(
                "job {id} was taken back from token {}, and another one was meant",
                before.token
            )
        })
    }

    /// Checks the answer to a call, by the number of the claim whose fence the caller showed.
    pub(super) fn called(
        &mut self,
        before: &JobRecord,
        after: &JobRecord,
        seen: &Seen<'_>,
        check: &mut Check<'_>,
    ) -> Checked {
        let id = after.id;
        let ours = |fence: &Fence| fence.job == id;
        let attempt = seen
            .answer
            .claimed()
            .and_then(|claimed| claimed.attempts.iter().find(|attempt| attempt.lease.job() == id));
        let mut settled = false;
        if let (Call::Settle(endings) | Call::SettleAndClaim(endings, ..), Some(answers)) =
            (seen.call, seen.answer.settled())
        {
            let mut both = endings.iter().zip(answers);
            if let Some(((fence, ending), answer)) = both.find(|((fence, _), _)| ours(fence)) {
                let by = by_claim(seen.rights, *fence);
                let verb = ending.outcome().verb();
                settled = matches!(answer, Settled::Applied(_));
                self.was_settled(before, after, (verb, *answer, by), attempt.is_some(), check)?;
            }
        }
        if let Some(attempt) = attempt {
            return self.claimed(before, after, attempt, settled, seen.new, check);
        }
        match (seen.call, seen.answer) {
            (Call::Renew(fences), Answer::Renewed(renewed)) => {
                match fences.iter().zip(renewed).find(|(fence, _)| ours(fence)) {
                    Some((fence, renewed)) => {
                        let by = by_claim(seen.rights, *fence);
                        self.was_renewed(before, after, *renewed, by, check)
                    }
                    None => Ok(()),
                }
            }
            (Call::Progress(fence), Answer::Reported(reported)) if ours(fence) => {
                self.was_reported(before, after, *reported, by_claim(seen.rights, *fence), check)
            }
            (Call::Write(fence), _) if ours(fence) => {
                self.wrote(before, fence.token, by_claim(seen.rights, *fence), check)
            }
            _ => Ok(()),
        }
    }

    fn claimed(
        &mut self,
        before: &JobRecord,
        after: &JobRecord,
        attempt: &Attempt,
        settled: bool,
        new: &Dump,
        check: &mut Check<'_>,
    ) -> Checked {
        let (id, token) = (after.id, attempt.lease.token());
        let rose = self.highest.is_none_or(|last| token > last);
        check.that(Invariant::I2, self.highest.is_some(), rose, || {
            let last = self.highest.unwrap_or(Token::NONE);
            format!("job {id} was claimed under token {token}, after token {last}")
        })?;
        // One call may lapse or settle a job and lease it again at once. The lapse or settlement is
        // checked separately.
        let free = before.state == State::Queued || after.crashes > before.crashes || settled;
        check.that(Invariant::I6, true, free, || {
            format!("job {id} was claimed while it was {}", words::job(before))
        })?;
        let whole = attempt.lease.until() == new.now + LEASE
            && after.lease_until == Some(attempt.lease.until());
        check.that(Invariant::I6, true, whole, || {
            format!(
                "job {id} was leased for another time than was asked for: {}",
                words::job(after)
            )
        })?;
        self.issued += 1;
        self.claims = self.issued;
        (self.token, self.highest) = (Some(token), self.highest.max(Some(token)));
        self.starts += 1;
        Ok(())
    }

    fn was_settled(
        &mut self,
        before: &JobRecord,
        after: &JobRecord,
        (verb, settled, by): (Verb, Settled, u8),
        claimed_again: bool,
        check: &mut Check<'_>,
    ) -> Checked {
        let id = after.id;
        let heard_before = self.settled.contains(&(by, verb));
        let yes = matches!(settled, Settled::Applied(_));
        // A job that was claimed again in the same call has changed in any case.
        let changed = if claimed_again { yes && !heard_before } else { !is_same(before, after) };
        check.that(Invariant::I7, yes && changed, by == self.claims, || {
            let claims = self.claims;
            format!(
                "{verb} of job {id} was heard from claim {by}, but the latest is claim {claims}"
            )
        })?;
        let settled_before = self.settled.iter().any(|(claim, _)| *claim == by);
        check.that(Invariant::I10, yes && changed, !settled_before, || {
            format!("{verb} of job {id} was applied twice for one attempt")
        })?;
        check.that(Invariant::I10, yes && !changed, heard_before, || {
            format!("{verb} of job {id} was answered with yes, but nothing of the kind happened")
        })?;
        check.that(Invariant::I10, !yes, !heard_before && !changed, || {
            format!("{verb} of job {id} was refused, but it had been applied")
        })?;
        if yes && changed {
            self.settled.insert((by, verb));
            self.given_back += u16::from(matches!(verb, Verb::Snooze | Verb::Release | Verb::Park));
            self.suspect &= !is_own_return(verb);
        }
        Ok(())
    }

    fn was_renewed(
        &mut self,
        before: &JobRecord,
        after: &JobRecord,
        renewed: Renewed,
        by: u8,
        check: &mut Check<'_>,
    ) -> Checked {
        let id = after.id;
        let held = matches!(renewed, Renewed::Extended(_));
        let latest = by == self.claims && before.state == State::Running;
        check.that(Invariant::I7, held, latest, || {
            format!("claim {by} renewed job {id}, but the latest is claim {}", self.claims)
        })?;
        check.that(Invariant::I6, held, after.lease_until >= before.lease_until, || {
            format!("a renewal shortened the lease of job {id}")
        })?;
        check.that(Invariant::I10, !held, is_same(before, after), || {
            format!("a refused renewal changed job {id}")
        })
    }

    fn was_reported(
        &mut self,
        before: &JobRecord,
        after: &JobRecord,
        reported: Reported,
        by: u8,
        check: &mut Check<'_>,
    ) -> Checked {
        let id = after.id;
        let noted = reported == Reported::Noted;
        let latest = by == self.claims && before.state == State::Running;
        check.that(Invariant::I7, noted, latest, || {
            format!("claim {by} told of job {id}, but the latest is claim {}", self.claims)
        })?;
        let but_for_it = JobRecord { progress: before.progress.clone(), ..after.clone() };
        check.that(Invariant::I6, noted, but_for_it == *before, || {
            format!("a report changed more of job {id} than how far it is")
        })?;
        check.that(Invariant::I10, !noted, is_same(before, after), || {
            format!("a refused report changed job {id}")
        })
    }

    /// Checks what must hold for a job at any time.
    pub(super) fn holds(&self, job: &JobRecord, check: &mut Check<'_>) -> Checked {
        let id = job.id;
        check.that(Invariant::I1, self.successes > 0, self.successes == 1, || {
            format!("job {id} succeeded {} times", self.successes)
        })?;
        let succeeded = job.state == State::Succeeded;
        let recorded = self.successes == 1 && Some(job.token) == self.token;
        check.that(
            Invariant::I3,
            succeeded || self.successes > 0,
            succeeded && recorded,
            || {
                let last = self.token.unwrap_or(Token::NONE);
                format!(
                    "job {id} is {} under token {}; its last claim had {last}",
                    job.state, job.token
                )
            },
        )?;
        let allowed = job.max_attempts + self.given_back;
        check.that(Invariant::I5, self.starts > 0, self.starts <= allowed, || {
            format!("job {id} started {} times, {allowed} were allowed", self.starts)
        })?;
        check.that(Invariant::I5, self.crashes > 0, self.crashes <= job.max_crashes, || {
            format!("job {id} crashed {} times, {} were allowed", self.crashes, job.max_crashes)
        })?;
        check.that(Invariant::I5, self.crashes > 0, job.crashes == self.crashes, || {
            format!("job {id} crashed {} times, and {} are counted", self.crashes, job.crashes)
        })?;
        let suspect = self.suspect && !job.state.has_ended();
        check.that(Invariant::I5, self.crashes > 0, job.is_suspect == suspect, || {
            let is = if job.is_suspect { "is" } else { "is not" };
            format!("job {id} {is} a suspect, after {} crashes", self.crashes)
        })
    }
}

/// Whether a job is unchanged. Its crashes may be fewer: a refused call may take a crash back.
fn is_same(before: &JobRecord, after: &JobRecord) -> bool {
    let JobRecord { crashes, crashed_at, is_suspect, returns_until, .. } = *before;
    after.crashes <= crashes
        && JobRecord { crashes, crashed_at, is_suspect, returns_until, ..after.clone() } == *before
}

/// Whether a job's lease is over. A lease granted before a break in time gets its whole length
/// again from the break on. A break in the future is ignored: the clock was set back since.
fn is_over(job: &JobRecord, state: &Dump) -> bool {
    let length = job.lease_ms.map(|ms| Duration::from_millis(ms.unsigned_abs()));
    let broken = state.started_at <= state.now
        && job.leased_at.is_some_and(|leased| leased < state.started_at);
    let stalled =
        job.leased_at.is_some_and(|leased| leased < state.broke && leased >= state.broke_before);
    let again = broken.then_some(state.started_at).max(stalled.then_some(state.broke));
    let pardoned = length.zip(again).map(|(length, again)| again + length);
    job.lease_until.max(pardoned).is_some_and(|until| until <= state.now)
}

/// Whether a job's holder is known to be gone: its lock has been free for the guard gap, and the
/// server has not restarted since the lock was taken.
fn is_gone(job: &JobRecord, state: &Dump) -> bool {
    let stalled = state.broke > state.now - AFTER_STALL;
    let gap = if stalled { state.guard_gap.max(STALLED_GAP) } else { state.guard_gap };
    state.workers.iter().any(|worker| {
        Some(&worker.worker) == job.worker.as_ref()
            && worker.under == state.started_at
            && !state.held.contains(&worker.worker)
            && worker.free_since.is_some_and(|since| since + gap <= state.now)
    })
}
