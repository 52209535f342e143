//! The books: every call and its answer, in the order of commits, checked against what really
//! happened.
//!
//! The connections write the books as calls pass through them (`faulty`), so the books also know of
//! answers that no caller received. The first violation ends the run.

mod ledger;
mod liveness;
mod people;
mod taken;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tenure::engine::clock::{Clock, Timestamp};
use tenure::engine::job::{Fingerprint, JobId, Name, State};
use tenure::engine::lease::{Fence, WorkerId};
use tenure::engine::lifecycle::{Outcome, Verb, is_own_return, makes_suspect};
use tenure::engine::store::{
    Attempt, Claim, Claimed as Answered, Renewed, Report, Reported, SUSPICION, Settled, Settlement,
};
use tenure::engine::telemetry::{Event, Fact};

pub(super) use self::liveness::RETRY;
use self::liveness::{Delays, Turns};
pub(super) use self::people::Copy;
use super::ghosts::{Claimed, Ghost};
use super::orders::ORDER;
use super::trace::{Rare, Trace};
use super::witness::Witness;
use crate::verdict::Invariant;

/// Everything that is known about a run.
pub(super) struct Books {
    pub(super) trace: Trace,
    pub(super) clock: Clock,
    pub(super) jobs: BTreeMap<JobId, Ghost>,
    pub(super) witness: Witness,
    /// No more faults happen.
    pub(super) quiet: bool,
    /// How many jobs have not ended.
    pub(super) live: usize,
    pub(super) calls: u64,
    pub(super) events: BTreeMap<&'static str, u64>,
    pub(super) wrong: Option<Wrong>,
    /// The living workers.
    pub(super) workers: BTreeMap<WorkerId, Living>,
    /// Until when a lapse is excused for all workers.
    pub(super) hindered: Duration,
    /// For each refused write about an effect: the number of the claim, and the effect.
    pub(super) refused: BTreeSet<(u64, Name)>,
    /// The clock has jumped.
    pub(super) jumped: bool,
    pub(super) went_back: u32,
    /// The jobs that wait for a person.
    pub(super) parked: BTreeSet<JobId>,
    held: BTreeMap<WorkerId, BTreeSet<JobId>>,
    keys: BTreeMap<String, (JobId, Fingerprint)>,
    claims: u64,
    turns: Turns,
    delays: Delays,
    /// When all workers were notified of a job that has not started yet.
    pub(super) told: BTreeMap<JobId, Duration>,
    /// The call that is being recorded is late: its sender has given up on it.
    pub(super) late: bool,
    /// The claims that workers have looked up because their answers were lost.
    asked: BTreeSet<(WorkerId, i64)>,
    /// How many faults have affected all workers.
    pub(super) disturbances: u64,
    /// The highest id that was ever issued, including those that a failover undid.
    last_id: JobId,
}

/// A living worker, and the faults that affect it.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Living {
    /// Until when a lapse of its jobs is excused: the worker stands still, is cut off, or gives up
    /// its jobs.
    pub(super) hindered: Duration,
    /// How many of its calls were lost.
    pub(super) losses: u32,
    /// When it was started.
    pub(super) since: Duration,
    /// Until when this worker alone cannot reach the store.
    pub(super) cut_until: Duration,
}

/// What is wrong.
#[derive(Debug, Clone)]
pub(super) struct Wrong {
    pub(super) invariant: Invariant,
    pub(super) what: String,
    pub(super) jobs: BTreeSet<JobId>,
}

impl Books {
    pub(super) fn new(clock: Clock) -> Books {
        Books {
            trace: Trace::default(),
            clock,
            jobs: BTreeMap::new(),
            witness: Witness::default(),
            quiet: false,
            live: 0,
            calls: 0,
            events: BTreeMap::new(),
            wrong: None,
            workers: BTreeMap::new(),
            hindered: Duration::ZERO,
            refused: BTreeSet::new(),
            jumped: false,
            went_back: 0,
            parked: BTreeSet::new(),
            held: BTreeMap::new(),
            keys: BTreeMap::new(),
            claims: 0,
            turns: Turns::default(),
            delays: Delays::default(),
            told: BTreeMap::new(),
            late: false,
            asked: BTreeSet::new(),
            disturbances: 0,
            last_id: JobId(0),
        }
    }

    pub(super) fn tell(&mut self, job: JobId, text: String) {
        self.trace.tell(Some(job), text);
    }

    pub(super) fn count(&mut self, rare: Rare) {
        self.trace.sometimes.count(rare);
    }

    /// Only the first violation is reported: later ones may follow from it.
    pub(super) fn fail(&mut self, invariant: Invariant, job: JobId, what: String) {
        let jobs = BTreeSet::from([job]);
        self.wrong.get_or_insert(Wrong { invariant, what, jobs });
    }

    /// Excuses lapses of this worker's jobs until then.
    pub(super) fn hinder(&mut self, who: &WorkerId, until: Duration) {
        if let Some(living) = self.workers.get_mut(who) {
            living.hindered = living.hindered.max(until);
        }
    }

    /// A fault affects all workers. If a time is given, lapses are excused until then.
    pub(super) fn disturb(&mut self, blameless_until: Option<Duration>) {
        self.disturbances += 1;
        self.hindered = self.hindered.max(blameless_until.unwrap_or_default());
    }

    /// The time on the store's clock.
    pub(super) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    // ── how jobs run

    pub(super) fn claim(&mut self, who: &WorkerId, ask: &Claim, answer: &Answered) {
        for lapse in &answer.lapsed {
            self.lapsed(lapse.about.fence(), lapse.became, Some(&lapse.worker), Verb::Lapse);
        }
        for attempt in &answer.attempts {
            self.given(who, ask.request, attempt);
        }
    }

    fn given(&mut self, who: &WorkerId, request: i64, attempt: &Attempt) {
        let (job, token) = (attempt.lease.job(), attempt.lease.token());
        self.claims += 1;
        let number = self.claims;
        let Some(ghost) = self.jobs.get_mut(&job) else {
            return self.fail(Invariant::I9, job, format!("job {job} was never enqueued"));
        };
        let (was, highest) = (ghost.state, ghost.highest);
        ghost.highest = highest.max(token);
        ghost.starts += 1;
        let bound = u32::from(attempt.max_attempts) + ghost.given_back;
        let too_often = ghost.starts > bound || attempt.attempt > attempt.max_attempts;
        let starts = ghost.starts;
        let is_suspect = ghost.unreturned && makes_suspect(attempt.crashes, attempt.max_crashes);
        ghost.claims.push(Claimed {
            number,
            worker: who.clone(),
            request,
            token,
            until: attempt.lease.until(),
            granted: self.trace.now,
            losses: self.workers.get(who).map_or(0, |living| living.losses),
            started_at: attempt.started_at,
            suspect: is_suspect,
            crashes: attempt.crashes,
            max_crashes: attempt.max_crashes,
            is_limited: attempt.max_runtime_ms.is_some(),
            attempt: attempt.attempt,
            unheard: false,
            late: false,
            missing: false,
            settled: None,
        });
        if token <= highest {
            let what = format!("job {job} was given out under token {token}, after {highest}");
            return self.fail(Invariant::I2, job, what);
        }
        if was != State::Queued {
            return self.fail(Invariant::I6, job, format!("job {job} was claimed while {was}"));
        }
        if too_often {
            return self.fail(Invariant::I5, job, format!("job {job} was started {starts} times"));
        }
        self.moved(job, State::Running);
        self.started(job);
        let text =
            format!("{who} is given it under token {token}, for attempt {}", attempt.attempt);
        self.tell(job, text);
        if is_suspect {
            self.suspect(who, job);
        }
    }

    /// A suspect was leased. Of the suspects that the worker now holds, at most one may have
    /// started within the last `SUSPICION`, and if there are several, none may be on its last
    /// crash.
    fn suspect(&mut self, who: &WorkerId, job: JobId) {
        let since = self.now() - SUSPICION;
        let held = self.held.get(who).into_iter().flatten();
        let claims = held.filter_map(|id| Some((*id, self.jobs.get(id)?.claims.last()?)));
        let suspects: Vec<_> = claims.filter(|(_, claim)| claim.suspect).collect();
        let young = suspects.iter().filter(|(_, claim)| claim.started_at > since).count();
        let is_last_chance = |claim: &Claimed| claim.crashes + 1 >= claim.max_crashes;
        let last_chance = suspects.iter().any(|(_, claim)| is_last_chance(claim));
        if young > 1 || (last_chance && suspects.len() > 1) {
            let suspects: Vec<JobId> = suspects.iter().map(|(id, _)| *id).collect();
            let what = format!("{who} was given the suspects {suspects:?} at a time");
            return self.fail(Invariant::I5, job, what);
        }
        self.count(Rare::SuspectAlone);
    }

    /// A claim was applied, but its worker did not get the answer.
    pub(super) fn unheard(&mut self, answer: &Answered) {
        for attempt in &answer.attempts {
            let ghost = self.jobs.get_mut(&attempt.lease.job());
            if let Some(claim) = ghost.and_then(Ghost::holder) {
                (claim.unheard, claim.late) = (true, self.late);
            }
        }
    }

    /// A worker looks up one of its own claims. Returns whether that is the first time.
    pub(super) fn asks(&mut self, who: &WorkerId, request: i64) -> bool {
        self.asked.insert((who.clone(), request))
    }

    pub(super) fn held(&mut self, who: &WorkerId, request: Option<i64>, answer: &[Attempt]) {
        let told: BTreeSet<JobId> = answer.iter().map(|attempt| attempt.lease.job()).collect();
        let mut held = self.held.get(who).cloned().unwrap_or_default();
        held.retain(|job| {
            let claim = self.jobs.get(job).and_then(|ghost| ghost.claims.last());
            claim.is_some_and(|claim| request.is_none_or(|request| claim.request == request))
        });
        if let Some(job) = told.symmetric_difference(&held).next() {
            let what = format!("{who} holds {held:?}, and was told {told:?}");
            return self.fail(Invariant::I10, *job, what);
        }
        for job in told {
            if let Some(claim) = self.jobs.get_mut(&job).and_then(Ghost::holder)
                && std::mem::take(&mut claim.unheard)
            {
                claim.late = false;
                self.count(Rare::ClaimTakenUp);
                self.tell(job, format!("{who} learns that it holds it"));
            }
        }
    }

    pub(super) fn renew(
        &mut self,
        who: &WorkerId,
        fences: &[Fence],
        _: Duration,
        answers: &[Renewed],
    ) {
        for (fence, answer) in fences.iter().zip(answers) {
            let Fence { job, token } = *fence;
            let stood = self.stood(who, *fence);
            match answer {
                Renewed::Extended(until) => {
                    if !self.may(stood, "a renewal", who, *fence) {
                        return;
                    }
                    let now = self.trace.now;
                    let losses = self.workers.get(who).map_or(0, |living| living.losses);
                    let Some(claim) = self.jobs.get_mut(&job).and_then(Ghost::holder) else {
                        return;
                    };
                    let shorter = claim.until > *until;
                    (claim.until, claim.granted, claim.losses) = (*until, now, losses);
                    if shorter {
                        let what = format!("a renewal shortened the lease of job {job}");
                        return self.fail(Invariant::I6, job, what);
                    }
                    self.tell(job, format!("{who} renews it under token {token}"));
                }
                Renewed::Stale(_) => {
                    if stood == Stood::Settled {
                        self.count(Rare::RenewalCrossed);
                        self.tell(job, format!("a renewal of {who} finds it settled"));
                    } else {
                        self.was_refused(stood, "a renewal", who, *fence);
                    }
                }
                Renewed::NotFound => self.was_gone("a renewal", *fence),
                Renewed::Busy => {}
            }
        }
    }

    pub(super) fn progress(&mut self, who: &WorkerId, reports: &[Report], answers: &[Reported]) {
        for (report, answer) in reports.iter().zip(answers) {
            let stood = self.stood(who, report.fence);
            match answer {
                Reported::Noted => {
                    if self.may(stood, "a report", who, report.fence) {
                        self.tell(report.fence.job, format!("{who} tells how far it is"));
                    }
                }
                Reported::Stale(_) => self.was_refused(stood, "a report", who, report.fence),
                Reported::NotFound => self.was_gone("a report", report.fence),
                Reported::Busy => {}
            }
        }
    }

    pub(super) fn settle(
        &mut self,
        who: &WorkerId,
        settlements: &[Settlement],
        answers: &[Settled],
    ) {
        for (settlement, answer) in settlements.iter().zip(answers) {
            self.settled(who, settlement, answer);
        }
    }

    pub(super) fn settle_and_claim(
        &mut self,
        who: &WorkerId,
        settlements: &[Settlement],
        ask: &Claim,
        (settled, claimed): &(Vec<Settled>, Answered),
    ) {
        self.settle(who, settlements, settled);
        self.claim(who, ask, claimed);
    }

    fn settled(&mut self, who: &WorkerId, settlement: &Settlement, answer: &Settled) {
        let Settlement { fence, outcome, .. } = settlement;
        let (fence, verb) = (*fence, outcome.verb());
        let (job, token) = (fence.job, fence.token);
        let stood = self.stood(who, fence);
        let before = self
            .jobs
            .get_mut(&job)
            .and_then(|ghost| ghost.claim(who, token))
            .and_then(|claim| claim.settled);
        match (answer, before) {
            (Settled::Applied(_), Some(first)) if first == verb => {
                self.count(Rare::ReplyHealed);
                self.tell(job, format!("{who} repeats its {verb}, and hears that it counts"));
            }
            (Settled::Applied(_), Some(first)) => {
                let what = format!("{verb} of job {job} was said to count, but it was {first}");
                self.fail(Invariant::I10, job, what);
            }
            (Settled::Applied(state), None) => {
                if self.may(stood, verb.name(), who, fence) {
                    self.ended(who, fence, outcome, *state);
                }
            }
            (Settled::Stale(_), Some(first)) if first == verb => {
                let what = format!("{verb} of job {job} was refused, but it had been applied");
                self.fail(Invariant::I10, job, what);
            }
            (Settled::Stale(_), _) => self.was_refused(stood, verb.name(), who, fence),
            (Settled::NotFound, _) => self.was_gone(verb.name(), fence),
        }
    }

    /// A settlement was applied for the first time.
    fn ended(&mut self, who: &WorkerId, fence: Fence, outcome: &Outcome, became: State) {
        let (job, verb, now) = (fence.job, outcome.verb(), self.now());
        let Some(ghost) = self.jobs.get_mut(&job) else { return };
        let Some(claim) = ghost.holder() else { return };
        claim.settled = Some(verb);
        let (late, attempt) = (claim.until < now, claim.attempt);
        let given_back = matches!(verb, Verb::Snooze | Verb::Release | Verb::Park);
        ghost.given_back += u32::from(given_back);
        if is_own_return(verb) && !became.has_ended() {
            ghost.came_back(now);
        }
        ghost.successes += u32::from(became == State::Succeeded);
        let twice = ghost.successes > 1;
        self.moved(job, became);
        self.tell(job, format!("{who} settles it under token {}: {verb}, {became}", fence.token));
        if (verb == Verb::Complete) != (became == State::Succeeded) {
            return self.fail(Invariant::I3, job, format!("{verb} of job {job} made it {became}"));
        }
        if twice {
            return self.fail(Invariant::I1, job, format!("job {job} succeeded twice"));
        }
        if late {
            self.count(Rare::LateSettlement);
        }
        match verb {
            Verb::Release => self.count(Rare::Released),
            Verb::Snooze => self.count(Rare::Snoozed),
            Verb::Retry if became == State::Dead => self.count(Rare::AttemptsUsedUp),
            Verb::Park => self.count(Rare::ParkedInDoubt),
            _ => {}
        }
        if outcome.note().is_some_and(|note| note.contains("max_runtime")) {
            self.count(Rare::TimedOut);
        }
        self.put_off(job, attempt, outcome);
    }

    // ── what workers log

    pub(super) fn hear(&mut self, event: &Event) {
        *self.events.entry(event.fact.name()).or_default() += 1;
        self.trace.mix(&serde_json::to_string(event).unwrap_or_default());
        let (Some(about), Some(worker)) = (&event.about, &event.worker) else { return };
        let Fence { job, token } = about.fence();
        if let Fact::JobSucceeded { .. } = &event.fact {
            let ghost = self.jobs.get_mut(&job);
            let was_committed = ghost.as_ref().is_none_or(|ghost| ghost.kind.as_str() == ORDER);
            let claim = ghost.and_then(|ghost| ghost.claim(worker, token));
            // If the handler itself completed its job, a failover may undo that before the worker
            // logs the success.
            if !(was_committed && self.went_back > 0)
                && claim.and_then(|claim| claim.settled) != Some(Verb::Complete)
            {
                let what = format!("{worker} takes job {job} for done, but it never completed it");
                self.fail(Invariant::I10, job, what);
            }
        }
    }

    // ── queries

    pub(super) fn state(&self, job: JobId) -> Option<State> {
        self.jobs.get(&job).map(|ghost| ghost.state)
    }

    /// The number of the claim to which this worker's fence belongs.
    pub(super) fn number(&mut self, who: &WorkerId, fence: Fence) -> Option<u64> {
        let ghost = self.jobs.get_mut(&fence.job)?;
        ghost.claim(who, fence.token).map(|claim| claim.number)
    }

    /// The standing of the claim to which this worker's fence belongs.
    pub(super) fn stood(&mut self, who: &WorkerId, fence: Fence) -> Stood {
        let Some(ghost) = self.jobs.get_mut(&fence.job) else { return Stood::Unknown };
        match ghost.claim(who, fence.token).map(|claim| (claim.number, claim.settled)) {
            None => Stood::Unknown,
            Some((_, Some(_))) => Stood::Settled,
            Some((number, None)) if ghost.is_held_by(number) => Stood::Holds,
            Some(_) => Stood::Lost,
        }
    }

    /// A write was accepted. Reports a violation, and returns false, unless it came from the latest
    /// claim.
    pub(super) fn may(&mut self, stood: Stood, what: &str, who: &WorkerId, fence: Fence) -> bool {
        let may = stood == Stood::Holds;
        if !may {
            let Fence { job, token } = fence;
            let text = format!("{what} of {who} for job {job} under token {token} was heard");
            self.fail(Invariant::I7, job, format!("{text}, but that claim is {stood:?}"));
        }
        may
    }

    /// A write was refused. Reports a violation if it came from the job's holder.
    pub(super) fn was_refused(&mut self, stood: Stood, what: &str, who: &WorkerId, fence: Fence) {
        let Fence { job, token } = fence;
        self.tell(job, format!("{what} of {who} under token {token} is refused"));
        if let Some(ghost) = self.jobs.get_mut(&job) {
            ghost.heard_of(who, token);
        }
        match stood {
            Stood::Holds => {
                let text = format!("{what} of {who} for job {job} was refused, but it holds it");
                self.fail(Invariant::I10, job, text);
            }
            Stood::Unknown => self.count(Rare::LostTimeRefused),
            Stood::Lost | Stood::Settled => self.count(Rare::StaleRefused),
        }
    }

    /// The store answers that there is no such job.
    pub(super) fn was_gone(&mut self, what: &str, fence: Fence) {
        let job = fence.job;
        if self.jobs.contains_key(&job) {
            return self.fail(Invariant::I9, job, format!("{what} of job {job} finds it gone"));
        }
        self.count(Rare::LostTimeRefused);
    }

    /// A job changes its state. A job that has ended must not change.
    pub(super) fn moved(&mut self, job: JobId, to: State) {
        let Some(ghost) = self.jobs.get_mut(&job) else { return };
        let was = std::mem::replace(&mut ghost.state, to);
        let worker = ghost.claims.last().map(|claim| claim.worker.clone());
        let first = usize::from(to == State::Running);
        let was_fresh = was == State::Queued && ghost.claims.len() == first;
        let tenant = was_fresh.then(|| ghost.tenant.clone());
        if was.has_ended() {
            return self.fail(Invariant::I4, job, format!("job {job} was {was}, and became {to}"));
        }
        self.live -= usize::from(to.has_ended());
        if let Some(tenant) = tenant {
            self.is_fresh_no_more(&tenant);
        }
        self.parked.remove(&job);
        if to == State::Parked {
            self.parked.insert(job);
        }
        let Some(worker) = worker else { return };
        if to == State::Running {
            self.held.entry(worker).or_default().insert(job);
        } else if was == State::Running
            && let Some(held) = self.held.get_mut(&worker)
        {
            held.remove(&job);
        }
    }
}

/// The standing of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stood {
    /// The claim holds the job.
    Holds,
    /// The claim has settled the job.
    Settled,
    /// The job was taken from the claim.
    Lost,
    /// There was never such a claim, or a failover undid it.
    Unknown,
}
