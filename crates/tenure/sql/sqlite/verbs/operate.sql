-- What operators do to jobs and queues: cancel, requeue, resume, purge, configure, prune.

-- :live
SELECT {live} FROM tenure_jobs WHERE id = :job

-- :ended
SELECT {ended} FROM tenure_done WHERE id = :job

-- Queues an ended job again, with its counts reset and a token above every earlier one.
-- :requeue
INSERT INTO tenure_jobs (id, state, lane, priority, run_at, token, attempt, max_attempts, crashes, max_crashes,
                         queue, tenant, kind, args, retry, max_runtime, key, extras, parent, limit_key,
                         enqueued_at)
SELECT id, 0, :lane, priority, :now, :token, 0, max_attempts, 0, max_crashes,
       queue, tenant, kind, args, retry, max_runtime, key, extras, parent, limit_key,
       enqueued_at
  FROM tenure_done
 WHERE id = :job

-- :remove_ended
DELETE FROM tenure_done WHERE id = :job

-- :remove_payload
DELETE FROM tenure_payloads WHERE job_id = :job

-- :remove_timeline
DELETE FROM tenure_timeline WHERE job_id = :job

-- :remove_ledger
DELETE FROM tenure_ledger WHERE job_id = :job

-- :remove_steps
DELETE FROM tenure_steps WHERE job_id = :job

-- :queue
SELECT queue, paused_at, keep_ms, keep_dead_ms FROM tenure_queues WHERE queue = :queue

-- :queues
SELECT queue, paused_at, keep_ms, keep_dead_ms FROM tenure_queues ORDER BY queue

-- :configure
INSERT INTO tenure_queues (queue, paused_at, keep_ms, keep_dead_ms)
VALUES (:queue, :paused_at, :keep_ms, :keep_dead_ms)
ON CONFLICT (queue) DO UPDATE
   SET paused_at = excluded.paused_at, keep_ms = excluded.keep_ms, keep_dead_ms = excluded.keep_dead_ms

-- The next queue that has ended jobs. One probe for each.
-- :next_queue
SELECT queue FROM tenure_done WHERE queue > :after ORDER BY queue LIMIT 1

-- The oldest of the ended jobs of one queue and state. An effect in doubt keeps its job.
-- :aged
SELECT id
  FROM tenure_done
 WHERE queue = :queue AND state = :state AND finished_at <= :before
   AND NOT EXISTS (SELECT 1 FROM tenure_ledger l WHERE l.job_id = tenure_done.id AND l.state = 0 /* open */)
 ORDER BY finished_at, id
 LIMIT :limit

-- :expire_keys
DELETE FROM tenure_keys
 WHERE (tenant, scope, key) IN (SELECT tenant, scope, key
                                  FROM tenure_keys
                                 WHERE expires_at <= :now
                                 ORDER BY expires_at
                                 LIMIT :limit)

-- :identity
SELECT installation FROM tenure_meta

-- :raise
UPDATE tenure_meta SET epoch = :epoch

-- How long a worker's lock must have been free before its process counts as gone.
-- :set_guard_gap
UPDATE tenure_meta SET guard_gap = :gap_ms

-- :note_epoch
INSERT INTO tenure_epochs (epoch, at, reason) VALUES (:epoch, :now, :reason)

-- :epochs
SELECT epoch, at, reason FROM tenure_epochs ORDER BY epoch
