-- Leases due jobs: promote, lapse, walk the ring, take.
--
-- Ready jobs stand in lanes, and the lanes of one (queue, tenant) are a group. A claim walks the ring of
-- groups that have work for it, beginning after the last one that its worker was served from, and takes
-- an equal share from each. It never waits for a row: it skips rows that another transaction has locked.

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
                WHERE w.state = 1 /* waiting */ AND w.queue = q.queue AND w.run_at >= known.waiting_from AND w.run_at <= t))
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
    IF EXISTS (SELECT 1 FROM tenure.jobs r WHERE r.state = 2 /* running */ AND r.lease_until >= known.running_from AND r.lease_until <= late) THEN
        SELECT l.started, l.broke, l.broke_before INTO b FROM tenure.last_breaks(t) l;
        FOR over IN
            SELECT r.id, r.token FROM tenure.jobs r
             WHERE r.state = 2 /* running */ AND r.lease_until >= known.running_from AND r.lease_until <= late
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
                                         WHERE r.state = 2 /* running */ AND r.lease_until >= known.running_from AND r.lease_until <= late
                                         ORDER BY r.lease_until LIMIT 1), late);
        known.running_until := coalesce(known.running_until, t + saved);
    END IF;

    IF p_kinds IS NOT NULL THEN
        SELECT coalesce(array_agg(tenure.prefix(k, 15)), '{}') INTO kinds FROM unnest(p_kinds) k;
    END IF;
    -- Not beside one that has not run for long, nor beside one that the next crash would bury.
    SELECT count(*) = 0, coalesce(bool_and(r.started_at <= t - suspicion_ms AND r.crashes + 1 < r.max_crashes), true)
      INTO alone, allowed FROM tenure.jobs r
     WHERE r.state = 2 /* running */ AND r.lane & 2305843009213693952 <> 0 AND r.worker = p_worker;
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
               SET state = 2 /* running */,
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
               AND j.state + 0 = 0 /* ready */
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
             WHERE w.state = 1 /* waiting */ AND w.queue = q.queue AND w.run_at >= known.waiting_from
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
             WHERE w.state = 1 /* waiting */ AND w.queue = q.queue AND w.run_at >= p_from AND w.run_at <= t
             ORDER BY w.run_at, w.id LIMIT p_limit FOR UPDATE SKIP LOCKED) d)
    UPDATE tenure.jobs j SET state = 0 /* ready */ FROM due
     WHERE j.id = due.id AND j.state + 0 = 1 /* waiting */;
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
            SELECT (SELECT j.lane FROM tenure.jobs j WHERE j.state = 0 /* ready */ AND j.lane >= s.low AND j.lane < s.high
                     ORDER BY j.lane LIMIT 1), s.high, NULL::bigint, 0, 0
              FROM side s
            UNION ALL
            SELECT (SELECT j.lane FROM tenure.jobs j
                     WHERE j.state = 0 /* ready */ AND j.lane > w.lane
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
             WHERE j.state = 0 /* ready */ AND j.lane = l.lane
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
         WHERE j.state = 0 /* ready */ AND j.lane >= low AND j.lane < coalesce(mark.lane, p_high) ORDER BY j.lane LIMIT 1;
        IF NOT FOUND AND mark.lane IS NULL THEN
            EXIT;
        ELSIF NOT FOUND THEN
            low := mark.lane + 1;
            SELECT j.lane INTO found_ FROM tenure.jobs j
             WHERE j.state = 0 /* ready */ AND j.lane = mark.lane
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
