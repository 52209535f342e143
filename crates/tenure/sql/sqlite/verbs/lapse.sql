-- Takes jobs back from holders whose lease is over, or whose process is gone.
--
-- A lease that was granted before time broke, because the machine slept or its clock was set, gets its whole length
-- from then on: those who hold leases stood still too.

-- Longest over first. It is a look, without the write lock; what it finds is checked again before
-- anything is written.
-- :overdue
SELECT id, token
  FROM tenure_jobs
 WHERE state = 2 AND lease_until <= :over
   AND (leased_at >= :since
        OR min(:since + lease_ms, coalesce(started_at + max_runtime, :since + lease_ms)) <= :over)
 ORDER BY lease_until, id
 LIMIT :limit

-- Only the attempt that was seen, and only if its lease is still over: its holder may have renewed
-- or settled since.
-- :check
SELECT {live}
  FROM tenure_jobs
 WHERE id = :job
   AND token = :token AND state = 2
   AND lease_until <= :now
   AND (leased_at >= :since OR min(:since + lease_ms, coalesce(started_at + max_runtime, :since + lease_ms)) <= :now)

-- What a worker holds that is gone.
-- :of_worker
SELECT {live}
  FROM tenure_jobs
 WHERE state = 2 AND worker = :worker
 ORDER BY lease_until, id
 LIMIT :limit

-- :workers
SELECT worker, queues, kinds, guarded, under, takings, taken_at, free_since FROM tenure_workers ORDER BY worker

-- The locks to look at, and whether a free one would tell: not one that was taken before time broke.
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

-- Time broke, but the lock is still held: it counts from now on.
-- :keep_guard
UPDATE tenure_workers
   SET under = :since, takings = takings + 1, taken_at = :now, free_since = NULL
 WHERE worker = :worker AND under <> :since

-- :retire
DELETE FROM tenure_workers WHERE worker = :worker

-- A look at a worker's lock: since when it was free.
-- :looked
UPDATE tenure_workers SET free_since = :free_since WHERE worker = :worker

-- Whether a requeue has begun to count anew since an attempt.
-- :counted_anew
SELECT EXISTS (SELECT 1
                 FROM tenure_timeline
                WHERE job_id = :job AND token > :token AND verb = 'requeue' AND refused = 0)

-- A crash that was none does not count.
-- :uncrash
UPDATE tenure_jobs SET crashes = :crashes, lane = :lane WHERE id = :job

-- Time broke. Several processes notice the same break; one of them is enough.
-- :break_time
UPDATE tenure_meta SET steady_since = :now WHERE steady_since NOT BETWEEN :now - 5000 AND :now

-- Workers that cannot be looked at, after they have not been heard of for long.
-- :forget_workers
DELETE FROM tenure_workers WHERE taken_at <= :old AND NOT (guarded AND under = :since)
