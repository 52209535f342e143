//! What the specification says of workers, their locks, and breaks in time.

use tenure::drill::WorkerRecord;
use tenure::inspect::{Checked, Rule, WorkerView, Wrong};
use tenure::job::{JobId, JobRecord, State};
use tenure::lease::{Fence, WorkerId};
use tenure::ledger::Standing;
use tenure::lifecycle::Verb;
use tenure::store::{GUARD_GAP, Lapse, Registration, WORKER_MEMORY};

use super::Model;

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

    /// Looks at every worker's lock, and takes back the jobs of those that are gone.
    pub(super) fn vanished_now(&mut self, limit: usize) -> Vec<Lapse> {
        let now = self.now();
        let mut lapses = Vec::new();
        let ids: Vec<_> = self.workers.keys().cloned().collect();
        for id in ids {
            let (held, started_at) = (self.held.contains(&id), self.started_at);
            let Some(worker) = self.workers.get_mut(&id) else { continue };
            if held {
                worker.free_since = None;
                continue;
            }
            // A lock that was taken before a break may have been freed by the break.
            if !worker.guarded || worker.under != started_at {
                continue;
            }
            let since = *worker.free_since.get_or_insert(now);
            if since + GUARD_GAP > now {
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
                let fence = Fence { job: job.id, token: job.token };
                let became = self.take_back(&job, Verb::Vanish);
                lapses.push(Lapse { fence, worker: id.clone(), became });
            }
            if all {
                self.workers.remove(&id);
            }
        }
        lapses
    }

    /// A worker that was taken for gone has shown its token again: the crash does not count.
    pub(super) fn take_crash_back(&mut self, shown: Fence) {
        if self.heard(shown, Verb::Vanish).is_none() || self.heard(shown, Verb::Return).is_some() {
            return;
        }
        // A requeue has begun to count anew since.
        if self.timeline.iter().any(|line| {
            line.job == shown.job
                && line.verb == Verb::Requeue
                && !line.refused
                && line.token > shown.token
        }) {
            return;
        }
        let Some(job) = self.jobs.get_mut(&shown.job).filter(|job| !job.state.has_ended()) else {
            return;
        };
        job.crashes = job.crashes.saturating_sub(1);
        let (state, attempt) = (job.state, job.attempt);
        let seen = JobRecord {
            token: shown.token,
            attempt,
            worker: None,
            started_at: None,
            ..job.clone()
        };
        let words = "its worker is back: the crash does not count";
        self.note(&seen, Verb::Return, state, Some(words.into()));
    }

    pub(super) fn workers_now(&self) -> Vec<WorkerView> {
        let view = |worker: &WorkerRecord| WorkerView {
            worker: worker.worker.clone(),
            queues: worker.queues.clone(),
            kinds: worker.kinds.clone(),
            since: worker.taken_at,
            is_alive: worker.guarded.then(|| self.held.contains(&worker.worker)),
        };
        self.workers.values().map(view).collect()
    }

    /// Forgets workers that cannot be looked at and have not been heard of for long.
    pub(super) fn prune_workers(&mut self) {
        let (old, started_at) = (self.now() - WORKER_MEMORY, self.started_at);
        self.workers.retain(|_, worker| {
            worker.taken_at > old || (worker.guarded && worker.under == started_at)
        });
    }

    pub(super) fn check_now(&self, from: Option<JobId>, limit: usize) -> Checked {
        let first = from.unwrap_or(JobId(0));
        let mut ids = self.jobs.range(first..).map(|(id, _)| *id);
        let window: Vec<_> = ids.by_ref().take(limit).collect();
        let next = ids.next();
        let mut wrong = Vec::new();
        for id in &window {
            let job = &self.jobs[id];
            if self.is_over(job, Rule::OVERDUE) {
                wrong.push(Wrong { job: *id, rule: Rule::I11, what: String::new() });
            }
            let open = |effect: &&tenure::ledger::Effect| {
                effect.job == *id && effect.standing == Standing::Open
            };
            if job.state == State::Succeeded {
                let left = self.ledger.values().filter(open);
                wrong.extend(left.map(|_| Wrong {
                    job: *id,
                    rule: Rule::Ledger,
                    what: String::new(),
                }));
            }
        }
        Checked { looked: window.len(), wrong, next }
    }
}
