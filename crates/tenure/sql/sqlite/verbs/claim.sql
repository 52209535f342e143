-- Leases due jobs: promote, lapse, walk the ring, take. The walk itself is in claim.rs; each step
-- here is one index probe.

-- Whether there is something to promote or to lapse. This is read without the write lock, and so is the ring, because
-- an empty claim must write nothing: a write wakes the other processes that share the file, and their empty claims
-- would wake this one, for ever.
-- :probe
SELECT EXISTS (SELECT 1
                 FROM json_each(:queues) q
                WHERE EXISTS (SELECT 1 FROM tenure_jobs WHERE state = 1 /* waiting */ AND queue = q.value AND run_at <= :now))
    OR EXISTS (SELECT 1
                 FROM tenure_jobs
                WHERE state = 2 /* running */ AND {over})

-- Whether a lease is over, if breaks in time are ignored.
-- :looks_over
SELECT EXISTS (SELECT 1 FROM tenure_jobs WHERE state = 2 /* running */ AND lease_until <= :over)

-- Of these queues, those in which a waiting job's time has come.
-- :due
SELECT q.value
  FROM json_each(:queues) q
 WHERE EXISTS (SELECT 1 FROM tenure_jobs WHERE state = 1 /* waiting */ AND queue = q.value AND run_at <= :now)

-- Waiting jobs of a queue whose time has come become ready, oldest first.
-- :promote
UPDATE tenure_jobs
   SET state = 0 /* ready */
 WHERE id IN (SELECT id
                FROM tenure_jobs
               WHERE state = 1 /* waiting */ AND queue = :queue AND run_at <= :now
               ORDER BY run_at, id
               LIMIT :limit)

-- What is stored once for the whole store: the epoch of tokens and ids, since when the clock has run without a break,
-- the pulse, the ends of its last two gaps, and the guard gap.
-- :meta
SELECT epoch, steady_since, pulse, broke, broke_before, guard_gap FROM tenure_meta

-- :paused
SELECT queue FROM tenure_queues WHERE paused_at IS NOT NULL

-- Whether this worker holds suspects: NULL if it holds none; true if one of them began after :suspicious_since, or
-- would be buried by its next crash; else false.
-- :holds_suspect
SELECT max(started_at > :suspicious_since OR crashes + 1 >= max_crashes)
  FROM tenure_jobs
 WHERE state = 2 /* running */ AND lane & 2305843009213693952 <> 0
   AND worker = :worker

-- The next lane with a ready job, from :from on and below :to: one index probe, however many lanes are empty.
-- :next_lane
SELECT lane
  FROM tenure_jobs
 WHERE state = 0 /* ready */ AND lane >= :from AND lane < :to
 ORDER BY lane
 LIMIT 1

-- The ready jobs of one lane, in order. The reader stops when it has enough.
-- :pick
SELECT id, priority, run_at, queue, kind, crashes + 1 >= max_crashes
  FROM tenure_jobs
 WHERE state = 0 /* ready */ AND lane = :lane
 ORDER BY priority, run_at, id

-- The attempt is counted here, not at failure: a worker that never comes back has used one up. The
-- new token is above every earlier one of this job, also across epochs.
-- :take
UPDATE tenure_jobs
   SET state = 2 /* running */,
       attempt = attempt + 1,
       token = max(token, :epoch << 40) + 1,
       worker = :worker,
       request = :request,
       started_at = :now,
       leased_at = :now,
       lease_ms = :lease_ms,
       lease_until = :now + min(:lease_ms, coalesce(max_runtime, :lease_ms)),
       returns_until = NULL,
       progress = NULL, progress_note = NULL
 WHERE id = :job
   AND state = 0 /* ready */

-- The job as its new holder sees it. RETURNING in the statement above would cost more than this one.
-- :taken
SELECT {live} FROM tenure_jobs WHERE id = :job

-- When the next waiting job of these queues is due: so long a worker may wait that found too few jobs.
-- :next_due
SELECT min((SELECT run_at FROM tenure_jobs WHERE state = 1 /* waiting */ AND queue = q.value ORDER BY run_at LIMIT 1))
  FROM json_each(:queues) q

-- The jobs that a worker holds; with :request only those of that claim. A worker asks this when the answer to a claim
-- was lost.
-- :held
-- (`+id` makes SQLite sort afterwards, so that it finds running jobs by their index.)
SELECT {live} FROM tenure_jobs WHERE state = 2 /* running */ AND worker = :worker AND (:request IS NULL OR request = :request)
 ORDER BY +id
