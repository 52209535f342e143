-- A prototype, not the product: settle and claim in one call on PostgreSQL, with the tables that the
-- engine would have. Left out on purpose: lapsing (only its probe is here), keys, the timeline, the
-- mark for a held horizon, suspects beyond their probe, results other than of completions.
--
-- Traps met on the way: << and | have one precedence in SQL, so a lane needs its parentheses; and a
-- comparison with state in a join is written state + 0, or the planner drives it from the partial
-- index and compares every pair.

DROP SCHEMA IF EXISTS tenure CASCADE;
CREATE SCHEMA tenure;

CREATE TABLE tenure.meta (one int PRIMARY KEY CHECK (one = 1), epoch int NOT NULL DEFAULT 0);
INSERT INTO tenure.meta VALUES (1);
CREATE TABLE tenure.clock (at timestamptz);
CREATE TABLE tenure.queues (queue text COLLATE "C" PRIMARY KEY, paused_at timestamptz, keep_ms bigint NOT NULL);
CREATE SEQUENCE tenure.job_id;

CREATE TABLE tenure.jobs (
    id           bigint PRIMARY KEY,
    lane         bigint NOT NULL,
    run_at       timestamptz NOT NULL,
    token        bigint NOT NULL DEFAULT 0,
    enqueued_at  timestamptz NOT NULL,
    started_at   timestamptz,
    leased_at    timestamptz,
    lease_until  timestamptz,
    lease_ms     bigint,
    max_runtime  bigint,
    parent       bigint,
    state        smallint NOT NULL,     -- 0 ready, 1 waiting, 2 running, 3 parked
    priority     smallint NOT NULL DEFAULT 0,
    attempt      smallint NOT NULL DEFAULT 0,
    max_attempts smallint NOT NULL DEFAULT 6,
    crashes      smallint NOT NULL DEFAULT 0,
    max_crashes  smallint NOT NULL DEFAULT 3,
    queue        text COLLATE "C" NOT NULL,
    tenant       text COLLATE "C" NOT NULL,
    kind         text COLLATE "C" NOT NULL,
    args         json,
    codec        text,
    retry        jsonb,
    key          text,
    trace        text,
    tags         text[],
    limit_key    text,
    worker       text,
    reason       text
);
CREATE INDEX jobs_ready   ON tenure.jobs (lane, priority, run_at, id) WHERE state = 0;
CREATE INDEX jobs_waiting ON tenure.jobs (run_at, id)                 WHERE state = 1;
CREATE INDEX jobs_running ON tenure.jobs (lease_until, id)            WHERE state = 2;
CREATE INDEX jobs_suspect ON tenure.jobs (worker, started_at)         WHERE state = 2 AND crashes > 0;

CREATE TABLE tenure.done (LIKE tenure.jobs, finished_at timestamptz NOT NULL, result json);
ALTER TABLE tenure.done ADD PRIMARY KEY (id);
ALTER TABLE tenure.done DROP COLUMN leased_at, DROP COLUMN lease_until, DROP COLUMN lease_ms;
CREATE INDEX done_age  ON tenure.done (queue, state, finished_at);
CREATE INDEX done_dead ON tenure.done (id) WHERE state = 5;

CREATE FUNCTION tenure.now() RETURNS timestamptz LANGUAGE sql VOLATILE AS
$$ SELECT coalesce((SELECT at FROM tenure.clock LIMIT 1), date_trunc('milliseconds', clock_timestamp())) $$;

CREATE FUNCTION tenure.prefix(name text, bits int) RETURNS bigint LANGUAGE sql IMMUTABLE AS
$$ SELECT ('x' || encode(substring(sha256(convert_to(name, 'UTF8')) FROM 1 FOR 4), 'hex'))::bit(32)::bigint >> (32 - bits) $$;

CREATE FUNCTION tenure.lane(queue text, tenant text, kind text) RETURNS bigint LANGUAGE sql IMMUTABLE AS
$$ SELECT (tenure.prefix(queue, 15) << 46) | (tenure.prefix(tenant, 29) << 17) | tenure.prefix(kind, 17) $$;

-- Settle a batch of completions and claim the next, in one call.
CREATE FUNCTION tenure.exchange(
    p_jobs bigint[], p_tokens bigint[], p_results json[],
    p_worker text, p_queues text[], p_kinds text[], p_n int, p_lease_ms bigint, p_cursor bigint)
RETURNS TABLE (id bigint, token bigint, kind text, queue text, tenant text, args json, attempt smallint, grp bigint)
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    t        timestamptz := tenure.now();
    e        bigint := (SELECT epoch FROM tenure.meta);
    suspect  CONSTANT bigint := 1::bigint << 61;
    numbers  bigint[];   -- the queues' numbers
    kinds    bigint[];   -- the kinds' numbers
    queues   text[];
    allowed  boolean;    -- whether a suspect may be taken
    ranges   bigint[];   -- first and last group of each range, in ring order
    left_    int := p_n; -- how many more are wanted
    groups   bigint[];
    rich     bigint[];
    g        bigint;
    share    int;
    got      int;
    i        int := 1;
    x        bigint;
    y        bigint;
BEGIN
    IF cardinality(p_jobs) > 0 THEN
        WITH shown AS MATERIALIZED (
            SELECT u.id, u.token, u.result FROM unnest(p_jobs, p_tokens, p_results) u(id, token, result) ORDER BY u.id),
        ended AS (
            DELETE FROM tenure.jobs j USING shown s
             WHERE j.id = s.id
               AND j.token = s.token AND j.state + 0 = 2
            RETURNING j.*, s.result)
        INSERT INTO tenure.done (id, lane, run_at, token, enqueued_at, started_at, max_runtime, parent, state, priority, attempt,
            max_attempts, crashes, max_crashes, queue, tenant, kind, args, codec, retry, key, trace, tags, limit_key, worker, finished_at, result)
        SELECT d.id, d.lane, d.run_at, d.token, d.enqueued_at, d.started_at, d.max_runtime, d.parent, 4, d.priority, d.attempt,
            d.max_attempts, d.crashes, d.max_crashes, d.queue, d.tenant, d.kind, d.args, d.codec, d.retry, d.key, d.trace, d.tags, d.limit_key, d.worker, t, d.result
          FROM ended d;
    END IF;
    -- Promote what has become due.
    IF EXISTS (SELECT 1 FROM tenure.jobs w WHERE w.state = 1 AND w.run_at <= t ORDER BY w.run_at LIMIT 1) THEN
        UPDATE tenure.jobs j SET state = 0
          FROM (SELECT w.id FROM tenure.jobs w WHERE w.state = 1 AND w.run_at <= t ORDER BY w.run_at, w.id LIMIT 1000 FOR UPDATE SKIP LOCKED) d
         WHERE j.id = d.id AND j.state + 0 = 1;
    END IF;
    -- (Lapse: the same shape; the probe alone is measured here.)
    PERFORM 1 FROM tenure.jobs r WHERE r.state = 2 AND r.lease_until <= t ORDER BY r.lease_until LIMIT 1;

    SELECT array_agg(q), array_agg(DISTINCT tenure.prefix(q, 15)) INTO queues, numbers
      FROM unnest(p_queues) q WHERE NOT EXISTS (SELECT 1 FROM tenure.queues s WHERE s.queue = q AND s.paused_at IS NOT NULL);
    IF p_kinds IS NOT NULL THEN
        SELECT array_agg(tenure.prefix(k, 17)) INTO kinds FROM unnest(p_kinds) k;
    END IF;
    allowed := NOT EXISTS (SELECT 1 FROM tenure.jobs r WHERE r.state = 2 AND r.crashes > 0 AND r.worker = p_worker AND r.started_at > t - interval '60 seconds');
    -- The ring: from the cursor to the end, then from the beginning to the cursor.
    SELECT array_agg(v ORDER BY part, first_, w) INTO ranges FROM (
        SELECT 0 AS part, greatest(n << 29, p_cursor + 1) AS first_, 0 AS w, greatest(n << 29, p_cursor + 1) AS v FROM unnest(numbers) n WHERE ((n + 1) << 29) - 1 > p_cursor
        UNION ALL SELECT 0, greatest(n << 29, p_cursor + 1), 1, ((n + 1) << 29) - 1 FROM unnest(numbers) n WHERE ((n + 1) << 29) - 1 > p_cursor
        UNION ALL SELECT 1, n << 29, 0, n << 29 FROM unnest(numbers) n WHERE n << 29 <= p_cursor
        UNION ALL SELECT 1, n << 29, 1, least(((n + 1) << 29) - 1, p_cursor) FROM unnest(numbers) n WHERE n << 29 <= p_cursor) r;

    WHILE left_ > 0 AND i < coalesce(cardinality(ranges), 0) LOOP
        -- The next groups that have ready jobs of a kind asked for: a skip-scan in one statement.
        groups := '{}';
        WHILE cardinality(groups) < least(left_, 64) AND i < cardinality(ranges) LOOP
            x := ranges[i] << 17;
            y := (ranges[i + 1] + 1) << 17;
            WITH RECURSIVE ring AS (
                SELECT (SELECT j.lane FROM tenure.jobs j WHERE j.state = 0 AND j.lane >= x AND j.lane < y ORDER BY j.lane LIMIT 1) AS lane, 0 AS found
                UNION ALL
                SELECT (SELECT j.lane FROM tenure.jobs j WHERE j.state = 0 AND j.lane < y
                          -- A lane of a kind nobody asked for is stepped over; a group that was found is left behind.
                          AND j.lane >= CASE WHEN kinds IS NULL OR r.lane & 131071 = ANY (kinds) THEN (r.lane >> 17) + 1 << 17 ELSE r.lane + 1 END
                         ORDER BY j.lane LIMIT 1),
                       r.found + CASE WHEN kinds IS NULL OR r.lane & 131071 = ANY (kinds) THEN 1 ELSE 0 END
                  FROM ring r WHERE r.lane IS NOT NULL AND r.found < least(left_, 64) - cardinality(groups))
            SELECT coalesce(array_agg(DISTINCT r.lane >> 17 ORDER BY r.lane >> 17), '{}') INTO rich
              FROM ring r WHERE r.lane IS NOT NULL AND (kinds IS NULL OR r.lane & 131071 = ANY (kinds));
            IF allowed THEN
                -- Suspects stand in lanes of their own; usually there are none, and this is one probe.
                FOR g IN
                    SELECT DISTINCT (j.lane & ~suspect) >> 17 FROM tenure.jobs j
                     WHERE j.state = 0 AND j.lane >= x | suspect AND j.lane < y | suspect LIMIT 64
                LOOP rich := rich || g; END LOOP;
                IF cardinality(rich) > 0 THEN SELECT array_agg(DISTINCT v ORDER BY v) INTO rich FROM unnest(rich) v; END IF;
            END IF;
            rich := rich[1:least(left_, 64) - cardinality(groups)];
            groups := groups || rich;
            IF cardinality(groups) >= least(left_, 64) THEN
                ranges[i] := groups[cardinality(groups)] + 1;
            ELSE
                i := i + 2;
            END IF;
        END LOOP;
        EXIT WHEN cardinality(groups) = 0;
        -- Equal shares from these groups, until there is no room or no work.
        WHILE left_ > 0 AND cardinality(groups) > 0 LOOP
            share := (left_ + cardinality(groups) - 1) / cardinality(groups);
            -- One statement for all groups of the pass.
            RETURN QUERY
            WITH lane AS MATERIALIZED (
                SELECT gg AS g, l.lane FROM unnest(groups) gg CROSS JOIN LATERAL (
                    WITH RECURSIVE walk AS (
                        SELECT (SELECT j.lane FROM tenure.jobs j WHERE j.state = 0 AND j.lane >= gg << 17 AND j.lane < (gg + 1) << 17 ORDER BY j.lane LIMIT 1) AS lane
                        UNION ALL
                        SELECT (SELECT j.lane FROM tenure.jobs j WHERE j.state = 0 AND j.lane > w.lane AND j.lane < (gg + 1) << 17 ORDER BY j.lane LIMIT 1) FROM walk w WHERE w.lane IS NOT NULL)
                    SELECT w.lane FROM walk w WHERE w.lane IS NOT NULL AND (kinds IS NULL OR w.lane & 131071 = ANY (kinds))) l),
            picked AS MATERIALIZED (
                SELECT c.id, c.g FROM (
                    SELECT s.id, lane.g, row_number() OVER (PARTITION BY lane.g ORDER BY s.priority, s.run_at, s.id) AS place
                      FROM lane CROSS JOIN LATERAL (
                        SELECT j.id, j.priority, j.run_at FROM tenure.jobs j
                         WHERE j.state = 0 AND j.lane = lane.lane AND j.queue = ANY (queues) AND (p_kinds IS NULL OR j.kind = ANY (p_kinds))
                         ORDER BY j.priority, j.run_at, j.id LIMIT share FOR UPDATE SKIP LOCKED) s) c
                 WHERE c.place <= share
                 LIMIT left_)
            UPDATE tenure.jobs j
               SET state = 2, attempt = j.attempt + 1, token = greatest(j.token, e << 40) + 1, worker = p_worker,
                   started_at = t, leased_at = t, lease_ms = p_lease_ms,
                   lease_until = t + least(p_lease_ms, coalesce(j.max_runtime, p_lease_ms)) * interval '1 millisecond'
              FROM picked p WHERE j.id = p.id AND j.state + 0 = 0
            RETURNING j.id, j.token, j.kind, j.queue, j.tenant, j.args, j.attempt, p.g;
            GET DIAGNOSTICS got = ROW_COUNT;
            EXIT WHEN got = 0;
            left_ := left_ - got;
            IF got < share * cardinality(groups) AND cardinality(groups) = 1 THEN groups := '{}'; END IF;
        END LOOP;
    END LOOP;
END $$;
