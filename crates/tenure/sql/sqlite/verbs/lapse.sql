-- Takes jobs back from holders whose lease is over, or whose process is gone.
--
-- A lease that was granted before time broke, because the machine slept or its clock was set, gets its whole length
-- from then on: those who hold leases stood still too.

-- Longest over first. It is a look, without the write lock; what it finds is checked again before
-- anything is written.
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

-- There was a break in time, but the lock is still held: it counts from now on.
-- :keep_guard
UPDATE tenure_workers
   SET under = :since, takings = takings + 1, taken_at = :now, free_since = NULL
 WHERE worker = :worker AND under <> :since

-- :retire
DELETE FROM tenure_workers WHERE worker = :worker

-- A look at a worker's lock: since when it was free.
-- :looked
UPDATE tenure_workers SET free_since = :free_since WHERE worker = :worker

-- Whether a requeue has begun to count anew since an attempt, or a handler's return so long after its crash that it may
-- have; or, for :any, whether anything has happened since.
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

-- What a worker asks before it looks for all: whether leases are out, and how many workers are known, up to 1,000.
-- :pulse_of
SELECT EXISTS (SELECT 1 FROM tenure_jobs WHERE state = 2 /* running */),
       (SELECT count(*) FROM (SELECT 1 FROM tenure_workers LIMIT 1000))

-- :advance_pulse
UPDATE tenure_meta SET pulse = :now

-- Whether a lease is out that was granted before :then: only then a pulse that is too old tells of a stall.
-- :leased_before
SELECT EXISTS (SELECT 1 FROM tenure_jobs WHERE state = 2 /* running */ AND leased_at < :then)

-- :note_break
UPDATE tenure_meta SET broke = :broke, broke_before = :broke_before

-- Records a break in time. Several processes notice the same break; within 5 s only the first of them writes it.
-- :break_time
UPDATE tenure_meta SET steady_since = :now WHERE steady_since NOT BETWEEN :now - 5000 AND :now

-- Workers that cannot be looked at, after they have not been heard of for long.
-- :forget_workers
DELETE FROM tenure_workers WHERE taken_at <= :old AND NOT (guarded AND under = :since)
