//! The books on jobs that are taken back from their holders.

use std::time::Duration;

use tenure::engine::job::{JobId, State};
use tenure::engine::lease::{Fence, WorkerId};
use tenure::engine::lifecycle::Verb;
use tenure::engine::store::{Lapse, Lapsed};

use super::super::ghosts::Claimed;
use super::super::trace::Rare;
use super::Books;
use crate::verdict::Invariant;

impl Books {
    pub(in super::super) fn vanished(&mut self, _: &WorkerId, _: usize, answer: &[Lapse]) {
        for lapse in answer {
            self.lapsed(lapse.about.fence(), lapse.became, Some(&lapse.worker), Verb::Vanish);
        }
    }

    pub(in super::super) fn overdue(
        &mut self,
        _: &WorkerId,
        limit: usize,
        grace: Duration,
        over: &[Fence],
    ) {
        if !self.jumped || over.len() >= limit {
            return;
        }
        let now = self.now();
        let spared = |job: &JobId| {
            let claim = self.jobs.get(job).and_then(|ghost| ghost.claims.last());
            let is_over = claim.is_some_and(|claim| claim.until + grace <= now);
            is_over && !over.iter().any(|fence| fence.job == *job)
        };
        if self.held.values().flatten().any(spared) {
            self.count(Rare::BrakeEngaged);
        }
    }

    pub(in super::super) fn lapse(&mut self, _: &WorkerId, fences: &[Fence], answers: &[Lapsed]) {
        for (fence, answer) in fences.iter().zip(answers) {
            if let Lapsed::TakenBack(Lapse { became, .. }) = answer {
                self.lapsed(*fence, *became, None, Verb::Lapse);
            }
        }
    }

    pub(super) fn lapsed(
        &mut self,
        fence: Fence,
        became: State,
        from: Option<&WorkerId>,
        verb: Verb,
    ) {
        /// Up to this many lost calls do not excuse a lapse: within a lease, a worker tries to
        /// renew more often than that.
        const FEW: u32 = 3;
        let (job, now) = (fence.job, self.now());
        let Some(ghost) = self.jobs.get_mut(&job) else {
            return self.fail(Invariant::I9, job, format!("job {job} was never enqueued"));
        };
        let Some(claim) = ghost.holder().cloned() else {
            let what = format!("job {job} was taken back, but nobody holds it");
            return self.fail(Invariant::I8, job, what);
        };
        ghost.crashed(now);
        let (crashes, capped) = (ghost.crashes, u32::from(claim.max_crashes));
        let returns = ghost.returns;
        let Claimed { worker, token, until, granted, losses, is_limited, .. } = claim;
        if token != fence.token || from.is_some_and(|from| *from != worker) {
            let what = format!("job {job} was taken from token {}, not {token}", fence.token);
            return self.fail(Invariant::I8, job, what);
        }
        self.moved(job, became);
        self.tell(job, format!("it is taken back from {worker} by {verb}, and is {became}"));
        let living = self.workers.get(&worker).copied();
        match (verb, living) {
            (Verb::Vanish, Some(_)) => {
                let what = format!("job {job} was taken from {worker}, which lives");
                return self.fail(Invariant::I8, job, what);
            }
            (Verb::Lapse, _) if until > now => {
                let what = format!("job {job} was taken from {worker} while its lease lasts");
                return self.fail(Invariant::I8, job, what);
            }
            // I6, as far as it is the worker's fault: a worker that lives and meets no fault keeps
            // its jobs.
            (Verb::Lapse, Some(living))
                if granted > living.hindered.max(self.hindered)
                    && living.losses - losses <= FEW
                    && !is_limited =>
            {
                let what = format!(
                    "job {job} was taken from {worker}, which lives, did not stand still and could reach the store"
                );
                return self.fail(Invariant::I6, job, what);
            }
            (Verb::Vanish, None) => self.count(Rare::Vanished),
            (_, Some(living)) if self.trace.now < living.cut_until => {
                self.count(Rare::Lapsed);
                self.count(Rare::CutOffLapsed);
            }
            _ => self.count(Rare::Lapsed),
        }
        if crashes > capped + returns || crashes == capped && returns == 0 && became != State::Dead
        {
            let what = format!("job {job} was left {became} after {crashes} crashes of {capped}");
            return self.fail(Invariant::I5, job, what);
        }
        if became == State::Dead {
            let rare = if crashes >= capped { Rare::CrashCap } else { Rare::AttemptsUsedUp };
            self.count(rare);
        }
    }

    /// Whether some worker holds a job.
    pub(in super::super) fn is_anybody_at_work(&self) -> bool {
        self.held.values().any(|held| !held.is_empty())
    }

    /// Whether the store applied the job's latest claim after the claiming worker had given up on
    /// the call, and the worker has not looked the claim up yet. Then the worker does not know that
    /// it holds the job.
    pub(in super::super) fn is_late(&self, job: JobId) -> bool {
        let claim = self.jobs.get(&job).and_then(|ghost| ghost.claims.last());
        claim.is_some_and(|claim| claim.late)
    }

    /// A worker was cut off for longer than a lease, while others could reach the store. The jobs
    /// that it held when the cut began must have been taken from it.
    pub(in super::super) fn was_cut_off(&mut self, who: &WorkerId, since: Duration) {
        const GRACE: Duration = Duration::from_secs(5);
        let (now, held) = (self.now(), self.held.get(who).into_iter().flatten());
        let kept = held.copied().find(|job| {
            let claim = self.jobs.get(job).and_then(|ghost| ghost.claims.last());
            claim.is_some_and(|claim| claim.granted <= since && claim.until + GRACE <= now)
        });
        if let Some(job) = kept {
            let what =
                format!("{who} was cut off until its lease was over, and still has job {job}");
            self.fail(Invariant::I11, job, what);
        }
    }
}
