//! What the proof does to this engine: read and set its whole state, and break its SQL on purpose.

use std::sync::Arc;

use rusqlite::{Connection, Result as SqlResult, named_params};

use super::statements::Statements;
use super::tx::Tx;
use super::writer::Urgency;
use super::{Options, Sqlite, row};
use crate::clock::Timestamp;
use crate::drill::{Dump, Explorable, KeyRecord, KeyScope, Patch};
use crate::job::{Fingerprint, JobId, JobRecord, State, Tenant};
use crate::store::{Result, lane};

impl Sqlite {
    /// A throw-away store whose SQL lacks something.
    pub fn in_memory_patched(options: &Options, patches: &[Patch]) -> Result<Sqlite> {
        let patched = Statements::from_files(|file, text| Patch::apply(patches, file, text));
        Sqlite::in_memory_with(options, Arc::new(patched))
    }

    /// Lets `look` use the writing connection, to count what a call costs.
    pub fn with_connection<T>(&self, look: impl FnOnce(&mut Connection) -> T) -> T {
        self.writer.with_connection(look)
    }
}

impl Explorable for Sqlite {
    fn dump(&mut self) -> Result<Dump> {
        self.write("dump", Urgency::Normal, |tx| tx.dump())
    }

    fn load(&mut self, state: &Dump) -> Result<()> {
        self.clock.set(state.now);
        self.write("load", Urgency::Normal, |tx| tx.load(state))
    }
}

impl Tx<'_> {
    fn dump(&self) -> SqlResult<Dump> {
        let live = &self.sql.operate.live.replace(" WHERE id = :job", "");
        let ended = &self.sql.operate.ended.replace(" WHERE id = :job", "");
        let mut jobs = self.all(live, [], row::record)?;
        self.check_lanes(&jobs)?;
        jobs.extend(self.all(ended, [], row::record)?);
        jobs.sort_by_key(|job| job.id);
        let (epoch, next_id) = self
            .one("SELECT epoch, next_id FROM tenure_meta", [], |row| {
                Ok((row.get(0)?, row.get(1)?))
            })?
            .unwrap_or_default();
        Ok(Dump {
            now: self.now,
            epoch,
            next_id,
            jobs,
            timeline: self.all(
                "SELECT job_id, at, verb, refused, token, attempt, worker, began, became, note
                   FROM tenure_timeline ORDER BY job_id, seq",
                [],
                row::timeline_entry,
            )?,
            keys: self.all(
                "SELECT tenant, key, fingerprint, job_id, expires_at FROM tenure_keys ORDER BY tenant, scope, key",
                [],
                |row| {
                    Ok(KeyRecord {
                        tenant: Tenant::trusted(row.get(0)?),
                        scope: KeyScope::Idempotency,
                        key: row.get(1)?,
                        fingerprint: Fingerprint(row.get(2)?),
                        job: JobId(row.get(3)?),
                        expires_at: row::time(row.get(4)?),
                    })
                },
            )?,
            queues: self.queues()?,
        })
    }

    /// The lane is computed from the job, so the dump does not show it; but it must be right.
    fn check_lanes(&self, live: &[JobRecord]) -> SqlResult<()> {
        for job in live {
            let lane: Option<i64> =
                self.one("SELECT lane FROM tenure_jobs WHERE id = ?1", [job.id.0], |row| {
                    row.get(0)
                })?;
            assert_eq!(lane, Some(lane::of(job)), "job {} is in the wrong lane", job.id);
        }
        Ok(())
    }

    fn load(&self, state: &Dump) -> SqlResult<()> {
        for table in ["jobs", "done", "payloads", "timeline", "keys", "queues"] {
            self.run(&format!("DELETE FROM tenure_{table}"), [])?;
        }
        self.run(
            "UPDATE tenure_meta SET epoch = ?1, next_id = ?2",
            rusqlite::params![state.epoch, state.next_id],
        )?;
        state.jobs.iter().try_for_each(|job| self.load_job(job))?;
        state.timeline.iter().try_for_each(|entry| self.note(entry))?;
        for key in &state.keys {
            self.run(
                &self.sql.enqueue.remember_key,
                named_params! {
                    ":tenant": key.tenant.as_str(), ":key": key.key, ":fingerprint": key.fingerprint.0,
                    ":job": key.job.0, ":expires_at": key.expires_at.as_millis(),
                },
            )?;
        }
        for settings in &state.queues {
            self.run(
                &self.sql.operate.configure,
                named_params! {
                    ":queue": settings.queue.as_str(), ":paused_at": settings.paused_at.map(Timestamp::as_millis),
                    ":keep_ms": settings.keep_ms, ":keep_dead_ms": settings.keep_dead_ms,
                },
            )?;
        }
        Ok(())
    }

    fn load_job(&self, job: &JobRecord) -> SqlResult<()> {
        // Stored as if it were new, then brought to where it was.
        self.store(&JobRecord { state: State::Queued, ..job.clone() })?;
        self.run(
            "UPDATE tenure_jobs
                SET token = :token, attempt = :attempt, crashes = :crashes, worker = :worker,
                    started_at = :started_at, leased_at = :leased_at, lease_ms = :lease_ms,
                    lease_until = :lease_until, reason = :reason, state = :state
              WHERE id = :job",
            named_params! {
                ":job": job.id.0, ":token": job.token.0, ":attempt": job.attempt, ":crashes": job.crashes,
                ":worker": job.worker.as_ref().map(|worker| worker.as_str()),
                ":started_at": job.started_at.map(Timestamp::as_millis),
                ":leased_at": job.leased_at.map(Timestamp::as_millis), ":lease_ms": job.lease_ms,
                ":lease_until": job.lease_until.map(Timestamp::as_millis), ":reason": job.reason,
                ":state": if job.state.has_ended() { 0 } else { row::code(job.state, job.waiting) },
            },
        )?;
        if let Some(finished_at) = job.finished_at {
            self.run(
                &self.sql.settle.end,
                named_params! {
                    ":job": job.id.0, ":state": row::code(job.state, false),
                    ":token": job.token.0, ":crashes": job.crashes, ":now": finished_at.as_millis(),
                    ":result": job.result.as_ref().map(|result| result.as_str()), ":reason": job.reason,
                },
            )?;
            self.run(&self.sql.settle.remove, named_params! { ":job": job.id.0 })?;
        }
        Ok(())
    }
}
