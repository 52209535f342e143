//! What operators do to jobs and queues.

use tenure::Fence;
use tenure::engine::inspect::QueueSettings;
use tenure::engine::job::{JobId, JobRecord, Name, State};
use tenure::engine::lifecycle::Verb;
use tenure::engine::store::{AsSeen, Changed};

use super::{Model, end, wait_until};

impl Model {
    pub(super) fn cancel_one(&mut self, id: JobId) -> Changed {
        let Some(before) = self.jobs.get(&id).cloned() else { return Changed::NotFound };
        match before.state {
            State::Cancelled => Changed::Applied,
            State::Succeeded | State::Dead => Changed::Refused(before.state),
            State::Queued | State::Running | State::Parked => {
                let mut job = before.clone();
                job.token = job.token.next(self.epoch);
                job.reason = None;
                end(&mut job, State::Cancelled, self.now());
                self.jobs.insert(id, job);
                self.note(&before, Verb::Cancel, State::Cancelled, None);
                Changed::Applied
            }
        }
    }

    pub(super) fn requeue_one(&mut self, request: AsSeen) -> Changed {
        let AsSeen { job: id, if_token } = request;
        let Some(before) = self.jobs.get(&id).cloned() else { return Changed::NotFound };
        if if_token
            .is_some_and(|token| self.heard(Fence { job: id, token }, Verb::Requeue).is_some())
        {
            return Changed::Applied;
        }
        if request.moved_on(before.token) || !matches!(before.state, State::Dead | State::Cancelled)
        {
            return Changed::Refused(before.state);
        }
        let now = self.now();
        let mut job =
            JobRecord { attempt: 0, crashes: 0, reason: None, finished_at: None, ..before.clone() };
        job.token = job.token.next(self.epoch);
        wait_until(&mut job, now, now);
        self.jobs.insert(id, job);
        let rested = JobRecord { worker: None, started_at: None, ..before };
        self.note(&rested, Verb::Requeue, State::Queued, None);
        Changed::Applied
    }

    pub(super) fn resume_one(&mut self, id: JobId) -> Changed {
        let Some(before) = self.jobs.get(&id).cloned() else { return Changed::NotFound };
        let fence = Fence { job: id, token: before.token };
        match before.state {
            State::Parked => {
                let now = self.now();
                let mut job = JobRecord { reason: None, ..before.clone() };
                wait_until(&mut job, now, now);
                self.jobs.insert(id, job);
                self.note(&before, Verb::Resume, State::Queued, None);
                Changed::Applied
            }
            State::Queued if self.heard(fence, Verb::Resume).is_some() => Changed::Applied,
            state => Changed::Refused(state),
        }
    }

    pub(super) fn purge_one(&mut self, request: AsSeen) -> Changed {
        match self.jobs.get(&request.job).map(|job| (job.state, job.token)) {
            None => Changed::NotFound,
            Some((state, token)) if state.has_ended() && !request.moved_on(token) => {
                self.forget(request.job);
                Changed::Applied
            }
            Some((state, _)) => Changed::Refused(state),
        }
    }

    pub(super) fn settings_of(&self, queue: &Name) -> QueueSettings {
        let set = self.queues.get(queue).cloned();
        set.unwrap_or_else(|| QueueSettings::default_for(queue.clone()))
    }
}
