//! Workers, their locks (guards), and breaks in time, as the specification has them.

use tenure::drill::WorkerRecord;
use tenure::engine::job::{About, JobRecord, State};
use tenure::engine::lease::{Fence, WorkerId};
use tenure::engine::lifecycle::{CRASH_MEMORY, Verb};
use tenure::engine::store::{
    AFTER_STALL, Beat, Lapse, PULSE, Registration, STALL, STALLED_GAP, WORKER_MEMORY,
};
use tenure::{TimelineEntry, Timestamp};

use super::{Model, suspect};

impl Model {
    pub(super) fn register_one(&mut self, worker: &Registration) {
        let (now, under) = (self.now(), self.started_at);
        let Registration { worker: id, queues, kinds } = worker.clone();
        let takings = self.workers.get(&id).map_or(0, |known| known.takings) + 1;
        self.held.insert(id.clone());
        let record = WorkerRecord {
            worker: id.clone(),
            queues,
            kinds,
            guarded: true,
            under,
            takings,
            taken_at: now,
            free_since: None,
        };
        self.workers.insert(id, record);
    }

    pub(super) fn retire_one(&mut self, worker: &WorkerId) {
        self.workers.remove(worker);
        self.held.remove(worker);
    }

    /// When the last recorded gap in the pulse ended, and the one before it. Ignores times in the
    /// future.
    pub(super) fn noted_breaks(&self) -> (Timestamp, Timestamp) {
        let past = |at| if at <= self.now() { at } else { Timestamp::from_millis(0) };
        (past(self.broke), past(self.broke_before))
    }

    /// Like `noted_breaks`, but a gap ends now if the pulse is older than `STALL` and a lease that
    /// was granted before that is still out.
    pub(super) fn breaks(&self) -> (Timestamp, Timestamp) {
        let (now, never) = (self.now(), Timestamp::from_millis(0));
        let (broke, broke_before) = self.noted_breaks();
        let old = |job: &JobRecord| job.leased_at.is_some_and(|at| at < now - STALL);
        let stalled = self.pulse > never
            && self.pulse.max(broke) < now - STALL
            && self.jobs.values().any(old);
        if stalled { (now, broke) } else { (broke, broke_before) }
    }

    /// Records a gap that ends now.
    pub(super) fn note_breaks(&mut self) {
        let breaks = self.breaks();
        if breaks.0 == self.now() {
            (self.broke, self.broke_before) = breaks;
        }
    }

    pub(super) fn beat_now(&mut self) -> Beat {
        let now = self.now();
        let leases_are_out = self.jobs.values().any(|job| job.state == State::Running);
        let early = self.pulse <= now && now < self.pulse + PULSE;
        let leads = !early && leases_are_out;
        if leads {
            self.note_breaks();
            self.pulse = now;
        }
        Beat { leads, leases_are_out, workers: self.workers.len().min(1_000), wakes: true }
    }

    /// Checks every worker's lock, and takes back the jobs of workers that are gone.
    pub(super) fn vanished_now(&mut self, limit: usize) -> Vec<Lapse> {
        let now = self.now();
        let stalled = self.breaks().0 > now - AFTER_STALL;
        let gap = if stalled { self.guard_gap.max(STALLED_GAP) } else { self.guard_gap };
        let mut lapses = Vec::new();
        let ids: Vec<_> = self.workers.keys().cloned().collect();
        for id in ids {
            let (held, started_at) = (self.held.contains(&id), self.started_at);
            let Some(worker) = self.workers.get_mut(&id) else { continue };
            if held {
                worker.free_since = None;
                continue;
            }
            // A lock that was taken before the server's last start may have been freed by that
            // restart, so a free lock proves nothing.
            if !worker.guarded || worker.under != started_at {
                continue;
            }
            let since = *worker.free_since.get_or_insert(now);
            if since + gap > now {
                continue;
            }
            let left = limit - lapses.len();
            let mut jobs: Vec<_> = self
                .jobs
                .values()
                .filter(|job| job.state == State::Running && job.worker.as_ref() == Some(&id))
                .cloned()
                .collect();
            jobs.sort_by_key(|job| (job.lease_until, job.id));
            let all = jobs.len() <= left;
            for job in jobs.into_iter().take(left) {
                let became = self.take_back(&job, Verb::Vanish);
                lapses.push(Lapse { about: About::from(&job), worker: id.clone(), became });
            }
            if all {
                self.workers.remove(&id);
            }
        }
        lapses
    }

    /// Takes a crash back if a worker that was considered gone shows its token again. After a lapse
    /// this holds too, but only for the length of the lease, and only while the job waits for its
    /// next claim.
    pub(super) fn take_crash_back(&mut self, shown: Fence) {
        let lapsed = self.heard(shown, Verb::Vanish).is_none();
        if lapsed && self.heard(shown, Verb::Lapse).is_none()
            || self.heard(shown, Verb::Return).is_some()
        {
            return;
        }
        // After a lapse, the crash is not taken back if anything else has happened to the job.
        // After a vanish, only two events prevent it: a requeue, which has reset the count of
        // crashes, and a return of a handler so long after the crash that it may have reset the
        // count.
        let ours = |line: &&TimelineEntry| line.job == shown.job && !line.refused;
        let crash = self
            .timeline
            .iter()
            .filter(ours)
            .find(|line| (line.token, line.verb) == (shown.token, Verb::Vanish));
        let forgiven = crash.map(|crash| crash.at + CRASH_MEMORY);
        if self.timeline.iter().filter(ours).any(|line| {
            line.token > shown.token
                && match line.verb {
                    _ if lapsed => true,
                    Verb::Requeue => true,
                    Verb::Retry | Verb::Snooze | Verb::Park => Some(line.at) >= forgiven,
                    _ => false,
                }
        }) {
            return;
        }
        let now = self.now();
        let may_return =
            |job: &JobRecord| !lapsed || job.returns_until.is_some_and(|until| until >= now);
        let Some(job) = self.jobs.get_mut(&shown.job).filter(|job| !job.state.has_ended()) else {
            return;
        };
        if !may_return(job) {
            return;
        }
        job.returns_until = None;
        suspect::did_not_crash(job);
        let (state, seen) = (job.state, job.clone());
        let (attempt, worker) = self.shown_by(shown);
        let seen = JobRecord { token: shown.token, attempt, worker, started_at: None, ..seen };
        let words = "its worker is back: the crash does not count";
        self.note(&seen, Verb::Return, state, Some(words.into()));
    }

    /// Forgets workers that have not registered for a long time and whose lock proves nothing: they
    /// have no guard, or took their lock before the server's last start.
    pub(super) fn prune_workers(&mut self) {
        let (old, started_at) = (self.now() - WORKER_MEMORY, self.started_at);
        self.workers.retain(|_, worker| {
            worker.taken_at > old || (worker.guarded && worker.under == started_at)
        });
    }
}
