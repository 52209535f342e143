-- The kernel on PostgreSQL: the tables. The verbs beside this directory are functions over them.
--
-- tenure.jobs holds only what is owed; tenure.done holds what has ended, for as long as retention
-- says. A settlement moves the row, so the hot table stays small however long the history is. There
-- are no foreign keys between them: a job's id lives in two tables. Times are milliseconds since
-- 1970 UTC, the same numbers as on SQLite; the views for people show them as timestamps. Names
-- compare bytewise, whatever the database's collation is.

CREATE TABLE tenure.migrations (
    version    bigint PRIMARY KEY,
    name       text   NOT NULL,
    checksum   text   NOT NULL,
    min_client bigint NOT NULL,                          -- the oldest binary that can work with it
    applied_at bigint NOT NULL
);

CREATE TABLE tenure.meta (
    one              int    PRIMARY KEY CHECK (one = 1),
    installation     uuid   NOT NULL,                    -- random; part of every key that outside systems see
    epoch            bigint NOT NULL DEFAULT 0,          -- rises when the database may have gone back in time
    functions        text,                               -- the checksum of the functions
    functions_client bigint,                             -- and which binary they come with
    functions_at     bigint
);
INSERT INTO tenure.meta (one, installation) VALUES (1, gen_random_uuid());

-- Empty, and then the server's clock counts. In a database made for tests its owner may set the time.
CREATE TABLE tenure.clock (
    one int    PRIMARY KEY CHECK (one = 1),
    at  bigint NOT NULL
);

CREATE SEQUENCE tenure.job_id;

CREATE TABLE tenure.jobs (
    id           bigint   PRIMARY KEY,
    lane         bigint   NOT NULL,                      -- computed from queue, tenant, kind and whether it has crashed
    run_at       bigint   NOT NULL,
    token        bigint   NOT NULL CHECK (token >= 0),
    enqueued_at  bigint   NOT NULL,
    started_at   bigint,                                 -- when the attempt began
    leased_at    bigint,                                 -- when the lease was last granted
    lease_ms     bigint,                                 -- the length that was granted
    lease_until  bigint,
    max_runtime  bigint,
    parent       bigint,
    attempt      int      NOT NULL CHECK (attempt >= 0),
    max_attempts int      NOT NULL,
    crashes      int      NOT NULL,
    max_crashes  int      NOT NULL,
    priority     smallint NOT NULL,
    state        smallint NOT NULL CHECK (state BETWEEN 0 AND 3), -- 0 ready, 1 waiting, 2 running, 3 parked
    queue        text     NOT NULL COLLATE "C",
    tenant       text     NOT NULL COLLATE "C",
    kind         text     NOT NULL COLLATE "C",
    args         json,                                   -- NULL: above 2 KiB, and so in tenure.payloads
    codec        text,                                   -- NULL: plain JSON
    retry        json,                                   -- NULL: the default policy
    key          text     COLLATE "C",
    trace        text,
    tags         text,
    limit_key    text     COLLATE "C",
    worker       text     COLLATE "C",                   -- the holder, while it is running
    reason       text,                                   -- what a parked job waits for
    CHECK ((state = 2) = (lease_until IS NOT NULL))
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);

-- The claim index holds only due work. A million jobs for next week are not in it.
CREATE INDEX jobs_ready   ON tenure.jobs (lane, priority, run_at, id) WHERE state = 0;
CREATE INDEX jobs_waiting ON tenure.jobs (run_at, id)                 WHERE state = 1;
CREATE INDEX jobs_running ON tenure.jobs (lease_until, id)            WHERE state = 2;
-- Who holds a suspect. Without crashes it is empty and costs nothing.
CREATE INDEX jobs_suspect ON tenure.jobs (worker, started_at)         WHERE state = 2 AND crashes > 0;

CREATE TABLE tenure.done (
    id           bigint   PRIMARY KEY,
    run_at       bigint   NOT NULL,
    token        bigint   NOT NULL,
    enqueued_at  bigint   NOT NULL,
    started_at   bigint,
    finished_at  bigint   NOT NULL,
    max_runtime  bigint,
    parent       bigint,
    attempt      int      NOT NULL,
    max_attempts int      NOT NULL,
    crashes      int      NOT NULL,
    max_crashes  int      NOT NULL,
    priority     smallint NOT NULL,
    state        smallint NOT NULL CHECK (state BETWEEN 4 AND 6), -- 4 succeeded, 5 dead, 6 cancelled
    queue        text     NOT NULL COLLATE "C",
    tenant       text     NOT NULL COLLATE "C",
    kind         text     NOT NULL COLLATE "C",
    args         json,
    codec        text,
    retry        json,
    key          text     COLLATE "C",
    trace        text,
    tags         text,
    limit_key    text     COLLATE "C",
    worker       text     COLLATE "C",
    result       json,
    reason       text
);

-- By queue, state and age: what pruning and the rates read.
CREATE INDEX done_age  ON tenure.done (queue, state, finished_at);
CREATE INDEX done_dead ON tenure.done (id) WHERE state = 5;

-- Large args do not move when their job does.
CREATE TABLE tenure.payloads (
    job_id bigint PRIMARY KEY,
    args   json   NOT NULL
);

-- What happened to a job and was not the happy path. Unique, so that a repeated call is answered
-- from it.
CREATE TABLE tenure.timeline (
    seq     bigint   GENERATED ALWAYS AS IDENTITY,
    job_id  bigint   NOT NULL,
    at      bigint   NOT NULL,
    token   bigint   NOT NULL,
    began   bigint,                                      -- when the attempt that this ended had begun
    attempt int      NOT NULL,
    became  smallint NOT NULL,
    refused boolean  NOT NULL,
    verb    text     NOT NULL COLLATE "C",
    worker  text     COLLATE "C",
    note    text,
    PRIMARY KEY (job_id, token, verb, refused)
);

-- A key outlives its job.
CREATE TABLE tenure.keys (
    tenant      text     NOT NULL COLLATE "C",
    scope       smallint NOT NULL,                       -- 0 idempotency
    key         text     NOT NULL COLLATE "C",
    fingerprint bytea    NOT NULL,
    job_id      bigint   NOT NULL,
    expires_at  bigint   NOT NULL,
    PRIMARY KEY (tenant, scope, key)
);
CREATE INDEX keys_expiry ON tenure.keys (expires_at, tenant, key);

-- A row exists only for what an operator has set.
CREATE TABLE tenure.queues (
    queue        text   PRIMARY KEY COLLATE "C",
    paused_at    bigint,
    keep_ms      bigint NOT NULL CHECK (keep_ms >= 0),
    keep_dead_ms bigint NOT NULL CHECK (keep_dead_ms >= 0)
);

-- The fences of open transactions. A row never outlives the transaction that wrote it, so nobody
-- sees another's: it is deleted by the settlement that proves it, or at COMMIT by the check that it
-- asks for.
CREATE TABLE tenure.fences (
    seq    bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job_id bigint NOT NULL,
    token  bigint NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);
CREATE INDEX fences_job ON tenure.fences (job_id, token);
