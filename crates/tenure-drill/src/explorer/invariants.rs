//! What must hold in every state and after every step.
//!
//! The ghosts remember what really happened: which claim was the latest, what was settled by whom.
//! The code under test never sees them. Without them the worst mistakes, a token that does not rise
//! and a fence without token, would pass unseen.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use tenure::drill::Dump;
use tenure::job::{JobId, JobRecord, State};
use tenure::lease::Token;
use tenure::ledger::{self, Effect, Standing};
use tenure::lifecycle::Verb;
use tenure::store::{Changed, GUARD_GAP, Renewed, Reported, Resolved, Settled};

use super::actors::Doing;
use super::{Answer, Call};
use crate::verdict::Invariant;

/// Those that calls on a store can break, one at a time.
const EXPLORED: [Invariant; 11] = [
    Invariant::I1,
    Invariant::I2,
    Invariant::I3,
    Invariant::I4,
    Invariant::I5,
    Invariant::I6,
    Invariant::I7,
    Invariant::I8,
    Invariant::I9,
    Invariant::I10,
    Invariant::I11,
];

/// How often each invariant was looked at, and how often its premise was true.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tally(BTreeMap<Invariant, (usize, usize)>);

impl Tally {
    pub(super) fn count(&mut self, invariant: Invariant, premise: bool) {
        let (looked, held) = self.0.entry(invariant).or_default();
        *looked += 1;
        *held += usize::from(premise);
    }

    /// Adds what another search has seen.
    pub fn add(&mut self, other: &Tally) {
        for (invariant, (looked, held)) in &other.0 {
            let sum = self.0.entry(*invariant).or_default();
            *sum = (sum.0 + looked, sum.1 + held);
        }
    }

    /// Invariants whose premise was never true: they were not tested at all.
    pub fn vacuous(&self) -> Vec<Invariant> {
        let never =
            |invariant: &Invariant| self.0.get(invariant).is_none_or(|(_, held)| *held == 0);
        EXPLORED.into_iter().filter(never).collect()
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (invariant, (looked, held)) in &self.0 {
            writeln!(
                f,
                "  {:<4} looked at {looked:>8} times, premise true {held:>8} times",
                invariant.to_string()
            )?;
        }
        Ok(())
    }
}

/// What really happened to the jobs, in the order of commits.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Ghosts(BTreeMap<JobId, Ghost>);

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct Ghost {
    /// How many claims there ever were, also in times that are lost.
    issued: u8,
    /// The highest token that was ever issued, also in times that are lost.
    highest: Option<Token>,
    /// The latest claim's name: its number.
    claims: u8,
    /// The latest claim's token.
    token: Option<Token>,
    /// The claim that may be doing the effect, or may have done it, while nobody has said how it ended.
    doing: Option<u8>,
    /// What was written to the ledger, by which claim.
    written: BTreeSet<(u8, Doing)>,
    /// Which claims were settled, and how.
    settled: BTreeSet<(u8, Verb)>,
    /// Since the last requeue:
    starts: u16,
    given_back: u16,
    crashes: u16,
    successes: u16,
}

type Checked = Result<(), (Invariant, String)>;

impl Ghosts {
    pub(crate) fn new(jobs: usize) -> Ghosts {
        Ghosts((1..=jobs as i64).map(|id| (JobId(id), Ghost::default())).collect())
    }

    /// The latest claim of a job.
    pub(crate) fn latest(&self, job: JobId) -> u8 {
        self.0.get(&job).map_or(0, |ghost| ghost.claims)
    }

    /// What is known after the database has gone back: what happened since `backup` has not, but the
    /// numbers that were given out are in the world.
    pub(crate) fn back_to(&self, backup: &Ghosts) -> Ghosts {
        let back = |(id, then): (&JobId, &Ghost)| {
            let now = self.0.get(id).cloned().unwrap_or_default();
            (*id, Ghost { issued: now.issued, highest: now.highest, ..then.clone() })
        };
        Ghosts(backup.0.iter().map(back).collect())
    }

    /// Takes note of one call, made by the holder of claim `by`, and checks that it was right.
    pub(crate) fn observe(
        &mut self,
        old: &Dump,
        new: &Dump,
        call: &Call,
        answer: &Answer,
        by: Option<u8>,
        tally: &mut Tally,
    ) -> Checked {
        let mut check = Check { tally };
        let ids: Vec<_> = new.jobs.iter().map(|job| job.id).collect();
        let all_there = ids.len() == self.0.len() && ids.iter().eq(self.0.keys());
        check.that(Invariant::I9, true, all_there, || format!("the jobs are {ids:?}"))?;
        for (before, after) in old.jobs.iter().zip(&new.jobs) {
            let Some(ghost) = self.0.get_mut(&after.id) else { continue };
            ghost.moved(before, after, call, answer, old, &mut check)?;
        }
        for (before, after) in old.jobs.iter().zip(&new.jobs) {
            let Some(ghost) = self.0.get_mut(&after.id) else { continue };
            ghost.called(before, after, call, answer, by, &mut check)?;
            ghost.took_effect(before, old, new, call, answer, by, &mut check)?;
            ghost.holds(after, &mut check)?;
        }
        Ok(())
    }
}

struct Check<'a> {
    tally: &'a mut Tally,
}

impl Check<'_> {
    fn that(
        &mut self,
        invariant: Invariant,
        premise: bool,
        holds: bool,
        what: impl FnOnce() -> String,
    ) -> Checked {
        self.tally.count(invariant, premise);
        if premise && !holds { Err((invariant, what())) } else { Ok(()) }
    }
}

impl Ghost {
    /// What the change of a job's record says by itself, whoever called.
    fn moved(
        &mut self,
        before: &JobRecord,
        after: &JobRecord,
        call: &Call,
        answer: &Answer,
        old: &Dump,
        check: &mut Check<'_>,
    ) -> Checked {
        let requeued = *call == Call::Requeue
            && *answer == Answer::Changed(Changed::Yes)
            && before.state.has_ended();
        let id = after.id;
        check.that(Invariant::I2, before != after, after.token >= before.token, || {
            format!("the token of job {id} fell from {} to {}", before.token, after.token)
        })?;
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
            *self = Ghost { starts: 0, given_back: 0, crashes: 0, successes: 0, ..self.clone() };
            return Ok(());
        }
        if after.crashes > before.crashes {
            self.crashes += 1;
            let over =
                if *call == Call::Vanished { is_gone(before, old) } else { is_over(before, old) };
            check.that(Invariant::I8, true, before.state == State::Running && over, || {
                format!(
                    "job {id} was taken back at {} while {} until {:?}, by {:?}",
                    old.now, before.state, before.lease_until, before.worker
                )
            })?;
        }
        // A crash that was none is taken back.
        self.crashes -= u16::from(after.crashes < before.crashes);
        if before.state != State::Succeeded && after.state == State::Succeeded {
            self.successes += 1;
        }
        Ok(())
    }

    /// What the answer to a call says, given who called.
    fn called(
        &mut self,
        before: &JobRecord,
        after: &JobRecord,
        call: &Call,
        answer: &Answer,
        by: Option<u8>,
        check: &mut Check<'_>,
    ) -> Checked {
        match (call, answer) {
            (_, Answer::Claimed(claimed)) => {
                for attempt in
                    claimed.attempts.iter().filter(|attempt| attempt.lease.job() == after.id)
                {
                    self.claimed(before, after, attempt.lease.token(), check)?;
                }
                Ok(())
            }
            (Call::Settle(fence, ending), Answer::Settled(settled)) if fence.job == after.id => {
                let verb = ending.outcome().verb();
                self.was_settled(before, after, verb, *settled, by.unwrap_or(0), check)
            }
            (Call::Renew(fence), Answer::Renewed(renewed)) if fence.job == after.id => {
                self.was_renewed(before, after, *renewed, by.unwrap_or(0), check)
            }
            (Call::Progress(fence), Answer::Reported(reported)) if fence.job == after.id => {
                self.was_reported(before, after, *reported, by.unwrap_or(0), check)
            }
            _ => Ok(()),
        }
    }

    fn claimed(
        &mut self,
        before: &JobRecord,
        after: &JobRecord,
        token: Token,
        check: &mut Check<'_>,
    ) -> Checked {
        let id = after.id;
        let rose = self.highest.is_none_or(|last| token > last);
        check.that(Invariant::I2, self.highest.is_some(), rose, || {
            format!("job {id} was claimed under token {token}, after token {:?}", self.highest)
        })?;
        // A claim may lapse a job and lease it again at once: then the lapse was checked by I8.
        let free = before.state == State::Queued || after.crashes > before.crashes;
        check.that(Invariant::I6, true, free, || {
            format!("job {id} was claimed while {}", before.state)
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
        verb: Verb,
        settled: Settled,
        by: u8,
        check: &mut Check<'_>,
    ) -> Checked {
        let id = after.id;
        let changed = !is_same(before, after);
        let heard_before = self.settled.contains(&(by, verb));
        let yes = matches!(settled, Settled::Yes(_));
        check.that(Invariant::I7, yes && changed, by == self.claims, || {
            format!(
                "{verb} of job {id} was heard from claim {by}, but the latest is claim {}",
                self.claims
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
        let held = matches!(renewed, Renewed::Held(_));
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
        let noted = reported == Reported::Yes;
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

    /// What the ledger says, given who wrote.
    #[allow(clippy::too_many_arguments)]
    fn took_effect(
        &mut self,
        before: &JobRecord,
        old: &Dump,
        new: &Dump,
        call: &Call,
        answer: &Answer,
        by: Option<u8>,
        check: &mut Check<'_>,
    ) -> Checked {
        let id = before.id;
        // When is for people: states that differ only in it are one.
        let essence = |effect: &Effect| (effect.standing, effect.token, effect.result.clone());
        let of = |dump: &Dump| {
            let ours = dump.ledger.iter().filter(|effect| effect.job == id);
            ours.cloned().collect::<Vec<Effect>>()
        };
        let (then, now) = (of(old), of(new));
        let is_committed = |effect: &&Effect| effect.standing == Standing::Committed;
        let committed = now.iter().filter(is_committed).count();
        check.that(Invariant::I1, committed > 0, committed == 1 && now.len() == 1, || {
            format!("the effect of job {id} was committed {committed} times: {now:?}")
        })?;
        let was = then.iter().find(is_committed);
        let stays = |was: &Effect| now.iter().any(|is| essence(is) == essence(was));
        check.that(Invariant::I1, was.is_some(), was.is_none_or(stays), || {
            format!("the committed effect of job {id} became {now:?}")
        })?;
        if let (Call::Resolve(_), Answer::Resolved(Resolved::Yes(_))) = (call, answer) {
            self.doing = None;
        }
        let (Call::Ledger(fence, doing), Answer::Ledger(said)) = (call, answer) else {
            return Ok(());
        };
        if fence.job != id {
            return Ok(());
        }
        let by = by.unwrap_or(0);
        let changed = !then.iter().map(essence).eq(now.iter().map(essence));
        let latest = by == self.claims && before.state == State::Running;
        check.that(Invariant::I7, changed, latest, || {
            format!(
                "claim {by} wrote {doing:?} of job {id}, but the latest is claim {}",
                self.claims
            )
        })?;
        let other = self.doing.filter(|claim| *claim != by);
        let is_opened = *said == ledger::Answer::Opened;
        check.that(Invariant::I1, is_opened, other.is_none(), || {
            format!("claim {by} was let do what claim {other:?} may have done")
        })?;
        let recorded = *said == ledger::Answer::Recorded;
        let heard = self.written.contains(&(by, *doing));
        check.that(Invariant::I10, recorded && !changed, heard, || {
            format!("{doing:?} of job {id} was answered with yes, but nothing of the kind happened")
        })?;
        let is_final = matches!(doing, Doing::Commit | Doing::FindOut);
        check.that(Invariant::I10, is_final && !recorded, !heard, || {
            format!("{doing:?} of job {id} was refused, but it had been written")
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

    /// What must be true of a job at any time.
    fn holds(&self, job: &JobRecord, check: &mut Check<'_>) -> Checked {
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
                format!(
                    "job {id} is {} under token {}; its last claim had {:?}",
                    job.state, job.token, self.token
                )
            },
        )?;
        let allowed = job.max_attempts + self.given_back;
        check.that(Invariant::I5, self.starts > 0, self.starts <= allowed, || {
            format!("job {id} started {} times, {allowed} were allowed", self.starts)
        })?;
        check.that(Invariant::I5, self.crashes > 0, self.crashes <= job.max_crashes, || {
            format!("job {id} crashed {} times, {} were allowed", self.crashes, job.max_crashes)
        })
    }
}

/// Whether nothing has become of a job, but that a crash was taken back.
fn is_same(before: &JobRecord, after: &JobRecord) -> bool {
    let crashes = before.crashes;
    after.crashes <= crashes && JobRecord { crashes, ..after.clone() } == *before
}

/// Whether a job's lease is over. One from before the server's start gets its whole length from then on.
fn is_over(job: &JobRecord, state: &Dump) -> bool {
    let length = job.lease_ms.map(|ms| Duration::from_millis(ms.unsigned_abs()));
    let pardoned = length
        .filter(|_| job.leased_at.is_some_and(|leased| leased < state.started_at))
        .map(|length| state.started_at + length);
    job.lease_until.max(pardoned).is_some_and(|until| until <= state.now)
}

/// Whether a job's holder is known to be gone: its lock is free, was so before, and no restart has freed it.
fn is_gone(job: &JobRecord, state: &Dump) -> bool {
    state.workers.iter().any(|worker| {
        Some(&worker.worker) == job.worker.as_ref()
            && worker.under == state.started_at
            && !state.held.contains(&worker.worker)
            && worker.free_since.is_some_and(|since| since + GUARD_GAP <= state.now)
    })
}
