//! Operate: what operators do to jobs and queues.

use std::time::Duration;

use rusqlite::{Result, named_params};

use super::row;
use super::tx::{Ending, Tx, entry};
use crate::clock::{Timestamp, millis};
use crate::inspect::{Identity, QueueSettings};
use crate::job::{JobId, Name, State};
use crate::lease::Fence;
use crate::lifecycle::{Again, Next, Verb};
use crate::record::JobRecord;
use crate::store::{AsSeen, Changed, Pruned, QueueChange, lane};

impl Tx<'_> {
    /// The job, live or ended.
    pub(super) fn find(&self, id: JobId) -> Result<Option<JobRecord>> {
        let by_id = named_params! { ":job": id.0 };
        match self.one(&self.sql.operate.live, by_id, row::record)? {
            Some(job) => Ok(Some(job)),
            None => self.one(&self.sql.operate.ended, by_id, row::record),
        }
    }

    pub(super) fn cancel(&self, id: JobId) -> Result<Changed> {
        let Some(job) = self.find(id)? else { return Ok(Changed::NotFound) };
        if job.state == State::Cancelled {
            return Ok(Changed::Applied);
        }
        if job.state.has_ended() {
            return Ok(Changed::Refused(job.state));
        }
        let after = JobRecord { token: job.token.next(self.epoch()?), ..job.clone() };
        self.move_to(&after, Next::End(State::Cancelled), Ending::default())?;
        self.note(&entry(&job, Verb::Cancel, State::Cancelled, self.now))?;
        Ok(Changed::Applied)
    }

    pub(super) fn requeue(&self, request: &AsSeen) -> Result<Changed> {
        let Some(job) = self.find(request.job)? else { return Ok(Changed::NotFound) };
        if let Some(token) = request.if_token
            && self.heard(Fence { job: job.id, token }, Verb::Requeue)?.is_some()
        {
            return Ok(Changed::Applied);
        }
        if request.moved_on(job.token) || !matches!(job.state, State::Dead | State::Cancelled) {
            return Ok(Changed::Refused(job.state));
        }
        let token = job.token.next(self.epoch()?);
        let anew = JobRecord { is_suspect: false, ..job.clone() };
        self.run(
            &self.sql.operate.requeue,
            named_params! {
                ":job": job.id.0, ":lane": lane::of(&anew), ":now": self.now.as_millis(), ":token": token.0,
            },
        )?;
        self.run(&self.sql.operate.remove_ended, named_params! { ":job": job.id.0 })?;
        let rested = JobRecord { worker: None, started_at: None, ..job };
        self.note(&entry(&rested, Verb::Requeue, State::Queued, self.now))?;
        Ok(Changed::Applied)
    }

    pub(super) fn resume(&self, id: JobId) -> Result<Changed> {
        match self.find(id)? {
            None => Ok(Changed::NotFound),
            Some(job) if job.state == State::Parked => {
                self.move_to(&job, Next::Queue(Again::In(Duration::ZERO)), Ending::default())?;
                self.note(&entry(&job, Verb::Resume, State::Queued, self.now))?;
                Ok(Changed::Applied)
            }
            // The job is not parked. Resuming keeps the token, and a claim raises it. So a line
            // `resume` under the current token says that the job was resumed and not claimed
            // since. If it is still queued, this is a repeated request and gets the same answer.
            Some(job) => match self.heard(Fence { job: job.id, token: job.token }, Verb::Resume)? {
                Some(_) if job.state == State::Queued => Ok(Changed::Applied),
                _ => Ok(Changed::Refused(job.state)),
            },
        }
    }

    pub(super) fn purge(&self, request: &AsSeen) -> Result<Changed> {
        let id = request.job;
        match self.find(id)? {
            None => Ok(Changed::NotFound),
            Some(job) if job.state.has_ended() && !request.moved_on(job.token) => {
                self.run(&self.sql.operate.remove_ended, named_params! { ":job": id.0 })?;
                self.forget(id)?;
                Ok(Changed::Applied)
            }
            Some(job) => Ok(Changed::Refused(job.state)),
        }
    }

    pub(super) fn configure(&self, queue: &Name, change: &QueueChange) -> Result<QueueSettings> {
        let mut settings = self.settings_of(queue)?;
        change.apply(&mut settings, self.now);
        self.run(
            &self.sql.operate.configure,
            named_params! {
                ":queue": queue.as_str(), ":paused_at": settings.paused_at.map(Timestamp::as_millis),
                ":keep_ms": settings.keep_ms, ":keep_dead_ms": settings.keep_dead_ms,
            },
        )?;
        Ok(settings)
    }

    fn settings_of(&self, queue: &Name) -> Result<QueueSettings> {
        let set = self.one(
            &self.sql.operate.queue,
            named_params! { ":queue": queue.as_str() },
            row::queue_settings,
        )?;
        Ok(set.unwrap_or_else(|| QueueSettings::default_for(queue.clone())))
    }

    /// Deletes jobs and keys whose retention is over: queue by queue, state by state, the oldest
    /// first.
    pub(super) fn prune(&self, limit: usize) -> Result<Pruned> {
        self.forget_workers()?;
        let mut jobs = 0;
        for queue in self.queues_with_history()? {
            let settings = self.settings_of(&queue)?;
            for state in [State::Succeeded, State::Dead, State::Cancelled] {
                for id in self.aged(&settings, state, limit - jobs)? {
                    self.run(&self.sql.operate.remove_ended, named_params! { ":job": id.0 })?;
                    self.forget(id)?;
                    jobs += 1;
                }
            }
        }
        let bounds = named_params! { ":now": self.now.as_millis(), ":limit": limit };
        let keys = self.run(&self.sql.operate.expire_keys, bounds)?;
        Ok(Pruned { jobs, keys })
    }

    pub(super) fn set_guard_gap(&self, gap: Duration) -> Result<Duration> {
        let was = self.meta()?.guard_gap;
        self.run(&self.sql.operate.set_guard_gap, named_params! { ":gap_ms": millis(gap) })?;
        Ok(was)
    }

    pub(super) fn identity(&self) -> Result<Identity> {
        let text = self.one(&self.sql.operate.identity, [], |row| row.get::<_, String>(0))?;
        Ok(Identity {
            installation: text.and_then(|text| text.parse().ok()).unwrap_or_default(),
            epoch: self.epoch()?,
            raises: self.all(&self.sql.operate.epochs, [], row::raise)?,
        })
    }

    /// The queues that have ended jobs.
    pub(super) fn queues_with_history(&self) -> Result<Vec<Name>> {
        let mut queues: Vec<Name> = Vec::new();
        loop {
            let after = queues.last().map_or("", Name::as_str);
            let next =
                self.one(&self.sql.operate.next_queue, named_params! { ":after": after }, |row| {
                    Ok(Name::trusted(row.get(0)?))
                })?;
            match next {
                Some(queue) => queues.push(queue),
                None => return Ok(queues),
            }
        }
    }

    /// Up to `limit` jobs of a queue that ended in `state` and whose retention is over.
    fn aged(&self, settings: &QueueSettings, state: State, limit: usize) -> Result<Vec<JobId>> {
        let before = self.now - settings.keep(state);
        self.all(
            &self.sql.operate.aged,
            named_params! {
                ":queue": settings.queue.as_str(), ":state": row::code(state, false),
                ":before": before.as_millis(), ":limit": limit,
            },
            |row| Ok(JobId(row.get(0)?)),
        )
    }
}
