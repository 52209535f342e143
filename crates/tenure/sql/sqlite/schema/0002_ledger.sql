-- What took effect, who works, and whether the database is where it was.

-- What an effect came to, once per (job, effect): never by token, or a stale and a current attempt would both get in.
-- The token only decides who may write.
CREATE TABLE tenure_ledger (
    job_id    INTEGER NOT NULL,
    effect    TEXT    NOT NULL,
    state     INTEGER NOT NULL CHECK (state BETWEEN 0 AND 3), -- 0 open, 1 committed, 2 failed, 3 to be sent again
    token     INTEGER NOT NULL,                          -- the attempt that wrote this last; 0: a person's word
    opened_at INTEGER NOT NULL,                          -- when the intent was written, or last sent again
    ended_at  INTEGER,
    result    TEXT,
    codec     TEXT,                                      -- NULL: plain JSON
    note      TEXT,
    CHECK ((state = 1) = (result IS NOT NULL)),
    PRIMARY KEY (job_id, effect)
) STRICT, WITHOUT ROWID;
-- Intents without an outcome: few, and looked for among many.
CREATE INDEX tenure_ledger_open ON tenure_ledger (job_id) WHERE state = 0;

-- What steps came to: a retry gets it back instead of running them again.
CREATE TABLE tenure_steps (
    job_id INTEGER NOT NULL,
    step   TEXT    NOT NULL,
    token  INTEGER NOT NULL,
    at     INTEGER NOT NULL,
    result TEXT    NOT NULL,
    codec  TEXT,
    PRIMARY KEY (job_id, step)
) STRICT, WITHOUT ROWID;

-- The workers that have made themselves known. Each holds a lock of the operating system on a file of its own, which
-- ends with its process: seen free twice, it tells that the process is gone.
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

-- When the database may have gone back in time.
CREATE TABLE tenure_epochs (
    epoch  INTEGER PRIMARY KEY CHECK (epoch BETWEEN 1 AND 8388607),
    at     INTEGER NOT NULL,
    reason TEXT    NOT NULL
) STRICT;

-- The beat is also in a file beside this one: if it is further there, this file has gone back in time.
ALTER TABLE tenure_meta ADD COLUMN beat INTEGER NOT NULL DEFAULT 0;
-- Since when time has run evenly, as far as was noticed: the machine did not sleep, and nobody set its clock forward.
ALTER TABLE tenure_meta ADD COLUMN steady_since INTEGER NOT NULL DEFAULT 0;
