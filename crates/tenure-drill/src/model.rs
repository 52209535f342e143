//! The specification of a store, in plain maps and vectors, as short and obvious as it can be.
//!
//! The model knows nothing of SQL, files, locks or speed. Where a real engine and the model differ,
//! one of them is wrong.

mod guard;
mod lapse;
mod ledger;
mod look;
mod operate;
mod port;
mod progress;
mod suspect;
mod timeline;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tenure::drill::{self, KeyRecord, KeyScope, WorkerRecord};
use tenure::engine::clock::{Clock, Timestamp, millis};
use tenure::engine::inspect::{QueueSettings, Raise, TimelineEntry};
use tenure::engine::job::{JobId, JobRecord, Limits, Name, NewJob, RetryPolicy, State, Tenant};
use tenure::engine::lease::{Fence, Stale, WorkerId, first_of};
use tenure::engine::ledger::{EffectRecord, Step};
use tenure::engine::lifecycle::{Outcome, Verb};
use tenure::engine::store::{
    Attempt, Claim, Claimed, Cursor, Enqueued, GROUP_LIMIT, GUARD_GAP, LAPSE_LIMIT, PASS_LIMIT,
    PROMOTE_LIMIT, Renewed, Result, Settled, Settlement,
};

/// All jobs of a store, and everything it keeps beside them.
#[derive(Debug)]
pub struct Model {
    clock: Clock,
    limits: Limits,
    started_at: Timestamp,
    /// The pulse: when a worker last reported that it can reach the store; 0 if no worker ever did.
    pulse: Timestamp,
    /// When the last gap in the pulse ended, and when the one before it ended.
    broke: Timestamp,
    broke_before: Timestamp,
    /// How long a worker's lock must have been free before its process counts as gone.
    guard_gap: Duration,
    epoch: u32,
    raises: Vec<Raise>,
    /// The number of the next job; it goes on counting in a new epoch.
    sequence: i64,
    jobs: BTreeMap<JobId, JobRecord>,
    timeline: Vec<TimelineEntry>,
    keys: BTreeMap<(Tenant, String), KeyRecord>,
    queues: BTreeMap<Name, QueueSettings>,
    ledger: BTreeMap<(JobId, Name), EffectRecord>,
    steps: BTreeMap<(JobId, Name), Step>,
    workers: BTreeMap<WorkerId, WorkerRecord>,
    /// The workers whose lock is held.
    held: BTreeSet<WorkerId>,
    /// Whether something changed since the last claim or wait.
    changed: bool,
}

impl Model {
    /// An empty store.
    pub fn new(clock: Clock, limits: Limits) -> Model {
        Model {
            clock,
            limits,
            started_at: Timestamp::from_millis(0),
            pulse: Timestamp::from_millis(0),
            broke: Timestamp::from_millis(0),
            broke_before: Timestamp::from_millis(0),
            guard_gap: GUARD_GAP,
            epoch: 0,
            raises: Vec::new(),
            sequence: 1,
            jobs: BTreeMap::new(),
            timeline: Vec::new(),
            keys: BTreeMap::new(),
            queues: BTreeMap::new(),
            ledger: BTreeMap::new(),
            steps: BTreeMap::new(),
            workers: BTreeMap::new(),
            held: BTreeSet::new(),
            changed: false,
        }
    }

    fn now(&self) -> Timestamp {
        self.clock.now()
    }

    // ── enqueue ────────────────────────────────────────────────────────────────────────────────

    fn enqueue_one(&mut self, job: &NewJob) -> Enqueued {
        let now = self.now();
        let id = self.next_id();
        let (tenant, key) = drill::parts(job);
        if let Some(key) = key {
            let place = (tenant.clone(), key.as_str().to_owned());
            let fingerprint = job.fingerprint();
            match self.keys.get(&place) {
                Some(taken) if taken.expires_at > now && taken.fingerprint == fingerprint => {
                    return Enqueued::Existing(taken.job);
                }
                Some(taken) if taken.expires_at > now => return Enqueued::Conflict(taken.job),
                _ => {}
            }
            let record = KeyRecord {
                tenant: place.0.clone(),
                scope: KeyScope::Idempotency,
                key: place.1.clone(),
                fingerprint,
                job: id,
                expires_at: now + key.window,
            };
            self.keys.insert(place, record);
        }
        self.jobs.insert(id, job.record(id, now));
        self.sequence += 1;
        Enqueued::Created(id)
    }

    /// The id of the next job, above every id of an earlier epoch.
    fn next_id(&self) -> JobId {
        JobId(first_of(self.epoch) + self.sequence)
    }

    // ── claim ──────────────────────────────────────────────────────────────────────────────────

    fn claim_now(&mut self, ask: &Claim) -> Claimed {
        self.promote(ask);
        let late = self.now() - ask.grace;
        if self.jobs.values().any(|job| job.lease_until.is_some_and(|until| until <= late)) {
            self.note_breaks();
        }
        let lapsed = self
            .overdue_now(LAPSE_LIMIT, ask.grace)
            .into_iter()
            .filter_map(|fence| self.lapse_one(fence))
            .collect();
        let mut reached = ask.cursor.group;
        let mut attempts: Vec<Attempt> = Vec::new();
        let mut walked = Walked::default();
        while attempts.len() < ask.n {
            let room = ask.n - attempts.len();
            let mut groups = self.next_groups(ask, &mut walked, room.min(GROUP_LIMIT));
            if groups.is_empty() {
                break;
            }
            // Give each group an equal share, until there is no room or these groups have no work
            // left.
            while attempts.len() < ask.n && !groups.is_empty() {
                let share = (ask.n - attempts.len()).div_ceil(groups.len());
                groups.retain(|group| {
                    let wanted = share.min(ask.n - attempts.len());
                    let picked = self.pick(ask, *group, wanted);
                    if !picked.is_empty() {
                        reached = *group;
                    }
                    attempts.extend(picked.iter().filter_map(|job| self.lease(*job, ask)));
                    wanted > 0 && picked.len() == wanted
                });
            }
        }
        let open = self.open_queues(ask);
        let waiting = self.jobs.values().filter(|job| job.waiting && open.contains(&job.queue));
        let due = waiting.map(|job| job.run_at).min();
        let has_room = attempts.len() < ask.n;
        let next_due = due.filter(|_| has_room).map(|due| due.since(self.now()));
        let cursor = match walked.groups.last() {
            Some(last) if has_room && walked.passed >= PASS_LIMIT && *last != ask.cursor.end() => {
                Cursor { group: *last, round: Some(ask.cursor.end()) }
            }
            _ => Cursor::after(reached),
        };
        Claimed { attempts, lapsed, cursor, next_due }
    }

    /// Makes due waiting jobs of the claimed queues ready, the oldest of each queue first. The
    /// limit is ten times the number of jobs that the claim asks for, but at least 100 and at most
    /// 1,000, in equal shares for the queues that have such jobs.
    fn promote(&mut self, ask: &Claim) {
        let now = self.now();
        let open = self.open_queues(ask);
        let mut due: BTreeMap<Name, Vec<&mut JobRecord>> = BTreeMap::new();
        for job in self.jobs.values_mut() {
            if job.waiting && job.run_at <= now && open.contains(&job.queue) {
                due.entry(job.queue.clone()).or_default().push(job);
            }
        }
        let share = (ask.n * 10).clamp(100, PROMOTE_LIMIT).div_ceil(due.len().max(1));
        for mut jobs in due.into_values() {
            jobs.sort_by_key(|job| (job.run_at, job.id));
            jobs.into_iter().take(share).for_each(|job| job.waiting = false);
        }
    }

    /// The claimed queues that are not paused.
    fn open_queues(&self, ask: &Claim) -> BTreeSet<Name> {
        let paused = |queue: &Name| self.queues.get(queue).is_some_and(|it| it.paused_at.is_some());
        ask.queues.iter().filter(|queue| !paused(queue)).cloned().collect()
    }

    /// The next groups on the ring that have work for this claim, after the groups already walked.
    fn next_groups(&self, ask: &Claim, walked: &mut Walked, limit: usize) -> Vec<i64> {
        // If the worker may take suspects at all, every ready suspect gives its group a place in
        // the round, also one on its last crash, which `pick` then leaves out: the lanes record
        // that there is a suspect, but not how many crashes it has left.
        let suspects = ask.suspects && self.may_take_suspects(&ask.worker);
        let ready = self.asked_for(ask).filter(|job| suspects || !job.is_suspect);
        let with_work: BTreeSet<i64> = ready.map(group_of).collect();
        let mut found = Vec::new();
        for (group, passed) in self.ring(ask) {
            if found.len() == limit || walked.passed >= PASS_LIMIT {
                break;
            }
            if !walked.groups.contains(&group) {
                walked.groups.push(group);
                walked.passed += passed;
                found.extend(with_work.get(&group));
            }
        }
        found
    }

    /// The groups that have ready jobs of any kind, from the one after the claim's cursor to the
    /// end of the claim's round. With each group: in how many of its lanes the jobs are of kinds
    /// that the claim does not ask for.
    fn ring(&self, ask: &Claim) -> Vec<(i64, usize)> {
        let suspects = ask.suspects && self.may_take_suspects(&ask.worker);
        let any_kind = Claim { kinds: None, ..ask.clone() };
        let ready = self.asked_for(&any_kind).filter(|job| suspects || !job.is_suspect);
        let lanes: BTreeSet<_> =
            ready.map(|job| (group_of(job), job.is_suspect, job.kind.clone())).collect();
        let is_asked = |kind: &Name| ask.kinds.as_ref().is_none_or(|kinds| kinds.contains(kind));
        let mut groups: BTreeMap<i64, usize> = BTreeMap::new();
        for (group, _, kind) in lanes {
            *groups.entry(group).or_default() += usize::from(!is_asked(&kind));
        }
        let (start, end) = (ask.cursor.group, ask.cursor.end());
        let (before, after): (Vec<_>, Vec<_>) =
            groups.into_iter().partition(|(group, _)| *group <= start);
        match start < end {
            true => after.into_iter().filter(|(group, _)| *group <= end).collect(),
            false => {
                let before = before.into_iter().filter(|(group, _)| *group <= end);
                after.into_iter().chain(before).collect()
            }
        }
    }

    /// Ready jobs that this claim may take; a suspect only if the claim asks for suspects and the
    /// worker may take it beside those it holds.
    fn ready<'a>(&'a self, ask: &'a Claim) -> impl Iterator<Item = &'a JobRecord> {
        let may_join = |job: &JobRecord| ask.suspects && self.may_join(job, &ask.worker);
        self.asked_for(ask).filter(move |job| !job.is_suspect || may_join(job))
    }

    /// Ready jobs of the queues and kinds that this claim asks for.
    fn asked_for<'a>(&'a self, ask: &'a Claim) -> impl Iterator<Item = &'a JobRecord> {
        let open = self.open_queues(ask);
        self.jobs.values().filter(move |job| {
            job.state == State::Queued
                && !job.waiting
                && open.contains(&job.queue)
                && ask.kinds.as_ref().is_none_or(|kinds| kinds.contains(&job.kind))
        })
    }

    /// The first jobs of one group by priority and age, with at most one suspect.
    fn pick(&self, ask: &Claim, group: i64, wanted: usize) -> Vec<JobId> {
        let mut jobs: Vec<_> = self.ready(ask).filter(|job| group_of(job) == group).collect();
        jobs.sort_by_key(|job| (job.priority, job.run_at, job.id));
        let first_suspect = jobs.iter().find(|job| job.is_suspect).map(|job| job.id);
        jobs.retain(|job| !job.is_suspect || Some(job.id) == first_suspect);
        jobs.into_iter().take(wanted).map(|job| job.id).collect()
    }

    fn lease(&mut self, id: JobId, ask: &Claim) -> Option<Attempt> {
        let (now, epoch) = (self.now(), self.epoch);
        let job = self.jobs.get_mut(&id)?;
        job.state = State::Running;
        job.attempt += 1;
        job.token = job.token.next(epoch);
        job.worker = Some(ask.worker.clone());
        job.request = Some(ask.request);
        job.started_at = Some(now);
        job.progress = None;
        job.returns_until = None;
        grant(job, now, ask.lease);
        drill::attempt(job.clone())
    }

    // ── renew, settle ──────────────────────────────────────────────────────────────────────────

    /// The running job that this fence holds.
    fn holds(&self, fence: Fence) -> Option<JobRecord> {
        let job = self.jobs.get(&fence.job)?;
        (job.token == fence.token && job.state == State::Running).then(|| job.clone())
    }

    fn renew_one(&mut self, fence: Fence, length: Duration) -> Renewed {
        let now = self.now();
        if self.holds(fence).is_some()
            && let Some(job) = self.jobs.get_mut(&fence.job)
        {
            let before = job.lease_until;
            grant(job, now, length);
            job.lease_until = job.lease_until.max(before);
            return job.lease_until.map_or(Renewed::NotFound, Renewed::Extended);
        }
        self.refuse(fence, Verb::Renew).map_or(Renewed::NotFound, Renewed::Stale)
    }

    /// Enqueues the follow-up jobs of the settlements that will be applied: of several settlements
    /// for one job, only the first whose token is the job's.
    fn follow(&mut self, settlements: &[Settlement]) {
        let mut heard = BTreeSet::new();
        for Settlement { fence, then, .. } in settlements {
            let Some(before) = self.holds(*fence).filter(|_| heard.insert(fence.job)) else {
                continue;
            };
            let mut conflicts = Vec::new();
            for follow_up in then {
                if let Enqueued::Conflict(owner) =
                    self.enqueue_one(&drill::following(follow_up, before.id))
                {
                    let kind = follow_up.record(before.id, self.now()).kind;
                    conflicts.push(format!(
                        "{kind} not enqueued: job {owner} has its key for another request"
                    ));
                }
            }
            if !conflicts.is_empty() {
                let words = Some(conflicts.join("; "));
                let line = self.line(&before, Verb::Follow, before.state, words);
                self.write_down(TimelineEntry { refused: true, ..line });
            }
        }
    }

    fn settle_one(&mut self, settlement: &Settlement) -> Settled {
        let Settlement { fence, outcome, .. } = settlement;
        let Some(before) = self.holds(*fence) else {
            return self.answer_late(*fence, outcome.verb());
        };
        let now = self.now();
        let mut job = before.clone();
        match outcome {
            Outcome::Complete { result } => {
                job.result.clone_from(result);
                end(&mut job, State::Succeeded, now);
            }
            Outcome::Retry { .. } if job.attempt >= job.max_attempts => {
                end(&mut job, State::Dead, now);
            }
            Outcome::Retry { after, .. } => wait_until(&mut job, now + *after, now),
            Outcome::Snooze { after } => {
                job.attempt -= 1;
                wait_until(&mut job, now + *after, now);
            }
            Outcome::Release => {
                job.attempt -= 1;
                job.token = job.token.next(self.epoch);
                let run_at = job.run_at;
                wait_until(&mut job, run_at, now);
            }
            Outcome::Bury { .. } => end(&mut job, State::Dead, now),
            Outcome::Park { .. } => {
                job.attempt -= 1;
                let run_at = job.run_at;
                wait_until(&mut job, run_at, now);
                job.state = State::Parked;
                job.waiting = false;
            }
        }
        if matches!(job.state, State::Dead | State::Parked) {
            job.reason = outcome.note();
        }
        // A release is the worker's decision, not the handler's: it does not show that the handler
        // has returned, so the job stays a suspect.
        if !job.state.has_ended() && *outcome != Outcome::Release {
            suspect::came_back(&mut job, now);
        }
        let became = job.state;
        let kept = self.queues.get(&job.queue).is_none_or(|set| set.keep_ms > 0)
            || self.is_in_doubt(job.id);
        if became == State::Succeeded && !kept {
            self.forget(job.id);
        } else {
            self.jobs.insert(job.id, job);
            if outcome.verb() != Verb::Complete {
                self.note(&before, outcome.verb(), became, outcome.note());
            }
        }
        Settled::Applied(became)
    }

    /// Answers a settlement whose token no longer holds the job: `Applied` if the same settlement
    /// was applied before, else a refusal.
    fn answer_late(&mut self, fence: Fence, verb: Verb) -> Settled {
        let succeeded = self.jobs.get(&fence.job).is_some_and(|job| {
            job.state == State::Succeeded && job.token == fence.token && verb == Verb::Complete
        });
        let heard = if succeeded { Some(State::Succeeded) } else { self.heard(fence, verb) };
        match heard {
            Some(became) => Settled::Applied(became),
            None => self.refuse(fence, verb).map_or(Settled::NotFound, Settled::Stale),
        }
    }

    fn heard(&self, fence: Fence, verb: Verb) -> Option<State> {
        let ours = |line: &&TimelineEntry| {
            (line.job, line.token, line.verb, line.refused) == (fence.job, fence.token, verb, false)
        };
        self.timeline.iter().find(ours).map(|line| line.became)
    }

    /// Which attempt and worker a token belonged to. The line of the timeline that ended the
    /// attempt has both; so has the job itself, if the attempt ended the job.
    fn shown_by(&self, shown: Fence) -> (u16, Option<WorkerId>) {
        let line = self.timeline.iter().find(|line| {
            (line.job, line.token, line.refused) == (shown.job, shown.token, false)
                && line.worker.is_some()
        });
        let ended = |job: &&JobRecord| job.state.has_ended() && job.token == shown.token;
        match (line, self.jobs.get(&shown.job).filter(ended)) {
            (Some(line), _) => (line.attempt, line.worker.clone()),
            (None, Some(job)) => (job.attempt, job.worker.clone()),
            (None, None) => (0, None),
        }
    }

    /// Records a refused write in the timeline.
    fn refuse(&mut self, shown: Fence, verb: Verb) -> Option<Stale> {
        self.take_crash_back(shown);
        let job = self.jobs.get(&shown.job)?;
        let stale = Stale::new(shown, job.token, job.state);
        let (attempt, worker) = self.shown_by(shown);
        let line = TimelineEntry {
            job: job.id,
            at: self.now(),
            verb,
            refused: true,
            token: shown.token,
            attempt,
            worker,
            from: None,
            became: job.state,
            note: Some(format!("{}: the job's token is {}", stale.reason.name(), stale.current)),
            earlier: 0,
        };
        self.write_down(line);
        Some(stale)
    }

    /// Deletes a job with its timeline, effects and steps.
    fn forget(&mut self, id: JobId) {
        self.jobs.remove(&id);
        self.timeline.retain(|line| line.job != id);
        self.ledger.retain(|(job, _), _| *job != id);
        self.steps.retain(|(job, _), _| *job != id);
    }

    // ── the timeline ───────────────────────────────────────────────────────────────────────────

    fn line(
        &self,
        before: &JobRecord,
        verb: Verb,
        became: State,
        note: Option<String>,
    ) -> TimelineEntry {
        TimelineEntry {
            job: before.id,
            at: self.now(),
            verb,
            refused: false,
            token: before.token,
            attempt: before.attempt,
            worker: before.worker.clone(),
            from: before.started_at,
            became,
            note,
            earlier: 0,
        }
    }

    fn note(&mut self, before: &JobRecord, verb: Verb, became: State, note: Option<String>) {
        self.write_down(self.line(before, verb, became, note));
    }

    /// Writes a line into the timeline, unless there is one with the same job, token, verb and
    /// `refused`.
    fn write_down(&mut self, line: TimelineEntry) {
        let key = |line: &TimelineEntry| (line.job, line.token, line.verb, line.refused);
        if self.timeline.iter().all(|known| key(known) != key(&line)) {
            let earlier = if line.refused { 0 } else { timeline::thin(&mut self.timeline, &line) };
            self.timeline.push(TimelineEntry { earlier, ..line });
        }
    }

    fn changing<T>(&mut self, change: impl FnOnce(&mut Self) -> T) -> Result<T> {
        self.changed = true;
        Ok(change(self))
    }
}

/// The groups that one claim has looked at.
#[derive(Debug, Default)]
struct Walked {
    /// In the order of the ring.
    groups: Vec<i64>,
    /// How many of their lanes the claim did not ask for.
    passed: usize,
}

fn group_of(job: &JobRecord) -> i64 {
    drill::group(&job.queue, &job.tenant)
}

/// Grants a lease of this length from now, but not beyond the maximum runtime.
fn grant(job: &mut JobRecord, now: Timestamp, length: Duration) {
    let longest = job.max_runtime_ms.map(|ms| Duration::from_millis(ms.unsigned_abs()));
    let latest = longest.zip(job.started_at).map(|(longest, started)| started + longest);
    job.leased_at = Some(now);
    job.lease_ms = Some(millis(length));
    job.lease_until = Some(latest.map_or(now + length, |latest| latest.min(now + length)));
}

fn rest(job: &mut JobRecord) {
    job.leased_at = None;
    job.lease_ms = None;
    job.lease_until = None;
    job.request = None;
}

/// Puts the job back into the queue, due at `run_at`.
fn wait_until(job: &mut JobRecord, run_at: Timestamp, now: Timestamp) {
    rest(job);
    job.state = State::Queued;
    job.run_at = run_at;
    job.waiting = run_at > now;
    job.worker = None;
    job.started_at = None;
}

fn end(job: &mut JobRecord, state: State, now: Timestamp) {
    rest(job);
    job.state = state;
    job.waiting = false;
    job.finished_at = Some(now);
    job.progress = None;
    job.returns_until = None;
    job.crashed_at = None;
    job.is_suspect = false;
}

/// The delay after the n-th failure, without jitter.
fn backoff(policy: &RetryPolicy, n: u16) -> Duration {
    let ms = match policy {
        RetryPolicy::Fixed { ms } => *ms,
        RetryPolicy::List { ms } => ms.get(usize::from(n) - 1).or(ms.last()).copied().unwrap_or(0),
        RetryPolicy::Exponential { base_ms, cap_ms } => {
            (1..n).fold(*base_ms, |delay, _| delay.saturating_mul(2)).min(*cap_ms)
        }
    };
    Duration::from_millis(ms)
}
