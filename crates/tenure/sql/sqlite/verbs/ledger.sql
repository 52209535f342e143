-- Effects and steps. A job's holder writes them, under the write lock. Besides the holder, only a person's decision
-- about an effect in doubt is written here.

-- Whether this token owns the running job. Here, and nowhere else, it is decided who may write to the ledger.
-- :holds
SELECT 1
  FROM tenure_jobs
 WHERE id = :job
   AND token = :token AND state = 2 /* running */

-- Writes the intent, unless there is one already. There is one row per (job, effect), and that keeps an effect from
-- happening twice.
-- :open
INSERT INTO tenure_ledger (job_id, effect, state, token, opened_at)
VALUES (:job, :effect, 0, :token, :now)
ON CONFLICT (job_id, effect) DO NOTHING

-- :find
SELECT job_id, effect, state, token, opened_at, ended_at, result, note
  FROM tenure_ledger
 WHERE job_id = :job AND effect = :effect

-- :write
UPDATE tenure_ledger
   SET state = :state, token = :token, opened_at = :opened_at, ended_at = :ended_at, result = :result, note = :note
 WHERE job_id = :job AND effect = :effect

-- :has_open
SELECT EXISTS (SELECT 1 FROM tenure_ledger WHERE job_id = :job AND state = 0 /* open */)

-- :recall
SELECT job_id, step, token, at, result FROM tenure_steps WHERE job_id = :job AND step = :step

-- What is remembered already stays.
-- :remember
INSERT INTO tenure_steps (job_id, step, token, at, result)
VALUES (:job, :step, :token, :now, :result)
ON CONFLICT (job_id, step) DO NOTHING

-- A page of effects, those of the newest jobs first.
-- :effects
SELECT l.job_id, l.effect, l.state, l.token, l.opened_at, l.ended_at, l.result, l.note,
       l.state = 0 /* open */ AND NOT (coalesce(j.state, 0) = 2 /* running */ AND j.token = l.token), coalesce(j.state, d.state),
       coalesce(j.kind, d.kind), coalesce(j.tenant, d.tenant)
  FROM tenure_ledger l
  LEFT JOIN tenure_jobs j ON j.id = l.job_id
  LEFT JOIN tenure_done d ON d.id = l.job_id
 WHERE l.job_id < :before AND l.job_id BETWEEN :first AND :last
   AND coalesce(j.id, d.id) IS NOT NULL
 ORDER BY l.job_id DESC, l.effect
 LIMIT :limit

-- The effects in doubt: the intent has no outcome, and the attempt that wrote it does not hold the job any more.
-- :effects_in_doubt
SELECT l.job_id, l.effect, l.state, l.token, l.opened_at, l.ended_at, l.result, l.note,
       1, coalesce(j.state, d.state), coalesce(j.kind, d.kind), coalesce(j.tenant, d.tenant)
  FROM tenure_ledger l INDEXED BY tenure_ledger_open
  LEFT JOIN tenure_jobs j ON j.id = l.job_id
  LEFT JOIN tenure_done d ON d.id = l.job_id
 WHERE l.state = 0 /* open */ AND l.job_id < :before AND l.job_id BETWEEN :first AND :last
   AND coalesce(j.id, d.id) IS NOT NULL AND NOT (coalesce(j.state, 0) = 2 /* running */ AND j.token = l.token)
 ORDER BY l.job_id DESC, l.effect
 LIMIT :limit
