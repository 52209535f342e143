//! Lapse: takes a job back when its lease is over, or when its worker's process is gone.

use std::time::Duration;

use rusqlite::{Result, Row, ToSql, named_params};

use super::guard::Guards;
use super::row;
use super::tx::{Breaks, Ending, Tx, entry};
use crate::clock::{Timestamp, millis};
use crate::inspect::{TimelineEntry, WorkerRecord, WorkerView};
use crate::lease::{Fence, WorkerId};
use crate::lifecycle::{CRASH_MEMORY, Counts, Verb, after_lapse, makes_suspect};
use crate::record::{About, JobRecord};
use crate::store::row as spelling;
use crate::store::{
    AFTER_STALL, Beat, Guarded, Lapse, Lapsed, PULSE, Registration, STALLED_GAP, WORKER_MEMORY,
    lane,
};

impl Tx<'_> {
    pub(super) fn overdue(&self, limit: usize, grace: Duration) -> Result<Vec<Fence>> {
        let over = self.breaks()?.params(self.now - grace);
        let mut bounds = bound(&over);
        bounds.push((":limit", &limit));
        self.all(&self.sql.lapse.overdue, bounds.as_slice(), row::fence)
    }

    pub(super) fn lapse(&self, fences: &[Fence]) -> Result<Vec<Lapsed>> {
        let breaks = self.note_breaks()?;
        let answer = |lapse: Option<Lapse>| lapse.map_or(Lapsed::LeftAlone, Lapsed::TakenBack);
        fences.iter().map(|fence| self.lapse_one(*fence, &breaks).map(answer)).collect()
    }

    pub(super) fn lapse_one(&self, fence: Fence, breaks: &Breaks) -> Result<Option<Lapse>> {
        let over = breaks.params(self.now);
        let mut shown = bound(&over);
        shown.extend([(":job", &fence.job.0 as &dyn ToSql), (":token", &fence.token.0)]);
        let found = self.one(&self.sql.lapse.check, shown.as_slice(), row::record)?;
        found.map_or(Ok(None), |job| self.take_back(&job, Verb::Lapse))
    }

    /// Whether it is time to advance the pulse, and whether there are running jobs and workers.
    pub(super) fn pulse(&self) -> Result<Beat> {
        let read = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?));
        let (leases_are_out, workers): (bool, usize) =
            self.one(&self.sql.lapse.pulse_of, [], read)?.unwrap_or_default();
        let last = row::time(self.meta()?.pulse);
        // A pulse in the future means that the clock was set back since: then it is not too early.
        let early = (last..last + PULSE).contains(&self.now);
        let leads = !early && leases_are_out;
        Ok(Beat { leads, leases_are_out, workers, wakes: true })
    }

    /// Records that the store can be written to now.
    pub(super) fn advance_pulse(&self) -> Result<()> {
        self.note_breaks()?;
        let now = self.now.as_millis();
        self.run(&self.sql.lapse.advance_pulse, named_params! { ":now": now.max(1) }).map(drop)
    }

    /// Takes a running job from its worker.
    fn take_back(&self, job: &JobRecord, verb: Verb) -> Result<Option<Lapse>> {
        let (next, why) = after_lapse(&Counts::from(job), verb);
        let became = next.state();
        let mut after = job.clone();
        after.crashes += 1;
        after.crashed_at = Some(self.now);
        after.is_suspect = makes_suspect(after.crashes, after.max_crashes);
        after.token = job.token.next(self.epoch()?);
        self.move_to(&after, next, Ending { result: None, reason: Some(why) })?;
        let latest = job.started_at.zip(job.max_runtime_ms).map(|(at, ms)| at.as_millis() + ms);
        let ran_out = latest.is_some_and(|latest| latest <= self.now.as_millis());
        if verb == Verb::Lapse && !became.has_ended() && !ran_out {
            // Perhaps the worker was only late. It may return until its lease, granted once more
            // now, would be over.
            let until = self.now.as_millis() + job.lease_ms.unwrap_or_default();
            self.run(
                &self.sql.lapse.may_return,
                named_params! { ":job": job.id.0, ":until": until },
            )?;
        }
        let line = entry(job, verb, became, self.now);
        self.note(&TimelineEntry { note: Some(why.to_owned()), ..line })?;
        let about = About::from(job);
        Ok(job.worker.clone().map(|worker| Lapse { about, worker, became }))
    }

    pub(super) fn worker_records(&self) -> Result<Vec<WorkerRecord>> {
        self.all(&self.sql.lapse.workers, [], row::worker)
    }

    pub(super) fn workers(&self, guards: &Guards) -> Result<Vec<WorkerView>> {
        let view = |record: WorkerRecord| WorkerView {
            is_alive: record.guarded.then(|| !guards.is_free(&record.worker)),
            worker: record.worker,
            queues: record.queues,
            kinds: record.kinds,
            since: record.taken_at,
        };
        Ok(self.worker_records()?.into_iter().map(view).collect())
    }

    pub(super) fn register(&self, worker: &Registration, guarded: Guarded) -> Result<()> {
        self.run(
            &self.sql.lapse.register,
            named_params! {
                ":worker": worker.worker.as_str(), ":queues": spelling::names_column(&worker.queues),
                ":kinds": worker.kinds.as_deref().map(spelling::names_column), ":guarded": guarded == Guarded::ByLock,
                ":since": self.meta()?.since.as_millis(), ":now": self.now.as_millis(),
            },
        )?;
        Ok(())
    }

    /// A lock that was taken before a clock break does not count. After a break, makes the lock of
    /// a worker that still holds it count again.
    pub(super) fn keep_guard(&self, worker: &WorkerId) -> Result<()> {
        let since = self.meta()?.since.as_millis();
        self.run(
            &self.sql.lapse.keep_guard,
            named_params! { ":worker": worker.as_str(), ":since": since, ":now": self.now.as_millis() },
        )?;
        Ok(())
    }

    pub(super) fn retire(&self, worker: &WorkerId) -> Result<()> {
        self.run(&self.sql.lapse.retire, named_params! { ":worker": worker.as_str() })?;
        Ok(())
    }

    /// The locks of all workers.
    fn guards(&self) -> Result<Vec<Guard>> {
        let since = self.meta()?.since.as_millis();
        self.all(&self.sql.lapse.guards, named_params! { ":since": since }, |row| {
            Ok(Guard {
                worker: WorkerId::trusted(row.get(0)?),
                free_since: row.get::<_, Option<i64>>(1)?.map(row::time),
                would_tell: row.get(2)?,
            })
        })
    }

    /// Whether a check of the workers' locks finds something to write.
    pub(super) fn finds_vanished(&self, guards: &Guards) -> Result<bool> {
        let gap = self.guard_gap()?;
        Ok(self.guards()?.iter().any(|guard| self.look_at(guard, guards, gap) != Look::Nothing))
    }

    /// How long a lock must have been free. After a stall the gap is longer, the same as on
    /// PostgreSQL, where workers reconnect one by one and take their locks again only then.
    fn guard_gap(&self) -> Result<Duration> {
        let (broke, gap) = (row::time(self.breaks()?.broke), self.meta()?.guard_gap);
        Ok(if broke > self.now - AFTER_STALL { gap.max(STALLED_GAP) } else { gap })
    }

    /// Checks one worker's lock.
    fn look_at(&self, guard: &Guard, guards: &Guards, gap: Duration) -> Look {
        match (guards.is_free(&guard.worker), guard.free_since) {
            (false, None) => Look::Nothing,
            (false, Some(_)) => Look::Held,
            (true, _) if !guard.would_tell => Look::Nothing,
            (true, None) => Look::Free,
            (true, Some(first)) if first + gap <= self.now => Look::Gone,
            (true, Some(_)) => Look::Nothing,
        }
    }

    /// Checks every worker's lock, and takes back the jobs of workers that are gone. Also returns
    /// the workers that it has deleted, so that the caller removes their lock files.
    pub(super) fn vanished(
        &self,
        limit: usize,
        guards: &Guards,
    ) -> Result<(Vec<Lapse>, Vec<WorkerId>)> {
        let gap = self.guard_gap()?;
        let (mut lapses, mut forgotten) = (Vec::new(), Vec::new());
        for guard in self.guards()? {
            match self.look_at(&guard, guards, gap) {
                Look::Nothing => {}
                Look::Held => self.looked(&guard.worker, None)?,
                Look::Free => self.looked(&guard.worker, Some(self.now))?,
                Look::Gone => {
                    let left = limit - lapses.len();
                    let held = self.held_by_gone(&guard.worker, left + 1)?;
                    for job in held.iter().take(left) {
                        lapses.extend(self.take_back(job, Verb::Vanish)?);
                    }
                    if held.len() <= left {
                        self.retire(&guard.worker)?;
                        forgotten.push(guard.worker);
                    }
                }
            }
        }
        Ok((lapses, forgotten))
    }

    fn held_by_gone(&self, worker: &WorkerId, limit: usize) -> Result<Vec<JobRecord>> {
        let of = named_params! { ":worker": worker.as_str(), ":limit": limit };
        self.all(&self.sql.lapse.of_worker, of, row::record)
    }

    fn looked(&self, worker: &WorkerId, free_since: Option<Timestamp>) -> Result<()> {
        self.run(
            &self.sql.lapse.looked,
            named_params! {
                ":worker": worker.as_str(), ":free_since": free_since.map(Timestamp::as_millis),
            },
        )?;
        Ok(())
    }

    /// Undoes the crash of a worker that was taken for gone, but has shown its token again. If only
    /// its lease was over, this holds only if it returns within the length of one lease, while the
    /// job still waits for its next attempt.
    pub(super) fn take_crash_back(&self, shown: Fence) -> Result<()> {
        let lapsed = self.heard(shown, Verb::Vanish)?.is_none();
        if lapsed && self.heard(shown, Verb::Lapse)?.is_none()
            || self.heard(shown, Verb::Return)?.is_some()
        {
            return Ok(());
        }
        let since = named_params! {
            ":job": shown.job.0, ":token": shown.token.0, ":memory": millis(CRASH_MEMORY),
            ":any": lapsed,
        };
        if self.one(&self.sql.lapse.counted_anew, since, |row| row.get(0))? == Some(true) {
            return Ok(());
        }
        let by_id = named_params! { ":job": shown.job.0 };
        let Some(mut job) = self.one(&self.sql.operate.live, by_id, row::record)? else {
            return Ok(());
        };
        if lapsed && job.returns_until.is_none_or(|until| until < self.now) {
            return Ok(());
        }
        job.crashes = job.crashes.saturating_sub(1);
        job.crashed_at = job.crashed_at.filter(|_| job.crashes > 0);
        job.is_suspect &= makes_suspect(job.crashes, job.max_crashes);
        self.run(
            &self.sql.lapse.uncrash,
            named_params! {
                ":job": job.id.0, ":crashes": job.crashes, ":lane": lane::of(&job),
                ":crashed_at": job.crashed_at.map(Timestamp::as_millis),
            },
        )?;
        let words = "its worker is back: the crash does not count";
        let (attempt, worker) = self.shown_by(shown)?;
        self.note(&TimelineEntry {
            token: shown.token,
            attempt,
            worker,
            from: None,
            note: Some(words.to_owned()),
            ..entry(&job, Verb::Return, job.state, self.now)
        })
    }

    /// Records a clock break: leases from before it run for their whole length from now on.
    pub(super) fn break_time(&self) -> Result<()> {
        self.run(&self.sql.lapse.break_time, named_params! { ":now": self.now.as_millis() })?;
        Ok(())
    }

    /// Removes the lock files of workers that are no longer registered.
    pub(super) fn sweep_guards(&self, guards: &Guards) -> Result<()> {
        let known = self.worker_records()?.into_iter().map(|record| record.worker);
        guards.sweep(&known.collect::<Vec<_>>());
        Ok(())
    }

    /// Deletes workers whose locks cannot show whether they live, if they have not registered for
    /// [`WORKER_MEMORY`].
    pub(super) fn forget_workers(&self) -> Result<()> {
        let (old, since) = (self.now - WORKER_MEMORY, self.meta()?.since);
        self.run(
            &self.sql.lapse.forget_workers,
            named_params! { ":old": old.as_millis(), ":since": since.as_millis() },
        )?;
        Ok(())
    }
}

/// The parameters in the form that rusqlite takes.
pub(super) fn bound<'a>(params: &'a [(&'static str, i64)]) -> Vec<(&'static str, &'a dyn ToSql)> {
    params.iter().map(|(name, value)| (*name, value as &dyn ToSql)).collect()
}

/// A worker's lock, as recorded.
struct Guard {
    worker: WorkerId,
    free_since: Option<Timestamp>,
    /// Whether a free lock would mean that the worker is gone.
    would_tell: bool,
}

/// The result of checking a worker's lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Look {
    /// Nothing new.
    Nothing,
    /// The lock was seen free, but is held again.
    Held,
    /// The lock is seen free for the first time.
    Free,
    /// The lock has been free for long enough: the process is gone.
    Gone,
}
