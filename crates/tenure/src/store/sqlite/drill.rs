//! Access for the tests in `tenure-drill`: they read and set the whole state, and break the SQL on
//! purpose.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rusqlite::{Connection, Result as SqlResult, named_params};

use super::statements::Statements;
use super::tx::{Meta, Tx};
use super::writer::Urgency;
use super::{Sqlite, StoreOptions, error, file, row};
use crate::clock::{Timestamp, millis};
use crate::inspect::WorkerRecord;
use crate::job::{Fingerprint, JobId, State, Tenant};
use crate::lease::first_of;
use crate::ledger::EffectRecord;
use crate::record::JobRecord;
use crate::store::explore::{Dump, Explorable, KeyRecord, KeyScope, Patch};
use crate::store::{Look, Operate, Result, lane, row as spelling};

impl Sqlite {
    /// A throw-away store with patched SQL.
    pub fn in_memory_patched(options: &StoreOptions, patches: &[Patch]) -> Result<Sqlite> {
        let patched = Statements::from_files(|file, text| Patch::apply(patches, file, text));
        Sqlite::in_memory_with(options, Arc::new(patched), |file, text| {
            Patch::apply(patches, file, text)
        })
    }

    /// The SQL files of the verbs, without `.sql`, and their texts.
    pub fn texts() -> Vec<(&'static str, &'static str)> {
        let texts = RefCell::new(Vec::new());
        Statements::from_files(|file, text| {
            texts.borrow_mut().push((file, text));
            text.to_owned()
        });
        texts.into_inner()
    }

    /// From now on this file's writer in this process begins transactions without the write lock,
    /// and takes it only when it writes.
    pub fn begin_deferred(&self) {
        self.writer.deferred.store(true, Ordering::SeqCst);
    }

    /// From now on this process does not check whether the file is still at its path.
    pub fn look_away(&self) {
        self.writer.blind.store(true, Ordering::SeqCst);
    }

    /// Calls `look` with the writer's connection, to count what a call costs.
    pub fn with_connection<T>(&self, look: impl FnOnce(&mut Connection) -> T) -> T {
        self.writer.with_connection(look)
    }
}

impl Explorable for Sqlite {
    fn look(&mut self) -> Option<&mut dyn Look> {
        Some(self)
    }

    fn dump(&mut self) -> Result<Dump> {
        let held = self.guards.all();
        let state = self.write("dump", Urgency::Normal, |tx| tx.dump())?;
        Ok(Dump { held, ..state })
    }

    fn load(&mut self, state: &Dump) -> Result<()> {
        self.clock.set(state.now);
        let known: Vec<_> = state.workers.iter().map(|worker| worker.worker.clone()).collect();
        let failed = |cause| error::from_io(&self.writer.target, "load", cause);
        self.guards.set(&state.held, &known).map_err(failed)?;
        self.write("load", Urgency::Normal, |tx| tx.load(state))
    }

    /// Sets the file's beat behind its witness, and consults the witness, as happens at every
    /// opening. A store in memory has no witness, so its epoch is raised directly.
    fn go_back(&mut self, state: &Dump) -> Result<()> {
        let now = self.clock.now();
        self.load(state)?;
        self.clock.set(now);
        let Some(witness) = self.writer.witness() else {
            return self.raise_epoch("the database went back in time").map(drop);
        };
        let heard = self.writer.with_connection(|connection| {
            connection.execute("UPDATE tenure_meta SET beat = beat - 1", [])?;
            file::hear_witness(connection, witness, &self.clock)
        });
        heard.map_err(|cause| error::from_sqlite(&self.writer.target, "go back", cause))
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
        let Meta { epoch, since, broke, broke_before, guard_gap, .. } = self.meta()?;
        let sequence: i64 =
            self.one(&self.sql.enqueue.next_id, [], |row| row.get(0))?.unwrap_or_default();
        Ok(Dump {
            now: self.now,
            started_at: since,
            broke: row::time(broke),
            broke_before: row::time(broke_before),
            guard_gap,
            epoch,
            next_id: first_of(epoch) + sequence,
            jobs,
            timeline: self.all(
                "SELECT job_id, at, verb, refused, token, attempt, worker, began, became, note, earlier
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
            ledger: self.all(
                "SELECT job_id, effect, state, token, opened_at, ended_at, result, note
                   FROM tenure_ledger ORDER BY job_id, effect",
                [],
                row::effect,
            )?,
            steps: self.all(
                "SELECT job_id, step, token, at, result FROM tenure_steps ORDER BY job_id, step",
                [],
                row::step,
            )?,
            workers: self.worker_records()?,
            held: vec![],
        })
    }

    /// The lane is computed from the job, so the dump does not contain it; check here that the
    /// stored one is right.
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
        for table in [
            "jobs", "done", "payloads", "timeline", "keys", "queues", "ledger", "steps", "workers",
            "epochs",
        ] {
            self.run(&format!("DELETE FROM tenure_{table}"), [])?;
        }
        self.run(
            "UPDATE tenure_meta
                SET epoch = ?1, next_id = ?2, steady_since = ?3, broke = ?4, broke_before = ?5, pulse = 0,
                    guard_gap = ?6",
            rusqlite::params![
                state.epoch,
                state.next_id - first_of(state.epoch),
                state.started_at.as_millis(),
                state.broke.as_millis(),
                state.broke_before.as_millis(),
                millis(state.guard_gap)
            ],
        )?;
        state.ledger.iter().try_for_each(|effect| self.load_effect(effect))?;
        state.workers.iter().try_for_each(|worker| self.load_worker(worker))?;
        for step in &state.steps {
            self.run(
                &self.sql.ledger.remember,
                named_params! {
                    ":job": step.job.0, ":step": step.name.as_str(), ":token": step.token.0,
                    ":now": step.at.as_millis(), ":result": step.result.as_str(),
                },
            )?;
        }
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

    fn load_effect(&self, effect: &EffectRecord) -> SqlResult<()> {
        self.run(
            "INSERT INTO tenure_ledger (job_id, effect, state, token, opened_at, ended_at, result, note)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
            rusqlite::params![
                effect.job.0,
                effect.name.as_str(),
                row::standing_code(effect.standing),
                effect.token.0,
                effect.opened_at.as_millis(),
                effect.ended_at.map(Timestamp::as_millis),
                effect.result.as_ref().map(|result| result.as_str()),
                effect.note
            ],
        )?;
        Ok(())
    }

    fn load_worker(&self, worker: &WorkerRecord) -> SqlResult<()> {
        self.run(
            "INSERT INTO tenure_workers (worker, queues, kinds, guarded, under, takings, taken_at, free_since)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
            rusqlite::params![
                worker.worker.as_str(),
                spelling::names_column(&worker.queues),
                worker.kinds.as_deref().map(spelling::names_column),
                worker.guarded,
                worker.under.as_millis(),
                worker.takings,
                worker.taken_at.as_millis(),
                worker.free_since.map(Timestamp::as_millis)
            ],
        )?;
        Ok(())
    }

    fn load_job(&self, job: &JobRecord) -> SqlResult<()> {
        // Store it as a new job, then set all that differs.
        self.store(&JobRecord { state: State::Queued, ..job.clone() })?;
        let (permille, note) = spelling::progress_columns(job.progress.as_ref());
        self.run(
            "UPDATE tenure_jobs
                SET token = :token, attempt = :attempt, crashes = :crashes, crashed_at = :crashed_at, worker = :worker,
                    started_at = :started_at, leased_at = :leased_at, lease_ms = :lease_ms,
                    lease_until = :lease_until, reason = :reason, state = :state,
                    progress = :progress, progress_note = :progress_note, returns_until = :returns_until,
                    request = :request
              WHERE id = :job",
            named_params! {
                ":job": job.id.0, ":token": job.token.0, ":attempt": job.attempt, ":crashes": job.crashes,
                ":crashed_at": job.crashed_at.map(Timestamp::as_millis),
                ":worker": job.worker.as_ref().map(|worker| worker.as_str()),
                ":started_at": job.started_at.map(Timestamp::as_millis),
                ":leased_at": job.leased_at.map(Timestamp::as_millis), ":lease_ms": job.lease_ms,
                ":lease_until": job.lease_until.map(Timestamp::as_millis), ":reason": job.reason,
                ":progress": permille, ":progress_note": note,
                ":returns_until": job.returns_until.map(Timestamp::as_millis), ":request": job.request,
                ":state": if job.state.has_ended() { 0 } else { row::code(job.state, job.waiting) },
            },
        )?;
        if let Some(finished_at) = job.finished_at {
            self.run(
                &self.sql.settle.end,
                named_params! {
                    ":job": job.id.0, ":state": row::code(job.state, false),
                    ":ends_under": job.token.0, ":crashes": job.crashes, ":now": finished_at.as_millis(),
                    ":result": job.result.as_ref().map(|result| result.as_str()), ":reason": job.reason,
                },
            )?;
            self.run(&self.sql.settle.remove, named_params! { ":job": job.id.0 })?;
        }
        Ok(())
    }
}
