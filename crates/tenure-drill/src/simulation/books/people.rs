//! The books on what people do: enqueue, cancel, requeue, resume, resolve, and restore an old copy.

use std::collections::BTreeMap;

use tenure::Resolution;
use tenure::engine::job::{Fingerprint, JobId, Name, State, Tenant};
use tenure::engine::lease::{Token, WorkerId};
use tenure::engine::store::{AsSeen, Changed, Enqueued, Resolved};

use super::super::ghosts::Ghost;
use super::super::trace::Rare;
use super::Books;
use crate::verdict::Invariant;

/// The books as they were when a copy of the database was made.
pub(in super::super) struct Copy {
    jobs: BTreeMap<JobId, Ghost>,
    keys: BTreeMap<String, (JobId, Fingerprint)>,
}

impl Books {
    // ── how jobs are enqueued

    pub(in super::super) fn enqueue(
        &mut self,
        (kind, tenant): (&Name, &Tenant),
        key: Option<(&str, Fingerprint)>,
        answer: Enqueued,
    ) {
        let known = key.and_then(|(key, _)| self.keys.get(key).copied());
        match (answer, known) {
            (Enqueued::Created(job), None) => {
                if job <= self.last_id {
                    let what = format!("job {job} was enqueued, but {} was before", self.last_id);
                    return self.fail(Invariant::I9, job, what);
                }
                self.last_id = job;
                self.jobs.insert(job, Ghost::new(kind.clone(), tenant.clone()));
                self.live += 1;
                self.waits(tenant);
                if let Some((key, print)) = key {
                    self.keys.insert(key.to_owned(), (job, print));
                }
                self.tell(job, format!("it is enqueued as {kind}"));
            }
            (Enqueued::Existing(job), Some((first, print)))
                if job == first && key.is_some_and(|(_, asked)| asked == print) =>
            {
                self.count(Rare::KeyRepeated);
                self.tell(job, "its key is used again, for the same: it is there".into());
            }
            (Enqueued::Conflict(job), Some((first, print)))
                if job == first && key.is_some_and(|(_, asked)| asked != print) =>
            {
                self.count(Rare::KeyConflict);
                self.tell(job, "its key is used again, for something else: a conflict".into());
            }
            (Enqueued::Created(job) | Enqueued::Existing(job) | Enqueued::Conflict(job), _) => {
                let what = format!("a key of {known:?} was answered with {answer:?}");
                self.fail(Invariant::I12, job, what);
            }
        }
    }

    // ── what operators do

    pub(in super::super) fn cancel(&mut self, _: &WorkerId, jobs: &[JobId], answers: &[Changed]) {
        for (job, answer) in jobs.iter().zip(answers) {
            let was = self.state(*job);
            match (answer, was) {
                (Changed::Applied, Some(was)) if !was.has_ended() => {
                    self.moved(*job, State::Cancelled);
                    self.tell(*job, format!("a person cancels it while {was}"));
                    match was {
                        State::Running => self.count(Rare::CancelledRunning),
                        State::Queued => self.count(Rare::CancelledQueued),
                        _ => {}
                    }
                }
                (Changed::Applied, Some(State::Cancelled)) | (Changed::NotFound, None) => {}
                (Changed::Refused(told), Some(was)) if *told == was && was.has_ended() => {}
                _ => self.fail(Invariant::I10, *job, format!("cancel: {answer:?}, was {was:?}")),
            }
        }
    }

    pub(in super::super) fn requeue(&mut self, _: &WorkerId, jobs: &[AsSeen], answers: &[Changed]) {
        for (seen, answer) in jobs.iter().zip(answers) {
            let job = seen.job;
            let was = self.state(job);
            match (answer, was) {
                (Changed::Applied, Some(State::Dead | State::Cancelled)) => {
                    if let Some(ghost) = self.jobs.get_mut(&job) {
                        ghost.requeued();
                        let fresh = ghost.claims.is_empty().then(|| ghost.tenant.clone());
                        fresh.iter().for_each(|tenant| self.waits(tenant));
                    }
                    self.live += 1;
                    self.count(Rare::Requeued);
                    self.tell(job, "a person requeues it".into());
                }
                (Changed::Refused(told), Some(was)) if *told == was => {}
                (Changed::NotFound, None) => {}
                _ => self.fail(Invariant::I10, job, format!("requeue: {answer:?}, was {was:?}")),
            }
        }
    }

    pub(in super::super) fn resume(&mut self, _: &WorkerId, jobs: &[JobId], answers: &[Changed]) {
        for (job, answer) in jobs.iter().zip(answers) {
            if *answer == Changed::Applied && self.state(*job) == Some(State::Parked) {
                self.moved(*job, State::Queued);
                self.tell(*job, "a person resumes it".into());
            }
        }
    }

    pub(in super::super) fn resolve(
        &mut self,
        _: &WorkerId,
        job: JobId,
        effect: &Name,
        how: &Resolution,
        answer: &Resolved,
    ) {
        let Resolved::Applied(became) = answer else { return };
        let Some(ghost) = self.jobs.get_mut(&job) else { return };
        let (was, known) = (ghost.state, ghost.effects.entry(effect.clone()).or_default());
        let by_a_job = known.committed.flatten().is_some();
        known.opened = None;
        if let Resolution::Committed { .. } = how {
            known.committed = Some(None);
        }
        if by_a_job {
            let what = format!("{effect} of job {job} was decided about, but it had happened");
            return self.fail(Invariant::I1, job, what);
        }
        if was == State::Parked && *became == State::Queued {
            self.moved(job, State::Queued);
        }
        self.count(Rare::ResolvedByPerson);
        self.tell(job, format!("a person decides about {effect}: {}", how.name()));
    }

    // ── the database goes back

    pub(in super::super) fn copy(&self) -> Copy {
        Copy { jobs: self.jobs.clone(), keys: self.keys.clone() }
    }

    /// What happened since the copy was made is undone. But the highest tokens stay, because the
    /// world outside has seen them.
    pub(in super::super) fn back_to(&mut self, copy: Copy) {
        let Copy { mut jobs, keys } = copy;
        for (job, ghost) in &mut jobs {
            let highest = self.jobs.get(job).map_or(Token::NONE, |now| now.highest);
            ghost.highest = ghost.highest.max(highest);
        }
        self.keys = keys;
        self.live = jobs.values().filter(|ghost| !ghost.state.has_ended()).count();
        let parked = jobs.iter().filter(|(_, ghost)| ghost.state == State::Parked);
        self.parked = parked.map(|(job, _)| *job).collect();
        self.held.clear();
        for (job, ghost) in &jobs {
            if let (State::Running, Some(claim)) = (ghost.state, ghost.claims.last()) {
                self.held.entry(claim.worker.clone()).or_default().insert(*job);
            }
        }
        self.jobs = jobs;
        self.begin_turns();
        self.went_back += 1;
        self.count(Rare::EpochRaised);
        self.trace.tell(None, "the database goes back, and a new epoch begins".into());
    }
}
