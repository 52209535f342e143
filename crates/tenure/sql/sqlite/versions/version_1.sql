-- A file as version 1 of the schema made it, with jobs in several states. A test opens it and compares it with a new
-- one. It is not edited.
PRAGMA foreign_keys=OFF;
BEGIN TRANSACTION;
CREATE TABLE tenure_migrations (
    version    INTEGER PRIMARY KEY,
    name       TEXT    NOT NULL,
    checksum   TEXT    NOT NULL,
    min_client INTEGER NOT NULL,
    applied_at INTEGER NOT NULL
) STRICT;
INSERT INTO tenure_migrations VALUES(1,'first','e352d32f6b157087',1,1794999945615);
CREATE TABLE tenure_meta (
    one          INTEGER PRIMARY KEY CHECK (one = 1),
    installation TEXT    NOT NULL,                       -- random; part of every key that outside systems see
    epoch        INTEGER NOT NULL DEFAULT 0,             -- rises when the database may have gone back in time
    next_id      INTEGER NOT NULL DEFAULT 1 CHECK (next_id > 0),
    -- The beat is also in a file beside this one: if it is further there, this file has gone back in time.
    beat         INTEGER NOT NULL DEFAULT 0,
    -- An epoch was begun because there was no witness, and none can be kept: the next process that opens the file begins no other.
    unwitnessed  INTEGER NOT NULL DEFAULT 0 CHECK (unwitnessed IN (0, 1)),
    -- Since when time has run evenly, as far as was noticed: the machine did not sleep, and its clock was not set forward.
    steady_since INTEGER NOT NULL DEFAULT 0,
    -- The pulse: when a worker last wrote that the store can be written to; 0: no worker ever did. While leases are out it
    -- advances once a second, so a gap in it tells that no worker could renew a lease.
    pulse        INTEGER NOT NULL DEFAULT 0,
    -- The end of the last such gap, and of the one before it.
    broke        INTEGER NOT NULL DEFAULT 0,
    broke_before INTEGER NOT NULL DEFAULT 0,
    -- How long a worker's lock must have been free before its process counts as gone, in milliseconds.
    guard_gap    INTEGER NOT NULL DEFAULT 300 CHECK (guard_gap BETWEEN 300 AND 60000)
) STRICT;
INSERT INTO tenure_meta VALUES(1,'517fddee-c697-4d52-9c4f-53f2febaefdb',0,6,11,0,0,0,0,0,300);
CREATE TABLE tenure_jobs (
    id           INTEGER PRIMARY KEY,
    state        INTEGER NOT NULL CHECK (state BETWEEN 0 AND 3), -- 0 ready, 1 waiting, 2 running, 3 parked
    lane         INTEGER NOT NULL,                       -- computed from queue, tenant, kind and whether it is a suspect
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
    retry        TEXT,                                   -- NULL: the default policy
    max_runtime  INTEGER,
    key          TEXT,
    extras       TEXT,                                   -- what no statement reads, as JSON: trace, tags; NULL: nothing
    parent       INTEGER,
    limit_key    TEXT,
    enqueued_at  INTEGER NOT NULL,
    worker       TEXT,                                   -- the holder, while it is running
    request      INTEGER,                                -- which of the holder's claims leased it, by the holder's own count
    started_at   INTEGER,                                -- when the attempt began
    leased_at    INTEGER,                                -- when the lease was last granted
    lease_ms     INTEGER,                                -- the length that was granted
    lease_until  INTEGER,
    reason       TEXT,                                   -- what a parked job waits for
    progress      INTEGER CHECK (progress BETWEEN 0 AND 1000), -- thousandths, by the word of the holder
    progress_note TEXT,                                  -- what is being done
    crashed_at    INTEGER,                               -- the last crash; all are forgotten when a handler returns an hour later
    -- Until when the worker that lost this job by its lease may come back without a crash being counted; only while the job
    -- waits for its next attempt.
    returns_until INTEGER,
    CHECK ((state = 2) = (lease_until IS NOT NULL))
) STRICT;
INSERT INTO tenure_jobs VALUES(1,0,501339675693737291,0,1794999945618,0,0,6,0,5,'default','','a','{"n":1}',NULL,NULL,NULL,NULL,NULL,NULL,1794999945618,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO tenure_jobs VALUES(2,0,501339675693719313,0,1794999945626,0,0,6,0,5,'default','','b','{"n":2}',NULL,NULL,'k-1','{"tags":["red"]}',NULL,NULL,1794999945626,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO tenure_jobs VALUES(3,1,1956024345566946972,0,1794999946403,1,1,6,0,5,'other','','park','{}',NULL,NULL,NULL,NULL,NULL,NULL,1794999945634,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
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
    retry        TEXT,
    max_runtime  INTEGER,
    key          TEXT,
    extras       TEXT,
    parent       INTEGER,
    limit_key    TEXT,
    enqueued_at  INTEGER NOT NULL,
    worker       TEXT,
    started_at   INTEGER,
    finished_at  INTEGER NOT NULL,
    result       TEXT,
    reason       TEXT
) STRICT;
INSERT INTO tenure_done VALUES(4,5,0,1794999945666,1,1,6,0,5,'other','','bury','{}',NULL,NULL,NULL,NULL,NULL,NULL,1794999945666,'c3357dd24d8f43c3909517fd2bc97d64',1794999945743,1794999945766,NULL,'exit code 65');
INSERT INTO tenure_done VALUES(5,4,0,1794999945691,1,1,6,0,5,'other','','done','{}',NULL,NULL,NULL,NULL,NULL,NULL,1794999945691,'c3357dd24d8f43c3909517fd2bc97d64',1794999945743,1794999945764,'7',NULL);
CREATE TABLE tenure_payloads (
    job_id INTEGER PRIMARY KEY,
    args   TEXT NOT NULL
) STRICT;
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
    earlier INTEGER NOT NULL DEFAULT 0,                  -- how many older lines of the verb had been dropped
    UNIQUE (job_id, token, verb, refused)
) STRICT;
INSERT INTO tenure_timeline VALUES(1,4,1794999945766,'bury',0,1,1,'c3357dd24d8f43c3909517fd2bc97d64',1794999945743,5,'exit code 65',0);
INSERT INTO tenure_timeline VALUES(2,3,1794999945770,'retry',0,1,1,'c3357dd24d8f43c3909517fd2bc97d64',1794999945743,0,'exit code 78',0);
CREATE TABLE tenure_keys (
    tenant      TEXT    NOT NULL,
    scope       INTEGER NOT NULL,                        -- 0 idempotency
    key         TEXT    NOT NULL,
    fingerprint BLOB    NOT NULL,
    job_id      INTEGER NOT NULL,
    expires_at  INTEGER NOT NULL,
    PRIMARY KEY (tenant, scope, key)
) STRICT, WITHOUT ROWID;
INSERT INTO tenure_keys VALUES('',0,'k-1',X'554d5b0a9b16a5b9759cbbf88cfddd103696f0a372fe2cfc2dee58de0b5b0627',2,1795086345626);
CREATE TABLE tenure_queues (
    queue        TEXT PRIMARY KEY,
    paused_at    INTEGER,
    keep_ms      INTEGER NOT NULL CHECK (keep_ms >= 0),
    keep_dead_ms INTEGER NOT NULL CHECK (keep_dead_ms >= 0)
) STRICT, WITHOUT ROWID;
CREATE TABLE tenure_ledger (
    job_id    INTEGER NOT NULL,
    effect    TEXT    NOT NULL,
    state     INTEGER NOT NULL CHECK (state BETWEEN 0 AND 3), -- 0 open, 1 committed, 2 failed, 3 to be sent again
    token     INTEGER NOT NULL,                          -- the attempt that wrote this last; 0: a person's word
    opened_at INTEGER NOT NULL,                          -- when the intent was written, or last sent again
    ended_at  INTEGER,
    result    TEXT,
    note      TEXT,
    CHECK ((state = 1) = (result IS NOT NULL)),
    PRIMARY KEY (job_id, effect)
) STRICT, WITHOUT ROWID;
CREATE TABLE tenure_steps (
    job_id INTEGER NOT NULL,
    step   TEXT    NOT NULL,
    token  INTEGER NOT NULL,
    at     INTEGER NOT NULL,
    result TEXT    NOT NULL,
    PRIMARY KEY (job_id, step)
) STRICT, WITHOUT ROWID;
CREATE TABLE tenure_workers (
    worker     TEXT    PRIMARY KEY,
    queues     TEXT    NOT NULL,                         -- their names, with spaces between
    kinds      TEXT,                                     -- NULL: all
    guarded    INTEGER NOT NULL CHECK (guarded IN (0, 1)),
    under      INTEGER NOT NULL,                         -- since when time ran evenly when the lock was taken
    takings    INTEGER NOT NULL,                         -- how often it was taken
    taken_at   INTEGER NOT NULL,
    free_since INTEGER                                   -- when it was first seen free, if not held since
) STRICT, WITHOUT ROWID;
CREATE TABLE tenure_epochs (
    epoch  INTEGER PRIMARY KEY CHECK (epoch BETWEEN 1 AND 8388607),
    at     INTEGER NOT NULL,
    reason TEXT    NOT NULL
) STRICT;
CREATE INDEX tenure_jobs_ready   ON tenure_jobs (lane, priority, run_at) WHERE state = 0;
CREATE INDEX tenure_jobs_waiting ON tenure_jobs (queue, run_at)          WHERE state = 1;
CREATE INDEX tenure_jobs_due     ON tenure_jobs (run_at)                 WHERE state = 1;
CREATE INDEX tenure_jobs_running ON tenure_jobs (lease_until)            WHERE state = 2;
CREATE INDEX tenure_jobs_suspect ON tenure_jobs (worker)                 WHERE state = 2 AND lane & 2305843009213693952 <> 0;
CREATE INDEX tenure_done_age  ON tenure_done (queue, state, finished_at);
CREATE INDEX tenure_done_dead ON tenure_done (id) WHERE state = 5;
CREATE INDEX tenure_keys_expiry ON tenure_keys (expires_at);
CREATE INDEX tenure_ledger_open ON tenure_ledger (job_id) WHERE state = 0;
CREATE VIEW tenure_job AS
SELECT id,
       CASE state WHEN 2 THEN 'running' WHEN 3 THEN 'parked' ELSE 'queued' END AS state,
       queue, tenant, kind, coalesce(args, (SELECT p.args FROM tenure_payloads p WHERE p.job_id = id)) AS args,
       priority, attempt, max_attempts, crashes, token, worker,
       datetime(enqueued_at / 1000, 'unixepoch') AS enqueued_at, datetime(run_at / 1000, 'unixepoch') AS run_at,
       datetime(started_at / 1000, 'unixepoch') AS started_at, NULL AS finished_at, NULL AS result, reason,
       progress / 1000.0 AS progress, progress_note
  FROM tenure_jobs
UNION ALL
SELECT id,
       CASE state WHEN 4 THEN 'succeeded' WHEN 5 THEN 'dead' ELSE 'cancelled' END,
       queue, tenant, kind, coalesce(args, (SELECT p.args FROM tenure_payloads p WHERE p.job_id = id)),
       priority, attempt, max_attempts, crashes, token, worker,
       datetime(enqueued_at / 1000, 'unixepoch'), datetime(run_at / 1000, 'unixepoch'),
       datetime(started_at / 1000, 'unixepoch'), datetime(finished_at / 1000, 'unixepoch'), result, reason,
       NULL, NULL
  FROM tenure_done;
COMMIT;
