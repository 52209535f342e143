-- The limit on SQLite: the work of a job as plain statements, to see how fast SQLite alone is (`limit.rs`). The tables
-- have the columns that a queue cannot do without, and an index for claims. There is no safeguard, no fairness, and no
-- lease that ends.

-- :schema
CREATE TABLE jobs (
    id          INTEGER PRIMARY KEY,
    state       INTEGER NOT NULL, -- 0 ready, 2 running
    priority    INTEGER NOT NULL,
    run_at      INTEGER NOT NULL,
    token       INTEGER NOT NULL,
    attempt     INTEGER NOT NULL,
    queue       TEXT    NOT NULL,
    tenant      TEXT    NOT NULL,
    kind        TEXT    NOT NULL,
    args        TEXT    NOT NULL,
    enqueued_at INTEGER NOT NULL,
    worker      TEXT,
    lease_until INTEGER
) STRICT;
CREATE INDEX jobs_ready ON jobs (priority, run_at) WHERE state = 0;
CREATE TABLE done (
    id          INTEGER PRIMARY KEY,
    state       INTEGER NOT NULL,
    queue       TEXT    NOT NULL,
    tenant      TEXT    NOT NULL,
    kind        TEXT    NOT NULL,
    args        TEXT    NOT NULL,
    token       INTEGER NOT NULL,
    attempt     INTEGER NOT NULL,
    enqueued_at INTEGER NOT NULL,
    worker      TEXT,
    finished_at INTEGER NOT NULL
) STRICT;

-- :insert
-- One row; a batch repeats it in a transaction. ?1 the id, ?2 the args, ?3 the time.
INSERT INTO jobs
    (id, state, priority, run_at, token, attempt, queue, tenant, kind, args, enqueued_at)
VALUES (?1, 0, 0, ?3, 0, 0, 'default', '', 'limit', ?2, ?3);

-- :claim
-- The next jobs of a batch. ?1 how many, ?2 the time.
UPDATE jobs
SET state = 2, token = token + 1, attempt = attempt + 1, worker = 'limit', lease_until = ?2 + 30000
WHERE id IN (SELECT id FROM jobs WHERE state = 0 ORDER BY priority, run_at LIMIT ?1)
RETURNING id, token, args;

-- :complete
-- Moves claimed jobs. ?1 their ids as JSON, ?2 the time.
INSERT INTO done
    (id, state, queue, tenant, kind, args, token, attempt, enqueued_at, worker, finished_at)
SELECT id, 4, queue, tenant, kind, args, token, attempt, enqueued_at, worker, ?2
FROM jobs WHERE id IN (SELECT value FROM json_each(?1));

-- :delete
-- The second half of the move. ?1 their ids as JSON.
DELETE FROM jobs WHERE id IN (SELECT value FROM json_each(?1));
