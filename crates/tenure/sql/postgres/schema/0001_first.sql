-- The tables on PostgreSQL. The verbs beside this directory are functions over them.
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
    one               int    PRIMARY KEY CHECK (one = 1),
    installation      uuid   NOT NULL,                   -- random; part of every key that outside systems see
    epoch             bigint NOT NULL DEFAULT 0,         -- rises when the database may have gone back in time
    floor             bigint NOT NULL DEFAULT 0,         -- what the numbers of this epoch are above
    functions         text,                              -- the checksum of the functions
    functions_release bigint,                            -- which release they are: an older binary leaves newer ones in place
    functions_client  bigint,                            -- and which binary they come with
    functions_at      bigint,
    -- Where the database was when it was last looked at: if it is elsewhere, it may have gone back in time.
    wal_timeline      bigint,                            -- a promoted replica, or a recovery to a point in time
    system            bigint,                            -- a dump restored into another server
    jobs_table        bigint,                            -- a dump restored into this one, or a copy of the database
    -- Whether commits wait for the disk: 'on', or 'off' where each session and role may say so.
    durability        text   NOT NULL DEFAULT 'on' CHECK (durability IN ('on', 'off')),
    -- How long a worker's lock must have been free before its process counts as gone, in milliseconds.
    guard_gap         bigint NOT NULL DEFAULT 300 CHECK (guard_gap BETWEEN 300 AND 60000)
);
INSERT INTO tenure.meta (one, installation) VALUES (1, gen_random_uuid());

-- Empty, and then the server's clock counts. In a database made for tests its owner may set the time.
CREATE TABLE tenure.clock (
    one        int    PRIMARY KEY CHECK (one = 1),
    at         bigint NOT NULL,
    started_at bigint                                    -- and when the server was started
);

CREATE SEQUENCE tenure.job_id;

CREATE TABLE tenure.jobs (
    id           bigint   PRIMARY KEY,
    lane         bigint   NOT NULL,                      -- computed from queue, tenant, kind and whether it is a suspect
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
    retry        json,                                   -- NULL: the default policy
    key          text     COLLATE "C",
    extras       json,                                   -- what no function reads: trace, tags; NULL: nothing
    limit_key    text     COLLATE "C",
    worker       text     COLLATE "C",                   -- the holder, while it is running
    request      bigint,                                 -- which of the holder's claims leased it, by the holder's own count
    reason       text,                                   -- what a parked job waits for
    progress      smallint CHECK (progress BETWEEN 0 AND 1000), -- thousandths, by the word of the holder
    progress_note text,                                  -- what is being done
    crashed_at    bigint,                                -- the last crash; all are forgotten when a handler returns an hour later
    -- Until when the worker that lost this job by its lease may come back without a crash being counted; only while the job
    -- waits for its next attempt.
    returns_until bigint,
    CHECK ((state = 2) = (lease_until IS NOT NULL))
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);

-- The claim index holds only due work. A million jobs for next week are not in it.
CREATE INDEX jobs_ready   ON tenure.jobs (lane, priority, run_at, id) WHERE state = 0;
-- By queue, for claims; by time alone, for the worker that looks for all. The second is on an expression, so that no plan of a
-- claim uses it and walks over the due jobs of other queues, as it would on a table that was never analysed.
CREATE INDEX jobs_waiting ON tenure.jobs (queue, run_at, id)          WHERE state = 1;
CREATE INDEX jobs_due     ON tenure.jobs ((run_at + 0), id)           WHERE state = 1;
CREATE INDEX jobs_running ON tenure.jobs (lease_until, id)            WHERE state = 2;
-- Who holds a suspect. Without crashes it is empty and costs nothing.
CREATE INDEX jobs_suspect ON tenure.jobs (worker)                     WHERE state = 2 AND lane & 2305843009213693952 <> 0;

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
    retry        json,
    key          text     COLLATE "C",
    extras       json,
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
    earlier bigint   NOT NULL DEFAULT 0,                 -- how many older lines of the verb had been dropped
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

-- What an effect came to, once per (job, effect): never by token, or a stale and a current attempt would both get in.
-- The token only decides who may write.
CREATE TABLE tenure.ledger (
    job_id    bigint   NOT NULL,
    opened_at bigint   NOT NULL,                         -- when the intent was written, or last sent again
    ended_at  bigint,
    token     bigint   NOT NULL,                         -- the attempt that wrote this last; 0: a person's word
    state     smallint NOT NULL CHECK (state BETWEEN 0 AND 3), -- 0 open, 1 committed, 2 failed, 3 to be sent again
    effect    text     NOT NULL COLLATE "C",
    result    json,
    note      text,
    CHECK ((state = 1) = (result IS NOT NULL)),
    PRIMARY KEY (job_id, effect)
);
-- Intents without an outcome: few, and looked for among many.
CREATE INDEX ledger_open ON tenure.ledger (job_id) WHERE state = 0;

-- What steps came to: a retry gets it back instead of running them again.
CREATE TABLE tenure.steps (
    job_id bigint NOT NULL,
    at     bigint NOT NULL,
    token  bigint NOT NULL,
    step   text   NOT NULL COLLATE "C",
    result json   NOT NULL,
    PRIMARY KEY (job_id, step)
);

-- The workers that have made themselves known. Each holds an advisory lock, which ends with its session: seen free
-- twice, it tells that the process is gone.
CREATE TABLE tenure.workers (
    worker     text    PRIMARY KEY COLLATE "C",
    under      bigint  NOT NULL,                         -- since when the server had been running when it was taken
    taken_at   bigint  NOT NULL,
    free_since bigint,                                   -- when it was first seen free, if not held since
    takings    int     NOT NULL,                         -- how often it was taken
    guarded    boolean NOT NULL,                         -- false: it has no session of its own, and so no lock
    queues     text    NOT NULL,                         -- their names, with spaces between
    kinds      text                                      -- NULL: all
);

-- When the database may have gone back in time.
CREATE TABLE tenure.epochs (
    epoch  bigint PRIMARY KEY CHECK (epoch BETWEEN 1 AND 8388607),
    at     bigint NOT NULL,
    reason text   NOT NULL
);

-- The pulse: when a worker last looked at this store for all of them, in milliseconds; 0: no worker ever did. While leases
-- are out it advances several times a second, so a gap in it tells that no worker could renew a lease. It is a sequence
-- because a sequence is one row that is changed in place: an old transaction that holds the vacuum's horizon makes it
-- no dearer to read, and no open transaction can hold it.
CREATE SEQUENCE tenure.pulse MINVALUE 0 START 0;

-- Until when waiting jobs that became due were announced to the workers, in milliseconds; a sequence for the same reason.
CREATE SEQUENCE tenure.announced MINVALUE 0 START 0;

-- The ends of the last gap in the pulse and of the one before it, in milliseconds; 0: there was none. Sequences for the same
-- reason: they can be written at any isolation level, and no open transaction holds them or sees old ones.
CREATE SEQUENCE tenure.broke MINVALUE 0 START 0;
CREATE SEQUENCE tenure.broke_before MINVALUE 0 START 0;
