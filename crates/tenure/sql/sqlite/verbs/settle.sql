-- Ends an attempt. Whoever passes the fence may go on; the write lock is held from here to the
-- commit.

-- :fence
SELECT {live}
  FROM tenure_jobs
 WHERE id = :job
   AND token = :token AND state = 2

-- Back to the queue or aside. Settling, lapsing and resuming end here.
-- :put_back
UPDATE tenure_jobs
   SET state = :state,
       lane = :lane,
       run_at = :run_at,
       token = :token,
       attempt = :attempt,
       crashes = :crashes,
       reason = :reason,
       worker = NULL, started_at = NULL, leased_at = NULL, lease_ms = NULL, lease_until = NULL
 WHERE id = :job

-- Over. Settling, lapsing and cancelling end here.
-- :end
INSERT INTO tenure_done (id, state, priority, run_at, token, attempt, max_attempts, crashes, max_crashes,
                         queue, tenant, kind, args, codec, retry, max_runtime, key, trace, tags, parent, limit_key,
                         enqueued_at, worker, started_at, finished_at, result, reason)
SELECT id, :state, priority, run_at, :token, attempt, max_attempts, :crashes, max_crashes,
       queue, tenant, kind, args, codec, retry, max_runtime, key, trace, tags, parent, limit_key,
       enqueued_at, worker, started_at, :now, :result, :reason
  FROM tenure_jobs
 WHERE id = :job

-- :remove
DELETE FROM tenure_jobs WHERE id = :job

-- What a job is now, wherever it is: for those who did not pass the fence.
-- :current
SELECT token, state, attempt FROM tenure_jobs WHERE id = :job
UNION ALL
SELECT token, state, attempt FROM tenure_done WHERE id = :job

-- What a settlement under this token made of the job, if it was heard before.
-- :heard
SELECT became
  FROM tenure_timeline
 WHERE job_id = :job AND token = :token AND verb = :verb AND refused = 0

-- :note
INSERT INTO tenure_timeline (job_id, at, verb, refused, token, attempt, worker, began, became, note)
VALUES (:job, :at, :verb, :refused, :token, :attempt, :worker, :began, :became, :note)
ON CONFLICT (job_id, token, verb, refused) DO NOTHING

-- Queues whose succeeded jobs are deleted at once.
-- :forgetful
SELECT queue FROM tenure_queues WHERE keep_ms = 0
