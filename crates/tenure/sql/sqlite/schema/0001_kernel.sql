-- The kernel on SQLite.
--
-- tenure_jobs holds only what is owed; tenure_done holds what has ended, for as long as retention
-- says. A settlement moves the row, so the hot table stays small however long the history is. There
-- are no foreign keys between them: a job's id lives in two tables. Times are milliseconds since
-- 1970 UTC. STRICT everywhere: in an ordinary table an overflowing integer silently becomes a REAL,
-- and then tokens stop rising.

CREATE TABLE tenure_meta (
    one          INTEGER PRIMARY KEY CHECK (one = 1),
    installation TEXT    NOT NULL,                       -- random; part of every key that outside systems see
    epoch        INTEGER NOT NULL DEFAULT 0,             -- rises when the database may have gone back in time
    next_id      INTEGER NOT NULL DEFAULT 1 CHECK (next_id > 0)
) STRICT;

CREATE TABLE tenure_jobs (
    id           INTEGER PRIMARY KEY,
    state        INTEGER NOT NULL CHECK (state BETWEEN 0 AND 3), -- 0 ready, 1 waiting, 2 running, 3 parked
    lane         INTEGER NOT NULL,                       -- computed from queue, tenant, kind and whether it has crashed
    priority     INTEGER NOT NULL,
    run_at       INTEGER NOT NULL,
    token        INTEGER NOT NULL CHECK (token >= 0),
    attempt      INTEGER NOT NULL CHECK (attempt >= 0),
    max_attempts INTEGER NOT NULL,
    crashes      INTEGER NOT NULL,
    max_crashes  INTEGER NOT NULL,
    queue        TEXT    NOT NULL,
    tenant       TEXT    NOT NULL,
    kind         TEXT    NOT NULL,
    args         TEXT,                                   -- NULL: above 2 KiB, and so in tenure_payloads
    codec        TEXT,                                   -- NULL: plain JSON
    retry        TEXT,                                   -- NULL: the default policy
    max_runtime  INTEGER,
    key          TEXT,
    trace        TEXT,
    tags         TEXT,
    parent       INTEGER,
    limit_key    TEXT,
    enqueued_at  INTEGER NOT NULL,
    worker       TEXT,                                   -- the holder, while it is running
    started_at   INTEGER,                                -- when the attempt began
    leased_at    INTEGER,                                -- when the lease was last granted
    lease_ms     INTEGER,                                -- the length that was granted
    lease_until  INTEGER,
    reason       TEXT,                                   -- what a parked job waits for
    CHECK ((state = 2) = (lease_until IS NOT NULL))
) STRICT;

-- The claim index holds only due work. A million jobs for next week are not in it.
CREATE INDEX tenure_jobs_ready   ON tenure_jobs (lane, priority, run_at) WHERE state = 0;
CREATE INDEX tenure_jobs_waiting ON tenure_jobs (run_at)                 WHERE state = 1;
CREATE INDEX tenure_jobs_running ON tenure_jobs (lease_until)            WHERE state = 2;
-- Who holds a suspect. Without crashes it is empty and costs nothing.
CREATE INDEX tenure_jobs_suspect ON tenure_jobs (worker, started_at)     WHERE state = 2 AND crashes > 0;

CREATE TABLE tenure_done (
    id           INTEGER PRIMARY KEY,
    state        INTEGER NOT NULL CHECK (state BETWEEN 4 AND 6), -- 4 succeeded, 5 dead, 6 cancelled
    priority     INTEGER NOT NULL,
    run_at       INTEGER NOT NULL,
    token        INTEGER NOT NULL,
    attempt      INTEGER NOT NULL,
    max_attempts INTEGER NOT NULL,
    crashes      INTEGER NOT NULL,
    max_crashes  INTEGER NOT NULL,
    queue        TEXT    NOT NULL,
    tenant       TEXT    NOT NULL,
    kind         TEXT    NOT NULL,
    args         TEXT,
    codec        TEXT,
    retry        TEXT,
    max_runtime  INTEGER,
    key          TEXT,
    trace        TEXT,
    tags         TEXT,
    parent       INTEGER,
    limit_key    TEXT,
    enqueued_at  INTEGER NOT NULL,
    worker       TEXT,
    started_at   INTEGER,
    finished_at  INTEGER NOT NULL,
    result       TEXT,
    reason       TEXT
) STRICT;

-- By queue, state and age: what pruning and the rates read.
CREATE INDEX tenure_done_age  ON tenure_done (queue, state, finished_at);
CREATE INDEX tenure_done_dead ON tenure_done (id) WHERE state = 5;

-- Large args do not move when their job does.
CREATE TABLE tenure_payloads (
    job_id INTEGER PRIMARY KEY,
    args   TEXT NOT NULL
) STRICT;

-- What happened to a job and was not the happy path. Unique, so that a repeated call is answered
-- from it.
CREATE TABLE tenure_timeline (
    seq     INTEGER PRIMARY KEY,
    job_id  INTEGER NOT NULL,
    at      INTEGER NOT NULL,
    verb    TEXT    NOT NULL,
    refused INTEGER NOT NULL CHECK (refused IN (0, 1)),
    token   INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    worker  TEXT,
    began   INTEGER,                                     -- when the attempt that this ended had begun
    became  INTEGER NOT NULL,
    note    TEXT,
    UNIQUE (job_id, token, verb, refused)
) STRICT;

-- A key outlives its job.
CREATE TABLE tenure_keys (
    tenant      TEXT    NOT NULL,
    scope       INTEGER NOT NULL,                        -- 0 idempotency
    key         TEXT    NOT NULL,
    fingerprint BLOB    NOT NULL,
    job_id      INTEGER NOT NULL,
    expires_at  INTEGER NOT NULL,
    PRIMARY KEY (tenant, scope, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX tenure_keys_expiry ON tenure_keys (expires_at);

-- A row exists only for what an operator has set.
CREATE TABLE tenure_queues (
    queue        TEXT PRIMARY KEY,
    paused_at    INTEGER,
    keep_ms      INTEGER NOT NULL CHECK (keep_ms >= 0),
    keep_dead_ms INTEGER NOT NULL CHECK (keep_dead_ms >= 0)
) STRICT, WITHOUT ROWID;

-- Live and ended jobs together, with their states by name: for people with a shell.
CREATE VIEW tenure_job AS
SELECT id,
       CASE state WHEN 2 THEN 'running' WHEN 3 THEN 'parked' ELSE 'queued' END AS state,
       queue, tenant, kind, coalesce(args, (SELECT p.args FROM tenure_payloads p WHERE p.job_id = id)) AS args,
       priority, attempt, max_attempts, crashes, token, worker,
       datetime(enqueued_at / 1000, 'unixepoch') AS enqueued_at, datetime(run_at / 1000, 'unixepoch') AS run_at,
       datetime(started_at / 1000, 'unixepoch') AS started_at, NULL AS finished_at, NULL AS result, reason
  FROM tenure_jobs
UNION ALL
SELECT id,
       CASE state WHEN 4 THEN 'succeeded' WHEN 5 THEN 'dead' ELSE 'cancelled' END,
       queue, tenant, kind, coalesce(args, (SELECT p.args FROM tenure_payloads p WHERE p.job_id = id)),
       priority, attempt, max_attempts, crashes, token, worker,
       datetime(enqueued_at / 1000, 'unixepoch'), datetime(run_at / 1000, 'unixepoch'),
       datetime(started_at / 1000, 'unixepoch'), datetime(finished_at / 1000, 'unixepoch'), result, reason
  FROM tenure_done;
