-- Ends an attempt. A caller that passes the fence may go on; the write lock is held from here to the
-- commit.

-- :fence
SELECT {live}
{holds}

-- Puts a job back into the queue, or parks it. Settling, lapsing and resuming use this.
-- :put_back
UPDATE tenure_jobs
   SET state = :state,
       lane = :lane,
       run_at = :run_at,
       token = :token,
       attempt = :attempt,
       crashes = :crashes,
       crashed_at = :crashed_at,
       reason = :reason,
       worker = NULL, request = NULL, started_at = NULL, leased_at = NULL, lease_ms = NULL, lease_until = NULL
 WHERE id = :job

-- Ends a job. Settling, lapsing and cancelling use this.
-- :end
{as_ended}
  FROM tenure_jobs
 WHERE id = :job

-- The same for a completion, with its fence: it writes nothing if the attempt does not hold the job.
-- :complete
{as_ended}
{holds}

-- :remove
DELETE FROM tenure_jobs WHERE id = :job

-- The token and state that a job has now, for the answer to a caller that did not pass the fence.
-- :current
SELECT token, state FROM tenure_jobs WHERE id = :job
UNION ALL
SELECT token, state FROM tenure_done WHERE id = :job

-- Which attempt of which worker had this token: by the line that ended the attempt.
-- :ended_by
SELECT attempt, worker
  FROM tenure_timeline
 WHERE job_id = :job AND token = :token AND refused = 0 AND worker IS NOT NULL
 ORDER BY seq
 LIMIT 1

-- The same, by the job that the attempt has completed.
-- :completed_by
SELECT attempt, worker FROM tenure_done WHERE id = :job AND token = :token

-- What this verb under this token made of the job, if it was applied before.
-- :heard
SELECT became
  FROM tenure_timeline
 WHERE job_id = :job AND token = :token AND verb = :verb AND refused = 0

-- When one more line of this verb is written, this line and those with lower tokens are deleted: only the highest
-- tokens are looked up again. Also, how many lines of the verb were deleted before.
-- :last_kept
SELECT token, (SELECT max(n.earlier) FROM tenure_timeline n WHERE n.job_id = :job AND n.verb = :verb AND n.refused = 0)
  FROM tenure_timeline
 WHERE job_id = :job AND verb = :verb AND refused = 0
 ORDER BY token DESC
 LIMIT 1 OFFSET :kept

-- :thin
DELETE FROM tenure_timeline WHERE job_id = :job AND verb = :verb AND refused = 0 AND token <= :token

-- :note
INSERT INTO tenure_timeline (job_id, at, verb, refused, token, attempt, worker, began, became, note, earlier)
VALUES (:job, :at, :verb, :refused, :token, :attempt, :worker, :began, :became, :note, :earlier)
ON CONFLICT (job_id, token, verb, refused) DO NOTHING

-- Queues whose succeeded jobs are deleted at once.
-- :forgetful
SELECT queue FROM tenure_queues WHERE keep_ms = 0
