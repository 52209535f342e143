-- Takes jobs back from holders whose lease is over, or whose process is gone.
--
-- The machine may sleep, or its clock may be set forward. A lease that was granted before that gets its whole length
-- again from then on, but not beyond the job's maximal runtime: its holder could not renew it in time. The same holds,
-- once, after the workers' pulse stood still. The rule is the section `over` of record.sql.

-- The jobs whose leases are over, the longest first. This is read without the write lock; what it finds is checked
-- again before anything is written.
-- :overdue
SELECT id, token
  FROM tenure_jobs
 WHERE state = 2 /* running */ AND {over}
 ORDER BY lease_until, id
 LIMIT :limit

-- Only the attempt that was seen, and only if its lease is still over: its holder may have renewed
-- or settled since.
-- :check
SELECT {live}
  FROM tenure_jobs
 WHERE id = :job
   AND token = :token AND state = 2 /* running */
   AND {over}

-- The jobs of a worker whose process is gone.
-- :of_worker
SELECT {live}
  FROM tenure_jobs
 WHERE state = 2 /* running */ AND worker = :worker
 ORDER BY lease_until, id
 LIMIT :limit

-- :workers
SELECT worker, queues, kinds, guarded, under, takings, taken_at, free_since FROM tenure_workers ORDER BY worker

-- The locks of all workers. The last column is whether a free lock would mean that the worker is gone: only if the
-- worker could take its lock at all, and took it after the last break of the clock.
-- :guards
SELECT worker, free_since,
       guarded AND under = :since
  FROM tenure_workers
 ORDER BY worker

-- :register
INSERT INTO tenure_workers (worker, queues, kinds, guarded, under, takings, taken_at)
VALUES (:worker, :queues, :kinds, :guarded, :since, 1, :now)
ON CONFLICT (worker) DO UPDATE
   SET queues = excluded.queues, kinds = excluded.kinds, guarded = excluded.guarded, under = excluded.under,
       takings = takings + 1, taken_at = excluded.taken_at, free_since = NULL

-- The clock had a break, but the worker still holds its lock: from now on the lock counts again.
-- :keep_guard
UPDATE tenure_workers
   SET under = :since, takings = takings + 1, taken_at = :now, free_since = NULL
 WHERE worker = :worker AND under <> :since

-- :retire
DELETE FROM tenure_workers WHERE worker = :worker

-- Records since when a worker's lock has been seen free; NULL if it is held.
-- :looked
UPDATE tenure_workers SET free_since = :free_since WHERE worker = :worker

-- Whether the count of crashes has begun anew since the attempt under this token: by a requeue, or by a handler that
-- returned by itself :memory or more after the attempt's crash. With :any: whether anything has happened to the job
-- since.
-- :counted_anew
SELECT EXISTS (SELECT 1
                 FROM tenure_timeline l
                WHERE l.job_id = :job AND l.token > :token AND l.refused = 0
                  AND (:any OR l.verb = 'requeue'
                       OR l.verb IN ('retry', 'snooze', 'park')
                          AND l.at >= :memory + (SELECT v.at FROM tenure_timeline v
                                                  WHERE v.job_id = :job AND v.token = :token AND v.verb = 'vanish'
                                                    AND v.refused = 0)))

-- A crash that was none does not count.
-- :uncrash
UPDATE tenure_jobs SET crashes = :crashes, crashed_at = :crashed_at, lane = :lane, returns_until = NULL
 WHERE id = :job

-- :may_return
UPDATE tenure_jobs SET returns_until = :until WHERE id = :job

-- What a worker asks before it looks for all workers: whether jobs are running, and how many workers are registered, up
-- to 1,000.
-- :pulse_of
SELECT EXISTS (SELECT 1 FROM tenure_jobs WHERE state = 2 /* running */),
       (SELECT count(*) FROM (SELECT 1 FROM tenure_workers LIMIT 1000))

-- :advance_pulse
UPDATE tenure_meta SET pulse = :now

-- Whether a running job's lease was granted before :then. Only then does a pulse that is too old mean a stall.
-- :leased_before
SELECT EXISTS (SELECT 1 FROM tenure_jobs WHERE state = 2 /* running */ AND leased_at < :then)

-- :note_break
UPDATE tenure_meta SET broke = :broke, broke_before = :broke_before

-- Records a break in time. Several processes notice the same break; within 5 s only the first of them writes it.
-- :break_time
UPDATE tenure_meta SET steady_since = :now WHERE steady_since NOT BETWEEN :now - 5000 AND :now

-- Forgets workers that registered at :old or earlier, if their locks tell nothing: they have none, or took it before
-- the last break of the clock.
-- :forget_workers
DELETE FROM tenure_workers WHERE taken_at <= :old AND NOT (guarded AND under = :since)
