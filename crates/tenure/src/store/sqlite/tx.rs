//! What a verb works with: the open transaction, the statements, and the time, read once per call.

use std::collections::BTreeSet;

use rusqlite::{Connection, Params, Result, Row, named_params};

use super::row;
use super::statements::Statements;
use crate::clock::Timestamp;
use crate::inspect::TimelineEntry;
use crate::job::{JobId, JobRecord, Name, State};
use crate::lease::{self, Fence, Stale, Token};
use crate::lifecycle::{Again, Next, Verb};
use crate::store::lane;

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
        let read = |row: &Row<'_>| Ok(Meta { epoch: row.get(0)?, since: row::time(row.get(1)?) });
        Ok(self.one(&self.sql.claim.meta, [], read)?.unwrap_or_default())
    }

    /// Since when time has run evenly, for leases. A moment that is still to come tells nothing: the clock was
    /// set back since.
    pub(super) fn steady_since(&self) -> Result<Timestamp> {
        let since = self.meta()?.since;
        Ok(if since <= self.now { since } else { Meta::default().since })
    }

    pub(super) fn epoch(&self) -> Result<u32> {
        Ok(self.meta()?.epoch)
    }

    /// Begins a new epoch: from now on all tokens and ids are above every earlier one.
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

    /// Makes a decision about a live job true. `job` is the job as it was, with the counts it shall
    /// have from now on.
    pub(super) fn move_to(&self, job: &JobRecord, next: Next, end: Ending<'_>) -> Result<()> {
        let mut run_at = job.run_at;
        match next {
            Next::End(state) => {
                self.run(
                    &self.sql.settle.end,
                    named_params! {
                        ":job": job.id.0, ":state": row::code(state, false),
                        ":token": job.token.0, ":crashes": job.crashes, ":now": self.now.as_millis(),
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
                ":crashes": job.crashes, ":reason": if next == Next::Park { end.reason } else { None },
            },
        )?;
        Ok(())
    }

    /// Deletes a job that is in neither table any more from the others.
    pub(super) fn forget(&self, job: JobId) -> Result<()> {
        self.run(&self.sql.operate.remove_payload, named_params! { ":job": job.0 })?;
        self.run(&self.sql.operate.remove_timeline, named_params! { ":job": job.0 })?;
        self.run(&self.sql.operate.remove_ledger, named_params! { ":job": job.0 })?;
        self.run(&self.sql.operate.remove_steps, named_params! { ":job": job.0 })?;
        Ok(())
    }

    /// Adds a line to a job's timeline, unless the same call has left one before.
    pub(super) fn note(&self, entry: &TimelineEntry) -> Result<()> {
        self.run(
            &self.sql.settle.note,
            named_params! {
                ":job": entry.job.0, ":at": entry.at.as_millis(), ":verb": entry.verb.name(),
                ":refused": entry.refused, ":token": entry.token.0, ":attempt": entry.attempt,
                ":worker": entry.worker.as_ref().map(|worker| worker.as_str()),
                ":began": entry.from.map(Timestamp::as_millis),
                ":became": row::code(entry.became, false), ":note": entry.note,
            },
        )?;
        Ok(())
    }

    /// What the job holds instead of the fence that was shown, or nothing if there is no such job.
    pub(super) fn current(&self, shown: Fence) -> Result<Option<(Stale, u16)>> {
        self.one(&self.sql.settle.current, named_params! { ":job": shown.job.0 }, |row| {
            let (state, _) = row::state(row.get(1)?)?;
            Ok((Stale::new(shown, Token(row.get(0)?), state), row.get(2)?))
        })
    }

    /// Makes a refusal visible, once per job, token and verb.
    pub(super) fn refuse(&self, stale: &Stale, attempt: u16, verb: Verb) -> Result<()> {
        self.take_crash_back(stale.shown)?;
        self.note(&TimelineEntry {
            job: stale.shown.job,
            at: self.now,
            verb,
            refused: true,
            token: stale.shown.token,
            attempt,
            worker: None,
            from: None,
            became: stale.state,
            note: Some(format!("{}: the job's token is {}", stale.reason.name(), stale.current)),
        })
    }
}

/// What is kept once for the whole store.
#[derive(Clone, Copy)]
pub(super) struct Meta {
    pub(super) epoch: u32,
    /// Since when time has run evenly.
    pub(super) since: Timestamp,
}

impl Default for Meta {
    fn default() -> Meta {
        Meta { epoch: 0, since: Timestamp::from_millis(0) }
    }
}

/// What an ended job leaves behind.
#[derive(Clone, Copy, Default)]
pub(super) struct Ending<'a> {
    pub(super) result: Option<&'a str>,
    pub(super) reason: Option<&'a str>,
}

/// The line that the end of a running job's attempt, or a move of a job at rest, leaves in the
/// timeline.
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
    }
}
