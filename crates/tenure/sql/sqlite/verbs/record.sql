-- What several statements have in common: a job as row.rs reads it, and conditions. Elsewhere {live} stands for the
-- section :live, and so on.

-- :live
id, state, queue, tenant, kind, coalesce(args, (SELECT p.args FROM tenure_payloads p WHERE p.job_id = id)),
priority, run_at, token, attempt, max_attempts, crashes, max_crashes, retry, max_runtime, key, extras, parent,
enqueued_at, worker, started_at, leased_at, lease_ms, lease_until, NULL, NULL, reason, progress, progress_note,
crashed_at, lane & 2305843009213693952 <> 0, returns_until, request

-- :ended
id, state, queue, tenant, kind, coalesce(args, (SELECT p.args FROM tenure_payloads p WHERE p.job_id = id)),
priority, run_at, token, attempt, max_attempts, crashes, max_crashes, retry, max_runtime, key, extras, parent,
enqueued_at, worker, started_at, NULL, NULL, NULL, finished_at, result, reason, NULL, NULL,
NULL, 0, NULL, NULL

-- Whether a running job's lease has been over since :over. If it was granted before the last break of the clock
-- (:since), or before the end of the last gap in the pulse (:broke), it gets its whole length again from then on, but
-- not beyond the job's maximal runtime: its holder could not renew it during the break. A gap extends only leases that
-- were granted after the gap before it (:broke_before); the others were extended by that one.
-- :over
lease_until <= :over
   AND (leased_at >= :since AND (leased_at >= :broke OR leased_at < :broke_before)
        OR min(max(iif(leased_at < :since, :since, 0),
                   iif(leased_at >= :broke_before AND leased_at < :broke, :broke, 0)) + lease_ms,
               coalesce(started_at + max_runtime, 9223372036854775807)) <= :over)

-- A job goes into the table of ended jobs. Without :ends_under and :crashes it keeps its token and its crashes.
-- :as_ended
INSERT INTO tenure_done (id, state, priority, run_at, token, attempt, max_attempts, crashes, max_crashes,
                         queue, tenant, kind, args, retry, max_runtime, key, extras, parent, limit_key,
                         enqueued_at, worker, started_at, finished_at, result, reason)
SELECT id, :state, priority, run_at, coalesce(:ends_under, token), attempt, max_attempts, coalesce(:crashes, crashes), max_crashes,
       queue, tenant, kind, args, retry, max_runtime, key, extras, parent, limit_key,
       enqueued_at, worker, started_at, :now, :result, :reason

-- The fence of settlements: the job runs, and this is its latest token.
-- :holds
  FROM tenure_jobs
 WHERE id = :job
   AND token = :token AND state = 2 /* running */
