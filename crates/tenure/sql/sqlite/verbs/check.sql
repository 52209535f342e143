-- Checks the jobs of one window: whether what is stored is as it must be. Each statement answers a row for each
-- violation: the job, and what is wrong, in words.

-- The jobs of the window, and the first one after it.
-- :window
SELECT id
  FROM (SELECT id FROM (SELECT id FROM tenure_jobs WHERE id >= :first ORDER BY id LIMIT :limit)
        UNION
        SELECT id FROM (SELECT id FROM tenure_done WHERE id >= :first ORDER BY id LIMIT :limit))
 ORDER BY id
 LIMIT :limit

-- A job is in one of the two tables, not in both.
-- :twice
SELECT j.id, 'it is both owed and ended'
  FROM tenure_jobs j JOIN tenure_done d ON d.id = j.id
 WHERE j.id BETWEEN :first AND :last

-- No row is left of a job that was deleted.
-- :orphans
SELECT o.id, 'its ' || o.what || ' is there, but the job is not'
  FROM (SELECT job_id AS id, 'payload' AS what FROM tenure_payloads WHERE job_id BETWEEN :first AND :last
        UNION SELECT job_id, 'timeline' FROM tenure_timeline WHERE job_id BETWEEN :first AND :last
        UNION SELECT job_id, 'effect' FROM tenure_ledger WHERE job_id BETWEEN :first AND :last
        UNION SELECT job_id, 'step' FROM tenure_steps WHERE job_id BETWEEN :first AND :last) o
 WHERE NOT EXISTS (SELECT 1 FROM tenure_jobs j WHERE j.id = o.id)
   AND NOT EXISTS (SELECT 1 FROM tenure_done d WHERE d.id = o.id)

-- :bare
SELECT r.id, 'its args are missing'
  FROM (SELECT id FROM tenure_jobs WHERE args IS NULL AND id BETWEEN :first AND :last
        UNION ALL SELECT id FROM tenure_done WHERE args IS NULL AND id BETWEEN :first AND :last) r
 WHERE NOT EXISTS (SELECT 1 FROM tenure_payloads p WHERE p.job_id = r.id)

-- Succeeded means completed, by the last claim.
-- :succeeded
SELECT d.id, 'it succeeded under token ' || d.token || ', but '
             || coalesce((SELECT l.verb || ' happened under token ' || l.token
                            FROM tenure_timeline l
                           WHERE l.job_id = d.id AND NOT l.refused AND l.token >= d.token
                             AND l.verb NOT IN ('resume', 'return')
                           LIMIT 1), 'nobody held it')
  FROM tenure_done d
 WHERE d.id BETWEEN :first AND :last AND d.state = 4 /* succeeded */
   AND (d.worker IS NULL OR d.started_at IS NULL
        OR EXISTS (SELECT 1
                     FROM tenure_timeline l
                    WHERE l.job_id = d.id AND NOT l.refused AND l.token >= d.token
                      AND l.verb NOT IN ('resume', 'return')))

-- Nothing stays running without a living holder.
-- :stuck
SELECT id, 'its lease was over ' || ((:now - lease_until) / 1000) || ' s ago, and nobody takes it back'
  FROM tenure_jobs
 WHERE id BETWEEN :first AND :last AND state = 2 /* running */ AND {over}

-- The ledger agrees with the jobs.
-- :unfinished
SELECT l.job_id, 'it succeeded, but what became of its effect ' || l.effect || ' was never written'
  FROM tenure_ledger l JOIN tenure_done d ON d.id = l.job_id
 WHERE l.job_id BETWEEN :first AND :last AND l.state = 0 /* open */ AND d.state = 4 /* succeeded */

-- :ahead
SELECT l.id, 'its ' || l.name || ' was written under token ' || l.token || ', above the job''s own'
  FROM (SELECT job_id AS id, 'effect ' || effect AS name, token FROM tenure_ledger WHERE job_id BETWEEN :first AND :last
        UNION ALL
        SELECT job_id, 'step ' || step, token FROM tenure_steps WHERE job_id BETWEEN :first AND :last) l
  LEFT JOIN tenure_jobs j ON j.id = l.id
  LEFT JOIN tenure_done d ON d.id = l.id
 WHERE l.token > coalesce(j.token, d.token)

-- A key that is remembered belongs to the last job that carries it.
-- :keys
SELECT r.id, 'its key is remembered for the older job ' || k.job_id
  FROM (SELECT id, tenant, key FROM tenure_jobs WHERE id BETWEEN :first AND :last AND key IS NOT NULL
        UNION ALL SELECT id, tenant, key FROM tenure_done WHERE id BETWEEN :first AND :last AND key IS NOT NULL) r
  JOIN tenure_keys k ON k.tenant = r.tenant AND k.scope = 0 AND k.key = r.key
 WHERE k.job_id < r.id

-- No number is from an epoch that has not begun.
-- :epoch
SELECT r.id, 'its number or its token ' || r.token || ' is from an epoch that has not begun'
  FROM (SELECT id, token FROM tenure_jobs WHERE id BETWEEN :first AND :last
        UNION ALL SELECT id, token FROM tenure_done WHERE id BETWEEN :first AND :last) r
 WHERE r.token >> 40 > :epoch OR r.id >> 40 > :epoch

-- The lanes of live jobs. The caller compares them with the lanes that the jobs' names and crashes give.
-- :lanes
SELECT id, lane, queue, tenant, kind, crashes, max_crashes FROM tenure_jobs WHERE id BETWEEN :first AND :last
