-- What took effect, who works, and whether the database is where it was.

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
    codec     text,                                      -- NULL: plain JSON
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
    codec  text,
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

-- Where the database was when it was last looked at: if it is elsewhere, it may have gone back in time.
ALTER TABLE tenure.meta
    ADD COLUMN wal_timeline bigint,                      -- a promoted replica, or a recovery to a point in time
    ADD COLUMN system       bigint,                      -- a dump restored into another server
    ADD COLUMN jobs_table   bigint;                      -- a dump restored into this one, or a copy of the database

-- In a database made for tests its owner may also say when the server was started.
ALTER TABLE tenure.clock ADD COLUMN started_at bigint;

-- These have one parameter more now. The old ones would stay beside them, and calls would fit both.
DROP FUNCTION IF EXISTS tenure.claim_many(text, text[], text[], int, bigint, bigint, text);
DROP FUNCTION IF EXISTS tenure.settle_and_claim(bigint[], bigint[], text[], bigint[], text[], json[], text, text[], text[],
    int, bigint, bigint, text);
DROP FUNCTION IF EXISTS tenure.overdue(int);
DROP FUNCTION IF EXISTS tenure.take_keys(text[], text[], bigint[], bytea[], bigint);
