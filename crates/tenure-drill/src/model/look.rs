//! What the engines' queries should answer: the lockstep compares their answers with these. Queries
//! that are not here are tested by cases of the suite instead.

use std::collections::BTreeMap;
use std::time::Duration;

use tenure::drill::WorkerRecord;
use tenure::engine::clock::millis;
use tenure::engine::inspect::{
    Checked, EffectFilter, EffectView, Filter, LeaseView, Overview, OverviewLine, QueueSettings,
    Rule, WorkerView, Wrong,
};
use tenure::engine::job::{JobId, JobRecord, Name, State, Tenant};
use tenure::engine::ledger::{EffectRecord, Standing};

use super::Model;

impl Model {
    pub(crate) fn page(&self, filter: &Filter, limit: usize) -> Vec<JobRecord> {
        let shown = |job: &&JobRecord| {
            filter.state.is_none_or(|state| state == job.state)
                && filter.queue.as_ref().is_none_or(|queue| *queue == job.queue)
                && filter.tenant.as_ref().is_none_or(|tenant| *tenant == job.tenant)
                && filter.kind.as_ref().is_none_or(|kind| *kind == job.kind)
                && filter.tag.as_ref().is_none_or(|tag| job.extras.tags.contains(tag))
                && filter.key.as_ref().is_none_or(|key| job.key.as_deref() == Some(key.as_str()))
                && filter.before.is_none_or(|before| job.id < before)
        };
        self.jobs.values().rev().filter(shown).take(limit).cloned().collect()
    }

    pub(crate) fn overview(&self) -> Overview {
        let now = self.now();
        let mut lines: BTreeMap<(Name, Tenant), OverviewLine> = BTreeMap::new();
        for job in self.jobs.values() {
            let lately =
                job.finished_at.is_some_and(|finished| finished > now - OverviewLine::WINDOW);
            if matches!(job.state, State::Succeeded | State::Cancelled)
                && !(lately && job.state == State::Succeeded)
            {
                continue;
            }
            let place = (job.queue.clone(), job.tenant.clone());
            let empty = || OverviewLine::empty(job.queue.clone(), job.tenant.clone());
            let line = lines.entry(place).or_insert_with(empty);
            match job.state {
                State::Queued if job.run_at > now => line.waiting += 1,
                State::Queued => {
                    line.ready += 1;
                    line.oldest_wait_ms =
                        line.oldest_wait_ms.max(Some(millis(now.since(job.run_at))));
                }
                State::Running => line.running += 1,
                State::Parked => line.parked += 1,
                State::Dead => {
                    line.dead += 1;
                    line.died_last_minute += u64::from(lately);
                }
                State::Succeeded => line.succeeded_last_minute += 1,
                State::Cancelled => {}
            }
        }
        Overview { at: now, lines: lines.into_values().collect() }
    }

    pub(crate) fn leases(&self, limit: usize) -> Vec<LeaseView> {
        let view = |job: &JobRecord| {
            Some(LeaseView {
                job: job.id,
                kind: job.kind.clone(),
                token: job.token,
                worker: job.worker.clone()?,
                started_at: job.started_at?,
                until: job.lease_until?,
            })
        };
        let mut leases: Vec<_> = self.jobs.values().filter_map(view).collect();
        leases.sort_by_key(|lease| (lease.until, lease.job));
        leases.truncate(limit);
        leases
    }

    pub(crate) fn effects(&self, filter: &EffectFilter, limit: usize) -> Vec<EffectView> {
        let view = |effect: &EffectRecord| {
            let job = self.jobs.get(&effect.job)?;
            let is_held = job.state == State::Running && job.token == effect.token;
            let in_doubt = effect.standing == Standing::Open && !is_held;
            let shown = (in_doubt || !filter.in_doubt)
                && filter.job.is_none_or(|job| job == effect.job)
                && filter.before.is_none_or(|before| effect.job < before);
            shown.then(|| EffectView {
                effect: effect.clone(),
                in_doubt,
                state: job.state,
                kind: job.kind.clone(),
                tenant: job.tenant.clone(),
            })
        };
        let mut views: Vec<_> = self.ledger.values().filter_map(view).collect();
        views.sort_by_key(|view| (std::cmp::Reverse(view.effect.job), view.effect.name.clone()));
        views.truncate(limit);
        views
    }

    pub(crate) fn workers(&self) -> Vec<WorkerView> {
        let view = |worker: &WorkerRecord| WorkerView {
            worker: worker.worker.clone(),
            queues: worker.queues.clone(),
            kinds: worker.kinds.clone(),
            since: worker.taken_at,
            is_alive: worker.guarded.then(|| self.held.contains(&worker.worker)),
        };
        self.workers.values().map(view).collect()
    }

    pub(crate) fn queues(&self) -> Vec<QueueSettings> {
        self.queues.values().cloned().collect()
    }

    pub(crate) fn guard_gap(&self) -> Duration {
        self.guard_gap
    }

    pub(crate) fn check(&self, from: Option<JobId>, limit: usize) -> Checked {
        let first = from.unwrap_or(JobId(0));
        let mut ids = self.jobs.range(first..).map(|(id, _)| *id);
        let window: Vec<_> = ids.by_ref().take(limit).collect();
        let next = ids.next();
        let mut wrong = Vec::new();
        for id in &window {
            let job = &self.jobs[id];
            if self.is_over_after(job, Rule::OVERDUE, self.noted_breaks()) {
                wrong.push(Wrong { job: *id, rule: Rule::I11, what: String::new() });
            }
            let open = |effect: &&tenure::engine::ledger::EffectRecord| {
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
