-- An installation as release 3 of the functions made it: the schema, the tables, the functions, and what is noted about
-- them. A test brings it up to date and compares it with a new one. It is not edited.
CREATE SCHEMA tenure;
SET LOCAL search_path = pg_catalog, pg_temp;

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

-- What the other verbs are written in: time, numbers, names, refusals, and a job as row.rs reads it.
--
-- Functions that people or workers call are SECURITY DEFINER with a fixed search_path, so that a
-- role needs EXECUTE and no right on any table. The helpers here run inside those and are for nobody
-- else.

-- ── types ─────────────────────────────────────────────────────────────────────────────────────────

-- Makes a composite type, or leaves it if it has these columns already. One that has others is dropped together with the
-- functions that use it; all of them are made again by the files that follow.
CREATE OR REPLACE FUNCTION tenure.put_type(p_name text, p_columns text) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    type_ regclass := to_regclass('tenure.' || quote_ident(p_name));
BEGIN
    IF p_columns = (SELECT string_agg(a.attname || ' ' || format_type(a.atttypid, a.atttypmod), ', ' ORDER BY a.attnum)
                      FROM pg_attribute a WHERE a.attrelid = type_) THEN
        RETURN;
    ELSIF type_ IS NOT NULL THEN
        EXECUTE format('DROP TYPE %s CASCADE', type_);
    END IF;
    EXECUTE format('CREATE TYPE tenure.%I AS (%s)', p_name, p_columns);
END $$;

-- ── time ──────────────────────────────────────────────────────────────────────────────────────────

-- Milliseconds since 1970 UTC: the server's clock, or the test clock. Each call reads it once into a
-- variable: a volatile function in a predicate is evaluated for each row and bounds no index. Never
-- the transaction's own time, which stands still while the transaction is open.
CREATE OR REPLACE FUNCTION tenure.clock_ms() RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN coalesce((SELECT c.at FROM tenure.clock c),
                    floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint);
END $$;

-- The latest time that the library can print, close to the end of the year 9999: nothing is ever due later.
CREATE OR REPLACE FUNCTION tenure.end_of_time() RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$ SELECT 253402207200000::bigint $$;

-- `length` after `start`, and not beyond the end of time.
CREATE OR REPLACE FUNCTION tenure.later(start bigint, length bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS
$$ SELECT least(start + least(length, tenure.end_of_time()), tenure.end_of_time()) $$;

-- Since when the server has been running without a break, as far as sessions and leases are concerned: its start; its last
-- recovery from a crash of one backend, which ends all sessions under the same start, but then the statistics are discarded,
-- and the time of that is for everybody to read; or the last time that the database was found to be elsewhere, as after a
-- promotion. A test clock has a start of its own, by which nothing was broken if nobody has set it.
CREATE OR REPLACE FUNCTION tenure.started_ms() RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN coalesce((SELECT coalesce(c.started_at, 0) FROM tenure.clock c),
                    greatest(floor(extract(epoch FROM pg_postmaster_start_time()) * 1000)::bigint,
                             floor(extract(epoch FROM pg_stat_get_bgwriter_stat_reset_time()) * 1000)::bigint,
                             (SELECT e.at FROM tenure.epochs e ORDER BY e.epoch DESC LIMIT 1)));
END $$;

-- The same for leases. Each source that lies in the future is left out by itself: the clock was set back since.
CREATE OR REPLACE FUNCTION tenure.steady_since(t bigint) RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN (SELECT coalesce(max(s.at), 0)
              FROM (SELECT coalesce(c.started_at, 0) AS at FROM tenure.clock c
                    UNION ALL
                    SELECT u.at FROM unnest(ARRAY[
                        floor(extract(epoch FROM pg_postmaster_start_time()) * 1000)::bigint,
                        floor(extract(epoch FROM pg_stat_get_bgwriter_stat_reset_time()) * 1000)::bigint,
                        (SELECT e.at FROM tenure.epochs e ORDER BY e.epoch DESC LIMIT 1)]) u(at)
                     WHERE NOT EXISTS (SELECT 1 FROM tenure.clock)) s
             WHERE s.at <= t);
END $$;

-- What kept all workers from renewing, as far as it was noted: since when the server has been running (started), the end of the
-- last break in the pulse (broke), and of the break before it (broke_before); 0 for none. One in the future is from before
-- the clock was set back.
CREATE OR REPLACE FUNCTION tenure.noted_breaks(t bigint, OUT started bigint, OUT broke bigint, OUT broke_before bigint)
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    started := tenure.steady_since(t);
    broke := (SELECT CASE WHEN b.last_value <= t THEN b.last_value ELSE 0 END FROM tenure.broke b);
    broke_before := (SELECT CASE WHEN b.last_value <= t THEN b.last_value ELSE 0 END FROM tenure.broke_before b);
END $$;

-- The same, and a pulse that is too old while leases are out means that a break ends now. With p_note it is noted, so that the
-- next caller does not begin another one, and each lease is pardoned by one break only. Callers ask only when a lease looks
-- over.
CREATE OR REPLACE FUNCTION tenure.last_breaks(t bigint, p_note boolean DEFAULT true,
    OUT started bigint, OUT broke bigint, OUT broke_before bigint)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    stall_ms CONSTANT bigint := 3000;
    pulse    bigint := (SELECT p.last_value FROM tenure.pulse p);
BEGIN
    SELECT n.started, n.broke, n.broke_before INTO started, broke, broke_before FROM tenure.noted_breaks(t) n;
    IF pulse > 0 AND greatest(pulse, broke) < t - stall_ms
       -- A store without leases has no pulse. Leases that were granted a moment ago tell of no stall.
       AND EXISTS (SELECT 1 FROM tenure.jobs r WHERE r.state = 2 AND r.leased_at < t - stall_ms) THEN
        broke_before := broke;
        broke := t;
        IF p_note THEN
            PERFORM setval('tenure.broke_before', broke_before), setval('tenure.broke', broke);
        END IF;
    END IF;
END $$;

-- Until when a lease is not over, whatever it says. One that was granted before the server's start, or before the last
-- break in the pulse, gets its whole length from then on, but not beyond the job's maximal runtime: its holder could not
-- renew it meanwhile. One that was granted before the break before has had its pardon.
CREATE OR REPLACE FUNCTION tenure.pardoned_until(leased_at bigint, lease_ms bigint, began bigint, max_runtime bigint,
    started bigint, broke bigint, broke_before bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS
$$ SELECT CASE
       WHEN leased_at >= started AND (leased_at >= broke OR leased_at < broke_before) THEN '-9223372036854775808'::bigint
       ELSE least(greatest(CASE WHEN leased_at < started THEN started END,
                           CASE WHEN leased_at >= broke_before AND leased_at < broke THEN broke END) + lease_ms,
                  began + least(max_runtime, tenure.end_of_time())) END $$;

-- A number from before the calendar begins is shown as its first day, so that one such job does not
-- make a whole view fail.
CREATE OR REPLACE FUNCTION tenure.at(ms bigint) RETURNS timestamptz
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS
$$ SELECT timestamptz 'epoch'
        + CASE WHEN ms < -210866803200000 THEN -210866803200000 ELSE ms END * interval '1 millisecond' $$;

-- The time on the store's clock, for people.
CREATE OR REPLACE FUNCTION tenure.now() RETURNS timestamptz
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS
$$ SELECT tenure.at(tenure.clock_ms()) $$;

-- What was installed here, for those who may not read tables: the migrations, and as number 0 the
-- functions, with their release beside the name.
CREATE OR REPLACE FUNCTION tenure.history()
RETURNS TABLE (version bigint, name text, checksum text, min_client bigint, applied_at bigint)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS
$$ SELECT m.version, m.name, m.checksum, m.min_client, m.applied_at FROM tenure.migrations m
   UNION ALL
   SELECT 0, concat('functions ', m.functions_release), m.functions, m.functions_client, m.functions_at FROM tenure.meta m
    WHERE m.functions IS NOT NULL
    ORDER BY 1 $$;

-- ── durability ────────────────────────────────────────────────────────────────────────────────────

-- What answers for a token, an outcome or a job must be on disk when it is acknowledged: if a crash of the server forgot it, the
-- same token would go to another worker. So a function that promises something raises synchronous_commit for its transaction
-- where the session or its role says off, unless the installation has said off. It never lowers it: local and all that is above
-- wait for this server's disk. Each function asks for the setting itself, since that is much cheaper than this call.
CREATE OR REPLACE FUNCTION tenure.be_durable() RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM set_config('synchronous_commit', 'on', true) FROM tenure.meta m WHERE m.durability = 'on';
END $$;

-- What the promises of this installation rest on: what it has said about commits, and whether a commit of this session is on
-- disk before it is acknowledged; and by what it would notice that the database has gone back in time.
CREATE OR REPLACE FUNCTION tenure.terms(OUT durability text, OUT is_synced boolean, OUT tells_timeline boolean, OUT tells_system boolean)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS
$$ SELECT m.durability,
          current_setting('fsync')::boolean AND (m.durability = 'on' OR current_setting('synchronous_commit') <> 'off'),
          m.wal_timeline <> 0, m.system <> 0
     FROM tenure.meta m $$;

-- ── refusals ──────────────────────────────────────────────────────────────────────────────────────

-- TN003: what was asked makes no sense. The field's name travels beside the words, for programs.
CREATE OR REPLACE FUNCTION tenure.invalid(field text, problem text, hint text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = 'TN003', COLUMN = field,
        MESSAGE = field || ': ' || problem,
        DETAIL = 'Nothing was done.', HINT = hint;
END $$;

-- Every name that is given, or TN003 for the first that is none.
CREATE OR REPLACE FUNCTION tenure.check_names(field text, names text[]) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    bad text;
BEGIN
    SELECT n.name INTO bad FROM (SELECT DISTINCT u.name FROM unnest(names) u(name)) n
     WHERE n.name !~ '^[a-z0-9][a-z0-9_.:-]{0,62}$'
        OR n.name IS NULL LIMIT 1;
    IF FOUND THEN
        PERFORM tenure.invalid(field, coalesce(quote_literal(left(bad, 80)), 'NULL') || ' is not a valid name',
            'Use 1 to 63 of a-z 0-9 _ . : - and begin with a letter or digit.');
    END IF;
END $$;

CREATE OR REPLACE FUNCTION tenure.check_worker(worker text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF worker IS NULL OR worker !~ '^[!-~]{1,128}$' THEN
        PERFORM tenure.invalid('worker', 'a worker id has 1 to 128 printable ASCII characters',
            'Make one up for each process start, such as a UUID.');
    END IF;
END $$;

CREATE OR REPLACE FUNCTION tenure.check_lease(lease_ms bigint) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF lease_ms IS NULL OR lease_ms NOT BETWEEN 1 AND 86400000 THEN
        PERFORM tenure.invalid('lease', 'a lease of ' || coalesce(lease_ms::text, 'NULL') || ' ms is outside 1 ms to 24 h',
            'Renew it instead of making it longer.');
    END IF;
END $$;

-- A grace, or TN003. One that is longer than any lease is as good as that.
CREATE OR REPLACE FUNCTION tenure.check_grace(grace_ms bigint) RETURNS bigint
LANGUAGE plpgsql AS $$
BEGIN
    IF grace_ms IS NULL OR grace_ms < 0 THEN
        PERFORM tenure.invalid('grace', coalesce(grace_ms::text, 'NULL') || ' ms is no length of time', 'Leave it out for none.');
    END IF;
    RETURN least(grace_ms, tenure.end_of_time());
END $$;

-- All lists of a batch have one length, and not more than 1,000 items.
CREATE OR REPLACE FUNCTION tenure.check_batch(size int, VARIADIC others int[] DEFAULT '{}') RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF size IS NULL THEN
        PERFORM tenure.invalid('batch', 'NULL is not a batch', 'Pass a list, which may be empty.');
    ELSIF size < 0 THEN
        PERFORM tenure.invalid('batch', size || ' is less than nothing', 'Ask for 0 to 1000.');
    ELSIF size > 1000 THEN
        PERFORM tenure.invalid('batch', 'a batch of ' || size || ' is above the limit of 1000', 'Send it in parts.');
    ELSIF EXISTS (SELECT 1 FROM unnest(others) o WHERE o IS DISTINCT FROM size) THEN
        PERFORM tenure.invalid('batch', 'the lists differ in length', 'Give one value for each job in every list.');
    END IF;
END $$;

-- ── numbers ───────────────────────────────────────────────────────────────────────────────────────

-- The first bits of the SHA-256 of a name. (<< and | have one precedence in SQL: mind the parentheses.)
CREATE OR REPLACE FUNCTION tenure.prefix(name text, bits int) RETURNS bigint
LANGUAGE sql STABLE PARALLEL SAFE AS
$$ SELECT ('x' || encode(substring(sha256(convert_to(name, 'UTF8')) FROM 1 FOR 4), 'hex'))::bit(32)::bigint >> (32 - bits) $$;

-- Where a job stands in the claim index, the same number as on every engine:
-- bit 61 suspect, then 20 bits of the queue, 26 of the tenant, 15 of the kind.
CREATE OR REPLACE FUNCTION tenure.lane(queue text, tenant text, kind text, suspect boolean) RETURNS bigint
LANGUAGE sql STABLE PARALLEL SAFE AS
$$ SELECT (suspect::int::bigint << 61)
        | (tenure.prefix(queue, 20) << 41) | (tenure.prefix(tenant, 26) << 15) | tenure.prefix(kind, 15) $$;

-- Whether so many crashes make a job a suspect: from its second crash on. The first may be anybody's fault, and then the
-- jobs of a lost machine run again at once. A job with few crashes to lose is a suspect after its first. The library has the
-- same rule in lifecycle.rs.
CREATE OR REPLACE FUNCTION tenure.makes_suspect(crashes int, max_crashes int) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$ SELECT crashes >= CASE WHEN max_crashes > 3 THEN 2 ELSE 1 END $$;

-- Whether a job that stands in this lane is one.
CREATE OR REPLACE FUNCTION tenure.is_suspect(lane bigint) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$ SELECT lane & 2305843009213693952 <> 0 $$;

-- For how long a crash counts at the least, in milliseconds: the count goes when a handler returns by itself and the last
-- crash is as old as this.
CREATE OR REPLACE FUNCTION tenure.crash_memory() RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$ SELECT 3600000::bigint $$;

-- The token after this one: above it, and above every token of an earlier epoch.
CREATE OR REPLACE FUNCTION tenure.next_token(token bigint, epoch_floor bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$ SELECT greatest(token, epoch_floor) + 1 $$;

-- ── epochs ────────────────────────────────────────────────────────────────────────────────────────
--
-- A restored or promoted database has forgotten tokens and ids that were issued after the state it went back to. If they
-- were issued again, a worker from before would pass the fence, and an outside system would take a new payment for an old
-- one. So the database compares where it is with where it was, and where that differs a new epoch has begun.

-- The WAL timeline, from the name of the segment that is written now. (pg_control_checkpoint() knows it too, but lags after
-- a promotion.) In a function that is not inlined, so that a server which does not tell it can do without.
CREATE OR REPLACE FUNCTION tenure.wal_timeline() RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint;
END $$;

-- The same for the server's system identifier.
CREATE OR REPLACE FUNCTION tenure.system_id() RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN (pg_control_system()).system_identifier;
END $$;

-- Where the database is: on which WAL timeline, which a promotion and a recovery to a point in time leave; in which
-- server; and which table, since a dump may be restored into the same server. A managed server may not tell the first two: then
-- they are 0, and the rest decides. It is asked with care, when the schema is installed and when an epoch begins; what it does not
-- tell is not asked again by each claim.
CREATE OR REPLACE FUNCTION tenure.whereabouts(OUT wal_timeline bigint, OUT system bigint, OUT jobs_table bigint)
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    jobs_table := tenure.place_of_jobs();
    BEGIN
        wal_timeline := tenure.wal_timeline();
    EXCEPTION WHEN OTHERS THEN
        wal_timeline := 0;
    END;
    BEGIN
        system := tenure.system_id();
    EXCEPTION WHEN OTHERS THEN
        system := 0;
    END;
END $$;

-- Which table, in which database: a dump has another table, a copy of the database another database.
CREATE OR REPLACE FUNCTION tenure.place_of_jobs() RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN ((SELECT d.oid FROM pg_database d WHERE d.datname = current_database())::bigint << 32)
           | 'tenure.jobs'::regclass::oid::bigint;
END $$;

-- Whether that is where it is. On one line of a query, because every claim and every enqueue asks. In this order: a dump from
-- another server may remember what this one does not tell.
CREATE OR REPLACE FUNCTION tenure.is_here(wal_timeline bigint, system bigint, jobs_table bigint) RETURNS boolean
LANGUAGE sql VOLATILE AS
$$ SELECT CASE WHEN jobs_table <> tenure.place_of_jobs() THEN false
               WHEN CASE WHEN system = 0 THEN false ELSE system <> tenure.system_id() END THEN false
               WHEN wal_timeline = 0 THEN true
               ELSE wal_timeline = tenure.wal_timeline() END $$;

-- The epoch after this one: larger, and one that a second restore of the same old state does not come to again. So it
-- carries the time, in tens of minutes since 2026. The library has the same rule in lease.rs.
CREATE OR REPLACE FUNCTION tenure.raised(epoch bigint, at bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS
$$ SELECT least(greatest(epoch + 1, (at - 1767225600000) / 600000), 8388607) $$;

-- Where the numbers of an epoch that begins in this life of this server begin. Two replicas that are promoted within ten minutes,
-- and two restores of one dump, come to the same epoch without knowing of each other; so each begins it elsewhere. It is a number
-- below 2^39 that depends on the server's start and on the table. With a test clock it is 0.
CREATE OR REPLACE FUNCTION tenure.salt() RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM tenure.clock) THEN
        RETURN 0;
    END IF;
    RETURN hashtextextended(extract(epoch FROM pg_postmaster_start_time()) || ' ' || tenure.place_of_jobs(), 0) & 549755813887;
END $$;

-- What tokens and ids are above now: the epoch that they are issued in, in the high bits, and where its numbers begin, whether or
-- not it is written down yet. It writes nothing, so that enqueueing in anybody's transaction touches no row that others need. A
-- standby issues nothing and cannot tell where it is.
CREATE OR REPLACE FUNCTION tenure.floor_of_now(p_at bigint) RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN (SELECT CASE WHEN m.wal_timeline IS NULL OR pg_is_in_recovery() THEN m.floor
                        WHEN tenure.is_here(m.wal_timeline, m.system, m.jobs_table) THEN m.floor
                        ELSE (tenure.raised(m.epoch, p_at) << 40) + tenure.salt() END
              FROM tenure.meta m);
END $$;

-- The epoch alone.
CREATE OR REPLACE FUNCTION tenure.epoch_of_now(p_at bigint) RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN tenure.floor_of_now(p_at) >> 40;
END $$;

-- The same, written down if it is new, with the reason. It never waits: if somebody else is writing it down, or this
-- transaction's snapshot is too old to, the number is used all the same.
CREATE OR REPLACE FUNCTION tenure.floor_kept(p_at bigint) RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    e bigint := (SELECT m.floor FROM tenure.meta m
                  WHERE m.wal_timeline IS NULL OR tenure.is_here(m.wal_timeline, m.system, m.jobs_table));
BEGIN
    IF e IS NOT NULL THEN
        RETURN e;
    END IF;
    e := tenure.floor_of_now(p_at);
    BEGIN
        PERFORM 1 FROM tenure.meta m FOR UPDATE SKIP LOCKED;
        IF FOUND THEN
            -- Again, now that nobody else can: it may have been written down since.
            e := tenure.floor_of_now(p_at);
            PERFORM tenure.begin_epoch(e >> 40, p_at, tenure.moved_from()) FROM tenure.meta m WHERE m.epoch < e >> 40;
        END IF;
    EXCEPTION WHEN serialization_failure THEN
        NULL;
    END;
    RETURN e;
END $$;

-- What tells that the database is not where it was, in words; NULL if it is.
CREATE OR REPLACE FUNCTION tenure.moved_from() RETURNS text
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN (SELECT string_agg(d.what || ' was ' || d.was || ' and is ' || d.is_, '; ' ORDER BY d.n)
              FROM tenure.meta m, tenure.whereabouts() h,
                   LATERAL (VALUES (1, 'the WAL timeline', m.wal_timeline, h.wal_timeline),
                                   (2, 'the server''s system identifier', m.system, h.system),
                                   (3, 'the place of the jobs table', m.jobs_table, h.jobs_table)) d(n, what, was, is_)
             WHERE m.wal_timeline IS NOT NULL AND d.was IS DISTINCT FROM d.is_);
END $$;

-- Writes down that an epoch has begun, and where the database is.
CREATE OR REPLACE FUNCTION tenure.begin_epoch(p_epoch bigint, p_at bigint, p_reason text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    UPDATE tenure.meta m SET epoch = p_epoch, floor = (p_epoch << 40) + tenure.salt(), wal_timeline = h.wal_timeline, system = h.system, jobs_table = h.jobs_table
      FROM tenure.whereabouts() h;
    INSERT INTO tenure.epochs (epoch, at, reason) VALUES (p_epoch, p_at, p_reason) ON CONFLICT (epoch) DO NOTHING;
END $$;

-- How far the server has come: the installation, its epoch, and up to where the write-ahead log is on disk. NULL if the server
-- does not tell. A crash of the server loses nothing of what this tells, so it never goes back by itself.
CREATE OR REPLACE FUNCTION tenure.progress_of_server() RETURNS text
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN (SELECT concat_ws(' ', m.installation, m.epoch, pg_current_wal_flush_lsn()) FROM tenure.meta m
             WHERE m.wal_timeline > 0);
END $$;

-- The workers are witnesses: a server that has not come as far as one of them has seen it was put back, by a snapshot of its
-- disk for example, though its timeline and its system identifier are the same. Then a new epoch begins, and the answer is true.
-- Each epoch that begins so carries the time, so callers that show what is not true begin one in ten minutes at most.
CREATE OR REPLACE FUNCTION tenure.witnessed(p_seen text, t bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    new_epoch CONSTANT bigint := tenure.raised(0, t);
    seen_epoch bigint;
    seen_lsn   pg_lsn;
    is_lsn     pg_lsn;
BEGIN
    IF p_seen !~ '^[0-9a-f-]{36} [0-9]{1,7} [0-9A-F]{1,8}/[0-9A-F]{1,8}$' THEN
        RETURN false;
    END IF;
    seen_lsn := split_part(p_seen, ' ', 3)::pg_lsn;
    is_lsn := (SELECT pg_current_wal_insert_lsn() FROM tenure.meta m WHERE m.wal_timeline > 0);
    IF (seen_lsn > is_lsn) IS NOT TRUE THEN
        RETURN false;
    END IF;
    -- If the database notices by itself that it is elsewhere, its epoch is above the one that was seen.
    PERFORM tenure.floor_kept(t);
    seen_epoch := split_part(p_seen, ' ', 2)::bigint;
    PERFORM 1 FROM tenure.meta m
      WHERE m.installation::text = split_part(p_seen, ' ', 1) AND m.epoch <= seen_epoch AND seen_epoch < new_epoch
        FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    IF current_setting('synchronous_commit') = 'off' THEN PERFORM tenure.be_durable(); END IF;
    PERFORM tenure.begin_epoch(new_epoch, t, format('a worker has seen the write-ahead log at %s, and it is at %s: '
        'the server was put back to an earlier state', seen_lsn, is_lsn));
    RETURN true;
END $$;

-- The policy's delay in milliseconds after so many failures, before any chance. The library decides
-- the same in lifecycle.rs, and one table of cases holds both to it.
CREATE OR REPLACE FUNCTION tenure.base_delay(retry json, failures int) RETURNS bigint
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
    step   int := greatest(failures - 1, 0);
    policy text;
    rule   json;
    delay  numeric;
BEGIN
    SELECT e.key, e.value INTO policy, rule
      FROM json_each(coalesce(retry, '{"exponential":{"base_ms":1000,"cap_ms":300000}}')) e;
    delay := CASE policy
        WHEN 'fixed' THEN (rule ->> 'ms')::numeric
        WHEN 'list' THEN coalesce((rule -> 'ms' ->> step)::numeric, (rule -> 'ms' ->> -1)::numeric, 0)
        -- Doubled 64 times, anything is longer than every cap.
        ELSE least((rule ->> 'base_ms')::numeric * 2::numeric ^ least(step, 64), (rule ->> 'cap_ms')::numeric)
    END;
    -- Not cut to the end of time yet: half of it may still be chance.
    RETURN least(delay, 9223372036854775807)::bigint;
END $$;

-- ── a job ─────────────────────────────────────────────────────────────────────────────────────────

-- Live and ended jobs as the library reads them.
CREATE OR REPLACE VIEW tenure.record AS
SELECT j.id, j.state, j.queue, j.tenant, j.kind,
       coalesce(j.args, (SELECT p.args FROM tenure.payloads p WHERE p.job_id = j.id)) AS args,
       j.priority, j.run_at, j.token, j.attempt, j.max_attempts, j.crashes, j.max_crashes, j.retry, j.max_runtime,
       j.key, j.extras, j.parent, j.enqueued_at, j.worker, j.started_at, j.leased_at, j.lease_ms,
       j.lease_until, NULL::bigint AS finished_at, NULL::json AS result, j.reason, j.progress, j.progress_note,
       j.crashed_at, j.lane & 2305843009213693952 <> 0 AS suspect, j.returns_until, j.request
  FROM tenure.jobs j
UNION ALL
SELECT d.id, d.state, d.queue, d.tenant, d.kind,
       coalesce(d.args, (SELECT p.args FROM tenure.payloads p WHERE p.job_id = d.id)),
       d.priority, d.run_at, d.token, d.attempt, d.max_attempts, d.crashes, d.max_crashes, d.retry, d.max_runtime,
       d.key, d.extras, d.parent, d.enqueued_at, d.worker, d.started_at, NULL, NULL,
       NULL, d.finished_at, d.result, d.reason, NULL, NULL, NULL, false, NULL, NULL
  FROM tenure.done d;

-- The name of a state, as every layer spells it.
CREATE OR REPLACE FUNCTION tenure.state_name(state smallint) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS
$$ SELECT ('{queued,queued,running,parked,succeeded,dead,cancelled}'::text[])[state + 1] $$;

-- A line of the timeline, unless the same call has left one before. Of one verb the last 20 stay, those of the highest
-- tokens: only they are asked for again. A worker's return is looked up for as long as the line that tells of its crash is
-- there, and is written later, so more of those stay. Refusals all stay: they are written without the job's lock, and
-- dropping some would have to wait for others.
CREATE OR REPLACE FUNCTION tenure.note(p_job bigint, p_at bigint, p_verb text, p_refused boolean, p_token bigint,
    p_attempt int, p_worker text, p_began bigint, p_became smallint, p_note text) RETURNS void
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    kept    CONSTANT int := CASE WHEN p_verb = 'return' THEN 60 ELSE 20 END;
    last_   bigint;
    dropped bigint := 0;
    more    bigint;
BEGIN
    IF NOT p_refused THEN
        SELECT l.token INTO last_ FROM tenure.timeline l
         WHERE l.job_id = p_job AND l.verb = p_verb AND l.refused = false
         ORDER BY l.token DESC LIMIT 1 OFFSET kept - 1;
        IF FOUND THEN
            SELECT max(l.earlier) INTO dropped FROM tenure.timeline l
             WHERE l.job_id = p_job AND l.verb = p_verb AND l.refused = false;
            DELETE FROM tenure.timeline l
             WHERE l.job_id = p_job AND l.verb = p_verb AND l.refused = false AND l.token <= last_;
            GET DIAGNOSTICS more = ROW_COUNT;
            dropped := dropped + more;
        END IF;
    END IF;
    INSERT INTO tenure.timeline (job_id, at, verb, refused, token, attempt, worker, began, became, note, earlier)
    VALUES (p_job, p_at, p_verb, p_refused, p_token, p_attempt, p_worker, p_began, p_became, p_note, dropped)
    ON CONFLICT (job_id, token, verb, refused) DO NOTHING;
END $$;

-- What a job is now, wherever it is: for those who did not pass the fence. Live first and then ended,
-- and live again: in between it may have been moved either way.
CREATE OR REPLACE FUNCTION tenure.current(p_job bigint, OUT token bigint, OUT state smallint)
LANGUAGE plpgsql AS $$
BEGIN
    SELECT j.token, j.state INTO token, state FROM tenure.jobs j WHERE j.id = p_job;
    IF NOT FOUND THEN
        SELECT d.token, d.state INTO token, state FROM tenure.done d WHERE d.id = p_job;
    END IF;
    IF NOT FOUND THEN
        SELECT j.token, j.state INTO token, state FROM tenure.jobs j WHERE j.id = p_job;
    END IF;
END $$;

-- Makes a refusal visible, once per job, token and verb, and answers what the job is; no row if there is no such job.
-- Its line names the attempt and the worker that had the token: by the line that ended the attempt, or by the job that it
-- completed. If neither is kept, the attempt is 0. A call without a token leaves no line.
CREATE OR REPLACE FUNCTION tenure.refuse(p_job bigint, p_shown bigint, p_verb text, p_at bigint,
    OUT token bigint, OUT state smallint)
LANGUAGE plpgsql AS $$
DECLARE
    tried  int;
    holder text;
BEGIN
    PERFORM tenure.take_crash_back(p_job, p_shown, p_at);
    SELECT c.token, c.state INTO token, state FROM tenure.current(p_job) c;
    IF token IS NOT NULL AND p_shown IS NOT NULL AND tenure.is_kept(p_job) THEN
        SELECT l.attempt, l.worker INTO tried, holder FROM tenure.timeline l
         WHERE l.job_id = p_job AND l.token = p_shown AND NOT l.refused AND l.worker IS NOT NULL ORDER BY l.seq LIMIT 1;
        IF NOT FOUND THEN
            SELECT d.attempt, d.worker INTO tried, holder FROM tenure.done d WHERE d.id = p_job AND d.token = p_shown;
        END IF;
        PERFORM tenure.note(p_job, p_at, p_verb, true, p_shown, coalesce(tried, 0), holder, NULL, state,
            CASE WHEN token = p_shown THEN 'already_settled' ELSE 'token_mismatch' END
            || ': the job''s token is ' || token);
    END IF;
END $$;

-- A worker that was taken for gone has shown its token again: the crash does not count, once. One whose lease was over may
-- come back too, within a lease's length and while the job waits for its next attempt. It never waits: a renewal comes by
-- here, and what is locked now keeps its crash.
CREATE OR REPLACE FUNCTION tenure.take_crash_back(p_job bigint, p_shown bigint, p_at bigint) RETURNS void
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    was    record;
    lapsed boolean := false;
BEGIN
    IF tenure.heard(p_job, p_shown, 'vanish') IS NULL THEN
        lapsed := true;
        -- Asked before the row is locked: it may be another worker's by now, whom an open transaction must not delay.
        IF NOT EXISTS (SELECT 1 FROM tenure.jobs j WHERE j.id = p_job AND j.returns_until >= p_at)
           OR tenure.heard(p_job, p_shown, 'lapse') IS NULL THEN
            RETURN;
        END IF;
    END IF;
    -- A requeue begins to count anew, and so may a handler's return so long after the crash. After a lapse, nothing else
    -- may have happened to the job.
    IF EXISTS (SELECT 1 FROM tenure.timeline l
                WHERE l.job_id = p_job AND l.token > p_shown AND NOT l.refused
                  AND (lapsed OR l.verb = 'requeue'
                       OR l.verb IN ('retry', 'snooze', 'park')
                          AND l.at >= tenure.crash_memory() + (SELECT v.at FROM tenure.timeline v
                                                                WHERE v.job_id = p_job AND v.token = p_shown
                                                                  AND v.verb = 'vanish' AND NOT v.refused))) THEN
        RETURN;
    END IF;
    SELECT j.state, j.returns_until, greatest(j.crashes - 1, 0) AS crashes INTO was
      FROM tenure.jobs j WHERE j.id = p_job FOR NO KEY UPDATE SKIP LOCKED;
    -- Asked under the lock: two calls with the token take one crash back.
    IF FOUND AND (NOT lapsed OR was.returns_until >= p_at) AND tenure.heard(p_job, p_shown, 'return') IS NULL THEN
        UPDATE tenure.jobs j
           SET crashes = was.crashes,
               crashed_at = CASE WHEN was.crashes > 0 THEN j.crashed_at END,
               lane = tenure.lane(j.queue, j.tenant, j.kind,
                                  tenure.is_suspect(j.lane) AND tenure.makes_suspect(was.crashes, j.max_crashes)),
               returns_until = NULL
         WHERE j.id = p_job;
        PERFORM tenure.note(p_job, p_at, 'return', false, p_shown, l.attempt, l.worker, NULL, was.state,
                            'its worker is back: the crash does not count')
           FROM tenure.timeline l
          WHERE l.job_id = p_job AND l.token = p_shown AND l.verb = CASE WHEN lapsed THEN 'lapse' ELSE 'vanish' END
            AND NOT l.refused;
    END IF;
END $$;

-- Whether a line about this job will not outlive it. An ended job is kept from being deleted until the line is
-- committed, and so is a live one whose queue forgets at once; what is being deleted at this moment gets no line.
-- It never waits: a renewal comes by here.
CREATE OR REPLACE FUNCTION tenure.is_kept(p_job bigint) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM tenure.done d WHERE d.id = p_job FOR KEY SHARE SKIP LOCKED;
    IF FOUND THEN
        RETURN true;
    ELSIF EXISTS (SELECT 1 FROM tenure.jobs j JOIN tenure.queues q ON q.queue = j.queue AND q.keep_ms = 0 WHERE j.id = p_job) THEN
        PERFORM 1 FROM tenure.jobs j WHERE j.id = p_job FOR KEY SHARE SKIP LOCKED;
        RETURN FOUND;
    END IF;
    RETURN EXISTS (SELECT 1 FROM tenure.jobs j WHERE j.id = p_job);
END $$;

-- What this verb under this token made of the job, if it was heard before; else NULL.
CREATE OR REPLACE FUNCTION tenure.heard(p_job bigint, p_token bigint, p_verb text) RETURNS smallint
LANGUAGE plpgsql AS $$
BEGIN
    RETURN (SELECT l.became FROM tenure.timeline l
             WHERE l.job_id = p_job AND l.token = p_token AND l.verb = p_verb AND l.refused = false);
END $$;

-- A live job as it stands in tenure.done once it has ended, in the order of that table's columns. Every statement that moves
-- a job there reads this function, which the server writes into it. A list of columns stands nowhere else.
CREATE OR REPLACE FUNCTION tenure.as_ended(was tenure.jobs, p_state smallint, p_token bigint, p_crashes int, p_at bigint,
    p_result json, p_reason text) RETURNS SETOF tenure.done
LANGUAGE sql STABLE AS
$$ SELECT was.id, was.run_at, p_token, was.enqueued_at, was.started_at, p_at, was.max_runtime, was.parent, was.attempt,
          was.max_attempts, p_crashes, was.max_crashes, was.priority, p_state, was.queue, was.tenant, was.kind, was.args,
          was.retry, was.key, was.extras, was.limit_key, was.worker, p_result, p_reason $$;

-- An ended job as it stands in tenure.jobs when it is queued again, due at p_at: the same the other way.
CREATE OR REPLACE FUNCTION tenure.as_queued(was tenure.done, p_token bigint, p_at bigint) RETURNS SETOF tenure.jobs
LANGUAGE sql STABLE AS
$$ SELECT was.id, tenure.lane(was.queue, was.tenant, was.kind, false), p_at, p_token, was.enqueued_at, NULL::bigint,
          NULL::bigint, NULL::bigint, NULL::bigint, was.max_runtime, was.parent, 0, was.max_attempts, 0, was.max_crashes,
          was.priority, 0::smallint /* ready */, was.queue, was.tenant, was.kind, was.args, was.retry, was.key, was.extras,
          was.limit_key, NULL::text, NULL::bigint, NULL::text, NULL::smallint, NULL::text, NULL::bigint, NULL::bigint $$;

-- Ends one job, which the caller has locked. Settling, lapsing and cancelling end here.
CREATE OR REPLACE FUNCTION tenure.end_job(p_job bigint, p_state smallint, p_token bigint, p_crashes int,
    p_at bigint, p_result json, p_reason text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    WITH ended AS (DELETE FROM tenure.jobs j WHERE j.id = p_job RETURNING j AS was)
    INSERT INTO tenure.done
    SELECT d.* FROM ended e
     CROSS JOIN LATERAL tenure.as_ended(e.was, p_state, p_token, p_crashes, p_at, p_result, p_reason) d;
END $$;

-- Back to the queue, due at p_run_at, or aside. Settling, lapsing and resuming end here.
CREATE OR REPLACE FUNCTION tenure.put_back(p_job bigint, p_parked boolean, p_run_at bigint, p_token bigint,
    p_attempt int, p_crashes int, p_crashed_at bigint, p_suspect boolean, p_reason text, p_at bigint) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    ready boolean := NOT p_parked AND p_run_at <= p_at;
    place text;
BEGIN
    UPDATE tenure.jobs j
       SET state = CASE WHEN p_parked THEN 3 WHEN ready THEN 0 ELSE 1 END,
           lane = tenure.lane(j.queue, j.tenant, j.kind, p_suspect),
           run_at = p_run_at,
           token = p_token,
           attempt = p_attempt,
           crashes = p_crashes,
           crashed_at = p_crashed_at,
           reason = p_reason,
           worker = NULL, request = NULL, started_at = NULL, leased_at = NULL, lease_ms = NULL, lease_until = NULL
     WHERE j.id = p_job
    RETURNING j.queue INTO place;
    IF ready THEN
        PERFORM tenure.announce(place, p_at);
    END IF;
END $$;

-- Deletes what is known of a job that is in neither table any more.
CREATE OR REPLACE FUNCTION tenure.forget(p_jobs bigint[]) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM tenure.payloads p WHERE p.job_id = ANY (p_jobs);
    DELETE FROM tenure.timeline l WHERE l.job_id = ANY (p_jobs);
    DELETE FROM tenure.ledger e WHERE e.job_id = ANY (p_jobs);
    DELETE FROM tenure.steps s WHERE s.job_id = ANY (p_jobs);
END $$;

-- Tells waiting workers that a queue has ready jobs, unless this session said so a moment ago: a
-- notification in every transaction halves the commits of eight callers. A hint, never needed: what
-- it leaves out is found by looking. A session may ask for quiet: a transaction that has notified cannot be prepared.
CREATE OR REPLACE FUNCTION tenure.announce(p_queue text, p_at bigint) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    pause CONSTANT bigint := 50;
    -- The schema is part of it, since a session may enqueue into several. Its name may have spaces, so it comes last.
    place CONSTANT text := p_queue || ' ' || left('tenure.', -1);
    said  text := current_setting('tenure_session.announced', true);
BEGIN
    IF current_setting('tenure_session.quiet', true) = 'on' THEN
        RETURN;
    END IF;
    -- Anybody may set it, and through a pooler others share it: it is believed only if it is ours.
    IF said ~ '^[0-9]{1,15} ' AND substr(said, strpos(said, ' ') + 1) = place
       AND p_at - split_part(said, ' ', 1)::bigint BETWEEN 0 AND pause THEN
        RETURN;
    END IF;
    PERFORM set_config('tenure_session.announced', p_at || ' ' || place, false),
            pg_notify(left('tenure.', -1), p_queue);
END $$;

-- Stores jobs, all or none, and answers each in the order given: created, existing or conflict. A list
-- that is NULL stands for its default in every place. Args are plain JSON of up to p_args_limit bytes; those above
-- 2 KiB are kept apart. What a function decides by, beyond what most jobs have, is in p_options; what no function
-- reads is in p_extras.
--
-- Keys are taken in their order, after all that can be read without a lock has been read, so that two
-- batches never wait for each other in a circle. A key whose winner rolls back is free again: the next
-- request waits for it and then stores its own job.

-- What may be asked for a job beyond its kind, args, queue, tenant and key; NULL for the usual. Of run_at and delay_ms at
-- most one is given, or the job is due at once.
SELECT tenure.put_type('job_options', 'priority smallint, run_at bigint, delay_ms bigint, max_attempts integer, '
    'max_crashes integer, retry json, max_runtime_ms bigint, key_window_ms bigint, parent bigint');

CREATE OR REPLACE FUNCTION tenure.enqueue_many(p_kinds text[], p_args json[], p_queues text[] DEFAULT NULL,
    p_tenants text[] DEFAULT NULL, p_keys text[] DEFAULT NULL, p_fingerprints bytea[] DEFAULT NULL,
    p_options json[] DEFAULT NULL, p_extras json[] DEFAULT NULL, p_args_limit int DEFAULT 262144)
RETURNS TABLE (n int, verdict text, job bigint)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET jit = off SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
    t        bigint;
    e        bigint;     -- ids too are of an epoch: one that was forgotten is never issued again
    size     int := cardinality(p_kinds);
    options  tenure.job_options[];
    ids      bigint[];   -- one for each job that is created, in the order of the batch; NULL for the others
    verdicts text[];
    loud     text[];     -- queues that have ready jobs now
BEGIN
    PERFORM tenure.check_batch(size, cardinality(p_args));
    PERFORM tenure.check_batch(size, l) FROM unnest(ARRAY[cardinality(p_queues), cardinality(p_tenants), cardinality(p_keys),
        cardinality(p_fingerprints), cardinality(p_options), cardinality(p_extras)]) l WHERE l IS NOT NULL;
    PERFORM tenure.check_names('kind', p_kinds);
    IF p_queues IS NOT NULL THEN PERFORM tenure.check_names('queue', array_remove(p_queues, NULL)); END IF;
    IF p_tenants IS NOT NULL THEN PERFORM tenure.check_names('tenant', array_remove(array_remove(p_tenants, NULL), '')); END IF;
    IF p_options IS NOT NULL THEN options := tenure.read_options(p_options); END IF;
    IF p_extras IS NOT NULL THEN PERFORM tenure.check_extras(p_extras); END IF;
    PERFORM tenure.check_new(p_args, coalesce(p_args_limit, 262144), p_keys, p_fingerprints);
    IF current_setting('synchronous_commit') = 'off' THEN PERFORM tenure.be_durable(); END IF;
    t := tenure.clock_ms();
    e := tenure.floor_of_now(t);

    IF p_keys IS NULL OR p_keys = array_fill(NULL::text, ARRAY[size]) THEN
        SELECT array_agg(e + nextval('tenure.job_id')) INTO ids FROM generate_series(1, size);
    ELSE
        SELECT k.ids, k.verdicts INTO ids, verdicts
          FROM tenure.take_keys(p_tenants, p_keys, ARRAY(SELECT o.key_window_ms FROM unnest(options) o), p_fingerprints, t, e) k;
    END IF;

    WITH incoming AS MATERIALIZED (
        SELECT u.id, u.kind, u.args, coalesce(u.queue, 'default') AS queue, coalesce(u.tenant, '') AS tenant, u.key, u.extras,
               coalesce(u.priority, 0::smallint) AS priority,
               CASE WHEN u.run_at IS NULL THEN tenure.later(t, coalesce(u.delay_ms, 0))
                    ELSE least(u.run_at, tenure.end_of_time()) END AS run_at,
               coalesce(u.max_attempts, 6) AS max_attempts, coalesce(u.max_crashes, 5) AS max_crashes,
               u.retry, u.max_runtime, u.parent, octet_length(u.args::text) > 2048 AS apart
          FROM unnest(ids, p_kinds, p_args, p_queues, p_tenants, p_keys, p_extras, options)
               AS u(id, kind, args, queue, tenant, key, extras,
                    priority, run_at, delay_ms, max_attempts, max_crashes, retry, max_runtime, key_window, parent)
         WHERE u.id IS NOT NULL),
    large AS (
        INSERT INTO tenure.payloads (job_id, args) SELECT i.id, i.args FROM incoming i WHERE i.apart),
    stored AS (
        INSERT INTO tenure.jobs (id, state, lane, priority, run_at, token, attempt, max_attempts, crashes, max_crashes,
                                 queue, tenant, kind, args, retry, max_runtime, key, extras, parent, enqueued_at)
        SELECT i.id, CASE WHEN i.run_at > t THEN 1 /* waiting */ ELSE 0 /* ready */ END,
               tenure.lane(i.queue, i.tenant, i.kind, false),
               i.priority, i.run_at, 0, 0, i.max_attempts, 0, i.max_crashes,
               i.queue, i.tenant, i.kind, CASE WHEN NOT i.apart THEN i.args END, i.retry, i.max_runtime, i.key,
               i.extras, i.parent, t
          FROM incoming i)
    SELECT array_agg(DISTINCT i.queue) INTO loud FROM incoming i WHERE i.run_at <= t;
    PERFORM tenure.announce(q, t) FROM unnest(loud) q;

    IF verdicts IS NULL THEN
        RETURN QUERY SELECT u.n::int, 'created', u.id FROM unnest(ids) WITH ORDINALITY u(id, n);
    ELSE
        RETURN QUERY SELECT u.n::int, split_part(u.verdict, ' ', 1),
                            coalesce(u.id, split_part(u.verdict, ' ', 2)::bigint)
                       FROM unnest(ids, verdicts) WITH ORDINALITY u(id, verdict, n);
    END IF;
END $$;

-- Who gets a key. The answer has for each job of the batch an id if it is to be created, and a verdict,
-- with the id of the job that has its key if there is one. Within a batch the first of equal keys is
-- the winner; a key that is remembered for no time at all wins nothing.
CREATE OR REPLACE FUNCTION tenure.take_keys(p_tenants text[], p_keys text[], p_windows_ms bigint[],
    p_fingerprints bytea[], t bigint, e bigint, OUT ids bigint[], OUT verdicts text[])
LANGUAGE plpgsql
AS $$
#variable_conflict use_column
DECLARE
    owners bigint[];  -- the job that has the key already
    marks  bytea[];   -- and its fingerprint
    firsts int[];     -- the place in the batch that wins the key
    takers int;
    taken  int;
BEGIN
    LOOP
        -- Who has the keys now, and who of this batch comes first. No lock is taken for what is only read.
        SELECT array_agg(k.job_id ORDER BY a.n), array_agg(k.fingerprint ORDER BY a.n),
               array_agg(CASE WHEN a.key IS NOT NULL THEN a.first END ORDER BY a.n)
          INTO owners, marks, firsts
          FROM (SELECT u.tenant, u.key, u.n, (min(u.n) FILTER (WHERE u.ms > 0) OVER earlier)::int AS first
                  FROM (SELECT coalesce(v.tenant, '') AS tenant, v.key, coalesce(v.ms, 86400000) AS ms, v.n
                          FROM unnest(p_tenants, p_keys, p_windows_ms) WITH ORDINALITY v(tenant, key, ms, n)) u
                WINDOW earlier AS (PARTITION BY u.tenant, u.key ORDER BY u.n
                                   ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)) a
          -- One by one, so that no plan comes to walk all keys instead.
          LEFT JOIN LATERAL (
            SELECT k.job_id, k.fingerprint FROM tenure.keys k
             WHERE k.tenant = a.tenant AND k.scope = 0 AND k.key = a.key AND k.expires_at > t LIMIT 1) k ON true;

        -- Ids in the order of the batch, for those that nobody is before.
        SELECT array_agg(CASE WHEN o.owner IS NULL AND o.first IS NULL THEN e + nextval('tenure.job_id') END ORDER BY o.n)
          INTO ids FROM unnest(owners, firsts) WITH ORDINALITY o(owner, first, n);

        -- Of several creators of one key the last is remembered: those before it were remembered for no time.
        WITH taker AS MATERIALIZED (
            SELECT DISTINCT ON (u.tenant, u.key) u.tenant, u.key, u.fingerprint, u.id, u.expires_at
              FROM (SELECT coalesce(v.tenant, '') COLLATE "C" AS tenant, v.key COLLATE "C" AS key, v.fingerprint, v.id,
                           v.n, tenure.later(t, coalesce(v.ms, 86400000)) AS expires_at
                      FROM unnest(p_tenants, p_keys, p_fingerprints, p_windows_ms, ids) WITH ORDINALITY
                           v(tenant, key, fingerprint, ms, id, n)
                     WHERE v.key IS NOT NULL AND v.id IS NOT NULL) u
             ORDER BY u.tenant, u.key, u.n DESC),
        took AS (
            INSERT INTO tenure.keys AS k (tenant, scope, key, fingerprint, job_id, expires_at)
            SELECT w.tenant, 0, w.key, w.fingerprint, w.id, w.expires_at FROM taker w ORDER BY w.tenant, w.key
            ON CONFLICT (tenant, scope, key) DO UPDATE
               SET fingerprint = excluded.fingerprint, job_id = excluded.job_id, expires_at = excluded.expires_at
             WHERE k.expires_at <= t
            RETURNING 1)
        SELECT (SELECT count(*) FROM taker), (SELECT count(*) FROM took) INTO takers, taken;
        EXIT WHEN takers = taken;
        -- Somebody was quicker with one of the keys. Ask again, and take only what is still free: fewer keys
        -- than now, all of them ours already, so that nobody is waited for out of turn.
        DELETE FROM tenure.keys k USING unnest(p_tenants, p_keys, ids) o(tenant, key, id)
         WHERE k.tenant = coalesce(o.tenant, '') AND k.scope = 0 AND k.key = o.key AND k.job_id = o.id;
    END LOOP;

    SELECT array_agg(CASE
               WHEN o.id IS NOT NULL THEN 'created'
               WHEN coalesce(o.mark, p_fingerprints[o.first]) = o.fingerprint
                   THEN 'existing ' || coalesce(o.owner, ids[o.first])
               ELSE 'conflict ' || coalesce(o.owner, ids[o.first])
           END ORDER BY o.n)
      INTO verdicts
      FROM unnest(ids, owners, marks, firsts, p_fingerprints) WITH ORDINALITY o(id, owner, mark, first, fingerprint, n);
END $$;

-- What is asked for each job, or TN003 for what makes no sense. Names that are not known are left out.
CREATE OR REPLACE FUNCTION tenure.read_options(p_options json[]) RETURNS tenure.job_options[]
LANGUAGE plpgsql
AS $$
DECLARE
    options tenure.job_options[];
    bad     text;
BEGIN
    BEGIN
        SELECT array_agg(json_populate_record(NULL::tenure.job_options, u.option) ORDER BY u.n) INTO options
          FROM unnest(p_options) WITH ORDINALITY u(option, n);
    EXCEPTION WHEN data_exception OR invalid_parameter_value THEN
        PERFORM tenure.invalid('options', SQLERRM, 'Pass an object of numbers for each job, or NULL where nothing is asked for.');
    END;
    SELECT f.field INTO bad
      FROM unnest(options) o
     CROSS JOIN LATERAL (SELECT CASE
        WHEN o.max_attempts NOT BETWEEN 1 AND 65535 THEN 'max_attempts'
        WHEN o.max_crashes NOT BETWEEN 1 AND 65535 THEN 'max_crashes'
        WHEN o.max_runtime_ms < 1 THEN 'max_runtime'
        WHEN o.key_window_ms < 0 THEN 'key_window' END AS field) f
     WHERE f.field IS NOT NULL LIMIT 1;
    CASE bad
        WHEN 'max_attempts' THEN PERFORM tenure.invalid('max_attempts', 'outside 1 to 65535', 'Leave it out for 6.');
        WHEN 'max_crashes' THEN PERFORM tenure.invalid('max_crashes', 'outside 1 to 65535', 'Leave it out for 5.');
        WHEN 'max_runtime' THEN PERFORM tenure.invalid('max_runtime', 'a runtime is at least 1 ms', 'Leave it out for no limit.');
        WHEN 'key_window' THEN
            PERFORM tenure.invalid('key_window', 'a key cannot be remembered for less than no time', 'Leave it out for 24 hours.');
        ELSE NULL;
    END CASE;
    PERFORM tenure.check_retry(o.retry) FROM unnest(options) o WHERE o.retry IS NOT NULL;
    RETURN options;
END $$;

-- A policy that the library could read, or TN003.
CREATE OR REPLACE FUNCTION tenure.check_retry(retry json) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    IF NOT tenure.is_retry_policy(retry) THEN
        PERFORM tenure.invalid('retry', 'not a policy that can be followed',
            'Write {"exponential":{"base_ms":1000,"cap_ms":300000}}, {"fixed":{"ms":500}} or {"list":{"ms":[100,200]}} with 1 to 64 delays.');
    END IF;
END $$;

-- What travels with jobs and no function reads, or TN003: a trace of up to 512 printable ASCII characters, and up to 16 tags.
CREATE OR REPLACE FUNCTION tenure.check_extras(p_extras json[]) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM tenure.check_jsons('extras', p_extras, 4096);
    IF EXISTS (SELECT 1 FROM unnest(p_extras) x WHERE json_typeof(x) <> 'object') THEN
        PERFORM tenure.invalid('extras', 'not an object', 'Leave it out where there is nothing to say.');
    ELSIF EXISTS (SELECT 1 FROM unnest(p_extras) x WHERE json_typeof(x -> 'trace') <> 'string'
                     OR x ->> 'trace' !~ '^[ -~]*$' OR length(x ->> 'trace') > 512) THEN
        PERFORM tenure.invalid('trace', 'a trace has up to 512 printable ASCII characters', 'Pass a W3C traceparent.');
    ELSIF EXISTS (SELECT 1 FROM unnest(p_extras) x
                   WHERE CASE json_typeof(x -> 'tags') WHEN 'array' THEN json_array_length(x -> 'tags') NOT BETWEEN 1 AND 16
                              ELSE x -> 'tags' IS NOT NULL END) THEN
        PERFORM tenure.invalid('tags', 'a job has up to 16 tags', 'Leave the list out where there are none.');
    END IF;
    PERFORM tenure.check_names('tag', (SELECT array_agg(w.tag) FROM unnest(p_extras) x,
        json_array_elements_text(coalesce(x -> 'tags', '[]')) w(tag)));
END $$;

-- What args and keys of new jobs must be like. The library has checked its own; others come here too.
CREATE OR REPLACE FUNCTION tenure.check_new(p_args json[], p_args_limit int, p_keys text[], p_fingerprints bytea[]) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    IF p_args_limit NOT BETWEEN 1 AND 16777216 THEN
        PERFORM tenure.invalid('args_limit', 'outside 1 byte to 16 MiB', 'Leave it out for 256 KiB.');
    END IF;
    PERFORM tenure.check_json('args', u.args, p_args_limit) FROM unnest(p_args) u(args) WHERE u.args IS NULL;
    PERFORM tenure.check_jsons('args', p_args, p_args_limit);
    IF p_keys IS NULL THEN
        RETURN;
    END IF;
    IF EXISTS (SELECT 1 FROM unnest(p_keys) k
                WHERE octet_length(k) NOT BETWEEN 1 AND 255 OR k ~ E'[\\u0001-\\u001f\\u007f-\\u009f]') THEN
        PERFORM tenure.invalid('key', 'a key has 1 to 255 bytes and no control characters', 'Use another key.');
    ELSIF EXISTS (SELECT 1 FROM unnest(p_keys, p_fingerprints) f(key, print)
                   WHERE f.key IS NOT NULL AND octet_length(f.print) IS DISTINCT FROM 32) THEN
        PERFORM tenure.invalid('fingerprint', 'a job with a key needs a fingerprint of 32 bytes',
            'Call tenure.enqueue, which computes it, or tenure.fingerprint(kind, args).');
    END IF;
END $$;

-- Refuses what the library would refuse of these values; NULL is none. A look into each value costs more than most calls, so
-- only what may be wrong is looked into: what is too large, has an escape that may stand for no character, or has brackets
-- enough to be nested too deeply.
CREATE OR REPLACE FUNCTION tenure.check_jsons(field text, p_values json[], byte_limit int) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM tenure.check_json(field, u.value, byte_limit) FROM unnest(p_values) u(value)
      WHERE octet_length(u.value::text) > byte_limit OR u.value::text LIKE E'%\\\\u%'
         OR octet_length(u.value::text) > 255
            AND octet_length(u.value::text) - octet_length(replace(replace(u.value::text, '[', ''), '{', '')) > 127;
END $$;

-- The same for what attempts came to, where most are short or none. An installation may keep up to 16 MiB of each.
CREATE OR REPLACE FUNCTION tenure.check_results(p_results json[]) RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    all_ text := array_to_string(p_results, ' ');
BEGIN
    IF octet_length(all_) > 255 OR strpos(all_, E'\\u') > 0 THEN
        PERFORM tenure.check_jsons('result', p_results, 16777216);
    END IF;
END $$;

-- Words of up to 8,192 characters each.
CREATE OR REPLACE FUNCTION tenure.shortened(p_notes text[]) RETURNS text[]
LANGUAGE plpgsql IMMUTABLE
AS $$
BEGIN
    IF octet_length(array_to_string(p_notes, '')) <= 8192 THEN
        RETURN p_notes;
    END IF;
    RETURN ARRAY(SELECT left(u.note, 8192) FROM unnest(p_notes) WITH ORDINALITY u(note, n) ORDER BY u.n);
END $$;

-- Whether the library could read this as a retry policy.
CREATE OR REPLACE FUNCTION tenure.is_retry_policy(retry json) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE
AS $$
DECLARE
    policy text;
    rule   json;
    fields bigint;
BEGIN
    IF retry IS NULL THEN
        RETURN true;
    ELSIF json_typeof(retry) <> 'object' OR (SELECT count(*) FROM json_object_keys(retry)) <> 1 THEN
        RETURN false;
    END IF;
    SELECT e.key, e.value INTO policy, rule FROM json_each(retry) e;
    IF json_typeof(rule) <> 'object' THEN
        RETURN false;
    END IF;
    SELECT count(*) INTO fields FROM json_object_keys(rule);
    RETURN CASE policy
        WHEN 'exponential' THEN fields = 2 AND tenure.is_delay(rule -> 'base_ms') AND tenure.is_delay(rule -> 'cap_ms')
        WHEN 'fixed' THEN fields = 1 AND tenure.is_delay(rule -> 'ms')
        WHEN 'list' THEN coalesce(fields = 1 AND json_typeof(rule -> 'ms') = 'array'
            AND json_array_length(rule -> 'ms') BETWEEN 1 AND 64
            AND (SELECT bool_and(tenure.is_delay(m)) FROM json_array_elements(rule -> 'ms') m), false)
        ELSE false
    END;
END $$;

-- Whether it is a whole number that fits the library's 64 bits.
CREATE OR REPLACE FUNCTION tenure.is_delay(value json) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE
AS $$
BEGIN
    RETURN coalesce(json_typeof(value) = 'number', false)
       AND value #>> '{}' ~ '^(0|[1-9][0-9]{0,19})$'
       AND CASE WHEN length(value #>> '{}') = 20 THEN (value #>> '{}')::numeric <= 18446744073709551615 ELSE true END;
END $$;

-- Takes jobs back from holders whose lease is over, or whose process is gone.

-- ── one look for all workers ──────────────────────────────────────────────────────────────────────

-- Advances the pulse, if it is time and leases are out, and answers whether this call did (leads): then the caller looks for
-- what is over and for lost workers, for all of them. Announces the queues in which a waiting job's time has come since this
-- was last looked at, so that workers may look seldom by themselves; their claims make it ready. Nothing here takes a lock
-- or waits for the disk: a pulse that is lost with a server is older, which is on the safe side, and an announcement is a
-- hint. Answers also whether leases are out, and how many workers have made themselves known, up to 1,000.
-- seen tells how far the server has come. The caller hands it in with its next call, as p_seen: see tenure.witnessed.
CREATE OR REPLACE FUNCTION tenure.beat(p_seen text DEFAULT NULL, OUT leads boolean, OUT leases_are_out boolean, OUT workers int,
    OUT seen text)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET jit = off SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
    pulse_ms CONSTANT bigint := 500;
    t     bigint := tenure.clock_ms();
    -- One in the future is from before the clock was set back.
    early boolean := (SELECT t - p.last_value BETWEEN 0 AND pulse_ms - 1 FROM tenure.pulse p);
    told  bigint := (SELECT CASE WHEN a.last_value <= t THEN a.last_value ELSE 0 END FROM tenure.announced a);
    due   text[];
BEGIN
    leads := false;
    leases_are_out := EXISTS (SELECT 1 FROM tenure.jobs j WHERE j.state = 2);
    workers := (SELECT count(*) FROM (SELECT 1 FROM tenure.workers w LIMIT 1000) known);
    seen := tenure.progress_of_server();
    IF p_seen IS NOT NULL AND tenure.witnessed(p_seen, t) THEN
        -- What follows would make this commit not wait for the disk.
        RETURN;
    END IF;
    IF NOT early AND leases_are_out THEN
        PERFORM set_config('synchronous_commit', 'off', true);
        PERFORM tenure.last_breaks(t);
        PERFORM setval('tenure.pulse', greatest(t, 1));
        leads := true;
    END IF;
    IF t - told >= pulse_ms THEN
        due := ARRAY(SELECT DISTINCT w.queue
                       FROM (SELECT j.queue FROM tenure.jobs j
                              WHERE j.state = 1 AND j.run_at + 0 > told AND j.run_at + 0 <= t
                              ORDER BY j.run_at + 0 LIMIT 1000) w);
        IF cardinality(due) > 0 THEN
            PERFORM set_config('synchronous_commit', 'off', true);
            PERFORM setval('tenure.announced', greatest(t, 1));
            PERFORM tenure.announce(q.queue, t) FROM unnest(due) q(queue);
        END IF;
    END IF;
END $$;

-- ── leases that are over ──────────────────────────────────────────────────────────────────────────

-- Longest over first, by p_grace_ms at the least: who comes late to look, because the machine stood still, passes one,
-- since others may have stood still with it. It is a look without locks; what it finds is checked again before anything
-- is written.
CREATE OR REPLACE FUNCTION tenure.overdue(p_limit int, p_grace_ms bigint DEFAULT 0) RETURNS TABLE (job bigint, token bigint)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET jit = off SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
    t    bigint := tenure.clock_ms();
    late bigint := t - tenure.check_grace(p_grace_ms);
    b    record;
BEGIN
    PERFORM tenure.check_batch(p_limit);
    IF NOT EXISTS (SELECT 1 FROM tenure.jobs j WHERE j.state = 2 AND j.lease_until <= late) THEN
        RETURN;
    END IF;
    SELECT l.started, l.broke, l.broke_before INTO b FROM tenure.last_breaks(t, false) l;
    RETURN QUERY SELECT j.id, j.token FROM tenure.jobs j
                  WHERE j.state = 2 AND j.lease_until <= late
                    AND tenure.pardoned_until(j.leased_at, j.lease_ms, j.started_at, j.max_runtime,
                                              b.started, b.broke, b.broke_before) <= late
                  ORDER BY j.lease_until, j.id LIMIT p_limit;
END $$;

-- A job that was taken back: whose it was, what it became, and what events say of it.
SELECT tenure.put_type('lapse_row', 'job bigint, token bigint, worker text, became smallint, kind text, queue text, '
    'tenant text, attempt integer, extras json');

CREATE OR REPLACE FUNCTION tenure.lapse_row_of(was tenure.jobs, became smallint) RETURNS tenure.lapse_row
LANGUAGE sql STABLE AS
$$ SELECT was.id, was.token, was.worker, became, was.kind, was.queue, was.tenant, was.attempt, was.extras $$;

CREATE OR REPLACE FUNCTION tenure.lapse_many(p_jobs bigint[], p_tokens bigint[])
RETURNS TABLE (n int, verdict text, lapsed tenure.lapse_row)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET jit = off SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
    t     bigint;
    e     bigint;
    b     record;
    shown record;
BEGIN
    PERFORM tenure.check_batch(cardinality(p_jobs), cardinality(p_tokens));
    IF current_setting('synchronous_commit') = 'off' THEN PERFORM tenure.be_durable(); END IF;
    t := tenure.clock_ms();
    e := tenure.floor_kept(t);
    SELECT l.started, l.broke, l.broke_before INTO b FROM tenure.last_breaks(t) l;
    FOR shown IN SELECT u.id, u.token, u.n::int AS n FROM unnest(p_jobs, p_tokens) WITH ORDINALITY u(id, token, n) LOOP
        n := shown.n;
        lapsed := tenure.lapse_one(shown.id, shown.token, t, e, b.started, b.broke, b.broke_before);
        verdict := CASE
            WHEN lapsed.job IS NOT NULL THEN 'lapsed'
            -- Still over, but locked: its holder may be about to commit.
            WHEN EXISTS (SELECT 1 FROM tenure.jobs j WHERE j.id = shown.id AND j.token = shown.token
                            AND j.state + 0 = 2 AND j.lease_until + 0 <= t
                            AND tenure.pardoned_until(j.leased_at, j.lease_ms, j.started_at, j.max_runtime,
                                                      b.started, b.broke, b.broke_before) + 0 <= t)
                THEN 'busy'
            ELSE 'no'
        END;
        RETURN NEXT;
    END LOOP;
END $$;

-- Takes one job back, if its lease is still over and no transaction has it locked; else the answer is NULL.
CREATE OR REPLACE FUNCTION tenure.lapse_one(p_job bigint, p_token bigint, t bigint, e bigint, started bigint, broke bigint,
    broke_before bigint) RETURNS tenure.lapse_row
LANGUAGE plpgsql
AS $$
#variable_conflict use_column
DECLARE
    was tenure.jobs;
BEGIN
    -- Only the attempt that was seen, and only if its lease is still over: its holder may have renewed
    -- or settled since.
    SELECT j.* INTO was
      FROM tenure.jobs j
     WHERE j.id = p_job
       AND tenure.pardoned_until(j.leased_at, j.lease_ms, j.started_at, j.max_runtime,
                                 lapse_one.started, lapse_one.broke, lapse_one.broke_before) <= t
       AND j.token = p_token AND j.state + 0 = 2
       AND j.lease_until + 0 <= t
       FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    RETURN tenure.lapse_row_of(was, tenure.take_back(was, 'lapse', t, e));
END $$;

-- Takes a job that the caller has locked from its holder, and answers what it became. After its first crash it keeps its
-- place in the queue; from the second on it backs off, without chance, so that the library and this agree; and it is
-- buried when crashes or attempts are used up.
CREATE OR REPLACE FUNCTION tenure.take_back(was tenure.jobs, p_verb text, t bigint, e bigint, OUT became smallint)
LANGUAGE plpgsql
AS $$
DECLARE
    why    text := CASE p_verb WHEN 'vanish' THEN 'its worker vanished' ELSE 'its lease was over' END;
    buried boolean := false;
    due    bigint := was.run_at;
BEGIN
    IF was.crashes + 1 >= was.max_crashes THEN
        buried := true;
        why := 'crashed too often: max_crashes times its lease was over or its worker vanished';
    ELSIF was.attempt >= was.max_attempts THEN
        buried := true;
        why := why || ' during the last attempt';
    ELSIF was.crashes > 0 THEN
        due := tenure.later(t, tenure.base_delay(was.retry, was.crashes));
        why := why || ', after an earlier crash';
    END IF;
    IF buried THEN
        became := 5;
        PERFORM tenure.end_job(was.id, became, tenure.next_token(was.token, e), was.crashes + 1, t, NULL, why);
    ELSE
        became := 0;
        PERFORM tenure.put_back(was.id, false, due, tenure.next_token(was.token, e), was.attempt, was.crashes + 1,
            t, tenure.makes_suspect(was.crashes + 1, was.max_crashes), NULL, t);
        -- A worker whose lease alone was over may come back, until the lease would have been over once more.
        IF p_verb = 'lapse' AND (was.started_at + was.max_runtime <= t) IS NOT TRUE THEN
            UPDATE tenure.jobs j SET returns_until = t + was.lease_ms WHERE j.id = was.id;
        END IF;
    END IF;
    PERFORM tenure.note(was.id, t, p_verb, false, was.token, was.attempt, was.worker, was.started_at, became, why);
END $$;

-- ── workers whose process is gone ─────────────────────────────────────────────────────────────────
--
-- A worker's session holds an advisory lock, which the server frees when the session ends, and so when the process dies.
-- But a freed lock is not always a dead process: an administrator ends a session under a living client, a restart ends
-- them all. So it counts only if it was taken in this life of the server and has been seen free twice, with
-- time between to take it again: the guard gap of the installation. A worker whose connections are cut for longer than
-- that loses its jobs, whatever its lease. Fencing keeps every mistake here safe, and a crash that was none is taken back.

-- The lock of a worker. The schema is part of it, since several may share a database.
CREATE OR REPLACE FUNCTION tenure.guard_key(worker text) RETURNS bigint
LANGUAGE sql STABLE PARALLEL SAFE AS
$$ SELECT ('x' || encode(substring(sha256(convert_to(left('tenure.', -1) || ' ' || worker, 'UTF8')) FROM 1 FOR 8), 'hex'))::bit(64)::bigint $$;

-- All locks of workers that are held, by anybody. A look at the server's table of locks, and not a try at each: that would
-- be in the way of a worker that is taking its lock, and it would succeed in the very session that has it.
CREATE OR REPLACE FUNCTION tenure.held_locks() RETURNS bigint[]
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN (SELECT coalesce(array_agg((l.classid::bigint << 32) | l.objid::bigint), '{}') FROM pg_locks l
             WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.mode = 'ExclusiveLock' AND l.granted
               AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database()));
END $$;

-- Takes the lock of a worker for this session, if it has not got it yet, and answers whether it has. For a moment it waits:
-- the server may not have noticed yet that the session before this one has ended.
CREATE OR REPLACE FUNCTION tenure.guard(p_worker text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '200ms'
AS $$
BEGIN
    PERFORM tenure.check_worker(p_worker);
    IF NOT tenure.is_guarding(p_worker) THEN
        PERFORM pg_advisory_lock(tenure.guard_key(p_worker));
    END IF;
    RETURN true;
EXCEPTION WHEN lock_not_available THEN
    RETURN false;
END $$;

-- Whether this very session has the lock. Asked in a statement of its own: through a pooler it may be another session.
CREATE OR REPLACE FUNCTION tenure.is_guarding(p_worker text) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN EXISTS (SELECT 1 FROM pg_locks l
                    WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.mode = 'ExclusiveLock' AND l.granted
                      AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
                      AND l.pid = pg_backend_pid()
                      AND (l.classid::bigint << 32) | l.objid::bigint = tenure.guard_key(p_worker));
END $$;

-- Makes a worker known, after it has taken its lock, or could not. Each time counts as another taking, so that what was
-- seen of the lock before says nothing any more.
CREATE OR REPLACE FUNCTION tenure.register(p_worker text, p_queues text[], p_kinds text[], p_guarded boolean) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    PERFORM tenure.check_worker(p_worker), tenure.check_names('queue', p_queues);
    IF p_kinds IS NOT NULL THEN PERFORM tenure.check_names('kind', p_kinds); END IF;
    IF p_queues IS NULL OR p_guarded IS NULL THEN
        PERFORM tenure.invalid('queues', 'a worker says from which queues it works, and whether it has its lock',
            'Call tenure.guard(worker) first, and pass its answer.');
    END IF;
    INSERT INTO tenure.workers AS w (worker, queues, kinds, guarded, under, takings, taken_at)
    VALUES (p_worker, array_to_string(p_queues, ' '), array_to_string(p_kinds, ' '), p_guarded, tenure.started_ms(), 1,
            tenure.clock_ms())
    ON CONFLICT (worker) DO UPDATE
       SET queues = excluded.queues, kinds = excluded.kinds, guarded = excluded.guarded, under = excluded.under,
           takings = w.takings + 1, taken_at = excluded.taken_at, free_since = NULL;
END $$;

-- Forgets a worker that has nothing left to do, and gives its lock back if this session has it.
CREATE OR REPLACE FUNCTION tenure.retire(p_worker text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    DELETE FROM tenure.workers w WHERE w.worker = p_worker;
    IF tenure.is_guarding(p_worker) THEN
        PERFORM pg_advisory_unlock(tenure.guard_key(p_worker));
    END IF;
END $$;

-- Looks at the locks of all workers, and takes back up to p_limit jobs of those that are gone, whatever their leases say.
-- One look is not enough to tell. It never waits: a job that an open transaction has locked is left for the next call.
CREATE OR REPLACE FUNCTION tenure.vanished(p_limit int) RETURNS SETOF tenure.lapse_row
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET jit = off SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
    gap_ms bigint := (SELECT m.guard_gap FROM tenure.meta m);
    t    bigint;
    e    bigint;
    s    bigint;
    locks bigint[];
    gone text[] := '{}';   -- who is
    seen record;
    was  tenure.jobs;
BEGIN
    PERFORM tenure.check_batch(p_limit);
    t := tenure.clock_ms();
    s := tenure.started_ms();
    -- After a break workers come back one by one, and their locks with them.
    IF (SELECT l.broke FROM tenure.last_breaks(t, false) l) > t - 10000 THEN
        gap_ms := greatest(gap_ms, 5000);
    END IF;
    locks := tenure.held_locks();
    -- Few need a second look: those whose lock is free, and those whose lock was seen free and is not. Nothing is written for the
    -- others, who are as they should be.
    FOR seen IN
        WITH looked AS MATERIALIZED (
            SELECT w.worker, w.takings, w.free_since, w.guarded, w.under,
                   tenure.guard_key(w.worker) IN (SELECT unnest(locks)) AS is_held
              FROM tenure.workers w)
        SELECT w.worker, w.takings, w.free_since, w.is_held FROM looked w
         WHERE CASE WHEN w.is_held THEN w.free_since IS NOT NULL ELSE w.guarded AND w.under = s END
         ORDER BY w.worker
    LOOP
        IF seen.is_held OR seen.free_since IS NULL THEN
            UPDATE tenure.workers w SET free_since = CASE WHEN NOT seen.is_held THEN t END
             WHERE w.worker = ANY (ARRAY(SELECT f.worker FROM tenure.workers f
                                          WHERE f.worker = seen.worker AND f.takings = seen.takings FOR UPDATE SKIP LOCKED));
            CONTINUE;
        END IF;
        CONTINUE WHEN seen.free_since + gap_ms > t;
        PERFORM 1 FROM tenure.workers w
          WHERE w.worker = seen.worker
            AND w.takings = seen.takings AND w.free_since = seen.free_since
            FOR UPDATE SKIP LOCKED;
        CONTINUE WHEN NOT FOUND;
        gone := gone || seen.worker;
    END LOOP;
    IF cardinality(gone) = 0 THEN
        RETURN;
    END IF;
    IF current_setting('synchronous_commit') = 'off' THEN PERFORM tenure.be_durable(); END IF;
    e := tenure.floor_kept(t);
    -- One walk over what is running, however many are gone.
    FOR was IN
        SELECT j.* FROM tenure.jobs j
         WHERE j.state = 2 AND j.worker = ANY (gone)
         ORDER BY j.worker, j.lease_until, j.id LIMIT p_limit FOR UPDATE SKIP LOCKED
    LOOP
        RETURN NEXT tenure.lapse_row_of(was, tenure.take_back(was, 'vanish', t, e));
    END LOOP;
    DELETE FROM tenure.workers w
     WHERE w.worker = ANY (gone)
       AND w.worker NOT IN (SELECT j.worker FROM tenure.jobs j WHERE j.state = 2 AND j.worker = ANY (gone));
END $$;

-- Leases due jobs: promote, lapse, walk the ring, take.
--
-- Ready jobs stand in lanes, and the lanes of one (queue, tenant) are a group. A claim walks the ring of
-- groups that have work for it, beginning after the last one that its worker was served from, and takes
-- an equal share from each. It never waits for a row: what somebody else has locked is passed by.

-- The rows of an answer, told apart by `what`: 'lapsed' for each job that was taken back on the way,
-- 'claimed' for each that was leased, in the order of `place`, and one 'next' with where the next claim
-- goes on. 'settled' is for settle_and_claim. What does not belong to a row is NULL.
SELECT tenure.put_type('claim_row',
    'what text, place integer, job bigint, token bigint, verdict text, became smallint, state smallint, worker text, '
    'kind text, args json, queue text, tenant text, attempt integer, max_attempts integer, crashes integer, '
    'max_crashes integer, retry json, max_runtime bigint, run_at bigint, started_at bigint, enqueued_at bigint, '
    'lease_until bigint, key text, extras json, cursor bigint, due_ms bigint, marks text');

-- Where claims begin while dead entries are in their way: see the end of this file.
SELECT tenure.put_type('marks',
    'waiting_from bigint, waiting_until bigint, running_from bigint, running_until bigint, ready_until bigint, '
    'lanes bigint[], priorities smallint[], run_at bigint[], ids bigint[]');

-- Refuses a claim in a transaction that has written something. If that were rolled back, the tokens would go back with it and
-- be issued again, while the caller has begun to work under them. p_in_transaction says that the caller knows: it begins no job
-- before its COMMIT is answered. In a database with a test clock nothing is refused, since a proof never commits.
CREATE OR REPLACE FUNCTION tenure.check_alone(p_in_transaction boolean) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF p_in_transaction IS NOT TRUE AND NOT EXISTS (SELECT 1 FROM tenure.clock) THEN
        PERFORM tenure.invalid('transaction', 'this one has written something; if it were rolled back, the token of a claim would be issued twice',
            'Claim in a transaction of its own, with autocommit in most drivers, and commit before you begin the job.');
    END IF;
END $$;

-- p_in_transaction: see check_alone. p_round: the caller keeps the cursor from claim to claim, and this one is part of a round
-- that ends with this group. Then a claim that has passed 100 lanes of other kinds by looks no further, and if it has room
-- left, the verdict 'midway' tells the caller to go on from the cursor with the same p_round. Without p_round each claim
-- goes all the way around. p_request: a number of the caller's, by which tenure.held answers this claim again.
CREATE OR REPLACE FUNCTION tenure.claim_many(p_worker text, p_queues text[], p_kinds text[], p_n int, p_lease_ms bigint,
    p_cursor bigint DEFAULT 0, p_marks text DEFAULT NULL, p_grace_ms bigint DEFAULT 0, p_in_transaction boolean DEFAULT false,
    p_round bigint DEFAULT NULL, p_request bigint DEFAULT NULL)
RETURNS SETOF tenure.claim_row
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET jit = off SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
    lapse_limit  CONSTANT int := 32;
    group_limit  CONSTANT int := 64;
    pass_limit   CONSTANT int := 100;
    suspicion_ms CONSTANT bigint := 60000;
    t       bigint;
    e       bigint;
    b       record;     -- the server's start and the last breaks: asked for only when a lease looks over
    late    bigint;     -- leases that were over by then are taken back
    queues  text[];     -- those asked for that are not paused
    due     text[];     -- those of them in which a waiting job's time has come
    most    int;        -- how many of each of them become ready
    kinds   bigint[];   -- the numbers of the kinds asked for; NULL for all
    allowed boolean;    -- whether a suspect may still be taken: one at a time for each worker
    alone   boolean;    -- whether the worker holds no suspect: then also one whose next crash would bury it
    ranges  bigint[];   -- the first and last group of each stretch of the ring, in order
    i       int := 1;   -- where in them the walk is
    walked_to bigint;
    room    int := p_n; -- how many more are wanted
    taken   int := 0;
    lanes   bigint[];   -- the lanes of this round that can be served
    places  int[];      -- and for each the place of its group in the round
    groups  bigint[];   -- the groups of this round, in the order of the ring
    rich    int[];      -- the places of those that may have more
    share   int;
    jobs    bigint[];   -- what one pass takes, in order
    spots   tid[];      -- and where each is: locked, and so it stays there
    givers  int[];      -- and the place of the group that each is from
    with_suspect boolean;
    reached bigint := p_cursor;
    start   bigint := least(p_cursor, 1::bigint << 46);  -- the ring ends there
    stop    bigint := least(coalesce(p_round, start), 1::bigint << 46);
    to_pass int := CASE WHEN p_round IS NULL THEN 2147483647 ELSE pass_limit END;  -- how many more lanes may be passed by
    over    record;
    lapsed  tenure.lapse_row;
    answer  tenure.claim_row;
    known   tenure.marks;
    read    bigint;     -- entries of an index read so far
    saved   bigint;     -- for how long a mark there would be used
    ours    bigint[] := '{}';
    seen    int;
BEGIN
    IF pg_current_xact_id_if_assigned() IS NOT NULL THEN PERFORM tenure.check_alone(p_in_transaction); END IF;
    PERFORM tenure.check_batch(p_n), tenure.check_lease(p_lease_ms), tenure.check_worker(p_worker);
    IF coalesce(cardinality(p_queues), 0) = 0 THEN
        PERFORM tenure.invalid('queues', 'a claim names at least one queue', 'Jobs that name none are in ''default''.');
    END IF;
    IF current_setting('synchronous_commit') = 'off' THEN PERFORM tenure.be_durable(); END IF;
    t := tenure.clock_ms();
    late := t - tenure.check_grace(p_grace_ms);
    e := tenure.floor_kept(t);
    known := tenure.read_marks(p_marks, t);

    -- Waiting jobs whose time has come become ready: those of the queues asked for, and not many more than are asked for. A
    -- claim that is left open in a transaction has them locked.
    read := tenure.entries_read('tenure.jobs_waiting');
    seen := 0;
    SELECT array_agg(q.queue), array_agg(q.queue) FILTER (WHERE EXISTS (
               SELECT 1 FROM tenure.jobs w
                WHERE w.state = 1 AND w.queue = q.queue AND w.run_at >= known.waiting_from AND w.run_at <= t))
      INTO queues, due
      FROM (SELECT DISTINCT u.queue FROM unnest(p_queues) u(queue)) q
     WHERE NOT EXISTS (SELECT 1 FROM tenure.queues s WHERE s.queue = q.queue AND s.paused_at IS NOT NULL);
    IF due IS NOT NULL THEN
        most := tenure.promote_limit(p_n, cardinality(due));
        seen := tenure.promote(due, most, known.waiting_from, t);
    END IF;
    saved := tenure.mark_for(tenure.entries_read('tenure.jobs_waiting') - read);
    IF saved IS NOT NULL AND (due IS NULL OR seen < most) THEN
        known.waiting_from := t;
        known.waiting_until := coalesce(known.waiting_until, t + saved);
    END IF;
    -- Leases that are over are taken back, so that nothing else need be running for progress.
    read := tenure.entries_read('tenure.jobs_running');
    seen := 0;
    answer.what := 'lapsed';
    IF EXISTS (SELECT 1 FROM tenure.jobs r WHERE r.state = 2 AND r.lease_until >= known.running_from AND r.lease_until <= late) THEN
        SELECT l.started, l.broke, l.broke_before INTO b FROM tenure.last_breaks(t) l;
        FOR over IN
            SELECT r.id, r.token FROM tenure.jobs r
             WHERE r.state = 2 AND r.lease_until >= known.running_from AND r.lease_until <= late
               AND tenure.pardoned_until(r.leased_at, r.lease_ms, r.started_at, r.max_runtime,
                                         b.started, b.broke, b.broke_before) <= late
             ORDER BY r.lease_until, r.id LIMIT lapse_limit FOR UPDATE SKIP LOCKED
        LOOP
            seen := seen + 1;
            lapsed := tenure.lapse_one(over.id, over.token, t, e, b.started, b.broke, b.broke_before);
            answer.job := lapsed.job;
            answer.token := lapsed.token;
            answer.worker := lapsed.worker;
            answer.became := lapsed.became;
            answer.kind := lapsed.kind;
            answer.queue := lapsed.queue;
            answer.tenant := lapsed.tenant;
            answer.attempt := lapsed.attempt;
            answer.extras := lapsed.extras;
            RETURN NEXT answer;
        END LOOP;
    END IF;

    saved := tenure.mark_for(tenure.entries_read('tenure.jobs_running') - read);
    IF saved IS NOT NULL AND seen < lapse_limit THEN
        -- Not beyond a lease that is over but for the server's start.
        known.running_from := coalesce((SELECT r.lease_until FROM tenure.jobs r
                                         WHERE r.state = 2 AND r.lease_until >= known.running_from AND r.lease_until <= late
                                         ORDER BY r.lease_until LIMIT 1), late);
        known.running_until := coalesce(known.running_until, t + saved);
    END IF;

    IF p_kinds IS NOT NULL THEN
        SELECT coalesce(array_agg(tenure.prefix(k, 15)), '{}') INTO kinds FROM unnest(p_kinds) k;
    END IF;
    -- Not beside one that has not run for long, nor beside one that the next crash would bury.
    SELECT count(*) = 0, coalesce(bool_and(r.started_at <= t - suspicion_ms AND r.crashes + 1 < r.max_crashes), true)
      INTO alone, allowed FROM tenure.jobs r
     WHERE r.state = 2 AND r.lane & 2305843009213693952 <> 0 AND r.worker = p_worker;
    -- From the cursor to the end, then from the beginning to where the round began.
    SELECT array_agg(b.bound ORDER BY s.part, s.first, b.side) INTO ranges
      FROM (SELECT DISTINCT tenure.prefix(q, 20) AS number FROM unnest(queues) q) n
     CROSS JOIN LATERAL (VALUES (0, greatest(n.number << 26, start + 1),
                                    least(((n.number + 1) << 26) - 1, CASE WHEN stop > start THEN stop END)),
                                (1, n.number << 26,
                                    least(((n.number + 1) << 26) - 1, CASE WHEN stop > start THEN -1 ELSE stop END))
                        ) s(part, first, last)
     CROSS JOIN LATERAL (VALUES (0, s.first), (1, s.last)) b(side, bound)
     WHERE s.first <= s.last;

    read := tenure.entries_read('tenure.jobs_ready');
    WHILE room > 0 AND to_pass > 0 AND i < cardinality(ranges) LOOP
        lanes := '{}';
        places := '{}';
        groups := '{}';
        WHILE cardinality(groups) < least(room, group_limit) AND to_pass > 0 AND i < cardinality(ranges) LOOP
            SELECT lanes || w.more_lanes, places || w.more_places, groups || w.more_groups, w.last, to_pass - w.passed
              INTO lanes, places, groups, walked_to, to_pass
              FROM tenure.walk(ranges[i], ranges[i + 1], kinds, allowed, least(room, group_limit) - cardinality(groups),
                               to_pass, cardinality(groups), known) w;
            ranges[i] := walked_to + 1;
            IF walked_to = ranges[i + 1] THEN
                i := i + 2;
            END IF;
        END LOOP;
        -- Equal shares from these groups, until there is no room or no work in them.
        rich := ARRAY(SELECT generate_series(1, cardinality(groups)));
        WHILE room > 0 AND cardinality(rich) > 0 LOOP
            share := (room + cardinality(rich) - 1) / cardinality(rich);
            SELECT p.jobs, p.spots, p.givers, p.with_suspect INTO jobs, spots, givers, with_suspect
              FROM tenure.pick(lanes, places, rich, queues, p_kinds, share, room, allowed, alone, known) p;
            EXIT WHEN jobs IS NULL;
            ours := ours || jobs;
            -- The attempt is counted here, not at failure: a worker that never comes back has used one up. The
            -- new token is above every earlier one of this job, also across epochs.
            RETURN QUERY
            UPDATE tenure.jobs j
               SET state = 2,
                   attempt = j.attempt + 1,
                   token = greatest(j.token, e) + 1,
                   worker = p_worker,
                   request = p_request,
                   started_at = t,
                   leased_at = t,
                   lease_ms = p_lease_ms,
                   lease_until = t + least(p_lease_ms, j.max_runtime),
                   returns_until = NULL,
                   progress = NULL, progress_note = NULL
              FROM unnest(jobs, spots) WITH ORDINALITY p(id, spot, place)
             WHERE j.ctid = p.spot AND j.id + 0 = p.id
               AND j.state + 0 = 0
            RETURNING 'claimed', taken + p.place::int, j.id, j.token, NULL::text, NULL::smallint, NULL::smallint, NULL::text,
                      j.kind, coalesce(j.args, (SELECT l.args FROM tenure.payloads l WHERE l.job_id = j.id)),
                      j.queue, j.tenant, j.attempt, j.max_attempts, j.crashes, j.max_crashes,
                      j.retry, j.max_runtime, j.run_at, j.started_at, j.enqueued_at, j.lease_until, j.key,
                      j.extras, NULL::bigint, NULL::bigint, NULL::text;
            taken := taken + cardinality(jobs);
            room := room - cardinality(jobs);
            allowed := allowed AND NOT with_suspect;
            reached := groups[givers[cardinality(givers)]];
            -- Only who gave all that was wanted of it may have more.
            SELECT coalesce(array_agg(g.place ORDER BY g.place), '{}') INTO rich
              FROM (SELECT u.place FROM unnest(givers) u(place) GROUP BY u.place HAVING count(*) >= share) g;
        END LOOP;
    END LOOP;

    known := tenure.mark_ready(known, ours, tenure.entries_read('tenure.jobs_ready') - read, t);

    answer := NULL;
    answer.what := 'next';
    answer.cursor := reached;
    IF room > 0 AND to_pass <= 0 AND walked_to <> stop THEN
        answer.cursor := walked_to;
        answer.verdict := 'midway';
    END IF;
    IF room > 0 THEN
        SELECT min(greatest(w.run_at - t, 0)) INTO answer.due_ms
          FROM unnest(queues) q(queue) CROSS JOIN LATERAL (
            SELECT w.run_at FROM tenure.jobs w
             WHERE w.state = 1 AND w.queue = q.queue AND w.run_at >= known.waiting_from
             ORDER BY w.run_at LIMIT 1) w;
    END IF;
    IF known.lanes IS NOT NULL OR known.waiting_until IS NOT NULL OR known.running_until IS NOT NULL THEN
        answer.marks := row_to_json(known);
    END IF;
    RETURN NEXT answer;
END $$;

-- How many jobs of each of so many queues become ready in a claim of so many jobs: ten times as many as are claimed, but
-- 100 to 1,000 in all.
CREATE OR REPLACE FUNCTION tenure.promote_limit(p_n int, p_queues int) RETURNS int
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS
$$ SELECT (least(greatest(10 * p_n, 100), 1000) + p_queues - 1) / p_queues $$;

-- Waiting jobs of these queues whose time has come become ready, the oldest p_limit of each. Answers how many did.
CREATE OR REPLACE FUNCTION tenure.promote(p_queues text[], p_limit int, p_from bigint, t bigint) RETURNS int
LANGUAGE plpgsql
AS $$
#variable_conflict use_column
DECLARE
    promoted int;
BEGIN
    -- Looked for once, whatever the plan: a subquery that is run again skips what was updated meanwhile, and
    -- its limit no longer holds.
    WITH due AS MATERIALIZED (
        SELECT d.id FROM unnest(p_queues) q(queue) CROSS JOIN LATERAL (
            SELECT w.id FROM tenure.jobs w
             WHERE w.state = 1 AND w.queue = q.queue AND w.run_at >= p_from AND w.run_at <= t
             ORDER BY w.run_at, w.id LIMIT p_limit FOR UPDATE SKIP LOCKED) d)
    UPDATE tenure.jobs j SET state = 0 FROM due
     WHERE j.id = due.id AND j.state + 0 = 1;
    GET DIAGNOSTICS promoted = ROW_COUNT;
    RETURN promoted;
END $$;

-- The next groups between two that have ready jobs of a kind asked for, and the lanes they stand in:
-- a skip-scan, one index probe for each lane. Suspects have lanes of their own, further up. It ends with the group in which it
-- has passed p_to_pass lanes of other kinds by.
CREATE OR REPLACE FUNCTION tenure.walk(p_first bigint, p_last bigint, p_kinds bigint[], p_suspects boolean, p_limit int,
    p_to_pass int, p_before int, known tenure.marks, OUT more_lanes bigint[], OUT more_places int[],
    OUT more_groups bigint[], OUT last bigint, OUT passed int)
LANGUAGE plpgsql
AS $$
#variable_conflict use_column
DECLARE
    suspect_lane CONSTANT bigint := 1::bigint << 61;
    found_lanes  bigint[];   -- of all kinds
    cut          bigint;     -- the group in which enough lanes were passed by
BEGIN
    IF known.lanes IS NULL THEN
        WITH RECURSIVE side(low, high) AS (
            SELECT p_first << 15, (p_last + 1) << 15
            UNION ALL SELECT (p_first << 15) + suspect_lane, ((p_last + 1) << 15) + suspect_lane WHERE p_suspects),
        walk(lane, high, group_, found, passed_by) AS (
            SELECT (SELECT j.lane FROM tenure.jobs j WHERE j.state = 0 AND j.lane >= s.low AND j.lane < s.high
                     ORDER BY j.lane LIMIT 1), s.high, NULL::bigint, 0, 0
              FROM side s
            UNION ALL
            SELECT (SELECT j.lane FROM tenure.jobs j
                     WHERE j.state = 0 AND j.lane > w.lane
                       -- All lanes of the group in which the walk ends are known.
                       AND j.lane < CASE WHEN k.passed_by < p_to_pass THEN w.high ELSE ((w.lane >> 15) + 1) << 15 END
                     ORDER BY j.lane LIMIT 1),
                   w.high, CASE WHEN served THEN w.lane >> 15 ELSE w.group_ END,
                   w.found + (served AND w.lane >> 15 IS DISTINCT FROM w.group_)::int, k.passed_by
              FROM walk w
             CROSS JOIN LATERAL (SELECT p_kinds IS NULL OR w.lane & 32767 = ANY (p_kinds) AS served) s
             CROSS JOIN LATERAL (SELECT w.passed_by + (NOT served)::int AS passed_by) k
             -- One group more than is wanted, so that all lanes of the last one are known.
             WHERE w.lane IS NOT NULL AND w.found <= p_limit)
        SELECT array_agg(w.lane) INTO found_lanes FROM walk w WHERE w.lane IS NOT NULL;
    ELSE
        found_lanes := tenure.walk_past_marks(p_first << 15, (p_last + 1) << 15, p_kinds, p_limit, p_to_pass, known);
        IF p_suspects THEN
            found_lanes := found_lanes || tenure.walk_past_marks((p_first << 15) + suspect_lane,
                ((p_last + 1) << 15) + suspect_lane, p_kinds, p_limit, p_to_pass, known);
        END IF;
    END IF;

    IF found_lanes IS NULL OR cardinality(found_lanes) = 0 THEN
        more_lanes := '{}';
        more_places := '{}';
        more_groups := '{}';
        last := p_last;
        passed := 0;
        RETURN;
    END IF;
    WITH numbered AS (
        SELECT (l.lane & ~suspect_lane) >> 15 AS number, p_kinds IS NULL OR l.lane & 32767 = ANY (p_kinds) AS served
          FROM unnest(found_lanes) l(lane)),
    counted AS (
        SELECT n.number, bool_or(n.served) AS served, count(*) FILTER (WHERE NOT n.served) AS others,
               sum(count(*) FILTER (WHERE NOT n.served)) OVER (ORDER BY n.number) AS passed_by
          FROM numbered n GROUP BY n.number),
    ranked AS (
        SELECT c.number, c.served, c.passed_by, count(*) FILTER (WHERE c.served) OVER (ORDER BY c.number) AS rank
          FROM counted c WHERE c.passed_by - c.others < p_to_pass)
    SELECT coalesce(array_agg(r.number ORDER BY r.number) FILTER (WHERE r.served AND r.rank <= p_limit), '{}'),
           max(r.number) FILTER (WHERE r.passed_by >= p_to_pass)
      INTO more_groups, cut FROM ranked r;
    last := CASE WHEN cardinality(more_groups) = p_limit THEN more_groups[p_limit] ELSE coalesce(cut, p_last) END;
    SELECT coalesce(array_agg(l.lane) FILTER (WHERE l.served), '{}'),
           coalesce(array_agg(p_before + array_position(more_groups, l.number)) FILTER (WHERE l.served), '{}'),
           count(*) FILTER (WHERE NOT l.served)
      INTO more_lanes, more_places, passed
      FROM (SELECT l.lane, (l.lane & ~suspect_lane) >> 15 AS number,
                   p_kinds IS NULL OR l.lane & 32767 = ANY (p_kinds) AS served
              FROM unnest(found_lanes) l(lane)) l
     WHERE l.number <= last;
END $$;

-- The first jobs of each group, its lanes merged by priority and age, a share from each, with one
-- suspect at most in all. Names are compared, since lanes may collide. What it answers is locked.
CREATE OR REPLACE FUNCTION tenure.pick(p_lanes bigint[], p_places int[], p_rich int[], p_queues text[], p_kinds text[],
    p_share int, p_room int, p_suspects boolean, p_alone boolean, known tenure.marks, OUT jobs bigint[], OUT spots tid[], OUT givers int[],
    OUT with_suspect boolean)
LANGUAGE plpgsql
AS $$
#variable_conflict use_column
BEGIN
    WITH lane AS MATERIALIZED (
        SELECT u.lane, u.place, u.lane >= 1::bigint << 61 AS suspect,
               coalesce(m.priority, '-32768'::smallint) AS priority, coalesce(m.run_at, '-9223372036854775808'::bigint) AS run_at,
               coalesce(m.id, 0) AS id
          FROM unnest(p_lanes, p_places) u(lane, place)
          LEFT JOIN unnest(known.lanes, known.priorities, known.run_at, known.ids) m(lane, priority, run_at, id)
            ON m.lane = u.lane
         WHERE u.place = ANY (p_rich) AND (p_suspects OR u.lane < 1::bigint << 61)),
    candidate AS MATERIALIZED (
        SELECT l.place, l.suspect, s.spot, s.id, s.priority, s.run_at
          FROM lane l CROSS JOIN LATERAL (
            SELECT j.ctid AS spot, j.id, j.priority, j.run_at FROM tenure.jobs j
             WHERE j.state = 0 AND j.lane = l.lane
               AND (j.priority, j.run_at, j.id) > (l.priority, l.run_at, l.id)
               AND j.queue = ANY (p_queues) AND (p_kinds IS NULL OR j.kind = ANY (p_kinds))
               AND (p_alone OR NOT l.suspect OR j.crashes + 1 < j.max_crashes)
             ORDER BY j.priority, j.run_at, j.id
             LIMIT CASE WHEN l.suspect THEN 1 ELSE p_share END
             FOR UPDATE SKIP LOCKED) s),
    counted AS (
        SELECT c.place, c.suspect, c.spot, c.id, c.priority, c.run_at,
               row_number() OVER (PARTITION BY c.place, c.suspect ORDER BY c.priority, c.run_at, c.id) AS alike
          FROM candidate c),
    ranked AS MATERIALIZED (
        SELECT c.place, c.suspect, c.spot, c.id, c.priority, c.run_at, c.alike,
               row_number() OVER (PARTITION BY c.place ORDER BY c.priority, c.run_at, c.id) AS rank
          FROM counted c WHERE NOT c.suspect OR c.alike = 1),
    -- The first group on the ring whose share has a suspect in it keeps it; the others do without.
    keeper AS (SELECT min(r.place) AS place FROM ranked r WHERE r.suspect AND r.rank <= p_share),
    picked AS (
        SELECT r.spot, r.id, r.place, r.suspect, r.priority, r.run_at FROM ranked r, keeper k
         WHERE CASE WHEN r.place = k.place THEN r.rank ELSE r.alike END <= p_share
           AND (NOT r.suspect OR r.place = k.place)
         ORDER BY r.place, r.priority, r.run_at, r.id LIMIT p_room)
    SELECT array_agg(p.id ORDER BY p.place, p.priority, p.run_at, p.id),
           array_agg(p.spot ORDER BY p.place, p.priority, p.run_at, p.id),
           array_agg(p.place ORDER BY p.place, p.priority, p.run_at, p.id), bool_or(p.suspect)
      INTO jobs, spots, givers, with_suspect FROM picked p;
END $$;

-- ── marks ─────────────────────────────────────────────────────────────────────────────────────────
--
-- While an old transaction holds the vacuum's horizon, entries of jobs long gone stay in the indexes, before
-- those of the living, and every claim walks over them. A mark says where to begin instead. It is kept by
-- the worker, handed in with its next claim, and only there while it hurts: it is made when a look from the
-- beginning met more than 10,000 dead entries, and forgotten after a time in proportion to them, so that
-- looks from the beginning cost a twentieth of the time. What has come in behind a mark waits that long at
-- most. Without marks, order is exact.

-- How many entries of an index this transaction has read, dead ones included.
CREATE OR REPLACE FUNCTION tenure.entries_read(index regclass) RETURNS bigint
LANGUAGE sql VOLATILE AS $$ SELECT pg_stat_get_xact_tuples_returned(index) $$;

-- For how many milliseconds a mark is used that saves so many dead entries; NULL for so few that none is
-- needed. An entry costs about 0.15 microseconds to pass.
CREATE OR REPLACE FUNCTION tenure.mark_for(dead bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$ SELECT CASE WHEN dead > 10000 THEN dead * 3 / 1000 END $$;

-- The marks that still count.
CREATE OR REPLACE FUNCTION tenure.read_marks(p_marks text, t bigint) RETURNS tenure.marks
LANGUAGE plpgsql AS $$
DECLARE
    known tenure.marks;
BEGIN
    IF p_marks IS NOT NULL THEN
        BEGIN
            known := json_populate_record(NULL::tenure.marks, p_marks::json);
        EXCEPTION WHEN data_exception THEN
            PERFORM tenure.invalid('marks', 'not what a claim has answered', 'Pass back what your last claim answered, or NULL.');
        END;
        IF known.waiting_until <= t THEN
            known.waiting_from := NULL;
            known.waiting_until := NULL;
        END IF;
        IF known.running_until <= t THEN
            known.running_from := NULL;
            known.running_until := NULL;
        END IF;
        IF known.ready_until <= t THEN
            known.lanes := NULL;
            known.priorities := NULL;
            known.run_at := NULL;
            known.ids := NULL;
            known.ready_until := NULL;
        END IF;
    END IF;
    known.waiting_from := coalesce(known.waiting_from, '-9223372036854775808'::bigint);
    known.running_from := coalesce(known.running_from, '-9223372036854775808'::bigint);
    RETURN known;
END $$;

-- Begins each lane after the last job that was taken from it: those before are taken too, or dead.
CREATE OR REPLACE FUNCTION tenure.mark_ready(known tenure.marks, p_jobs bigint[], dead bigint, t bigint) RETURNS tenure.marks
LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    -- Each job that was taken was read twice, once on the way to its lane.
    IF cardinality(p_jobs) = 0 OR known.lanes IS NULL AND tenure.mark_for(dead - 2 * cardinality(p_jobs)) IS NULL THEN
        RETURN known;
    END IF;
    known.ready_until := coalesce(known.ready_until, t + tenure.mark_for(dead));
    SELECT array_agg(m.lane ORDER BY m.lane), array_agg(m.priority ORDER BY m.lane),
           array_agg(m.run_at ORDER BY m.lane), array_agg(m.id ORDER BY m.lane)
      INTO known.lanes, known.priorities, known.run_at, known.ids
      FROM (SELECT DISTINCT ON (l.lane) l.lane, l.priority, l.run_at, l.id
              FROM (SELECT j.lane, j.priority, j.run_at, j.id
                      FROM unnest(p_jobs) p(id) JOIN tenure.jobs j ON j.id = p.id
                    UNION ALL
                    SELECT k.lane, k.priority, k.run_at, k.id
                      FROM unnest(known.lanes, known.priorities, known.run_at, known.ids) k(lane, priority, run_at, id)) l
             ORDER BY l.lane, l.priority DESC, l.run_at DESC, l.id DESC) m;
    RETURN known;
END $$;

-- The lanes that have ready jobs, as tenure.walk finds them, but passing by what lies before the marks.
CREATE OR REPLACE FUNCTION tenure.walk_past_marks(p_low bigint, p_high bigint, p_kinds bigint[], p_limit int, p_to_pass int,
    known tenure.marks)
RETURNS bigint[]
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    lanes  bigint[] := '{}';
    groups int := 0;
    group_ bigint;
    to_pass int := p_to_pass;
    low    bigint := p_low;
    found_ bigint;
    mark   record;
BEGIN
    LOOP
        SELECT m.lane, m.priority, m.run_at, m.id INTO mark
          FROM unnest(known.lanes, known.priorities, known.run_at, known.ids) m(lane, priority, run_at, id)
         WHERE m.lane >= low AND m.lane < p_high ORDER BY m.lane LIMIT 1;
        SELECT j.lane INTO found_ FROM tenure.jobs j
         WHERE j.state = 0 AND j.lane >= low AND j.lane < coalesce(mark.lane, p_high) ORDER BY j.lane LIMIT 1;
        IF NOT FOUND AND mark.lane IS NULL THEN
            EXIT;
        ELSIF NOT FOUND THEN
            low := mark.lane + 1;
            SELECT j.lane INTO found_ FROM tenure.jobs j
             WHERE j.state = 0 AND j.lane = mark.lane
               AND (j.priority, j.run_at, j.id) > (mark.priority, mark.run_at, mark.id)
             ORDER BY j.priority, j.run_at, j.id LIMIT 1;
            CONTINUE WHEN NOT FOUND;
        ELSE
            low := found_ + 1;
        END IF;
        EXIT WHEN to_pass <= 0 AND found_ >> 15 <> lanes[cardinality(lanes)] >> 15;
        IF p_kinds IS NULL OR found_ & 32767 = ANY (p_kinds) THEN
            groups := groups + (found_ >> 15 IS DISTINCT FROM group_)::int;
            EXIT WHEN groups > p_limit;
            group_ := found_ >> 15;
        ELSE
            to_pass := to_pass - 1;
        END IF;
        lanes := lanes || found_;
    END LOOP;
    RETURN lanes;
END $$;

-- A settlement of a batch and the claim of the next in one call, for a worker whose slots become free as
-- it settles.
CREATE OR REPLACE FUNCTION tenure.settle_and_claim(p_jobs bigint[], p_tokens bigint[], p_verbs text[], p_after_ms bigint[],
    p_notes text[], p_results json[], p_worker text, p_queues text[], p_kinds text[], p_n int, p_lease_ms bigint,
    p_cursor bigint DEFAULT 0, p_marks text DEFAULT NULL, p_grace_ms bigint DEFAULT 0, p_in_transaction boolean DEFAULT false,
    p_round bigint DEFAULT NULL, p_request bigint DEFAULT NULL)
RETURNS SETOF tenure.claim_row
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF pg_current_xact_id_if_assigned() IS NOT NULL THEN PERFORM tenure.check_alone(p_in_transaction); END IF;
    RETURN QUERY SELECT 'settled', s.n, NULL::bigint, s.token, s.verdict, s.became, s.state, NULL::text,
                        NULL::text, NULL::json, NULL::text, NULL::text, NULL::int, NULL::int, NULL::int, NULL::int,
                        NULL::json, NULL::bigint, NULL::bigint, NULL::bigint, NULL::bigint, NULL::bigint, NULL::text,
                        NULL::json, NULL::bigint, NULL::bigint, NULL::text
                   FROM tenure.settle_many(p_jobs, p_tokens, p_verbs, p_after_ms, p_notes, p_results) s;
    RETURN QUERY SELECT c.* FROM tenure.claim_many(p_worker, p_queues, p_kinds, p_n, p_lease_ms, p_cursor, p_marks,
                                                          p_grace_ms, true, p_round, p_request) c;
END $$;

-- Extends leases: fenced, never shorter than they were, never beyond the maximal runtime. It does not
-- touch the token, and it never waits for a row: one that an open transaction holds is answered busy,
-- neither held nor lost. Since claim and lapse skip it too, nobody can take it meanwhile.
CREATE OR REPLACE FUNCTION tenure.renew_many(p_jobs bigint[], p_tokens bigint[], p_lease_ms bigint)
RETURNS TABLE (n int, verdict text, lease_until bigint, token bigint, state smallint)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET jit = off SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
    t     bigint;
    held  int[];
    until bigint[];
    shown record;
BEGIN
    PERFORM tenure.check_batch(cardinality(p_jobs), cardinality(p_tokens)), tenure.check_lease(p_lease_ms);
    t := tenure.clock_ms();
    WITH shown AS MATERIALIZED (
        SELECT u.id, u.token, u.n FROM unnest(p_jobs, p_tokens) WITH ORDINALITY u(id, token, n)),
    free AS MATERIALIZED (
        SELECT s.n, l.spot FROM shown s CROSS JOIN LATERAL (
            SELECT j.ctid AS spot FROM tenure.jobs j
             WHERE j.id = s.id
               AND j.token = s.token AND j.state + 0 = 2
               FOR NO KEY UPDATE SKIP LOCKED) l),
    extended AS (
        UPDATE tenure.jobs j
           SET leased_at = t,
               lease_ms = p_lease_ms,
               lease_until = greatest(j.lease_until, least(t + p_lease_ms, j.started_at + least(j.max_runtime, tenure.end_of_time())))
          FROM (SELECT f.spot, array_agg(f.n) AS places FROM free f GROUP BY f.spot) f
         WHERE j.ctid = f.spot
        RETURNING f.places, j.lease_until)
    SELECT array_agg(p.n), array_agg(e.lease_until) INTO held, until FROM extended e, unnest(e.places) p(n);
    RETURN QUERY SELECT h.n, 'held', h.until, NULL::bigint, NULL::smallint FROM unnest(held, until) h(n, until);
    IF cardinality(held) = cardinality(p_jobs) THEN
        RETURN;
    END IF;

    FOR shown IN
        SELECT u.id, u.token, u.n::int AS n FROM unnest(p_jobs, p_tokens) WITH ORDINALITY u(id, token, n)
         -- Refusals leave lines, which are waited for like locks: they come in one order for all batches.
         WHERE held IS NULL OR u.n <> ALL (held) ORDER BY u.id, u.token, u.n
    LOOP
        n := shown.n;
        lease_until := NULL;
        IF EXISTS (SELECT 1 FROM tenure.jobs j WHERE j.id = shown.id AND j.token = shown.token AND j.state + 0 = 2) THEN
            verdict := 'busy';
        ELSE
            SELECT r.token, r.state INTO token, state FROM tenure.refuse(shown.id, shown.token, 'renew', t) r;
            verdict := CASE WHEN token IS NULL THEN 'gone' ELSE 'lost' END;
        END IF;
        RETURN NEXT;
    END LOOP;
END $$;

-- Notes how far jobs have come: fenced, in place of what was noted before. It touches neither the lease nor the token, and
-- it never waits for a row: one that an open transaction holds is answered busy, and nothing is noted. Of several reports
-- of one job the last counts. What is out of bounds is brought into them, since nothing depends on it.
CREATE OR REPLACE FUNCTION tenure.progress_many(p_jobs bigint[], p_tokens bigint[], p_permille smallint[], p_notes text[])
RETURNS TABLE (n int, verdict text, token bigint, state smallint)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET jit = off SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
    t     bigint;
    noted int[];
    shown record;
BEGIN
    PERFORM tenure.check_batch(cardinality(p_jobs), cardinality(p_tokens), cardinality(p_permille), cardinality(p_notes));
    WITH shown AS MATERIALIZED (
        SELECT u.id, u.token, u.permille, u.note, u.n
          FROM unnest(p_jobs, p_tokens, p_permille, p_notes) WITH ORDINALITY u(id, token, permille, note, n)),
    free AS MATERIALIZED (
        SELECT s.n, s.permille, s.note, l.spot FROM shown s CROSS JOIN LATERAL (
            SELECT j.ctid AS spot FROM tenure.jobs j
             WHERE j.id = s.id
               AND j.token = s.token AND j.state + 0 = 2
               FOR NO KEY UPDATE SKIP LOCKED) l),
    written AS (
        UPDATE tenure.jobs j
           SET progress = least(greatest(coalesce(f.permille, 0), 0), 1000),
               progress_note = tenure.shorten(nullif(f.note, ''), 200)
          FROM (SELECT f.spot, array_agg(f.n) AS places, (array_agg(f.permille ORDER BY f.n DESC))[1] AS permille,
                       (array_agg(f.note ORDER BY f.n DESC))[1] AS note
                  FROM free f GROUP BY f.spot) f
         WHERE j.ctid = f.spot
        RETURNING f.places)
    SELECT array_agg(p.n) INTO noted FROM written w, unnest(w.places) p(n);
    RETURN QUERY SELECT h.n, 'noted', NULL::bigint, NULL::smallint FROM unnest(noted) h(n);
    IF cardinality(noted) = cardinality(p_jobs) THEN
        RETURN;
    END IF;

    t := tenure.clock_ms();
    FOR shown IN
        SELECT u.id, u.token, u.n::int AS n FROM unnest(p_jobs, p_tokens) WITH ORDINALITY u(id, token, n)
         -- Refusals leave lines, which are waited for like locks: they come in one order for all batches.
         WHERE noted IS NULL OR u.n <> ALL (noted) ORDER BY u.id, u.token, u.n
    LOOP
        n := shown.n;
        token := NULL;
        state := NULL;
        IF EXISTS (SELECT 1 FROM tenure.jobs j WHERE j.id = shown.id AND j.token = shown.token AND j.state + 0 = 2) THEN
            verdict := 'busy';
        ELSE
            SELECT r.token, r.state INTO token, state FROM tenure.refuse(shown.id, shown.token, 'progress', t) r;
            verdict := CASE WHEN token IS NULL THEN 'gone' ELSE 'stale' END;
        END IF;
        RETURN NEXT;
    END LOOP;
END $$;

-- A text of at most so many bytes, cut between characters, and saying so: as the library does it in job.rs.
CREATE OR REPLACE FUNCTION tenure.shorten(words text, most int) RETURNS text
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
    mark CONSTANT text := ' …';
    kept text := left(words, most);
BEGIN
    IF octet_length(words) <= most THEN
        RETURN words;
    END IF;
    WHILE octet_length(kept) > most - octet_length(mark) LOOP
        kept := left(kept, -1);
    END LOOP;
    RETURN kept || mark;
END $$;

-- Ends attempts. The token decides: whoever shows a running job's latest token is heard, however late.
--
-- Completions are the everyday case and go in one statement. Rows are locked in the order of their
-- ids, so that two batches never wait for each other in a circle.
CREATE OR REPLACE FUNCTION tenure.settle_many(p_jobs bigint[], p_tokens bigint[], p_verbs text[], p_after_ms bigint[],
    p_notes text[], p_results json[])
RETURNS TABLE (n int, verdict text, became smallint, token bigint, state smallint)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET jit = off SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
    t         bigint;
    e         bigint;
    size      int := cardinality(p_jobs);
    distinct_ boolean;   -- no job is there twice
    plain     boolean;   -- and all are completions
    fenced    boolean := coalesce(current_setting('tenure_session.fenced', true) = 'yes', false);
    forgetful text[];    -- queues whose succeeded jobs are deleted at once
    doubtful  bigint[];  -- jobs that are kept all the same, since an effect of theirs is in doubt
    heard     int[];
    forgotten bigint[];
    shown     record;
BEGIN
    IF size = 0 THEN
        RETURN;
    END IF;
    PERFORM tenure.check_batch(size, cardinality(p_tokens), cardinality(p_verbs), cardinality(p_after_ms),
        cardinality(p_notes), cardinality(p_results)), tenure.check_results(p_results);
    p_notes := tenure.shortened(p_notes);
    SELECT count(DISTINCT u.id) = size, bool_and(u.verb = 'complete') INTO distinct_, plain
      FROM unnest(p_jobs, p_verbs) u(id, verb);
    -- Refusals leave lines in the timeline, and a line is waited for like a lock. In the order of jobs there is no circle; but
    -- those of one job come in the order of the batch, so batches with a job in them more than once come one by one.
    IF NOT distinct_ THEN
        PERFORM pg_advisory_xact_lock('tenure.jobs'::regclass::oid::int, 1);
    END IF;
    IF current_setting('synchronous_commit') = 'off' THEN PERFORM tenure.be_durable(); END IF;
    t := tenure.clock_ms();
    SELECT coalesce(array_agg(q.queue), '{}') INTO forgetful FROM tenure.queues q WHERE q.keep_ms = 0;
    -- A snapshot that is older than the job's last effect would leave it behind. Then the job is left to pruning.
    IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
        forgetful := '{}';
    END IF;
    doubtful := '{}';
    IF forgetful <> '{}' THEN
        SELECT coalesce(array_agg(l.job_id), '{}') INTO doubtful
          FROM tenure.ledger l WHERE l.state = 0 AND l.job_id = ANY (p_jobs);
    END IF;

    IF NOT (distinct_ AND plain) THEN
        PERFORM 1 FROM (SELECT DISTINCT u.id, u.token FROM unnest(p_jobs, p_tokens) u(id, token) ORDER BY u.id, u.token) s
          CROSS JOIN LATERAL (SELECT 1 FROM tenure.jobs j WHERE j.id = s.id AND j.token = s.token AND j.state + 0 = 2
                                 FOR UPDATE) l;
    END IF;
    IF distinct_ THEN
        WITH shown AS MATERIALIZED (
            SELECT u.id, u.token, u.result, u.n
              FROM unnest(p_jobs, p_tokens, p_verbs, p_results) WITH ORDINALITY u(id, token, verb, result, n)
             WHERE u.verb = 'complete' ORDER BY u.id),
        ended AS (
            -- A list of one, since only by it the planner cannot come to walk the whole table instead: it would,
            -- for as long as it believes that the table is as small as it once was.
            DELETE FROM tenure.jobs j USING shown s
             WHERE j.id = ANY (ARRAY[s.id])
               AND j.token = s.token AND j.state + 0 = 2
            RETURNING s.n, s.result, j.id, j.queue, j AS was),
        kept AS (
            INSERT INTO tenure.done
            SELECT d.* FROM ended e
             CROSS JOIN LATERAL tenure.as_ended(e.was, 4::smallint, (e.was).token, (e.was).crashes, t, e.result, NULL) d
             WHERE e.queue <> ALL (forgetful) OR e.id = ANY (doubtful))
        SELECT array_agg(e.n), array_agg(e.id) FILTER (WHERE e.queue = ANY (forgetful) AND e.id <> ALL (doubtful))
          INTO heard, forgotten
          FROM ended e;
        IF forgotten IS NOT NULL THEN
            -- The jobs are locked by now, so that nothing is opened for them any more. What was opened since the first
            -- look must not go with its job.
            IF EXISTS (SELECT 1 FROM tenure.ledger l WHERE l.state = 0 AND l.job_id = ANY (forgotten)) THEN
                RAISE EXCEPTION 'an effect was opened at the moment at which its job was completed'
                    USING ERRCODE = 'serialization_failure', HINT = 'Send it again.';
            END IF;
            PERFORM tenure.forget(forgotten);
        END IF;
        -- Only what was settled here proves a fence: a stale settlement, which is a mere value to its caller, must
        -- not open the way for the writes beside it.
        IF fenced THEN
            PERFORM tenure.prove_fences(array_agg(u.id), array_agg(u.token))
               FROM unnest(p_jobs, p_tokens) WITH ORDINALITY u(id, token, n) WHERE u.n = ANY (heard);
        END IF;
        RETURN QUERY SELECT h.n, 'settled', 4::smallint, NULL::bigint, NULL::smallint FROM unnest(heard) h(n);
        IF cardinality(heard) = size THEN
            RETURN;
        END IF;
    END IF;

    e := tenure.floor_of_now(t);
    FOR shown IN
        SELECT u.id, u.token, u.verb, u.after_ms, u.note, u.result, u.n::int AS n
          FROM unnest(p_jobs, p_tokens, p_verbs, p_after_ms, p_notes, p_results) WITH ORDINALITY
               u(id, token, verb, after_ms, note, result, n)
         WHERE heard IS NULL OR u.n <> ALL (heard) ORDER BY u.id, u.n
    LOOP
        n := shown.n;
        SELECT s.verdict, s.became, s.token, s.state INTO verdict, became, token, state
          FROM tenure.settle_one(shown.id, shown.token, shown.verb, shown.after_ms, shown.note, shown.result, t, e, forgetful) s;
        IF fenced AND verdict = 'settled' THEN
            PERFORM tenure.prove_fences(ARRAY[shown.id], ARRAY[shown.token]);
        END IF;
        RETURN NEXT;
    END LOOP;
END $$;

-- One settlement: settled, repeated (heard when it was first sent), stale or gone. What becomes of the
-- job is decided in lifecycle.rs for SQLite and here for PostgreSQL; one table of cases holds both to it.
CREATE OR REPLACE FUNCTION tenure.settle_one(p_job bigint, p_token bigint, p_verb text, p_after_ms bigint, p_note text,
    p_result json, t bigint, e bigint, forgetful text[],
    OUT verdict text, OUT became smallint, OUT token bigint, OUT state smallint)
LANGUAGE plpgsql
AS $$
#variable_conflict use_column
DECLARE
    was   tenure.jobs;
    tries int;
    suspect boolean;   -- when it goes on
    crashes int;
    crashed_at bigint;
BEGIN
    IF p_verb IS NULL OR p_verb NOT IN ('complete', 'retry', 'snooze', 'release', 'bury', 'park') THEN
        PERFORM tenure.invalid('verb', coalesce(quote_literal(p_verb), 'NULL') || ' does not end an attempt',
            'Use complete, retry, snooze, release, bury or park.');
    ELSIF p_verb IN ('retry', 'snooze') AND (p_after_ms IS NULL OR p_after_ms < 0) THEN
        PERFORM tenure.invalid('after', 'a delay is not negative', 'Use 0 for at once.');
    END IF;
    -- The running job that this token owns. Here, and nowhere else but in the statement for completions,
    -- it is decided who may settle. settle_many has locked it.
    SELECT j.* INTO was
      FROM tenure.jobs j
     WHERE j.id = p_job
       AND j.token = p_token AND j.state + 0 = 2;
    IF NOT FOUND THEN
        SELECT l.verdict, l.became, l.token, l.state INTO verdict, became, token, state
          FROM tenure.answer_late(p_job, p_token, p_verb, t) l;
        RETURN;
    END IF;
    verdict := 'settled';
    -- Waiting is not failing: these give their attempt back.
    tries := CASE WHEN p_verb IN ('snooze', 'release', 'park') THEN greatest(was.attempt - 1, 0) ELSE was.attempt END;
    -- A handler that comes back by itself is no suspect. Its crashes count on, until the last is an hour old: else a job
    -- that returns and kills in turns would never be buried. A release is the worker's word.
    suspect := p_verb = 'release' AND tenure.is_suspect(was.lane);
    crashes := CASE WHEN p_verb = 'release' OR was.crashed_at > t - tenure.crash_memory() THEN was.crashes ELSE 0 END;
    crashed_at := CASE WHEN crashes > 0 THEN was.crashed_at END;
    IF p_verb = 'complete' THEN
        became := 4;
        IF was.queue = ANY (forgetful)
           AND NOT EXISTS (SELECT 1 FROM tenure.ledger l WHERE l.job_id = p_job AND l.state = 0) THEN
            DELETE FROM tenure.jobs j WHERE j.id = p_job;
            PERFORM tenure.forget(ARRAY[p_job]);
        ELSE
            PERFORM tenure.end_job(p_job, became, was.token, was.crashes, t, p_result, NULL);
        END IF;
        RETURN;
    -- The database holds the limit, whoever settles: no client can retry for ever.
    ELSIF p_verb = 'bury' OR p_verb = 'retry' AND was.attempt >= was.max_attempts THEN
        became := 5;
        PERFORM tenure.end_job(p_job, became, was.token, was.crashes, t, NULL, p_note);
    ELSIF p_verb = 'park' THEN
        became := 3;
        PERFORM tenure.put_back(p_job, true, was.run_at, was.token, tries, crashes, crashed_at, suspect, p_note, t);
    ELSIF p_verb = 'release' THEN
        became := 0;
        PERFORM tenure.put_back(p_job, false, was.run_at, tenure.next_token(was.token, e), tries, crashes, crashed_at,
            suspect, NULL, t);
    ELSE
        became := 0;
        PERFORM tenure.put_back(p_job, false, tenure.later(t, p_after_ms), was.token, tries, crashes, crashed_at, suspect,
            NULL, t);
    END IF;
    PERFORM tenure.note(p_job, t, p_verb, false, was.token, was.attempt, was.worker, was.started_at, became,
        CASE WHEN p_verb IN ('retry', 'bury', 'park') THEN p_note END);
END $$;

-- The answer to a settlement that did not pass the fence: heard before, stale, or gone.
CREATE OR REPLACE FUNCTION tenure.answer_late(p_job bigint, p_token bigint, p_verb text, t bigint,
    OUT verdict text, OUT became smallint, OUT token bigint, OUT state smallint)
LANGUAGE plpgsql
AS $$
#variable_conflict use_column
BEGIN
    SELECT c.token, c.state INTO token, state FROM tenure.current(p_job) c;
    IF token IS NULL THEN
        verdict := 'gone';
        RETURN;
    END IF;
    -- A success leaves no line in the timeline: the ended job itself tells who completed it.
    IF p_verb = 'complete' THEN
        became := CASE WHEN state = 4 AND token = p_token THEN 4 END;
    ELSE
        became := tenure.heard(p_job, p_token, p_verb);
    END IF;
    IF became IS NOT NULL THEN
        verdict := 'repeated';
    ELSE
        verdict := 'stale';
        PERFORM tenure.refuse(p_job, p_token, p_verb, t);
    END IF;
END $$;

-- Locks the running jobs that these tokens own, in the order of their ids, and answers which they are:
-- for whoever has more to write before it settles them in the same transaction.
CREATE OR REPLACE FUNCTION tenure.hold_many(p_jobs bigint[], p_tokens bigint[]) RETURNS TABLE (n int)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET jit = off SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
BEGIN
    PERFORM tenure.check_batch(cardinality(p_jobs), cardinality(p_tokens));
    RETURN QUERY
    SELECT s.n::int FROM (SELECT u.id, u.token, u.n FROM unnest(p_jobs, p_tokens) WITH ORDINALITY u(id, token, n)
                           ORDER BY u.id, u.n) s
     CROSS JOIN LATERAL (SELECT 1 FROM tenure.jobs j WHERE j.id = s.id AND j.token = s.token AND j.state + 0 = 2
                            FOR NO KEY UPDATE) l;
END $$;

-- Says in the timeline of a held job that something which was to follow it was not enqueued.
CREATE OR REPLACE FUNCTION tenure.follow_refused(p_job bigint, p_token bigint, p_note text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM tenure.note(j.id, tenure.clock_ms(), 'follow', true, j.token, j.attempt, j.worker, j.started_at, j.state, p_note)
       FROM tenure.jobs j WHERE j.id = p_job AND j.token = p_token AND j.state + 0 = 2;
END $$;

-- What took effect, once per (job, effect), and what steps came to. The holder of a job writes it, and only the holder:
-- the intent before the call to the outside, the outcome after it. An intent that another attempt has left without an
-- outcome is in doubt, and says so instead of running again.
--
-- Answers, by entry: opened (go on and do it), committed (with what came back), decided (the same by a person's word, with
-- which an attempt goes on by effect_resolve with the same result), in_doubt (whose token, since when),
-- recorded, remembered (what the step came to), unknown, no (with where the effect stands instead, or NULL), stale
-- (with the job's token and state) or gone. The library decides the same in ledger.rs.
CREATE OR REPLACE FUNCTION tenure.ledger_many(p_jobs bigint[], p_tokens bigint[], p_verbs text[], p_names text[],
    p_results json[], p_notes text[])
RETURNS TABLE (n int, verdict text, result json, token bigint, since bigint, standing smallint, state smallint)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET jit = off SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
    t     bigint;
    held  bigint[];   -- the places of entries whose token owns the job
    entry record;
BEGIN
    PERFORM tenure.check_batch(cardinality(p_jobs), cardinality(p_tokens), cardinality(p_verbs), cardinality(p_names),
        cardinality(p_results), cardinality(p_notes)), tenure.check_names('effect', p_names), tenure.check_results(p_results);
    p_notes := tenure.shortened(p_notes);
    IF current_setting('synchronous_commit') = 'off' THEN PERFORM tenure.be_durable(); END IF;
    t := tenure.clock_ms();
    -- In the order of their ids, so that two batches never wait for each other in a circle.
    SELECT coalesce(array_agg(s.n), '{}') INTO held
      FROM (SELECT u.id, u.token, u.n FROM unnest(p_jobs, p_tokens) WITH ORDINALITY u(id, token, n) ORDER BY u.id, u.n) s
     CROSS JOIN LATERAL (SELECT 1 FROM tenure.jobs j WHERE j.id = s.id AND j.token = s.token AND j.state + 0 = 2
                             FOR NO KEY UPDATE) l;
    FOR entry IN
        SELECT u.id, u.token, u.verb, u.name, u.result, u.note, u.n::int AS n
          FROM unnest(p_jobs, p_tokens, p_verbs, p_names, p_results, p_notes) WITH ORDINALITY
               u(id, token, verb, name, result, note, n)
         -- What is refused leaves lines, which are waited for like locks: they too in one order.
         ORDER BY u.id, u.n <> ALL (held), CASE WHEN u.n <> ALL (held) THEN u.token END,
                  CASE WHEN u.n <> ALL (held) THEN u.verb COLLATE "C" END, u.n
    LOOP
        n := entry.n;
        SELECT o.verdict, o.result, o.token, o.since, o.standing, o.state INTO verdict, result, token, since, standing, state
          FROM tenure.ledger_one(entry.id, entry.token, entry.verb, entry.name, entry.result, entry.note, t) o;
        RETURN NEXT;
    END LOOP;
END $$;

-- One entry.
CREATE OR REPLACE FUNCTION tenure.ledger_one(p_job bigint, p_token bigint, p_verb text, p_name text, p_result json,
    p_note text, t bigint,
    OUT verdict text, OUT result json, OUT token bigint, OUT since bigint, OUT standing smallint, OUT state smallint)
LANGUAGE plpgsql
AS $$
#variable_conflict use_column
DECLARE
    found_ tenure.ledger;
    ours   boolean;
BEGIN
    IF p_verb IS NULL OR p_verb NOT IN ('effect_open', 'effect_commit', 'effect_fail', 'effect_resolve', 'step_get', 'step_put') THEN
        PERFORM tenure.invalid('verb', coalesce(quote_literal(p_verb), 'NULL') || ' is nothing that the ledger can be asked',
            'Use effect_open, effect_commit, effect_fail, effect_resolve, step_get or step_put.');
    ELSIF p_verb IN ('effect_commit', 'step_put') AND p_result IS NULL THEN
        PERFORM tenure.invalid('result', 'is missing', 'Where nothing came back, write ''null'', which is JSON for it.');
    END IF;
    -- The running job that this token owns. Here, and nowhere else, it is decided who may write. ledger_many has locked it.
    PERFORM 1
       FROM tenure.jobs j
      WHERE j.id = p_job
        AND j.token = p_token AND j.state + 0 = 2;
    IF NOT FOUND THEN
        SELECT l.verdict, l.result, l.token, l.state INTO verdict, result, token, state
          FROM tenure.ledger_late(p_job, p_token, p_verb, p_name, p_result, t) l;
        RETURN;
    END IF;

    IF p_verb = 'step_put' THEN
        -- What is remembered already stays.
        INSERT INTO tenure.steps (job_id, step, token, at, result) VALUES (p_job, p_name, p_token, t, p_result)
        ON CONFLICT (job_id, step) DO NOTHING;
    END IF;
    IF p_verb IN ('step_get', 'step_put') THEN
        SELECT s.result INTO result FROM tenure.steps s WHERE s.job_id = p_job AND s.step = p_name;
        verdict := CASE WHEN FOUND THEN 'remembered' ELSE 'unknown' END;
        RETURN;
    END IF;

    IF p_verb = 'effect_open' THEN
        -- Written first and looked at afterwards: it is the table's key that keeps a second intent out.
        INSERT INTO tenure.ledger (job_id, effect, token, state, opened_at) VALUES (p_job, p_name, p_token, 0, t)
        ON CONFLICT (job_id, effect) DO NOTHING;
        IF FOUND THEN
            verdict := 'opened';
            RETURN;
        END IF;
    END IF;
    SELECT l.* INTO found_ FROM tenure.ledger l WHERE l.job_id = p_job AND l.effect = p_name;
    ours := coalesce(found_.token = p_token, false);
    CASE
        WHEN p_verb = 'effect_open' AND found_.state IN (2, 3) THEN
            UPDATE tenure.ledger l SET state = 0, token = p_token, opened_at = t, ended_at = NULL, note = NULL
             WHERE l.job_id = p_job AND l.effect = p_name;
            verdict := 'opened';
        -- The same attempt asks again: its first answer was lost on the way.
        WHEN p_verb = 'effect_open' AND found_.state = 0 AND ours THEN
            verdict := 'opened';
        WHEN p_verb = 'effect_open' AND found_.state = 0 THEN
            verdict := 'in_doubt';
            token := found_.token;
            since := found_.opened_at;
        WHEN p_verb = 'effect_open' THEN
            verdict := CASE WHEN tenure.can_be_corrected(found_) THEN 'decided' ELSE 'committed' END;
            result := found_.result;
        -- The attempt goes on with what a person decided.
        WHEN p_verb = 'effect_resolve' AND tenure.can_be_corrected(found_) AND found_.result::text = p_result::text THEN
            UPDATE tenure.ledger l SET token = p_token, ended_at = t
             WHERE l.job_id = p_job AND l.effect = p_name;
            verdict := 'recorded';
        -- Whoever wrote the intent may say how it ended, and committed is final.
        WHEN p_verb = 'effect_commit' AND found_.state IN (0, 2) AND ours THEN
            UPDATE tenure.ledger l SET state = 1, result = p_result, note = NULL, ended_at = t
             WHERE l.job_id = p_job AND l.effect = p_name;
            verdict := 'recorded';
        WHEN p_verb = 'effect_fail' AND found_.state = 0 AND ours THEN
            UPDATE tenure.ledger l SET state = 2, note = p_note, ended_at = t
             WHERE l.job_id = p_job AND l.effect = p_name;
            verdict := 'recorded';
        -- Only what is in doubt can be resolved: an intent of somebody else's.
        WHEN p_verb = 'effect_resolve' AND p_result IS NOT NULL AND found_.state = 0 AND NOT ours THEN
            UPDATE tenure.ledger l SET state = 1, token = p_token, result = p_result, ended_at = t
             WHERE l.job_id = p_job AND l.effect = p_name;
            verdict := 'recorded';
        WHEN p_verb = 'effect_resolve' AND p_result IS NULL AND found_.state = 0 THEN
            UPDATE tenure.ledger l SET token = p_token, opened_at = t
             WHERE l.job_id = p_job AND l.effect = p_name AND NOT ours;
            verdict := 'recorded';
        ELSE
            standing := found_.state;
            verdict := CASE WHEN tenure.ledger_heard(p_job, p_token, p_verb, p_name, p_result) THEN 'recorded' ELSE 'no' END;
    END CASE;
END $$;

-- Whether a person decided it, and no attempt has gone on with that: then the person may still say something else. A note
-- beside what is committed or to be sent again tells that a person decided so.
CREATE OR REPLACE FUNCTION tenure.can_be_corrected(p_effect tenure.ledger) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS
$$ SELECT coalesce(p_effect.state IN (1, 3) AND p_effect.note IS NOT NULL AND p_effect.token = 0, false) $$;

-- Whether this very attempt has written this outcome before: then a repetition is told so, however late. What is a
-- permission, to open and to send again, is not repeated to an attempt that has ended.
CREATE OR REPLACE FUNCTION tenure.ledger_heard(p_job bigint, p_token bigint, p_verb text, p_name text, p_result json)
RETURNS boolean
LANGUAGE plpgsql
AS $$
BEGIN
    RETURN EXISTS (
        SELECT 1 FROM tenure.ledger l
         WHERE l.job_id = p_job AND l.effect = p_name AND l.token = p_token
           AND l.state = CASE WHEN p_verb = 'effect_commit' OR p_verb = 'effect_resolve' AND p_result IS NOT NULL THEN 1
                              WHEN p_verb = 'effect_fail' THEN 2 END);
END $$;

-- The answer to an entry that did not pass the fence: written before, stale, or gone.
CREATE OR REPLACE FUNCTION tenure.ledger_late(p_job bigint, p_token bigint, p_verb text, p_name text, p_result json, t bigint,
    OUT verdict text, OUT result json, OUT token bigint, OUT state smallint)
LANGUAGE plpgsql
AS $$
#variable_conflict use_column
BEGIN
    IF tenure.ledger_heard(p_job, p_token, p_verb, p_name, p_result) THEN
        verdict := 'recorded';
        RETURN;
    ELSIF p_verb = 'step_put' THEN
        SELECT s.result INTO result FROM tenure.steps s
         WHERE s.job_id = p_job AND s.step = p_name AND s.token = p_token;
        IF FOUND THEN
            verdict := 'remembered';
            RETURN;
        END IF;
    END IF;
    SELECT r.token, r.state INTO token, state FROM tenure.refuse(p_job, p_token, p_verb, t) r;
    verdict := CASE WHEN token IS NULL THEN 'gone' ELSE 'stale' END;
END $$;

-- A person's word about an effect in doubt, for a job that nobody holds: it happened, and p_result came back; or, where
-- that is NULL, it is to be sent again. It can be corrected until an attempt has gone on with it. A parked job with no other
-- doubt is queued again. Answers yes with the job's state,
-- no with where the effect stands, held, over, unknown or gone.
CREATE OR REPLACE FUNCTION tenure.resolve_effect(p_job bigint, p_effect text, p_result json,
    OUT verdict text, OUT state smallint, OUT standing smallint)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
    decided CONSTANT smallint := CASE WHEN p_result IS NULL THEN 3 ELSE 1 END;
    t      bigint := tenure.clock_ms();
    hit    record;
    was    tenure.jobs;
    found_ tenure.ledger;
BEGIN
    PERFORM tenure.check_names('effect', ARRAY[p_effect]);
    IF current_setting('synchronous_commit') = 'off' THEN PERFORM tenure.be_durable(); END IF;
    -- Locked, so that nobody claims it, and no other word is heard, meanwhile.
    SELECT f.live, f.ended, f.state INTO hit FROM tenure.find(p_job) f;
    was := hit.live;
    state := hit.state;
    SELECT l.* INTO found_ FROM tenure.ledger l WHERE l.job_id = p_job AND l.effect = p_effect;
    standing := found_.state;
    IF state IS NULL THEN
        verdict := 'gone';
    ELSIF standing IS NULL THEN
        verdict := 'unknown';
    ELSIF found_.note IS NOT NULL AND standing = decided AND found_.result::text IS NOT DISTINCT FROM p_result::text THEN
        -- Said before.
        verdict := 'yes';
    ELSIF standing <> 0 AND NOT tenure.can_be_corrected(found_) THEN
        verdict := 'no';
    ELSIF state = 2 THEN
        verdict := 'held';
    ELSIF state = 4 AND decided = 3 THEN
        -- Nobody would ever send it.
        verdict := 'over';
    ELSE
        verdict := 'yes';
        UPDATE tenure.ledger l SET state = decided, token = 0, result = p_result, ended_at = t, note = 'a person decided'
         WHERE l.job_id = p_job AND l.effect = p_effect;
        IF state = 3 AND NOT EXISTS (SELECT 1 FROM tenure.ledger l WHERE l.job_id = p_job AND l.state = 0) THEN
            state := 0;
            PERFORM tenure.put_back(was.id, false, t, was.token, was.attempt, was.crashes, was.crashed_at,
                        tenure.is_suspect(was.lane), NULL, t),
                    tenure.note(was.id, t, 'resume', false, was.token, was.attempt, was.worker, was.started_at, 0::smallint,
                        'effect ' || p_effect || ' resolved: ' || CASE WHEN decided = 1 THEN 'committed' ELSE 'resend' END);
        END IF;
    END IF;
END $$;

-- A page of effects, those of the newest jobs first; only those in doubt, or all. What is in doubt is looked for among
-- the intents without an outcome, which have an index of their own: they are few among many.
CREATE OR REPLACE FUNCTION tenure.effects_page(p_in_doubt boolean, p_job bigint, p_before bigint, p_limit int)
RETURNS TABLE (job bigint, effect text, standing smallint, token bigint, opened_at bigint, ended_at bigint, result json,
               note text, in_doubt boolean, state smallint, kind text, tenant text)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    lowest  bigint := coalesce(p_job, '-9223372036854775808'::bigint);
    highest bigint := coalesce(p_job, 9223372036854775807);
    before  bigint := coalesce(p_before, 9223372036854775807);
BEGIN
    PERFORM tenure.check_batch(p_limit);
    IF p_in_doubt THEN
        RETURN QUERY
        SELECT l.job_id, l.effect, l.state, l.token, l.opened_at, l.ended_at, l.result, l.note, true, o.state, o.kind, o.tenant
          FROM tenure.ledger l CROSS JOIN LATERAL tenure.owner_of(l.job_id) o
         WHERE l.state = 0 AND l.job_id BETWEEN lowest AND highest AND l.job_id < before AND NOT (o.state = 2 AND o.token = l.token)
         ORDER BY l.job_id DESC, l.effect LIMIT p_limit;
    ELSE
        RETURN QUERY
        SELECT l.job_id, l.effect, l.state, l.token, l.opened_at, l.ended_at, l.result, l.note,
               l.state = 0 AND NOT (o.state = 2 AND o.token = l.token), o.state, o.kind, o.tenant
          FROM tenure.ledger l CROSS JOIN LATERAL tenure.owner_of(l.job_id) o
         WHERE l.job_id BETWEEN lowest AND highest AND l.job_id < before
         ORDER BY l.job_id DESC, l.effect LIMIT p_limit;
    END IF;
END $$;

-- The job of an effect, live or ended.
CREATE OR REPLACE FUNCTION tenure.owner_of(p_job bigint)
RETURNS TABLE (state smallint, token bigint, kind text, tenant text)
LANGUAGE sql STABLE AS
$$ SELECT j.state, j.token, j.kind, j.tenant FROM tenure.jobs j WHERE j.id = p_job
   UNION ALL
   SELECT d.state, d.token, d.kind, d.tenant FROM tenure.done d WHERE d.id = p_job $$;

-- What operators do to jobs, queues, epochs and the installation: cancel, requeue, resume, purge, configure, raise, prune.
--
-- Each call goes through its jobs in the order of their ids, and so never waits for another call in a
-- circle. Answers carry the place in the list that was given: yes, no with the state that forbids it, or
-- gone.

-- A job that somebody wants to change, locked where it is. It may be moved between the tables while it is
-- waited for, so both are looked at, and the first once more.
CREATE OR REPLACE FUNCTION tenure.find(p_job bigint, OUT live tenure.jobs, OUT ended tenure.done, OUT state smallint)
LANGUAGE plpgsql
AS $$
#variable_conflict use_column
BEGIN
    FOR tries IN 1..2 LOOP
        SELECT j.* INTO live FROM tenure.jobs j WHERE j.id = p_job FOR UPDATE;
        IF FOUND THEN
            state := live.state;
            RETURN;
        END IF;
        SELECT d.* INTO ended FROM tenure.done d WHERE d.id = p_job FOR UPDATE;
        IF FOUND THEN
            state := ended.state;
            RETURN;
        END IF;
    END LOOP;
END $$;

-- Ends jobs that have not ended. A running job's holder learns of it at its next call.
CREATE OR REPLACE FUNCTION tenure.cancel_many(p_jobs bigint[]) RETURNS TABLE (n int, verdict text, state smallint)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET jit = off SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
    t     bigint;
    e     bigint;
    asked record;
    hit   record;
    was   tenure.jobs;
BEGIN
    IF current_setting('synchronous_commit') = 'off' THEN PERFORM tenure.be_durable(); END IF;
    PERFORM tenure.check_batch(cardinality(p_jobs));
    t := tenure.clock_ms();
    e := tenure.floor_of_now(t);
    FOR asked IN SELECT u.id, u.n::int AS n FROM unnest(p_jobs) WITH ORDINALITY u(id, n) ORDER BY u.id, u.n LOOP
        SELECT f.live, f.ended, f.state INTO hit FROM tenure.find(asked.id) f;
        was := hit.live;
        state := hit.state;
        n := asked.n;
        verdict := CASE WHEN state IS NULL THEN 'gone' WHEN state IN (4, 5) THEN 'no' ELSE 'yes' END;
        IF state < 4 THEN
            PERFORM tenure.end_job(was.id, 6::smallint, tenure.next_token(was.token, e), was.crashes, t, NULL, NULL),
                    tenure.note(was.id, t, 'cancel', false, was.token, was.attempt, was.worker, was.started_at, 6::smallint, NULL);
        END IF;
        RETURN NEXT;
    END LOOP;
END $$;

-- Queues dead or cancelled jobs again, with their counts reset and a token above every earlier one. With
-- a token it is repeatable: only the job as it was seen is queued again.
CREATE OR REPLACE FUNCTION tenure.requeue_many(p_jobs bigint[], p_if_tokens bigint[])
RETURNS TABLE (n int, verdict text, state smallint)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET jit = off SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
    t     bigint;
    e     bigint;
    asked record;
    hit   record;
    was   tenure.done;
BEGIN
    IF current_setting('synchronous_commit') = 'off' THEN PERFORM tenure.be_durable(); END IF;
    PERFORM tenure.check_batch(cardinality(p_jobs), cardinality(p_if_tokens));
    t := tenure.clock_ms();
    e := tenure.floor_of_now(t);
    FOR asked IN
        SELECT u.id, u.token, u.n::int AS n FROM unnest(p_jobs, p_if_tokens) WITH ORDINALITY u(id, token, n)
         ORDER BY u.id, u.n
    LOOP
        SELECT f.live, f.ended, f.state INTO hit FROM tenure.find(asked.id) f;
        was := hit.ended;
        state := hit.state;
        n := asked.n;
        IF state IS NULL THEN
            verdict := 'gone';
        ELSIF tenure.heard(asked.id, asked.token, 'requeue') IS NOT NULL THEN
            verdict := 'yes';
        ELSIF coalesce(state IN (5, 6) AND was.token = coalesce(asked.token, was.token), false) THEN
            verdict := 'yes';
            WITH again AS (DELETE FROM tenure.done d WHERE d.id = asked.id RETURNING d AS was)
            INSERT INTO tenure.jobs
            SELECT j.* FROM again a CROSS JOIN LATERAL tenure.as_queued(a.was, tenure.next_token((a.was).token, e), t) j;
            PERFORM tenure.note(was.id, t, 'requeue', false, was.token, was.attempt, NULL, NULL, 0::smallint, NULL),
                    tenure.announce(was.queue, t);
        ELSE
            verdict := 'no';
        END IF;
        RETURN NEXT;
    END LOOP;
END $$;

-- Queues parked jobs again.
CREATE OR REPLACE FUNCTION tenure.resume_many(p_jobs bigint[]) RETURNS TABLE (n int, verdict text, state smallint)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET jit = off SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
    t     bigint;
    asked record;
    hit   record;
    was   tenure.jobs;
BEGIN
    IF current_setting('synchronous_commit') = 'off' THEN PERFORM tenure.be_durable(); END IF;
    PERFORM tenure.check_batch(cardinality(p_jobs));
    t := tenure.clock_ms();
    FOR asked IN SELECT u.id, u.n::int AS n FROM unnest(p_jobs) WITH ORDINALITY u(id, n) ORDER BY u.id, u.n LOOP
        SELECT f.live, f.ended, f.state INTO hit FROM tenure.find(asked.id) f;
        was := hit.live;
        state := hit.state;
        n := asked.n;
        IF state = 3 THEN
            verdict := 'yes';
            PERFORM tenure.put_back(was.id, false, t, was.token, was.attempt, was.crashes, was.crashed_at,
                        tenure.is_suspect(was.lane), NULL, t),
                    tenure.note(was.id, t, 'resume', false, was.token, was.attempt, was.worker, was.started_at, 0::smallint, NULL);
        ELSE
            -- Heard before, if nobody has claimed the job since: its token is still the one it was parked under.
            verdict := CASE
                WHEN state IS NULL THEN 'gone'
                WHEN state IN (0, 1) AND tenure.heard(was.id, was.token, 'resume') IS NOT NULL THEN 'yes'
                ELSE 'no'
            END;
        END IF;
        RETURN NEXT;
    END LOOP;
END $$;

-- Deletes ended jobs and all that is known of them.
CREATE OR REPLACE FUNCTION tenure.purge_many(p_jobs bigint[], p_if_tokens bigint[])
RETURNS TABLE (n int, verdict text, state smallint)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET jit = off SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
    asked record;
    hit   record;
    was   tenure.done;
BEGIN
    IF current_setting('synchronous_commit') = 'off' THEN PERFORM tenure.be_durable(); END IF;
    PERFORM tenure.check_batch(cardinality(p_jobs), cardinality(p_if_tokens));
    FOR asked IN
        SELECT u.id, u.token, u.n::int AS n FROM unnest(p_jobs, p_if_tokens) WITH ORDINALITY u(id, token, n)
         ORDER BY u.id, u.n
    LOOP
        SELECT f.live, f.ended, f.state INTO hit FROM tenure.find(asked.id) f;
        was := hit.ended;
        state := hit.state;
        n := asked.n;
        verdict := CASE
            WHEN state IS NULL THEN 'gone'
            WHEN state >= 4 AND was.token = coalesce(asked.token, was.token) THEN 'yes'
            ELSE 'no'
        END;
        IF verdict = 'yes' THEN
            DELETE FROM tenure.done d WHERE d.id = asked.id;
            PERFORM tenure.forget(ARRAY[asked.id]);
        END IF;
        RETURN NEXT;
    END LOOP;
END $$;

-- Sets what an operator wants for a queue, and answers with all that holds now. What is NULL stays as it
-- is; pausing a paused queue keeps the time of its first pause.
CREATE OR REPLACE FUNCTION tenure.configure(p_queue text, p_pause boolean DEFAULT NULL, p_keep_ms bigint DEFAULT NULL,
    p_keep_dead_ms bigint DEFAULT NULL, OUT paused_at bigint, OUT keep_ms bigint, OUT keep_dead_ms bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    day CONSTANT bigint := 86400000;
    t   bigint;
BEGIN
    IF current_setting('synchronous_commit') = 'off' THEN PERFORM tenure.be_durable(); END IF;
    PERFORM tenure.check_names('queue', ARRAY[p_queue]);
    IF 0 > p_keep_ms OR 0 > p_keep_dead_ms THEN
        PERFORM tenure.invalid('keep', 'jobs cannot be kept for less than no time', 'Use 0 to delete them at once.');
    END IF;
    t := tenure.clock_ms();
    INSERT INTO tenure.queues AS q (queue, paused_at, keep_ms, keep_dead_ms)
    VALUES (p_queue, CASE WHEN p_pause THEN t END, coalesce(p_keep_ms, 7 * day), coalesce(p_keep_dead_ms, 30 * day))
    ON CONFLICT (queue) DO UPDATE
       SET paused_at = CASE p_pause WHEN true THEN coalesce(q.paused_at, t) WHEN false THEN NULL ELSE q.paused_at END,
           keep_ms = coalesce(p_keep_ms, q.keep_ms),
           keep_dead_ms = coalesce(p_keep_dead_ms, q.keep_dead_ms)
    RETURNING q.paused_at, q.keep_ms, q.keep_dead_ms INTO paused_at, keep_ms, keep_dead_ms;
    IF NOT p_pause THEN
        PERFORM tenure.announce(p_queue, t);
    END IF;
END $$;

-- Says that the database may have gone back in time where it cannot notice by itself, and answers the new epoch. What it
-- has noticed by itself is written down first.
CREATE OR REPLACE FUNCTION tenure.raise_epoch(p_reason text, OUT epoch bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    t bigint := tenure.clock_ms();
BEGIN
    IF current_setting('synchronous_commit') = 'off' THEN PERFORM tenure.be_durable(); END IF;
    IF p_reason IS NULL THEN
        PERFORM tenure.invalid('reason', 'is missing', 'Say what happened, for who reads it later.');
    END IF;
    PERFORM 1 FROM tenure.meta m FOR UPDATE;
    epoch := tenure.raised(tenure.floor_kept(t) >> 40, t);
    PERFORM tenure.begin_epoch(epoch, t, p_reason);
END $$;

-- Says for the whole installation whether commits wait for the disk ('on'), or do as each session says ('off').
CREATE OR REPLACE FUNCTION tenure.set_durability(p_durability text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF p_durability IS NULL OR p_durability NOT IN ('on', 'off') THEN
        PERFORM tenure.invalid('durability', coalesce(quote_literal(left(p_durability, 80)), 'NULL') || ' is neither on nor off',
            'Use on, or off where a crash of the server may lose what was answered.');
    END IF;
    PERFORM set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') = 'off';
    UPDATE tenure.meta m SET durability = p_durability WHERE m.durability <> p_durability;
END $$;

-- Says for the whole installation how long a worker's lock must have been free before its process counts as gone, and
-- answers what was said before.
CREATE OR REPLACE FUNCTION tenure.set_guard_gap(p_gap_ms bigint, OUT was bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF p_gap_ms IS NULL OR p_gap_ms NOT BETWEEN 300 AND 60000 THEN
        PERFORM tenure.invalid('guard_gap', 'a guard gap of ' || coalesce(p_gap_ms || ' ms', 'NULL') || ' is outside 300 ms to 60 s',
            'A lock that is free for longer than a minute means a lost process; leases decide about the rest.');
    END IF;
    IF current_setting('synchronous_commit') = 'off' THEN PERFORM tenure.be_durable(); END IF;
    SELECT m.guard_gap INTO was FROM tenure.meta m FOR UPDATE;
    UPDATE tenure.meta m SET guard_gap = p_gap_ms WHERE m.guard_gap <> p_gap_ms;
END $$;

-- Deletes up to p_limit ended jobs that have been kept long enough, queue by queue, state by state, the
-- oldest first, and up to as many expired keys; and workers that cannot be looked at and have not been heard of for a
-- day. What somebody is looking at is passed by, and an effect in doubt keeps its job.
CREATE OR REPLACE FUNCTION tenure.prune(p_limit int, OUT jobs int, OUT keys int)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET jit = off SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
    t     bigint;
    s     bigint := tenure.started_ms();
    place text := '';
    kind_ smallint;
    keep  bigint;
    aged  bigint[];
BEGIN
    PERFORM tenure.check_batch(p_limit);
    t := tenure.clock_ms();
    jobs := 0;
    LOOP
        SELECT d.queue INTO place FROM tenure.done d WHERE d.queue > place ORDER BY d.queue LIMIT 1;
        EXIT WHEN NOT FOUND;
        FOREACH kind_ IN ARRAY '{4,5,6}'::smallint[] LOOP
            SELECT CASE WHEN kind_ = 4 THEN q.keep_ms ELSE q.keep_dead_ms END INTO keep
              FROM tenure.queues q WHERE q.queue = place;
            keep := coalesce(keep, CASE WHEN kind_ = 4 THEN 7 ELSE 30 END * 86400000::bigint);
            WITH old AS MATERIALIZED (
                SELECT d.id FROM tenure.done d
                 WHERE d.queue = place AND d.state = kind_ AND d.finished_at <= t - keep
                   AND NOT EXISTS (SELECT 1 FROM tenure.ledger l WHERE l.job_id = d.id AND l.state = 0)
                 ORDER BY d.finished_at, d.id LIMIT p_limit - jobs FOR UPDATE SKIP LOCKED),
            gone AS (DELETE FROM tenure.done d USING old o WHERE d.id = o.id RETURNING d.id)
            SELECT array_agg(g.id) INTO aged FROM gone g;
            IF aged IS NOT NULL THEN
                PERFORM tenure.forget(aged);
                jobs := jobs + cardinality(aged);
            END IF;
        END LOOP;
    END LOOP;
    WITH old AS MATERIALIZED (
        SELECT k.tenant, k.scope, k.key FROM tenure.keys k WHERE k.expires_at <= t
         ORDER BY k.expires_at, k.tenant, k.key LIMIT p_limit FOR UPDATE SKIP LOCKED)
    DELETE FROM tenure.keys k USING old o WHERE k.tenant = o.tenant AND k.scope = o.scope AND k.key = o.key;
    GET DIAGNOSTICS keys = ROW_COUNT;
    DELETE FROM tenure.workers w WHERE w.worker = ANY (ARRAY(
        SELECT o.worker FROM tenure.workers o
         WHERE o.taken_at <= t - 86400000 AND NOT (o.guarded AND o.under = s) FOR UPDATE SKIP LOCKED));
END $$;

-- Questions that change nothing.

-- The token and the state of each job, and nothing else: for a worker whose handler may have completed a job itself. No row
-- for a job that is not there, or no longer.
CREATE OR REPLACE FUNCTION tenure.current_many(p_jobs bigint[]) RETURNS TABLE (n int, token bigint, state smallint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET jit = off SET plan_cache_mode = force_generic_plan SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    asked record;
BEGIN
    PERFORM tenure.check_batch(cardinality(p_jobs));
    FOR asked IN SELECT u.id, u.n FROM unnest(p_jobs) WITH ORDINALITY u(id, n) LOOP
        SELECT c.token, c.state INTO token, state FROM tenure.current(asked.id) c;
        n := asked.n;
        IF token IS NOT NULL THEN
            RETURN NEXT;
        END IF;
    END LOOP;
END $$;

CREATE OR REPLACE FUNCTION tenure.look_at(p_job bigint) RETURNS SETOF tenure.record
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN QUERY SELECT r.* FROM tenure.record r WHERE r.id = p_job;
END $$;

CREATE OR REPLACE FUNCTION tenure.timeline_of(p_job bigint)
RETURNS TABLE (job bigint, at bigint, verb text, refused boolean, token bigint, attempt int, worker text, began bigint,
               became smallint, note text, earlier bigint)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY SELECT l.job_id, l.at, l.verb, l.refused, l.token, l.attempt, l.worker, l.began, l.became, l.note, l.earlier
                   FROM tenure.timeline l WHERE l.job_id = p_job ORDER BY l.seq;
END $$;

-- What a worker holds, for after a claim whose answer was lost; with p_request only what that claim got. A claim that was sent may
-- still arrive, so the same question may have another answer a moment later.
CREATE OR REPLACE FUNCTION tenure.held(p_worker text, p_request bigint DEFAULT NULL) RETURNS SETOF tenure.record
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
BEGIN
    RETURN QUERY SELECT r.* FROM tenure.record r
                  WHERE r.state = 2 AND r.worker = p_worker AND (p_request IS NULL OR r.request = p_request) ORDER BY r.id;
END $$;

-- A page of jobs, newest first. Queued (1) is ready or waiting.
CREATE OR REPLACE FUNCTION tenure.page(p_state smallint, p_queue text, p_tenant text, p_kind text, p_before bigint,
    p_limit int) RETURNS SETOF tenure.record
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
DECLARE
    ids bigint[] := '{}';
BEGIN
    PERFORM tenure.check_batch(p_limit);
    IF coalesce(p_state, 0) < 4 THEN
        ids := ids || ARRAY(
            SELECT j.id FROM tenure.jobs j
             WHERE j.id < p_before
               AND (p_state IS NULL OR greatest(j.state, 1::smallint) = p_state)
               AND (p_queue IS NULL OR j.queue = p_queue)
               AND (p_tenant IS NULL OR j.tenant = p_tenant)
               AND (p_kind IS NULL OR j.kind = p_kind)
             ORDER BY j.id DESC LIMIT p_limit);
    END IF;
    IF p_state = 5 THEN
        -- Dead jobs have an index of their own: they are looked for among millions that succeeded.
        ids := ids || ARRAY(
            SELECT d.id FROM tenure.done d
             WHERE d.id < p_before
               AND d.state = 5
               AND (p_queue IS NULL OR d.queue = p_queue)
               AND (p_tenant IS NULL OR d.tenant = p_tenant)
               AND (p_kind IS NULL OR d.kind = p_kind)
             ORDER BY d.id DESC LIMIT p_limit);
    ELSIF p_state IS NULL OR p_state >= 4 THEN
        ids := ids || ARRAY(
            SELECT d.id FROM tenure.done d
             WHERE d.id < p_before
               AND (p_state IS NULL OR d.state = p_state)
               AND (p_queue IS NULL OR d.queue = p_queue)
               AND (p_tenant IS NULL OR d.tenant = p_tenant)
               AND (p_kind IS NULL OR d.kind = p_kind)
             ORDER BY d.id DESC LIMIT p_limit);
    END IF;
    RETURN QUERY SELECT r.* FROM tenure.record r WHERE r.id = ANY (ids) ORDER BY r.id DESC LIMIT p_limit;
END $$;

-- All queues at a glance: a line for each queue and tenant that has jobs. A job that is due is ready to a
-- person, whether or not a claim has promoted it yet.
CREATE OR REPLACE FUNCTION tenure.overview()
RETURNS TABLE (at bigint, queue text, tenant text, ready bigint, waiting bigint, running bigint, parked bigint, dead bigint,
               oldest_wait_ms bigint, succeeded_last_minute bigint, died_last_minute bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    t bigint := tenure.clock_ms();
BEGIN
    RETURN QUERY
    WITH RECURSIVE history(queue) AS (
        (SELECT d.queue FROM tenure.done d ORDER BY d.queue LIMIT 1)
        UNION ALL
        SELECT (SELECT d.queue FROM tenure.done d WHERE d.queue > h.queue ORDER BY d.queue LIMIT 1)
          FROM history h WHERE h.queue IS NOT NULL),
    line AS (
        SELECT j.queue, j.tenant,
               count(*) FILTER (WHERE j.state = 0 OR j.state = 1 AND j.run_at <= t) AS ready,
               count(*) FILTER (WHERE j.state = 1 AND j.run_at > t) AS waiting,
               count(*) FILTER (WHERE j.state = 2) AS running,
               count(*) FILTER (WHERE j.state = 3) AS parked,
               0::bigint AS dead, min(j.run_at) FILTER (WHERE j.state = 0 OR j.state = 1 AND j.run_at <= t) AS oldest,
               0::bigint AS succeeded_lately, 0::bigint AS died_lately
          FROM tenure.jobs j GROUP BY j.queue, j.tenant
        UNION ALL
        SELECT d.queue, d.tenant, 0, 0, 0, 0, count(*), NULL, 0, 0
          FROM tenure.done d WHERE d.state = 5 GROUP BY d.queue, d.tenant
        UNION ALL
        SELECT h.queue, r.tenant, 0, 0, 0, 0, 0, NULL, r.succeeded, r.died
          FROM history h CROSS JOIN LATERAL (
            SELECT d.tenant, count(*) FILTER (WHERE d.state = 4) AS succeeded, count(*) FILTER (WHERE d.state = 5) AS died
              FROM tenure.done d
             WHERE d.queue = h.queue AND d.state IN (4, 5) AND d.finished_at > t - 60000 GROUP BY d.tenant) r)
    SELECT t, l.queue, l.tenant, sum(l.ready)::bigint, sum(l.waiting)::bigint, sum(l.running)::bigint,
           sum(l.parked)::bigint, sum(l.dead)::bigint, CASE WHEN min(l.oldest) IS NOT NULL THEN greatest(least(t - min(l.oldest)::numeric, 9223372036854775807), 0)::bigint END,
           sum(l.succeeded_lately)::bigint, sum(l.died_lately)::bigint
      FROM line l GROUP BY l.queue, l.tenant ORDER BY l.queue, l.tenant;
END $$;

-- The leases that end soonest.
CREATE OR REPLACE FUNCTION tenure.leases(p_limit int)
RETURNS TABLE (job bigint, kind text, token bigint, worker text, started_at bigint, lease_until bigint)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
BEGIN
    PERFORM tenure.check_batch(p_limit);
    RETURN QUERY SELECT j.id, j.kind, j.token, j.worker, j.started_at, j.lease_until FROM tenure.jobs j
                  WHERE j.state = 2 ORDER BY j.lease_until, j.id LIMIT p_limit;
END $$;

-- The queues for which an operator has set something.
CREATE OR REPLACE FUNCTION tenure.queue_settings()
RETURNS TABLE (queue text, paused_at bigint, keep_ms bigint, keep_dead_ms bigint)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY SELECT q.queue, q.paused_at, q.keep_ms, q.keep_dead_ms FROM tenure.queues q ORDER BY q.queue;
END $$;

-- The workers that have made themselves known, and whether their locks are held; NULL for those that have none.
CREATE OR REPLACE FUNCTION tenure.known_workers()
RETURNS TABLE (worker text, queues text, kinds text, taken_at bigint, is_alive boolean)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    locks bigint[] := tenure.held_locks();
BEGIN
    RETURN QUERY SELECT w.worker, w.queues, w.kinds, w.taken_at,
                        CASE WHEN w.guarded THEN tenure.guard_key(w.worker) = ANY (locks) END
                   FROM tenure.workers w ORDER BY w.worker;
END $$;

-- Which installation this is, its epoch now, and how it came to that: a row for each raise, oldest first, among them one
-- that was noticed and is not written down yet; or one row without a raise.
CREATE OR REPLACE FUNCTION tenure.identity()
RETURNS TABLE (installation text, epoch bigint, raised_to bigint, at bigint, reason text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    t bigint := tenure.clock_ms();
    e bigint := tenure.epoch_of_now(t);
BEGIN
    RETURN QUERY
    SELECT m.installation::text, e, r.epoch, r.at, r.reason
      FROM tenure.meta m
      LEFT JOIN (SELECT p.epoch, p.at, p.reason FROM tenure.epochs p
                 UNION ALL
                 SELECT e, t, CASE WHEN m.epoch <> e THEN tenure.moved_from() END FROM tenure.meta m WHERE m.epoch <> e) r ON true
     ORDER BY r.epoch;
END $$;

-- How long a worker's lock must have been free before its process counts as gone.
CREATE OR REPLACE FUNCTION tenure.guard_gap() RETURNS bigint
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS
$$ SELECT m.guard_gap FROM tenure.meta m $$;

-- Holds what is stored against what must be true of it: of p_limit jobs, live and ended together, from p_from on. A row
-- for each thing that is wrong, and one without a rule that says how many jobs were looked at and where to go on. The
-- last window reaches to the end, so that what is left of jobs that are gone is found there too. It reads its
-- window and no more, by primary keys. STABLE, so that all of it sees one moment: jobs move between the tables.
CREATE OR REPLACE FUNCTION tenure.check(p_from bigint, p_limit int)
RETURNS TABLE (job bigint, rule text, what text, looked int, next bigint)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET jit = off SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    overdue_ms CONSTANT bigint := 60000;
    t    bigint := tenure.clock_ms();
    b    record;
    e    bigint := tenure.epoch_of_now(t);
    low  bigint := coalesce(p_from, '-9223372036854775808'::bigint);
    high bigint;
    ids  bigint[];
BEGIN
    PERFORM tenure.check_batch(p_limit);
    SELECT l.started, l.broke, l.broke_before INTO b FROM tenure.noted_breaks(t) l;
    ids := ARRAY(SELECT u.id FROM ((SELECT j.id FROM tenure.jobs j WHERE j.id >= low ORDER BY j.id LIMIT p_limit + 1)
                                   UNION
                                   (SELECT d.id FROM tenure.done d WHERE d.id >= low ORDER BY d.id LIMIT p_limit + 1)) u
                  ORDER BY u.id LIMIT p_limit + 1);
    next := ids[p_limit + 1];
    high := coalesce(next - 1, 9223372036854775807);
    ids := ids[:p_limit];
    looked := cardinality(ids);

    RETURN QUERY SELECT w.job, w.rule, w.what, NULL::int, NULL::bigint FROM (
        -- Every job is there once.
        SELECT j.id AS job, 'i9' AS rule, 'it is both owed and ended' AS what
          FROM tenure.jobs j JOIN tenure.done d ON d.id = j.id WHERE j.id BETWEEN low AND high
        UNION ALL
        -- Nothing is left of one that is gone.
        SELECT DISTINCT l.job_id, 'i9', 'its ' || l.place || ' is there, but the job is not'
          FROM (SELECT p.job_id, 'payload' AS place FROM tenure.payloads p WHERE p.job_id BETWEEN low AND high
                UNION ALL SELECT p.job_id, 'timeline' FROM tenure.timeline p WHERE p.job_id BETWEEN low AND high
                UNION ALL SELECT p.job_id, 'effect' FROM tenure.ledger p WHERE p.job_id BETWEEN low AND high
                UNION ALL SELECT p.job_id, 'step' FROM tenure.steps p WHERE p.job_id BETWEEN low AND high) l
         WHERE l.job_id <> ALL (ids)
        UNION ALL
        SELECT r.id, 'i9', 'its args are missing'
          FROM (SELECT j.id FROM tenure.jobs j WHERE j.id BETWEEN low AND high AND j.args IS NULL
                UNION ALL SELECT d.id FROM tenure.done d WHERE d.id BETWEEN low AND high AND d.args IS NULL) r
         WHERE NOT EXISTS (SELECT 1 FROM tenure.payloads p WHERE p.job_id = r.id)
        UNION ALL
        -- Succeeded means completed, by the last claim. What is written under an older token comes later at times: a
        -- person's word, and a worker's return.
        SELECT d.id, 'i3', 'it succeeded under token ' || d.token || ', but '
               || coalesce((SELECT l.verb || ' happened under token ' || l.token FROM tenure.timeline l
                             WHERE l.job_id = d.id AND l.token >= d.token AND NOT l.refused
                               AND l.verb NOT IN ('resume', 'return') LIMIT 1), 'nobody held it')
          FROM tenure.done d
         WHERE d.id BETWEEN low AND high AND d.state = 4
           AND (d.worker IS NULL OR d.started_at IS NULL
                OR EXISTS (SELECT 1 FROM tenure.timeline l WHERE l.job_id = d.id AND l.token >= d.token AND NOT l.refused
                              AND l.verb NOT IN ('resume', 'return')))
        UNION ALL
        -- Nothing stays running without a living holder.
        SELECT j.id, 'i11', 'its lease was over ' || (t - j.lease_until) / 1000 || ' s ago, and nobody takes it back'
          FROM tenure.jobs j
         WHERE j.id BETWEEN low AND high AND j.state + 0 = 2 AND j.lease_until + 0 <= t - overdue_ms
           AND tenure.pardoned_until(j.leased_at, j.lease_ms, j.started_at, j.max_runtime, b.started, b.broke, b.broke_before)
               <= t - overdue_ms
        UNION ALL
        -- The ledger agrees with the jobs.
        SELECT l.job_id, 'ledger', 'it succeeded, but what became of its effect ' || l.effect || ' was never written'
          FROM tenure.ledger l JOIN tenure.done d ON d.id = l.job_id AND d.state = 4
         WHERE l.job_id BETWEEN low AND high AND l.state = 0
        UNION ALL
        SELECT l.job_id, 'ledger', 'its ' || l.name || ' was written under token ' || l.token || ', above the job''s own'
          FROM (SELECT x.job_id, x.token, 'effect ' || x.effect AS name FROM tenure.ledger x WHERE x.job_id BETWEEN low AND high
                UNION ALL
                SELECT x.job_id, x.token, 'step ' || x.step FROM tenure.steps x WHERE x.job_id BETWEEN low AND high) l
         CROSS JOIN LATERAL tenure.owner_of(l.job_id) o
         WHERE l.token > o.token
        UNION ALL
        -- A key that is remembered belongs to the last job that carries it.
        SELECT r.id, 'keys', 'its key is remembered for the older job ' || k.job_id
          FROM (SELECT j.id, j.tenant, j.key FROM tenure.jobs j WHERE j.id BETWEEN low AND high AND j.key IS NOT NULL
                UNION ALL
                SELECT d.id, d.tenant, d.key FROM tenure.done d WHERE d.id BETWEEN low AND high AND d.key IS NOT NULL) r
          JOIN tenure.keys k ON k.tenant = r.tenant AND k.scope = 0 AND k.key = r.key
         WHERE k.job_id < r.id
        UNION ALL
        -- A job stands in the lane that its names give: in another one it would not be found, or by the wrong ones. Whether
        -- a suspect's handler has come back is told by the lane alone.
        SELECT j.id, 'lane', 'it stands in lane ' || j.lane || ', but its names and crashes give ' || r.lane
          FROM tenure.jobs j
         CROSS JOIN LATERAL (SELECT tenure.lane(j.queue, j.tenant, j.kind, tenure.is_suspect(j.lane)
                                                AND tenure.makes_suspect(j.crashes, j.max_crashes)) AS lane) r
         WHERE j.id BETWEEN low AND high AND j.lane <> r.lane
        UNION ALL
        -- No number is from an epoch that has not begun.
        SELECT r.id, 'epoch', 'its number or its token ' || r.token || ' is from an epoch that has not begun'
          FROM (SELECT j.id, j.token FROM tenure.jobs j WHERE j.id BETWEEN low AND high
                UNION ALL SELECT d.id, d.token FROM tenure.done d WHERE d.id BETWEEN low AND high) r
         WHERE r.token >> 40 > e OR r.id >> 40 > e) w
     ORDER BY w.job, w.rule, w.what;

    job := NULL;
    rule := NULL;
    what := NULL;
    RETURN NEXT;
END $$;

-- Enqueue for people, triggers and other languages: one job, by named parameters, inside any transaction.

-- Stores a job and answers its id. With a key that is taken by the same request it answers that job's id
-- and stores nothing; by another request it raises TN002.
CREATE OR REPLACE FUNCTION tenure.enqueue(kind text, args json DEFAULT '{}', queue text DEFAULT 'default', tenant text DEFAULT '',
    key text DEFAULT NULL, priority int DEFAULT 0, delay interval DEFAULT NULL, run_at timestamptz DEFAULT NULL,
    max_attempts int DEFAULT 6, max_crashes int DEFAULT 5, max_runtime interval DEFAULT NULL, retry json DEFAULT NULL,
    key_window interval DEFAULT '24 hours', trace text DEFAULT NULL, tags text[] DEFAULT NULL, parent bigint DEFAULT NULL)
RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    verdict text;
    job     bigint;
BEGIN
    IF delay IS NOT NULL AND run_at IS NOT NULL THEN
        PERFORM tenure.invalid('delay', 'given together with run_at', 'Say when the job is due in one way.');
    ELSIF priority IS NULL OR priority NOT BETWEEN -32768 AND 32767 THEN
        PERFORM tenure.invalid('priority', 'outside -32768 to 32767', 'Lower numbers run first; leave it out for 0.');
    END IF;
    PERFORM tenure.check_json('args', args, 262144), tenure.check_retry(retry);
    SELECT e.verdict, e.job INTO verdict, job
      FROM tenure.enqueue_many(
        ARRAY[kind], ARRAY[args], ARRAY[coalesce(queue, 'default')], ARRAY[coalesce(tenant, '')],
        CASE WHEN key IS NOT NULL THEN ARRAY[key] END,
        CASE WHEN key IS NOT NULL THEN ARRAY[tenure.fingerprint(kind, args)] END,
        ARRAY[json_build_object('priority', priority, 'run_at', tenure.ms('run_at', run_at),
            'delay_ms', tenure.ms('delay', delay), 'max_attempts', max_attempts, 'max_crashes', max_crashes, 'retry', retry,
            'max_runtime_ms', tenure.ms('max_runtime', max_runtime), 'key_window_ms', tenure.ms('key_window', key_window),
            'parent', parent)],
        CASE WHEN trace IS NOT NULL OR cardinality(tags) > 0
             THEN ARRAY[json_strip_nulls(json_build_object('trace', trace,
                            'tags', CASE WHEN cardinality(tags) > 0 THEN to_json(tags) END))] END) e;
    IF verdict = 'conflict' THEN
        RAISE EXCEPTION USING ERRCODE = 'TN002',
            MESSAGE = format('key %L belongs to job %s, which was another request', key, job),
            DETAIL = 'A key stands for one kind with the same args; nothing was stored.',
            HINT = 'Use another key, or send the same kind and args to be given that job.';
    END IF;
    RETURN job;
END $$;

-- The fingerprint of a request under a key: SHA-256 over the kind, a NUL and the canonical args. It is the
-- library's own, so that a request may be repeated from another language; and it refuses what the library refuses.
CREATE OR REPLACE FUNCTION tenure.fingerprint(kind text, args json) RETURNS bytea
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF args IS NOT NULL THEN
        PERFORM tenure.check_json('args', args, 16777216);
    END IF;
    RETURN sha256(convert_to(kind, 'UTF8') || decode('00', 'hex') || convert_to(tenure.canonical(args), 'UTF8'));
END $$;

-- The one spelling of a JSON value: object keys sorted bytewise, no white space, the last of duplicate keys,
-- numbers as written, strings minimally escaped.
CREATE OR REPLACE FUNCTION tenure.canonical(value json) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN CASE json_typeof(value)
        WHEN 'object' THEN (
            SELECT '{' || coalesce(string_agg(to_json(f.key)::text || ':' || tenure.canonical(f.value), ',' ORDER BY f.key COLLATE "C"), '') || '}'
              FROM (SELECT DISTINCT ON (e.key COLLATE "C") e.key, e.value FROM json_each(value) WITH ORDINALITY e(key, value, n)
                     ORDER BY e.key COLLATE "C", e.n DESC) f)
        WHEN 'array' THEN (
            SELECT '[' || coalesce(string_agg(tenure.canonical(e.value), ',' ORDER BY e.n), '') || ']'
              FROM json_array_elements(value) WITH ORDINALITY e(value, n))
        WHEN 'string' THEN to_json(value #>> '{}')::text
        ELSE btrim(value::text, E' \t\n\r')
    END;
END $$;

-- Refuses JSON that the library would refuse: above its limit, nested more than 127 deep, with a NUL or half
-- a surrogate pair in a string.
CREATE OR REPLACE FUNCTION tenure.check_json(field text, value json, byte_limit int) RETURNS void
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    size int := octet_length(value::text);
BEGIN
    IF value IS NULL THEN
        PERFORM tenure.invalid(field, 'NULL is not JSON', 'Pass ''{}'' or the JSON value ''null''.');
    ELSIF size > byte_limit THEN
        PERFORM tenure.invalid(field, size || ' bytes are above the limit of ' || byte_limit || ' bytes',
            'Store the data elsewhere and pass a reference to it.');
    END IF;
    BEGIN
        -- jsonb decodes every string, and so finds what cannot be decoded.
        PERFORM value::jsonb;
    EXCEPTION WHEN data_exception OR untranslatable_character OR program_limit_exceeded THEN
        PERFORM tenure.invalid(field, 'cannot be stored as JSON: ' || SQLERRM,
            E'Leave out \\u0000, halves of surrogate pairs, and numbers beyond all measure.');
    END;
    -- A look at each level costs a pass, so it is taken only where there are enough brackets to be too deep.
    IF size - length(translate(value::text, '[{', '')) > 127 AND tenure.depth(value, 128) > 127 THEN
        PERFORM tenure.invalid(field, 'cannot be stored as JSON: nested more than 127 deep', 'Make it flatter.');
    END IF;
END $$;

-- How deeply a value is nested; it does not look further than `enough`.
CREATE OR REPLACE FUNCTION tenure.depth(value json, enough int) RETURNS int
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    level json[] := ARRAY[value];
    found int := 0;
BEGIN
    LOOP
        SELECT array_agg(v) INTO level FROM unnest(level) v WHERE json_typeof(v) IN ('object', 'array');
        EXIT WHEN level IS NULL OR found >= enough;
        found := found + 1;
        SELECT array_agg(c.value) INTO level
          FROM unnest(level) v CROSS JOIN LATERAL (
            SELECT e.value FROM json_each(CASE WHEN json_typeof(v) = 'object' THEN v ELSE '{}' END) e
            UNION ALL
            SELECT a.value FROM json_array_elements(CASE WHEN json_typeof(v) = 'array' THEN v ELSE '[]' END) a) c;
    END LOOP;
    RETURN found;
END $$;

-- A length of time in milliseconds, for the port.
CREATE OR REPLACE FUNCTION tenure.ms(field text, length interval) RETURNS bigint
LANGUAGE plpgsql IMMUTABLE STRICT
AS $$
DECLARE
    ms numeric := extract(epoch FROM length) * 1000;
BEGIN
    IF ms < 0 THEN
        PERFORM tenure.invalid(field, length || ' is negative', 'Give a length of time, such as ''30 seconds''.');
    END IF;
    RETURN floor(least(ms, tenure.end_of_time()))::bigint;
END $$;

-- A moment in milliseconds.
CREATE OR REPLACE FUNCTION tenure.ms(field text, moment timestamptz) RETURNS bigint
LANGUAGE plpgsql IMMUTABLE STRICT
AS $$
BEGIN
    IF moment = '-infinity' OR moment = 'infinity' THEN
        PERFORM tenure.invalid(field, 'is not a moment', 'Give a date and time, or a delay.');
    END IF;
    RETURN floor(extract(epoch FROM moment) * 1000)::bigint;
END $$;

-- Claim, renew and progress for people and other languages.

-- Leases up to n due jobs and answers them in the order in which they are to run.
CREATE OR REPLACE FUNCTION tenure.claim(worker text, queues text[] DEFAULT '{default}', n int DEFAULT 1,
    lease interval DEFAULT '30 seconds', kinds text[] DEFAULT NULL)
RETURNS TABLE (id bigint, token bigint, kind text, queue text, tenant text, args json, attempt int, lease_until timestamptz)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    IF claim.n IS NULL OR claim.n < 0 THEN
        PERFORM tenure.invalid('n', 'a claim asks for 0 to 1000 jobs', 'Leave it out for 1.');
    END IF;
    RETURN QUERY
    SELECT c.job, c.token, c.kind, c.queue, c.tenant, c.args, c.attempt, tenure.at(c.lease_until)
      FROM tenure.claim_many(claim.worker, claim.queues, claim.kinds, claim.n, tenure.ms('lease', claim.lease),
                             -- A place on the ring by chance, so that callers without a memory are fair all the same.
                             floor(random() * (1::bigint << 46))::bigint) c
     WHERE c.what = 'claimed' ORDER BY c.place;
END $$;

-- Extends a lease and answers until when it holds, or raises TN001. A job that this or another open
-- transaction holds locked cannot be taken by anybody; then the answer is what holds now.
CREATE OR REPLACE FUNCTION tenure.renew(job bigint, token bigint, lease interval DEFAULT '30 seconds') RETURNS timestamptz
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    answer record;
BEGIN
    SELECT r.verdict, r.lease_until INTO answer
      FROM tenure.renew_many(ARRAY[renew.job], ARRAY[renew.token], tenure.ms('lease', renew.lease)) r;
    IF answer.verdict IN ('lost', 'gone') THEN
        PERFORM tenure.stale(renew.job, renew.token, 'renew');
    ELSIF answer.verdict = 'busy' THEN
        SELECT j.lease_until INTO answer.lease_until FROM tenure.jobs j
         WHERE j.id = renew.job
           AND j.token = renew.token AND j.state + 0 = 2;
        IF NOT FOUND THEN
            -- Whoever had it locked has settled it since.
            PERFORM tenure.stale(renew.job, renew.token, 'renew');
        END IF;
    END IF;
    RETURN tenure.at(answer.lease_until);
END $$;

-- Notes which part of the whole is done, from 0 to 1, and in a few words what is being done; or raises TN001. Answers
-- whether it was noted: not while another open transaction holds the job locked, for which it does not wait.
CREATE OR REPLACE FUNCTION tenure.progress(job bigint, token bigint, fraction double precision, note text DEFAULT NULL)
RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    answer text;
BEGIN
    IF fraction IS NULL THEN
        PERFORM tenure.invalid('fraction', 'NULL is no part of the whole', 'Use 0 for nothing, 1 for all.');
    END IF;
    SELECT p.verdict INTO answer
      FROM tenure.progress_many(ARRAY[progress.job], ARRAY[progress.token], ARRAY[tenure.permille(fraction)], ARRAY[note]) p;
    IF answer IN ('stale', 'gone') THEN
        PERFORM tenure.stale(progress.job, progress.token, 'progress');
    END IF;
    RETURN answer = 'noted';
END $$;

-- A part of the whole in thousandths. The library counts the same in job/progress.rs, and one table of cases holds both
-- to it.
CREATE OR REPLACE FUNCTION tenure.permille(fraction double precision) RETURNS smallint
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS
$$ SELECT CASE WHEN fraction = 'NaN' THEN 0 ELSE floor(least(greatest(fraction, 0), 1) * 1000 + 0.5) END::smallint $$;

-- The ends of an attempt, for people and other languages: each raises TN001 where the set form answers
-- stale, so that it takes the writes of its own transaction down with it. Each may be repeated: what was done
-- before raises TN004.

-- TN001: the job is not the caller's.
CREATE OR REPLACE FUNCTION tenure.stale(job bigint, shown bigint, verb text) RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    now_ record;
BEGIN
    SELECT c.token, c.state INTO now_ FROM tenure.current(job) c;
    RAISE EXCEPTION USING ERRCODE = 'TN001',
        MESSAGE = format('%s refused: token %s is not the right to job %s', verb, coalesce(shown::text, 'NULL'), coalesce(job::text, 'NULL')),
        DETAIL = CASE
            WHEN now_.token IS NULL THEN 'There is no such job, or no longer.'
            WHEN now_.token = shown THEN format('already_settled: the attempt has ended, and the job is %s.', tenure.state_name(now_.state))
            ELSE format('token_mismatch: the job''s token is %s, and it is %s.', now_.token, tenure.state_name(now_.state))
        END,
        HINT = format('Somebody else has the job, or it has ended. Stop working on it. To leave a trace, call tenure.refused(%s, %s, %L) in a new transaction.',
                      coalesce(job::text, 'NULL'), coalesce(shown::text, 'NULL'), verb);
END $$;

-- One settlement, or TN001. What an earlier transaction has settled raises TN004: it was done before. If a repetition were
-- answered with yes, everything that this transaction writes, before or after, would be committed once more beside a
-- settlement that was made without it. So after a COMMIT whose answer was lost, TN004 tells that it went through. Within the
-- transaction that settled, a repetition is answered with yes.
CREATE OR REPLACE FUNCTION tenure.settle(p_job bigint, p_token bigint, p_verb text, p_after_ms bigint, p_note text, p_result json)
RETURNS text
LANGUAGE plpgsql
AS $$
DECLARE
    answer record;
BEGIN
    SELECT s.verdict, s.became INTO answer
      FROM tenure.settle_many(ARRAY[p_job], ARRAY[p_token], ARRAY[p_verb], ARRAY[p_after_ms],
                              ARRAY[left(p_note, 2048)], ARRAY[p_result]) s;
    IF answer.verdict IN ('stale', 'gone') THEN
        PERFORM tenure.stale(p_job, p_token, p_verb);
    ELSIF answer.verdict = 'repeated' AND NOT tenure.is_settled_here(p_job, p_token, p_verb) THEN
        RAISE EXCEPTION USING ERRCODE = 'TN004',
            MESSAGE = format('%s was done before: token %s has ended its attempt of job %s', p_verb, p_token, p_job),
            DETAIL = format('An earlier transaction made it %s. What this one writes is not part of that.',
                            tenure.state_name(answer.became)),
            HINT = 'Roll back: there is nothing left to do. If you repeat a transaction whose COMMIT was not answered, it went through.';
    END IF;
    RETURN tenure.state_name(answer.became);
END $$;

-- Whether this very transaction settled so, also under a savepoint. The row that tells is visible to the caller, so it is
-- committed, or it is this transaction's own: then its writer is still in progress.
CREATE OR REPLACE FUNCTION tenure.is_settled_here(p_job bigint, p_token bigint, p_verb text) RETURNS boolean
LANGUAGE plpgsql
AS $$
DECLARE
    here   bigint := pg_current_xact_id_if_assigned()::text::bigint;
    writer xid;
BEGIN
    IF here IS NULL THEN
        RETURN false;
    END IF;
    SELECT d.xmin INTO writer FROM tenure.done d WHERE p_verb = 'complete' AND d.id = p_job AND d.token = p_token;
    IF NOT FOUND THEN
        SELECT l.xmin INTO writer FROM tenure.timeline l
         WHERE l.job_id = p_job AND l.token = p_token AND l.verb = p_verb AND NOT l.refused;
    END IF;
    -- Savepoints have numbers of their own, above their transaction's. A row keeps the low 32 bits of the number.
    RETURN coalesce(pg_xact_status(((here + ((writer::text::bigint - here) & 4294967295))::text)::xid8) = 'in progress', false);
EXCEPTION WHEN invalid_parameter_value THEN
    -- No transaction has that number yet: the writer is older than this transaction.
    RETURN false;
END $$;

-- It is done.
CREATE OR REPLACE FUNCTION tenure.complete(job bigint, token bigint, result json DEFAULT NULL) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF result IS NOT NULL THEN
        PERFORM tenure.check_json('result', result, 262144);
    END IF;
    PERFORM tenure.settle(job, token, 'complete', 0, NULL, result);
END $$;

-- It failed: another try if there is one left, after retry_in or the job's own delay. Answers what the job
-- became: queued or dead.
CREATE OR REPLACE FUNCTION tenure.fail(job bigint, token bigint, error text, retry_in interval DEFAULT NULL) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    pause bigint := tenure.ms('retry_in', retry_in);
BEGIN
    IF pause IS NULL THEN
        SELECT tenure.retry_delay(j.retry, j.attempt, floor(random() * 4294967296)::bigint) INTO pause
          FROM tenure.jobs j WHERE j.id = job AND j.token = fail.token;
    END IF;
    RETURN tenure.settle(job, token, 'retry', coalesce(pause, 0), error, NULL);
END $$;

-- The delay before the next try. Only the exponential policy has chance in it, 32 bits of it: half of the
-- delay is certain, so that a thousand jobs that failed together do not come back together.
CREATE OR REPLACE FUNCTION tenure.retry_delay(retry json, failures int, jitter bigint) RETURNS bigint
LANGUAGE plpgsql IMMUTABLE
AS $$
DECLARE
    whole   bigint := tenure.base_delay(retry, failures);
    certain bigint := whole / 2;
BEGIN
    IF retry IS NULL OR retry -> 'exponential' IS NOT NULL THEN
        RETURN certain + floor((whole - certain)::numeric * jitter / 4294967296)::bigint;
    END IF;
    RETURN whole;
END $$;

-- It will never succeed.
CREATE OR REPLACE FUNCTION tenure.bury(job bigint, token bigint, reason text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$ BEGIN PERFORM tenure.settle(job, token, 'bury', 0, reason, NULL); END $$;

-- Not now; the attempt does not count.
CREATE OR REPLACE FUNCTION tenure.snooze(job bigint, token bigint, delay interval) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$ BEGIN PERFORM tenure.settle(job, token, 'snooze', tenure.ms('delay', delay), NULL, NULL); END $$;

-- Given back unfinished, as at shutdown; the attempt does not count.
CREATE OR REPLACE FUNCTION tenure.release(job bigint, token bigint) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$ BEGIN PERFORM tenure.settle(job, token, 'release', 0, NULL, NULL); END $$;

-- It waits for a person or a signal; the attempt does not count.
CREATE OR REPLACE FUNCTION tenure.park(job bigint, token bigint, reason text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$ BEGIN PERFORM tenure.settle(job, token, 'park', 0, reason, NULL); END $$;

-- For a user's own transaction: prove at its COMMIT that the job is still held, without keeping renewals out
-- while it is open.

-- Asks for the proof, and refuses at once what is stale already. With strict => true a lease that is over is
-- refused as well, even if nobody has taken the job yet: the check before a call to the outside.
CREATE OR REPLACE FUNCTION tenure.fence(job bigint, token bigint, strict boolean DEFAULT false) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    until bigint;
    t     bigint := tenure.clock_ms();
BEGIN
    SELECT j.lease_until INTO until FROM tenure.jobs j WHERE j.id = job AND j.token = fence.token AND j.state + 0 = 2;
    IF NOT FOUND THEN
        PERFORM tenure.stale(job, token, 'fence');
    ELSIF strict AND until <= t THEN
        RAISE EXCEPTION USING ERRCODE = 'TN001',
            MESSAGE = format('fence refused: the lease on job %s under token %s is over', job, token),
            DETAIL = format('lease_expired: it was over at %s; nobody has taken the job yet.', tenure.at(until)),
            HINT = 'Renew it with tenure.renew before you call anything outside.';
    END IF;
    -- Settlements look for fences only in a transaction that has some.
    PERFORM set_config('tenure_session.fenced', 'yes', true);
    INSERT INTO tenure.fences (job_id, token) VALUES (job, token);
END $$;

-- At COMMIT: if the row is gone, a settlement in this transaction has proved the fence; else the job must be
-- running under the token. The lock makes a takeover wait until the COMMIT is through.
CREATE OR REPLACE FUNCTION tenure.check_fence() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    DELETE FROM tenure.fences f WHERE f.seq = NEW.seq;
    IF FOUND THEN
        PERFORM 1 FROM tenure.jobs j
          WHERE j.id = NEW.job_id
            AND j.token = NEW.token AND j.state + 0 = 2
            FOR NO KEY UPDATE;
        IF NOT FOUND THEN
            PERFORM tenure.stale(NEW.job_id, NEW.token, 'commit');
        END IF;
    END IF;
    RETURN NULL;
END $$;

DO $$ BEGIN
    IF NOT EXISTS (SELECT 1 FROM pg_trigger t WHERE t.tgrelid = 'tenure.fences'::regclass AND t.tgname = 'fence') THEN
        CREATE CONSTRAINT TRIGGER fence AFTER INSERT ON tenure.fences
            DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION tenure.check_fence();
    END IF;
END $$;

-- A settlement proves the fences of its own transaction. settle_many calls it, and only where there are some.
CREATE OR REPLACE FUNCTION tenure.prove_fences(p_jobs bigint[], p_tokens bigint[]) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    DELETE FROM tenure.fences f USING unnest(p_jobs, p_tokens) s(id, token)
     WHERE f.job_id = s.id AND f.token = s.token;
END $$;

-- Locks the job for the rest of the transaction, and answers until when the lease holds. Call it first in a
-- REPEATABLE READ transaction, where a renewal in between would otherwise make the settlement fail with
-- 40001, which means: try again, never: stale.
CREATE OR REPLACE FUNCTION tenure.hold(job bigint, token bigint) RETURNS timestamptz
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    until bigint;
BEGIN
    SELECT j.lease_until INTO until FROM tenure.jobs j
     WHERE j.id = job
       AND j.token = hold.token AND j.state + 0 = 2
       FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        PERFORM tenure.stale(job, token, 'hold');
    END IF;
    RETURN tenure.at(until);
END $$;

-- Leaves a refusal in the timeline, after TN001 has rolled its own record back. Only what is stale can be
-- refused; the answer tells whether there was something to write.
CREATE OR REPLACE FUNCTION tenure.refused(job bigint, token bigint, verb text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    found_ record;
BEGIN
    IF verb IS NULL OR verb NOT IN ('complete', 'retry', 'snooze', 'release', 'bury', 'park', 'renew', 'progress', 'fence', 'hold',
        'commit', 'effect_open', 'effect_commit', 'effect_fail', 'effect_resolve', 'step_get', 'step_put') THEN
        PERFORM tenure.invalid('verb', coalesce(quote_literal(verb), 'NULL') || ' is not a call that can be refused',
            'Use the verb that the message of TN001 begins with.');
    END IF;
    SELECT c.token, c.state INTO found_ FROM tenure.current(job) c;
    IF found_.token IS NULL OR refused.token IS NULL OR found_.token = refused.token AND found_.state = 2 THEN
        RETURN false;
    END IF;
    -- The timeline knows the verbs of jobs; a fence, a hold and a commit are steps towards a completion.
    PERFORM tenure.refuse(job, token, CASE WHEN verb IN ('fence', 'hold', 'commit') THEN 'complete' ELSE verb END, tenure.clock_ms());
    RETURN true;
END $$;

-- Effects and steps for people and other languages. Each raises TN001 where the set form answers stale, and TN003 for what
-- the ledger does not allow. Call them in transactions of their own: an intent counts from its COMMIT on, so that must
-- come before the call to the outside.

-- One entry, or an error.
CREATE OR REPLACE FUNCTION tenure.ledger_entry(p_job bigint, p_token bigint, p_verb text, p_name text, p_result json, p_note text,
    OUT answer text, OUT result json)
LANGUAGE plpgsql
AS $$
DECLARE
    stands text;
BEGIN
    IF p_result IS NOT NULL THEN
        PERFORM tenure.check_json('result', p_result, 262144);
    END IF;
    SELECT l.verdict, l.result, ('{open,committed,failed,resend}'::text[])[l.standing + 1] INTO answer, result, stands
      FROM tenure.ledger_many(ARRAY[p_job], ARRAY[p_token], ARRAY[p_verb], ARRAY[p_name], ARRAY[p_result],
                              ARRAY[left(p_note, 2048)]) l;
    IF answer IN ('stale', 'gone') THEN
        PERFORM tenure.stale(p_job, p_token, p_verb);
    ELSIF answer = 'no' AND stands IS NULL THEN
        PERFORM tenure.invalid('effect', format('job %s has no effect %s', p_job, p_name), 'Open it first, with tenure.effect_open.');
    ELSIF answer = 'no' THEN
        PERFORM tenure.invalid('effect', format('effect %s of job %s is %s; this attempt cannot %s', p_name, p_job, stands, p_verb),
            'Ask tenure.effect_open where it stands. Only who opened an effect may commit or fail it; only what is in doubt can be settled.');
    END IF;
END $$;

-- The key that outside systems deduplicate by: the same for every attempt of this effect of this job, and unique in the
-- world, because the installation is random and the job's id tells the epoch it is from.
CREATE OR REPLACE FUNCTION tenure.effect_key(p_job bigint, p_effect text) RETURNS text
LANGUAGE plpgsql STABLE
AS $$
BEGIN
    RETURN (SELECT format('%s/%s/%s/%s', replace(m.installation::text, '-', ''), p_job >> 40, p_job, p_effect) FROM tenure.meta m);
END $$;

-- I am about to do it. Answers opened: go on, under this key; committed: it has happened, and this came back; in_doubt:
-- an earlier attempt may have done it, and nobody knows.
CREATE OR REPLACE FUNCTION tenure.effect_open(job bigint, token bigint, effect text)
RETURNS TABLE (answer text, result json, key text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    SELECT e.answer, e.result INTO answer, result
      FROM tenure.ledger_entry(effect_open.job, effect_open.token, 'effect_open', effect_open.effect, NULL, NULL) e;
    IF answer = 'decided' THEN
        -- A client in SQL goes on with what it is given: from here on the person who decided cannot correct it.
        PERFORM tenure.ledger_entry(effect_open.job, effect_open.token, 'effect_resolve', effect_open.effect, result, NULL);
        answer := 'committed';
    END IF;
    key := tenure.effect_key(effect_open.job, effect_open.effect);
    RETURN NEXT;
END $$;

-- It happened, and this came back.
CREATE OR REPLACE FUNCTION tenure.effect_commit(job bigint, token bigint, effect text, result json) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$ BEGIN PERFORM tenure.ledger_entry(job, token, 'effect_commit', effect, result, NULL); END $$;

-- It did not happen; it may be opened again.
CREATE OR REPLACE FUNCTION tenure.effect_fail(job bigint, token bigint, effect text, error text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$ BEGIN PERFORM tenure.ledger_entry(job, token, 'effect_fail', effect, NULL, error); END $$;

-- Of two ways to take what is in doubt exactly one, or TN003.
CREATE OR REPLACE FUNCTION tenure.check_resolution(committed json, resend boolean) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    IF (committed IS NOT NULL) = coalesce(resend, false) THEN
        PERFORM tenure.invalid('committed', 'say one of two things: it happened and this came back, or send it again',
            'Pass committed => ''…'', with ''null'' where nothing came back, or resend => true.');
    END IF;
END $$;

-- It was in doubt, and the job's holder knows how it is to be taken: it happened and this came back, or it is sent
-- again under the same key.
CREATE OR REPLACE FUNCTION tenure.effect_settle(job bigint, token bigint, effect text, committed json DEFAULT NULL,
    resend boolean DEFAULT false) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM tenure.check_resolution(committed, resend),
            tenure.ledger_entry(job, token, 'effect_resolve', effect, committed, NULL);
END $$;

-- A person's word about an effect in doubt, for a job that nobody holds. A parked job with no other doubt is queued again.
-- Answers the job's state afterwards.
CREATE OR REPLACE FUNCTION tenure.effect_resolve(job bigint, effect text, committed json DEFAULT NULL,
    resend boolean DEFAULT false) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    answer record;
BEGIN
    PERFORM tenure.check_resolution(committed, resend);
    IF committed IS NOT NULL THEN
        PERFORM tenure.check_json('committed', committed, 262144);
    END IF;
    SELECT r.verdict, r.state, ('{open,committed,failed,resend}'::text[])[r.standing + 1] AS standing INTO answer
      FROM tenure.resolve_effect(job, effect, committed) r;
    CASE answer.verdict
        WHEN 'gone' THEN
            PERFORM tenure.invalid('job', format('there is no job %s, or no longer', coalesce(job::text, 'NULL')), 'Look for it in the view tenure.job.');
        WHEN 'unknown' THEN
            PERFORM tenure.invalid('effect', format('job %s has no effect %s', job, effect), 'Look for it in the view tenure.effect.');
        WHEN 'no' THEN
            PERFORM tenure.invalid('effect', format('effect %s of job %s is %s, and so not in doubt', effect, job, answer.standing),
                'What stands is in the view tenure.effect. A decision can be corrected until an attempt has gone on with it.');
        WHEN 'over' THEN
            PERFORM tenure.invalid('job', format('job %s has succeeded, and nobody would send effect %s again', job, effect),
                'If it happened, say so with committed => ….');
        WHEN 'held' THEN
            PERFORM tenure.invalid('job', format('job %s is running, and its holder decides', job),
                'Wait until it parks or ends, or cancel it first.');
        ELSE
            RETURN tenure.state_name(answer.state);
    END CASE;
END $$;

-- What is remembered of a step; NULL if nothing is.
CREATE OR REPLACE FUNCTION tenure.step_get(job bigint, token bigint, step text) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$ BEGIN RETURN (SELECT e.result FROM tenure.ledger_entry(job, token, 'step_get', step, NULL, NULL) e); END $$;

-- Remembers what a step came to, and answers it. What is remembered already stays, and is the answer.
CREATE OR REPLACE FUNCTION tenure.step_put(job bigint, token bigint, step text, result json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$ BEGIN RETURN (SELECT e.result FROM tenure.ledger_entry(job, token, 'step_put', step, result, NULL) e); END $$;

-- What operators do to one job. Each answers the job's state afterwards; what cannot be done raises TN003.

CREATE OR REPLACE FUNCTION tenure.changed(p_job bigint, p_verb text, p_verdict text, p_state smallint) RETURNS text
LANGUAGE plpgsql
AS $$
BEGIN
    IF p_verdict = 'gone' THEN
        PERFORM tenure.invalid('job', format('there is no job %s, or no longer', coalesce(p_job::text, 'NULL')), 'Look for it in the view tenure.job.');
    ELSIF p_verdict = 'no' THEN
        PERFORM tenure.invalid('job', format('job %s is %s; %s is not possible', p_job, tenure.state_name(p_state), p_verb),
            'Cancel what has not ended, requeue what is dead or cancelled, resume what is parked.');
    END IF;
    RETURN (SELECT tenure.state_name(c.state) FROM tenure.current(p_job) c);
END $$;

CREATE OR REPLACE FUNCTION tenure.cancel(job bigint) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$ BEGIN RETURN (SELECT tenure.changed(job, 'cancel', c.verdict, c.state) FROM tenure.cancel_many(ARRAY[job]) c); END $$;

CREATE OR REPLACE FUNCTION tenure.requeue(job bigint, if_token bigint DEFAULT NULL) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$ BEGIN RETURN (SELECT tenure.changed(job, 'requeue', c.verdict, c.state) FROM tenure.requeue_many(ARRAY[job], ARRAY[if_token]) c); END $$;

CREATE OR REPLACE FUNCTION tenure.resume(job bigint) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$ BEGIN RETURN (SELECT tenure.changed(job, 'resume', c.verdict, c.state) FROM tenure.resume_many(ARRAY[job]) c); END $$;

-- What people look at.

-- Live and ended jobs together, with their states by name and times as timestamps.
CREATE OR REPLACE VIEW tenure.job AS
SELECT r.id, tenure.state_name(r.state) AS state, r.queue, r.tenant, r.kind, r.args, r.priority, r.attempt, r.max_attempts,
       r.crashes, r.max_crashes, r.token, r.worker, tenure.at(r.enqueued_at) AS enqueued_at, tenure.at(r.run_at) AS run_at,
       tenure.at(r.started_at) AS started_at, tenure.at(r.lease_until) AS lease_until,
       tenure.at(r.finished_at) AS finished_at, r.result, r.reason, r.key, r.extras ->> 'trace' AS trace,
       CASE WHEN json_typeof(r.extras -> 'tags') = 'array'
            THEN ARRAY(SELECT e.tag FROM json_array_elements_text(r.extras -> 'tags') e(tag)) END AS tags, r.parent,
       r.progress / 1000.0::double precision AS progress, r.progress_note
  FROM tenure.record r;

-- What happened to jobs and was not the happy path; refusals among them.
CREATE OR REPLACE VIEW tenure.event AS
SELECT l.seq, l.job_id AS job, tenure.at(l.at) AS at, l.verb, l.refused, l.token, l.attempt, l.worker,
       tenure.at(l.began) AS began, tenure.state_name(l.became) AS became, l.note, l.earlier
  FROM tenure.timeline l;

-- What jobs did to the outside, and whether it may have happened without anybody knowing.
CREATE OR REPLACE VIEW tenure.effect AS
SELECT l.job_id AS job, l.effect, ('{open,committed,failed,resend}'::text[])[l.state + 1] AS state,
       l.state = 0 AND NOT EXISTS (SELECT 1 FROM tenure.jobs j WHERE j.id = l.job_id AND j.token = l.token AND j.state + 0 = 2)
           AS in_doubt,
       l.token, tenure.at(l.opened_at) AS opened_at, tenure.at(l.ended_at) AS ended_at, l.result, l.note
  FROM tenure.ledger l;

-- All queues at a glance.
CREATE OR REPLACE VIEW tenure.stats AS
SELECT o.queue, o.tenant, o.ready, o.waiting, o.running, o.parked, o.dead,
       least(o.oldest_wait_ms, 253402207200000) * interval '1 millisecond' AS oldest_wait, o.succeeded_last_minute, o.died_last_minute
  FROM tenure.overview() o;

-- What a job has come to: its state, its result once it has succeeded, and why it is dead or parked. No row for a job that
-- is not there, or no longer.
CREATE OR REPLACE FUNCTION tenure.outcome(job bigint) RETURNS TABLE (state text, result json, reason text)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY SELECT tenure.state_name(r.state), r.result, r.reason FROM tenure.record r WHERE r.id = outcome.job;
END $$;

REVOKE ALL ON ALL FUNCTIONS IN SCHEMA tenure FROM PUBLIC;
INSERT INTO tenure.migrations (version, name, checksum, min_client, applied_at) VALUES (1, 'first', '01d698983f660fcf', 1, tenure.clock_ms());
UPDATE tenure.meta SET functions = '7ef5247b963e9259', functions_client = 1, functions_release = 3, functions_at = tenure.clock_ms();
UPDATE tenure.meta m SET wal_timeline = h.wal_timeline, system = h.system, jobs_table = h.jobs_table
  FROM tenure.whereabouts() h WHERE m.wal_timeline IS NULL;
