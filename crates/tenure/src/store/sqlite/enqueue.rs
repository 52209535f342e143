//! Enqueue: stores jobs.

use rusqlite::{Result, named_params};

use super::row;
use super::tx::Tx;
use crate::clock::Timestamp;
use crate::job::{Fingerprint, JobId, Key, NewJob};
use crate::lease::first_of;
use crate::record::JobRecord;
use crate::store::{Enqueued, lane};

/// Args above this size live in a table of their own, so that they are not copied when the job
/// changes.
const PAYLOAD_SIZE: usize = 2 * 1024;

impl Tx<'_> {
    pub(super) fn enqueue(&self, jobs: &[NewJob]) -> Result<Vec<Enqueued>> {
        if jobs.is_empty() {
            return Ok(Vec::new());
        }
        let first = self.one(&self.sql.enqueue.next_id, [], |row| row.get(0))?.unwrap_or(1);
        let base = first_of(self.epoch()?);
        let mut next_id = first;
        let answers = jobs.iter().map(|job| {
            let id = JobId(base + next_id);
            // This also finds the key of an earlier job in the same batch.
            if let Some(key) = &job.key
                && let Some(taken) = self.take_key(job, key, id)?
            {
                return Ok(taken);
            }
            self.store(&job.record(id, self.now))?;
            next_id += 1;
            Ok(Enqueued::Created(id))
        });
        let answers = answers.collect::<Result<Vec<_>>>()?;
        if next_id > first {
            self.run(&self.sql.enqueue.set_next_id, named_params! { ":next_id": next_id })?;
        }
        Ok(answers)
    }

    /// Takes the key for `id`, or returns which job has it.
    fn take_key(&self, job: &NewJob, key: &Key, id: JobId) -> Result<Option<Enqueued>> {
        let fingerprint = job.fingerprint();
        let found = self.one(
            &self.sql.enqueue.find_key,
            named_params! { ":tenant": job.tenant.as_str(), ":key": key.as_str(), ":now": self.now.as_millis() },
            |row| Ok((JobId(row.get(0)?), Fingerprint(row.get(1)?))),
        )?;
        match found {
            Some((owner, same)) if same == fingerprint => Ok(Some(Enqueued::Existing(owner))),
            Some((owner, _)) => Ok(Some(Enqueued::Conflict(owner))),
            None => {
                let expires_at = self.now + key.window;
                self.remember_key(job, key, id, fingerprint, expires_at)?;
                Ok(None)
            }
        }
    }

    fn remember_key(
        &self,
        job: &NewJob,
        key: &Key,
        id: JobId,
        fingerprint: Fingerprint,
        expires_at: Timestamp,
    ) -> Result<usize> {
        self.run(
            &self.sql.enqueue.remember_key,
            named_params! {
                ":tenant": job.tenant.as_str(), ":key": key.as_str(), ":fingerprint": fingerprint.0,
                ":job": id.0, ":expires_at": expires_at.as_millis(),
            },
        )
    }

    pub(super) fn store(&self, job: &JobRecord) -> Result<()> {
        let args = job.args.as_str();
        let apart = args.len() > PAYLOAD_SIZE;
        self.run(
            &self.sql.enqueue.store,
            named_params! {
                ":id": job.id.0, ":state": row::code(job.state, job.waiting), ":lane": lane::of(job),
                ":priority": job.priority, ":run_at": job.run_at.as_millis(),
                ":max_attempts": job.max_attempts, ":max_crashes": job.max_crashes,
                ":queue": job.queue.as_str(), ":tenant": job.tenant.as_str(), ":kind": job.kind.as_str(),
                ":args": (!apart).then_some(args), ":retry": row::retry_column(&job.retry),
                ":max_runtime": job.max_runtime_ms, ":key": job.key,
                ":extras": job.extras.column(), ":parent": job.parent.map(|parent| parent.0),
                ":enqueued_at": job.enqueued_at.as_millis(),
            },
        )?;
        if apart {
            self.run(
                &self.sql.enqueue.store_payload,
                named_params! { ":id": job.id.0, ":args": args },
            )?;
        }
        Ok(())
    }
}
