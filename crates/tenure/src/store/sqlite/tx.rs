//! The context of a verb: the open transaction, the statements, and the time, read once per call.

use std::collections::BTreeSet;
use std::time::Duration;

use rusqlite::{Connection, Params, Result, Row, named_params};

use super::row;
use super::statements::Statements;
use crate::clock::Timestamp;
use crate::inspect::TimelineEntry;
use crate::job::{JobId, Name, State};
use crate::lease::{self, Fence, Stale, Token, WorkerId};
use crate::lifecycle::{Again, Next, Verb};
use crate::record::JobRecord;
use crate::store::{GUARD_GAP, STALL, lane};

pub(super) struct Tx<'a> {
    pub(super) connection: &'a Connection,
    pub(super) sql: &'a Statements,
    pub(super) now: Timestamp,
}

impl Tx<'_> {
    pub(super) fn run(&self, sql: &str, params: impl Params) -> Result<usize> {
        self.connection.prepare_cached(sql)?.execute(params)
    }

    pub(super) fn one<T>(
        &self,
        sql: &str,
        params: impl Params,
        read: impl FnOnce(&Row<'_>) -> Result<T>,
    ) -> Result<Option<T>> {
        let mut statement = self.connection.prepare_cached(sql)?;
        let mut rows = statement.query(params)?;
        rows.next()?.map(read).transpose()
    }

    pub(super) fn all<T>(
        &self,
        sql: &str,
        params: impl Params,
        read: impl FnMut(&Row<'_>) -> Result<T>,
    ) -> Result<Vec<T>> {
        self.connection.prepare_cached(sql)?.query_map(params, read)?.collect()
    }

    pub(super) fn meta(&self) -> Result<Meta> {
        let read = |row: &Row<'_>| {
            Ok(Meta {
                epoch: row.get(0)?,
                since: row::time(row.get(1)?),
                pulse: row.get(2)?,
                broke: row.get(3)?,
                broke_before: row.get(4)?,
                guard_gap: Duration::from_millis(u64::from(row.get::<_, u32>(5)?)),
            })
        };
        Ok(self.one(&self.sql.claim.meta, [], read)?.unwrap_or_default())
    }

    /// The recorded breaks, in which no worker could renew its lease. A time in the future counts
    /// as no break: the clock was set back since.
    pub(super) fn noted_breaks(&self) -> Result<Breaks> {
        let (meta, now) = (self.meta()?, self.now.as_millis());
        let past = |at: i64| if at <= now { at } else { 0 };
        Ok(Breaks {
            since: past(meta.since.as_millis()),
            broke: past(meta.broke),
            broke_before: past(meta.broke_before),
            is_new: false,
        })
    }

    /// The recorded breaks, and one that ends now: if the pulse is older than [`STALL`], although a
    /// lease from before that is still held.
    pub(super) fn breaks(&self) -> Result<Breaks> {
        let (meta, now) = (self.meta()?, self.now.as_millis());
        let mut breaks = self.noted_breaks()?;
        let stalled = (self.now - STALL).as_millis();
        if meta.pulse > 0 && meta.pulse.max(breaks.broke) < stalled {
            let then = named_params! { ":then": stalled };
            breaks.is_new = self
                .one(&self.sql.lapse.leased_before, then, |row| row.get(0))?
                .unwrap_or_default();
        }
        if breaks.is_new {
            (breaks.broke_before, breaks.broke) = (breaks.broke, now);
        }
        Ok(breaks)
    }

    /// Like [`Tx::breaks`], and stores a break that ends now. Otherwise the next caller would find
    /// the same break again, and store it as another one.
    pub(super) fn note_breaks(&self) -> Result<Breaks> {
        let breaks = self.breaks()?;
        if breaks.is_new {
            let Breaks { broke, broke_before, .. } = breaks;
            let ends = named_params! { ":broke": broke, ":broke_before": broke_before };
            self.run(&self.sql.lapse.note_break, ends)?;
        }
        Ok(breaks)
    }

    pub(super) fn epoch(&self) -> Result<u32> {
        Ok(self.meta()?.epoch)
    }

    /// Starts a new epoch: from now on all tokens and ids are above every earlier one.
    pub(super) fn raise_epoch(&self, from: u32, reason: &str) -> Result<u32> {
        let epoch = lease::raised(from, self.now);
        self.run(&self.sql.operate.raise, named_params! { ":epoch": epoch })?;
        self.run(
            &self.sql.operate.note_epoch,
            named_params! { ":epoch": epoch, ":now": self.now.as_millis(), ":reason": reason },
        )?;
        Ok(epoch)
    }

    pub(super) fn names(&self, sql: &str) -> Result<BTreeSet<Name>> {
        let names = self.all(sql, [], |row| Ok(Name::trusted(row.get(0)?)))?;
        Ok(names.into_iter().collect())
    }

    /// Moves a live job to its next state. `job` is the job as it was before, but already with its
    /// new token, counts and suspect flag.
    pub(super) fn move_to(&self, job: &JobRecord, next: Next, end: Ending<'_>) -> Result<()> {
        let mut run_at = job.run_at;
        match next {
            Next::End(state) => {
                self.run(
                    &self.sql.settle.end,
                    named_params! {
                        ":job": job.id.0, ":state": row::code(state, false),
                        ":ends_under": job.token.0, ":crashes": job.crashes, ":now": self.now.as_millis(),
                        ":result": end.result, ":reason": end.reason,
                    },
                )?;
                self.run(&self.sql.settle.remove, named_params! { ":job": job.id.0 })?;
                return Ok(());
            }
            Next::Queue(Again::In(delay)) => run_at = self.now + delay,
            Next::Queue(Again::AsBefore) | Next::Park => {}
        }
        let waiting = next.state() == State::Queued && run_at > self.now;
        self.run(
            &self.sql.settle.put_back,
            named_params! {
                ":job": job.id.0, ":state": row::code(next.state(), waiting), ":lane": lane::of(job),
                ":run_at": run_at.as_millis(), ":token": job.token.0, ":attempt": job.attempt,
                ":crashes": job.crashes, ":crashed_at": job.crashed_at.map(Timestamp::as_millis),
                ":reason": if next == Next::Park { end.reason } else { None },
            },
        )?;
        Ok(())
    }

    /// Deletes what the other tables store about a job that is in neither job table any more.
    pub(super) fn forget(&self, job: JobId) -> Result<()> {
        self.run(&self.sql.operate.remove_payload, named_params! { ":job": job.0 })?;
        self.run(&self.sql.operate.remove_timeline, named_params! { ":job": job.0 })?;
        self.run(&self.sql.operate.remove_ledger, named_params! { ":job": job.0 })?;
        self.run(&self.sql.operate.remove_steps, named_params! { ":job": job.0 })?;
        Ok(())
    }

    /// Adds an entry to a job's timeline, unless an earlier try of the same call has added it.
    pub(super) fn note(&self, entry: &TimelineEntry) -> Result<()> {
        let earlier = entry.earlier + if entry.refused { 0 } else { self.thin_out(entry)? };
        self.run(
            &self.sql.settle.note,
            named_params! {
                ":job": entry.job.0, ":at": entry.at.as_millis(), ":verb": entry.verb.name(),
                ":refused": entry.refused, ":token": entry.token.0, ":attempt": entry.attempt,
                ":worker": entry.worker.as_ref().map(|worker| worker.as_str()),
                ":began": entry.from.map(Timestamp::as_millis),
                ":became": row::code(entry.became, false), ":note": entry.note,
                ":earlier": i64::try_from(earlier).unwrap_or(i64::MAX),
            },
        )?;
        Ok(())
    }

    /// Deletes the entries that exceed the limit once this one is written, and returns how many
    /// were deleted so far.
    fn thin_out(&self, entry: &TimelineEntry) -> Result<u64> {
        let (job, verb) = (entry.job.0, entry.verb.name());
        let kept = TimelineEntry::kept(entry.verb) - 1;
        let last = self.one(
            &self.sql.settle.last_kept,
            named_params! { ":job": job, ":verb": verb, ":kept": kept },
            |row| Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?)),
        )?;
        let Some((token, dropped)) = last else { return Ok(0) };
        let of_verb = named_params! { ":job": job, ":verb": verb, ":token": token };
        let more = self.run(&self.sql.settle.thin, of_verb)?;
        Ok(dropped.unsigned_abs() + u64::try_from(more).unwrap_or(0))
    }

    /// The job's current token and state, compared with the fence that was shown; `None` if there
    /// is no such job.
    pub(super) fn current(&self, shown: Fence) -> Result<Option<Stale>> {
        self.one(&self.sql.settle.current, named_params! { ":job": shown.job.0 }, |row| {
            let (state, _) = row::state(row.get(1)?)?;
            Ok(Stale::new(shown, Token(row.get(0)?), state))
        })
    }

    /// The attempt and the worker that had this token; attempt 0 if that is not recorded.
    pub(super) fn shown_by(&self, shown: Fence) -> Result<(u16, Option<WorkerId>)> {
        let read = |row: &Row<'_>| {
            Ok((row.get(0)?, row.get::<_, Option<String>>(1)?.map(WorkerId::trusted)))
        };
        for sql in [&self.sql.settle.ended_by, &self.sql.settle.completed_by] {
            let token = named_params! { ":job": shown.job.0, ":token": shown.token.0 };
            if let Some(found) = self.one(sql, token, read)? {
                return Ok(found);
            }
        }
        Ok((0, None))
    }

    /// Records a refusal, once per job, token and verb.
    pub(super) fn refuse(&self, stale: &Stale, verb: Verb) -> Result<()> {
        self.take_crash_back(stale.shown)?;
        let (attempt, worker) = self.shown_by(stale.shown)?;
        self.note(&TimelineEntry {
            job: stale.shown.job,
            at: self.now,
            verb,
            refused: true,
            token: stale.shown.token,
            attempt,
            worker,
            from: None,
            became: stale.state,
            note: Some(format!("{}: the job's token is {}", stale.reason.name(), stale.current)),
            earlier: 0,
        })
    }
}

/// Values that are stored once for the whole store.
#[derive(Clone, Copy)]
pub(super) struct Meta {
    pub(super) epoch: u32,
    /// Since when the clock has run without a break.
    pub(super) since: Timestamp,
    /// When a worker last recorded that the store can be written to.
    pub(super) pulse: i64,
    /// The end of the last gap in the pulse, and of the gap before it.
    pub(super) broke: i64,
    pub(super) broke_before: i64,
    /// How long a worker's lock must have been free before its process counts as gone.
    pub(super) guard_gap: Duration,
}

/// The past breaks, in which no worker could renew its lease.
#[derive(Clone, Copy)]
pub(super) struct Breaks {
    pub(super) since: i64,
    pub(super) broke: i64,
    pub(super) broke_before: i64,
    /// Whether the last break is not recorded yet.
    pub(super) is_new: bool,
}

impl Breaks {
    /// The parameters of the section `over` of `record.sql`, for leases that were over at this
    /// time.
    pub(super) fn params(&self, over: Timestamp) -> [(&'static str, i64); 4] {
        [
            (":since", self.since),
            (":broke", self.broke),
            (":broke_before", self.broke_before),
            (":over", over.as_millis()),
        ]
    }
}

impl Default for Meta {
    fn default() -> Meta {
        Meta {
            epoch: 0,
            since: Timestamp::from_millis(0),
            pulse: 0,
            broke: 0,
            broke_before: 0,
            guard_gap: GUARD_GAP,
        }
    }
}

/// The result and the reason of an ended job.
#[derive(Clone, Copy, Default)]
pub(super) struct Ending<'a> {
    pub(super) result: Option<&'a str>,
    pub(super) reason: Option<&'a str>,
}

/// The timeline entry for the end of a running job's attempt, or for a change of a job that is not
/// running.
pub(super) fn entry(job: &JobRecord, verb: Verb, became: State, now: Timestamp) -> TimelineEntry {
    TimelineEntry {
        job: job.id,
        at: now,
        verb,
        refused: false,
        token: job.token,
        attempt: job.attempt,
        worker: job.worker.clone(),
        from: job.started_at,
        became,
        note: None,
        earlier: 0,
    }
}
