//! When a lease is over, and what becomes of a job that is taken back.

use std::time::Duration;

use tenure::engine::job::{About, JobRecord, State};
use tenure::engine::lifecycle::Verb;
use tenure::engine::store::Lapse;
use tenure::{Fence, Timestamp};

use super::{Model, backoff, end, suspect, wait_until};

impl Model {
    /// Whether a lease has been over for at least `grace`. A lease that was granted before a break
    /// in time (a restart, a jump of the clock, a gap in the pulse) gets its whole length again
    /// from the break on, because its holder could not renew it, but never beyond the job's maximum
    /// runtime. A gap in the pulse extends a lease only once.
    pub(super) fn is_over(&self, job: &JobRecord, grace: Duration) -> bool {
        self.is_over_after(job, grace, self.breaks())
    }

    /// Like `is_over`, with the ends of the last gap in the pulse and of the one before it.
    pub(super) fn is_over_after(
        &self,
        job: &JobRecord,
        grace: Duration,
        (broke, broke_before): (Timestamp, Timestamp),
    ) -> bool {
        let (Some(until), Some(leased_at)) = (job.lease_until, job.leased_at) else { return false };
        let ms = |ms: Option<i64>| ms.map(|ms| Duration::from_millis(ms.unsigned_abs()));
        let latest = ms(job.max_runtime_ms).zip(job.started_at).map(|(ms, start)| start + ms);
        // Ignore a break in the future: the clock was set back since.
        let started = Some(self.started_at).filter(|at| *at <= self.now() && leased_at < *at);
        let broke = Some(broke).filter(|at| leased_at < *at && leased_at >= broke_before);
        let again = started.max(broke).map(|at| at + ms(job.lease_ms).unwrap_or_default());
        let pardoned = again.map(|again| latest.map_or(again, |latest| latest.min(again)));
        let now = self.now() - grace;
        until <= now && pardoned.is_none_or(|pardoned| pardoned <= now)
    }

    pub(super) fn overdue_now(&self, limit: usize, grace: Duration) -> Vec<Fence> {
        let mut jobs: Vec<_> = self.jobs.values().filter(|job| self.is_over(job, grace)).collect();
        jobs.sort_by_key(|job| (job.lease_until, job.id));
        jobs.into_iter().take(limit).map(|job| Fence { job: job.id, token: job.token }).collect()
    }

    pub(super) fn lapse_one(&mut self, fence: Fence) -> Option<Lapse> {
        let before = self.holds(fence).filter(|job| self.is_over(job, Duration::ZERO))?;
        let became = self.take_back(&before, Verb::Lapse);
        let about = About::from(&before);
        before.worker.map(|worker| Lapse { about, worker, became })
    }

    /// Takes a job from its holder, and returns the job's new state.
    pub(super) fn take_back(&mut self, before: &JobRecord, verb: Verb) -> State {
        let now = self.now();
        let mut job = before.clone();
        suspect::crashed(&mut job, now);
        job.token = job.token.next(self.epoch);
        let what = match verb {
            Verb::Vanish => "its worker vanished",
            _ => "its lease was over",
        };
        let why = if job.crashes >= job.max_crashes {
            end(&mut job, State::Dead, now);
            "crashed too often: max_crashes times its lease was over or its worker vanished"
                .to_owned()
        } else if job.attempt >= job.max_attempts {
            end(&mut job, State::Dead, now);
            format!("{what} during the last attempt")
        } else if job.crashes == 1 {
            let run_at = job.run_at;
            wait_until(&mut job, run_at, now);
            what.to_owned()
        } else {
            let delay = backoff(&job.retry, job.crashes - 1);
            wait_until(&mut job, now + delay, now);
            format!("{what}, after an earlier crash")
        };
        if job.state == State::Dead {
            job.reason = Some(why.clone());
        }
        let became = job.state;
        let longest = before.max_runtime_ms.map(|ms| Duration::from_millis(ms.unsigned_abs()));
        let latest = longest.zip(before.started_at).map(|(longest, at)| at + longest);
        if verb == Verb::Lapse
            && became == State::Queued
            && latest.is_none_or(|latest| latest > now)
        {
            let length = Duration::from_millis(before.lease_ms.unwrap_or_default().unsigned_abs());
            job.returns_until = Some(now + length);
        }
        self.jobs.insert(job.id, job);
        self.note(before, verb, became, Some(why));
        became
    }
}
