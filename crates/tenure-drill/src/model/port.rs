//! The model behind the port: the same argument checks as the engines, then the rules of
//! `model.rs`.

use std::time::{Duration, Instant};

use tenure::Timestamp;
use tenure::drill::{self, Dump, Explorable, KeyRecord};
use tenure::engine::inspect::{Current, QueueSettings, Raise};
use tenure::engine::job::{JobId, JobRecord, Name, NewJob, State};
use tenure::engine::lease::{self, Fence, WorkerId, first_of};
use tenure::engine::ledger::{self, Entry, Resolution};
use tenure::engine::store::{
    AsSeen, Attempt, Beat, Changed, Claim, Claimed, Enqueued, Guarded, Lapse, Lapsed, Look,
    Operate, Pruned, QueueChange, Registration, Renewed, Report, Reported, Resolved, Result,
    Settled, Settlement, Wake, Work, check_batch, check_claim, check_entries, check_guard_gap,
    check_jobs, check_lease, check_resolution, check_settlements,
};

use super::Model;

impl drill::Sealed for Model {}

impl Work for Model {
    fn enqueue(&mut self, jobs: &[NewJob]) -> Result<Vec<Enqueued>> {
        check_jobs(jobs, &self.limits)?;
        self.changing(|model| jobs.iter().map(|job| model.enqueue_one(job)).collect())
    }

    fn claim(&mut self, ask: &Claim) -> Result<Claimed> {
        check_claim(ask)?;
        self.changed = false;
        Ok(self.claim_now(ask))
    }

    fn held(&mut self, worker: &WorkerId, request: Option<i64>) -> Result<Vec<Attempt>> {
        let held = self.jobs.values().filter(|job| {
            job.state == State::Running
                && job.worker.as_ref() == Some(worker)
                && (request.is_none() || job.request == request)
        });
        Ok(held.cloned().filter_map(drill::attempt).collect())
    }

    fn renew(&mut self, fences: &[Fence], length: Duration) -> Result<Vec<Renewed>> {
        check_batch(fences.len())?;
        check_lease(length)?;
        self.changing(|model| {
            in_order(fences, |fence| *fence, |fence| model.renew_one(*fence, length))
        })
    }

    fn progress(&mut self, reports: &[Report]) -> Result<Vec<Reported>> {
        check_batch(reports.len())?;
        self.changing(|model| {
            in_order(reports, |report| report.fence, |report| model.progress_one(report))
        })
    }

    fn settle(&mut self, settlements: &[Settlement]) -> Result<Vec<Settled>> {
        check_settlements(settlements, &self.limits)?;
        self.changing(|model| {
            model.follow(settlements);
            settlements.iter().map(|settlement| model.settle_one(settlement)).collect()
        })
    }

    fn settle_and_claim(
        &mut self,
        settlements: &[Settlement],
        ask: &Claim,
    ) -> Result<(Vec<Settled>, Claimed)> {
        check_claim(ask)?;
        Ok((self.settle(settlements)?, self.claim(ask)?))
    }

    fn ledger(&mut self, entries: &[Entry]) -> Result<Vec<ledger::Answer>> {
        check_entries(entries, &self.limits)?;
        // Entries that will be refused come last, sorted by fence and verb, as in the engines: each
        // writes a line into the timeline. On PostgreSQL, two calls that write the same lines in
        // different orders would wait for each other.
        let mut order: Vec<_> = (0..entries.len()).collect();
        order.sort_by_key(|at| {
            let Entry { fence, act, .. } = &entries[*at];
            let refused = self.holds(*fence).is_none();
            refused.then_some((*fence, act.verb().name()))
        });
        self.changing(|model| {
            let mut answers = vec![ledger::Answer::NotFound; entries.len()];
            order.into_iter().for_each(|at| answers[at] = model.ledger_one(&entries[at]));
            answers
        })
    }

    fn register(&mut self, worker: &Registration) -> Result<Guarded> {
        self.changing(|model| model.register_one(worker))?;
        Ok(Guarded::ByLock)
    }

    fn retire(&mut self, worker: &WorkerId) -> Result<()> {
        self.changing(|model| model.retire_one(worker))
    }

    fn vanished(&mut self, limit: usize) -> Result<Vec<Lapse>> {
        check_batch(limit)?;
        self.changing(|model| model.vanished_now(limit))
    }

    fn beat(&mut self) -> Result<Beat> {
        let before = (self.pulse, self.broke);
        let beat = self.beat_now();
        self.changed |= (self.pulse, self.broke) != before;
        Ok(beat)
    }

    fn overdue(&mut self, limit: usize, grace: Duration) -> Result<Vec<Fence>> {
        check_batch(limit)?;
        Ok(self.overdue_now(limit, grace))
    }

    fn lapse(&mut self, fences: &[Fence]) -> Result<Vec<Lapsed>> {
        check_batch(fences.len())?;
        let answer = |lapse: Option<Lapse>| lapse.map_or(Lapsed::LeftAlone, Lapsed::TakenBack);
        self.changing(|model| {
            model.note_breaks();
            fences.iter().map(|fence| answer(model.lapse_one(*fence))).collect()
        })
    }

    fn prune(&mut self, limit: usize) -> Result<Pruned> {
        check_batch(limit)?;
        self.prune_workers();
        let now = self.now();
        let old = |job: &&JobRecord| {
            let keep = self.settings_of(&job.queue).keep(job.state);
            job.finished_at.is_some_and(|finished| finished + keep <= now)
                && !self.is_in_doubt(job.id)
        };
        let mut jobs: Vec<_> = self.jobs.values().filter(old).collect();
        jobs.sort_by_key(|job| (job.queue.clone(), job.state, job.finished_at, job.id));
        let jobs: Vec<_> = jobs.into_iter().take(limit).map(|job| job.id).collect();
        let mut keys: Vec<_> = self.keys.iter().filter(|(_, key)| key.expires_at <= now).collect();
        keys.sort_by_key(|(place, key)| (key.expires_at, (*place).clone()));
        let keys: Vec<_> = keys.into_iter().take(limit).map(|(place, _)| place.clone()).collect();
        jobs.iter().for_each(|id| self.forget(*id));
        keys.iter().for_each(|place| drop(self.keys.remove(place)));
        self.changing(|_| Pruned { jobs: jobs.len(), keys: keys.len() })
    }

    fn current(&mut self, jobs: &[JobId]) -> Result<Vec<Option<Current>>> {
        check_batch(jobs.len())?;
        let current = |job: &JobRecord| Current { token: job.token, state: job.state };
        Ok(jobs.iter().map(|id| self.jobs.get(id).map(current)).collect())
    }

    /// No other caller shares this model, so nothing can change during a wait.
    fn wait(&mut self, _until: Instant) -> Result<Wake> {
        Ok(if std::mem::take(&mut self.changed) { Wake::Changed } else { Wake::TimedOut })
    }
}

impl Operate for Model {
    fn cancel(&mut self, jobs: &[JobId]) -> Result<Vec<Changed>> {
        check_batch(jobs.len())?;
        self.changing(|model| jobs.iter().map(|job| model.cancel_one(*job)).collect())
    }

    fn requeue(&mut self, jobs: &[AsSeen]) -> Result<Vec<Changed>> {
        check_batch(jobs.len())?;
        self.changing(|model| jobs.iter().map(|job| model.requeue_one(*job)).collect())
    }

    fn resume(&mut self, jobs: &[JobId]) -> Result<Vec<Changed>> {
        check_batch(jobs.len())?;
        self.changing(|model| jobs.iter().map(|job| model.resume_one(*job)).collect())
    }

    fn purge(&mut self, jobs: &[AsSeen]) -> Result<Vec<Changed>> {
        check_batch(jobs.len())?;
        self.changing(|model| jobs.iter().map(|job| model.purge_one(*job)).collect())
    }

    fn configure(&mut self, queue: &Name, change: &QueueChange) -> Result<QueueSettings> {
        self.changing(|model| {
            let mut settings = model.settings_of(queue);
            change.apply(&mut settings, model.now());
            model.queues.insert(queue.clone(), settings.clone());
            settings
        })
    }

    fn resolve(&mut self, job: JobId, effect: &Name, how: &Resolution) -> Result<Resolved> {
        check_resolution(how, &self.limits)?;
        self.changing(|model| model.resolve_one(job, effect, how))
    }

    fn raise_epoch(&mut self, reason: &str) -> Result<u32> {
        let at = self.now();
        self.changing(|model| {
            model.epoch = lease::raised(model.epoch, at);
            let reason = reason.to_owned();
            model.raises.push(Raise { epoch: model.epoch, at, reason });
            model.epoch
        })
    }

    fn set_guard_gap(&mut self, gap: Duration) -> Result<Duration> {
        check_guard_gap(gap)?;
        self.changing(|model| std::mem::replace(&mut model.guard_gap, gap))
    }
}

impl Explorable for Model {
    fn look(&mut self) -> Option<&mut dyn Look> {
        None
    }

    fn dump(&mut self) -> Result<Dump> {
        let mut timeline = self.timeline.clone();
        timeline.sort_by_key(|line| line.job);
        Ok(Dump {
            now: self.now(),
            started_at: self.started_at,
            broke: self.broke,
            broke_before: self.broke_before,
            guard_gap: self.guard_gap,
            epoch: self.epoch,
            next_id: self.next_id().0,
            jobs: self.jobs.values().cloned().collect(),
            timeline,
            keys: self.keys.values().cloned().collect(),
            queues: self.queues.values().cloned().collect(),
            ledger: self.ledger.values().cloned().collect(),
            steps: self.steps.values().cloned().collect(),
            workers: self.workers.values().cloned().collect(),
            held: self.held.iter().cloned().collect(),
        })
    }

    fn load(&mut self, state: &Dump) -> Result<()> {
        self.clock.set(state.now);
        self.started_at = state.started_at;
        (self.broke, self.broke_before) = (state.broke, state.broke_before);
        self.pulse = Timestamp::from_millis(0);
        self.guard_gap = state.guard_gap;
        self.epoch = state.epoch;
        self.sequence = state.next_id - first_of(state.epoch);
        self.jobs = state.jobs.iter().map(|job| (job.id, job.clone())).collect();
        self.timeline.clone_from(&state.timeline);
        let place = |key: &KeyRecord| (key.tenant.clone(), key.key.clone());
        self.keys = state.keys.iter().map(|key| (place(key), key.clone())).collect();
        self.queues = state.queues.iter().map(|set| (set.queue.clone(), set.clone())).collect();
        let place = |effect: &ledger::EffectRecord| (effect.job, effect.name.clone());
        self.ledger = state.ledger.iter().map(|effect| (place(effect), effect.clone())).collect();
        let place = |step: &ledger::Step| (step.job, step.name.clone());
        self.steps = state.steps.iter().map(|step| (place(step), step.clone())).collect();
        self.workers =
            state.workers.iter().map(|worker| (worker.worker.clone(), worker.clone())).collect();
        self.held = state.held.iter().cloned().collect();
        Ok(())
    }

    fn go_back(&mut self, state: &Dump) -> Result<()> {
        let now = self.now();
        self.load(state)?;
        self.clock.set(now);
        self.raise_epoch("the database went back in time").map(drop)
    }
}

/// Processes items in the order of jobs and tokens, and returns the answers in the given order.
fn in_order<T, A>(items: &[T], fence: impl Fn(&T) -> Fence, each: impl FnMut(&T) -> A) -> Vec<A> {
    let mut sorted: Vec<(usize, &T)> = items.iter().enumerate().collect();
    sorted.sort_by_key(|(_, item)| (fence(item).job, fence(item).token));
    let places: Vec<usize> = sorted.iter().map(|(at, _)| *at).collect();
    let answers = sorted.into_iter().map(|(_, item)| item).map(each);
    let mut answers: Vec<(usize, A)> = places.into_iter().zip(answers).collect();
    answers.sort_by_key(|(at, _)| *at);
    answers.into_iter().map(|(_, answer)| answer).collect()
}
