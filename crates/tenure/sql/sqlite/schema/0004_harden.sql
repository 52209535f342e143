-- What the store needs to tell a stall of its own from a worker's.

-- The pulse: when a worker last wrote that the store can be written to; 0: no worker ever did. While leases are out it
-- advances once a second, so a gap in it tells that no worker could renew a lease.
ALTER TABLE tenure_meta ADD COLUMN pulse INTEGER NOT NULL DEFAULT 0;
-- The end of the last such gap, and of the one before it.
ALTER TABLE tenure_meta ADD COLUMN broke INTEGER NOT NULL DEFAULT 0;
ALTER TABLE tenure_meta ADD COLUMN broke_before INTEGER NOT NULL DEFAULT 0;

-- Until when the worker that lost this job by its lease may come back without a crash being counted; only while the job
-- waits for its next attempt.
ALTER TABLE tenure_jobs ADD COLUMN returns_until INTEGER;

-- An epoch was begun because there was no witness, and none can be kept: the next one who opens the file begins no other.
ALTER TABLE tenure_meta ADD COLUMN unwitnessed INTEGER NOT NULL DEFAULT 0 CHECK (unwitnessed IN (0, 1));

-- How long a worker's lock must have been free before its process counts as gone, in milliseconds.
ALTER TABLE tenure_meta ADD COLUMN guard_gap INTEGER NOT NULL DEFAULT 300 CHECK (guard_gap BETWEEN 300 AND 60000);

-- How many older lines of the same verb had been dropped when this one was written: a job that snoozes for ever keeps the
-- last few.
ALTER TABLE tenure_timeline ADD COLUMN earlier INTEGER NOT NULL DEFAULT 0;

-- When a job last crashed. Its crashes are forgotten when its handler returns an hour later.
ALTER TABLE tenure_jobs ADD COLUMN crashed_at INTEGER;

-- Whether a job is a suspect stands in its lane, in bit 61. A first crash no longer makes one, unless the job has few to lose.
UPDATE tenure_jobs
   SET crashed_at = 0,
       lane = CASE WHEN crashes = 1 AND max_crashes > 3 THEN lane & ~2305843009213693952 ELSE lane END
 WHERE crashes > 0;
DROP INDEX tenure_jobs_suspect;
-- Who holds a suspect. Without crashes it is empty and costs nothing.
CREATE INDEX tenure_jobs_suspect ON tenure_jobs (worker) WHERE state = 2 AND lane & 2305843009213693952 <> 0;
