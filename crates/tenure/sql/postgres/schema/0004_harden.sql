-- What the store needs to tell a stall of its own from a worker's.

-- The pulse: when a worker last looked at this store for all of them, in milliseconds; 0: no worker ever did. While leases
-- are out it advances several times a second, so a gap in it tells that no worker could renew a lease. It is a sequence
-- because a sequence is one row that is changed in place: an old transaction that holds the vacuum's horizon makes it
-- no dearer to read, and no open transaction can hold it.
CREATE SEQUENCE tenure.pulse MINVALUE 0 START 0;

-- The ends of such gaps. Rows are only added, so that a transaction that stays open after it added one is in the way of
-- no other.
CREATE TABLE tenure.breaks (
    at bigint NOT NULL
);

-- Until when the worker that lost this job by its lease may come back without a crash being counted; only while the job
-- waits for its next attempt.
ALTER TABLE tenure.jobs ADD COLUMN returns_until bigint;

-- Whether commits wait for the disk: 'on', or 'off' where each session and role may say so.
ALTER TABLE tenure.meta ADD COLUMN durability text NOT NULL DEFAULT 'on' CHECK (durability IN ('on', 'off'));

-- How long a worker's lock must have been free before its process counts as gone, in milliseconds.
ALTER TABLE tenure.meta ADD COLUMN guard_gap bigint NOT NULL DEFAULT 300 CHECK (guard_gap BETWEEN 300 AND 60000);

-- What the numbers of this epoch are above.
ALTER TABLE tenure.meta ADD COLUMN floor bigint NOT NULL DEFAULT 0;
UPDATE tenure.meta SET floor = epoch << 40;
DROP FUNCTION IF EXISTS tenure.epoch_kept(bigint);
DROP FUNCTION IF EXISTS tenure.next_token(bigint, bigint);

-- Which release the functions are: an older binary leaves newer ones in place.
ALTER TABLE tenure.meta ADD COLUMN functions_release bigint;

-- These have one parameter more now. The old ones would stay beside them, and calls would fit both.
DROP FUNCTION IF EXISTS tenure.claim_many(text, text[], text[], int, bigint, bigint, text, bigint);
DROP FUNCTION IF EXISTS tenure.settle_and_claim(bigint[], bigint[], text[], bigint[], text[], json[], text, text[], text[],
    int, bigint, bigint, text, bigint);
DROP FUNCTION IF EXISTS tenure.enqueue_many(text[], json[], text[], text[], smallint[], bigint[], bigint[], int[], int[], json[],
    bigint[], text[], bigint[], bytea[], text[], text[], bigint[]);
DROP FUNCTION IF EXISTS tenure.check_new(json[], int[], int[], json[], bigint[], text[], bigint[], bytea[], text[], text[]);

-- How many older lines of the same verb had been dropped when this one was written: a job that snoozes for ever keeps the
-- last few.
ALTER TABLE tenure.timeline ADD COLUMN earlier bigint NOT NULL DEFAULT 0;
-- It answers one column more now.
DROP FUNCTION IF EXISTS tenure.timeline_of(bigint);
-- It answers one column less now.
DROP FUNCTION IF EXISTS tenure.current(bigint);

-- When a job last crashed. Its crashes are forgotten when its handler returns an hour later.
ALTER TABLE tenure.jobs ADD COLUMN crashed_at bigint;

-- Whether a job is a suspect stands in its lane, in bit 61. A first crash no longer makes one, unless the job has few to lose.
UPDATE tenure.jobs
   SET crashed_at = 0,
       lane = CASE WHEN crashes = 1 AND max_crashes > 3 THEN lane & ~2305843009213693952::bigint ELSE lane END
 WHERE crashes > 0;
DROP INDEX tenure.jobs_suspect;
-- Who holds a suspect. Without crashes it is empty and costs nothing.
CREATE INDEX jobs_suspect ON tenure.jobs (worker) WHERE state = 2 AND lane & 2305843009213693952 <> 0;

-- Their arguments are others now.
DROP FUNCTION IF EXISTS tenure.lane(text, text, text, int);
DROP FUNCTION IF EXISTS tenure.put_back(bigint, boolean, bigint, bigint, int, int, text, bigint);
DROP FUNCTION IF EXISTS tenure.pick(bigint[], int[], int[], text[], text[], int, int, boolean, tenure.marks);
DROP FUNCTION IF EXISTS tenure.walk(bigint, bigint, bigint[], boolean, int, int, tenure.marks);
DROP FUNCTION IF EXISTS tenure.walk_past_marks(bigint, bigint, bigint[], int, tenure.marks);
