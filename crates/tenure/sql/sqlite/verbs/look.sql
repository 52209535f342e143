-- Questions that change nothing.

-- What a job has come to.
-- :outcome
SELECT state, NULL, reason FROM tenure_jobs WHERE id = :job
UNION ALL
SELECT state, result, reason FROM tenure_done WHERE id = :job

-- :timeline
SELECT job_id, at, verb, refused, token, attempt, worker, began, became, note, earlier
  FROM tenure_timeline
 WHERE job_id = :job
 ORDER BY seq

-- A page of live jobs, newest first. :state 1 (queued) means ready or waiting.
-- :jobs_live
SELECT {live}
  FROM tenure_jobs
 WHERE id < :before
   AND (:state IS NULL OR max(state, 1) = :state)
   AND (:queue IS NULL OR queue = :queue)
   AND (:tenant IS NULL OR tenant = :tenant)
   AND (:kind IS NULL OR kind = :kind)
   AND (:key IS NULL OR key = :key)
   AND (:tag IS NULL OR EXISTS (SELECT 1 FROM json_each(extras, '$.tags') WHERE value = :tag))
 ORDER BY id DESC
 LIMIT :limit

-- :jobs_ended
SELECT {ended}
  FROM tenure_done
 WHERE id < :before
   AND (:state IS NULL OR state = :state)
   AND (:queue IS NULL OR queue = :queue)
   AND (:tenant IS NULL OR tenant = :tenant)
   AND (:kind IS NULL OR kind = :kind)
   AND (:key IS NULL OR key = :key)
   AND (:tag IS NULL OR EXISTS (SELECT 1 FROM json_each(extras, '$.tags') WHERE value = :tag))
 ORDER BY id DESC
 LIMIT :limit

-- Dead jobs have an index of their own, so that they are found among millions that succeeded.
-- :jobs_dead
SELECT {ended}
  FROM tenure_done
 WHERE id < :before
   AND state = 5 /* dead */
   AND (:queue IS NULL OR queue = :queue)
   AND (:tenant IS NULL OR tenant = :tenant)
   AND (:kind IS NULL OR kind = :kind)
   AND (:key IS NULL OR key = :key)
   AND (:tag IS NULL OR EXISTS (SELECT 1 FROM json_each(extras, '$.tags') WHERE value = :tag))
 ORDER BY id DESC
 LIMIT :limit

-- A job that is due counts as ready, whether or not a claim has made it ready yet.
-- :overview_live
SELECT queue, tenant, iif(state = 1 /* waiting */ AND run_at <= :now, 0, state) AS seen, count(*), min(run_at)
  FROM tenure_jobs
 GROUP BY queue, tenant, seen

-- :overview_dead
SELECT queue, tenant, count(*) FROM tenure_done WHERE state = 5 /* dead */ GROUP BY queue, tenant

-- What ended lately in one queue, by the age index.
-- :overview_recent
SELECT tenant, count(*)
  FROM tenure_done
 WHERE queue = :queue AND state = :state AND finished_at > :after
 GROUP BY tenant

-- :leases
SELECT id, kind, token, worker, started_at, lease_until
  FROM tenure_jobs
 WHERE state = 2 /* running */
 ORDER BY lease_until, id
 LIMIT :limit
