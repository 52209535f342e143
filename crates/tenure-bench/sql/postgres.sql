-- The limit on PostgreSQL: the work of a job as plain statements, to see how fast the server alone is (`limit.rs`). The
-- tables have the columns that a queue cannot do without, and an index for claims. There is no safeguard, no fairness,
-- and no lease that ends.

-- :schema
CREATE TABLE jobs (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    state       smallint NOT NULL, -- 0 ready, 2 running
    priority    smallint NOT NULL,
    run_at      bigint   NOT NULL,
    token       bigint   NOT NULL,
    attempt     integer  NOT NULL,
    queue       text     NOT NULL,
    tenant      text     NOT NULL,
    kind        text     NOT NULL,
    args        text     NOT NULL,
    enqueued_at bigint   NOT NULL,
    worker      text,
    lease_until bigint
);
CREATE INDEX jobs_ready ON jobs (priority, run_at) WHERE state = 0;
CREATE TABLE done (
    id          bigint PRIMARY KEY,
    state       smallint NOT NULL,
    queue       text     NOT NULL,
    tenant      text     NOT NULL,
    kind        text     NOT NULL,
    args        text     NOT NULL,
    token       bigint   NOT NULL,
    attempt     integer  NOT NULL,
    enqueued_at bigint   NOT NULL,
    worker      text,
    finished_at bigint   NOT NULL
);

-- :insert
-- A batch. $1 the args of each, $2 the time.
INSERT INTO jobs (state, priority, run_at, token, attempt, queue, tenant, kind, args, enqueued_at)
SELECT 0, 0, $2::bigint, 0, 0, 'default', '', 'limit', args, $2::bigint
FROM unnest($1::text[]) AS args;

-- :claim
-- The next jobs of a batch. $1 how many, $2 the time.
UPDATE jobs
SET state = 2, token = token + 1, attempt = attempt + 1, worker = 'limit', lease_until = $2::bigint + 30000
WHERE id IN (
    SELECT id FROM jobs WHERE state = 0
    ORDER BY priority, run_at LIMIT $1::bigint FOR UPDATE SKIP LOCKED)
RETURNING id, token, args;

-- :complete
-- Moves claimed jobs. $1 their ids, $2 the time.
WITH gone AS (
    DELETE FROM jobs WHERE id = ANY ($1::bigint[])
    RETURNING id, queue, tenant, kind, args, token, attempt, enqueued_at, worker)
INSERT INTO done
    (id, state, queue, tenant, kind, args, token, attempt, enqueued_at, worker, finished_at)
SELECT id, 4, queue, tenant, kind, args, token, attempt, enqueued_at, worker, $2::bigint
FROM gone;
