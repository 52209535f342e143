-- Leases due jobs: settle, fold, promote, lapse, ring, walk, pick, admit, take, answer.
--
-- Ready jobs stand in lanes, and the lanes of one (queue, tenant) are a group. A claim walks the ring of groups that
-- have work for it, beginning after the last one that its worker was served from, and takes an equal share from each.
-- It never waits for a row: it skips rows that another transaction has locked. One function does all of it. What every
-- call needs is in few statements; a step that is seldom needed is a function that is called only then
-- (docs/decisions/0022).

-- The rows of an answer, told apart by `what`: 'lapsed' for each job that was taken back on the way,
-- 'claimed' for each that was leased, in the order of `place`, and one 'next' with where the next claim
-- goes on. 'settled' is for each settlement. What does not belong to a row is NULL.
SELECT tenure.put_type('claim_row',
    'what text, place integer, job bigint, token bigint, verdict text, became smallint, state smallint, worker text, '
    'kind text, args json, queue text, tenant text, attempt integer, max_attempts integer, crashes integer, '
    'max_crashes integer, retry json, max_runtime bigint, run_at bigint, started_at bigint, enqueued_at bigint, '
    'lease_until bigint, key text, extras json, cursor bigint, due_ms bigint, marks text');

-- Jobs that were picked, in order; where each is; the place of the group that each is from; and whether one is a suspect.
SELECT tenure.put_type('picked', 'jobs bigint[], spots tid[], givers integer[], with_suspect boolean');

-- Where claims begin while dead entries are in their way: see the end of this file.
SELECT tenure.put_type('marks',
    'waiting_from bigint, waiting_until bigint, running_from bigint, running_until bigint, ready_until bigint, '
    'lanes bigint[], priorities smallint[], run_at bigint[], ids bigint[]');

-- Refuses a claim in a transaction that has written something. If that transaction were rolled back, the tokens of the
-- claim would be issued again, while the caller has begun to work under them. With p_in_transaction the caller promises
-- that it begins no job before its COMMIT is answered. In a database with a test clock nothing is refused: there the
-- drill's explorer calls everything inside transactions that it rolls back.
CREATE OR REPLACE FUNCTION tenure.check_alone(p_in_transaction boolean) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF p_in_transaction IS NOT TRUE AND NOT EXISTS (SELECT 1 FROM tenure.clock) THEN
        PERFORM tenure.invalid('transaction', 'this one has written something; if it were rolled back, the token of a claim would be issued twice',
            'Claim in a transaction of its own, with autocommit in most drivers, and commit before you begin the job.');
    END IF;
END $$;

-- Settles a batch and claims the next, for a worker whose slots become free as it settles; without settlements it claims.
-- p_in_transaction: see check_alone. p_round: the group with which the caller's round ends; the caller passes p_cursor from
-- claim to claim. With p_round a claim stops once it has passed 100 lanes of other kinds. If it has room left then, its verdict
-- is 'midway', and the caller claims again from the cursor with the same p_round. Without p_round a claim goes all the way
-- around. p_request: the caller's number for this claim. If the answer is lost, tenure.held finds the claim's jobs by it.
-- p_suspects: false for the second of two claims that a worker makes at once, since each would take a suspect.
CREATE OR REPLACE FUNCTION tenure.settle_and_claim(p_jobs bigint[], p_tokens bigint[], p_verbs text[], p_after_ms bigint[],
    p_notes text[], p_results json[], p_worker text, p_queues text[], p_kinds text[], p_n int, p_lease_ms bigint,
    p_cursor bigint DEFAULT 0, p_marks text DEFAULT NULL, p_grace_ms bigint DEFAULT 0, p_in_transaction boolean DEFAULT false,
    p_round bigint DEFAULT NULL, p_request bigint DEFAULT NULL, p_suspects boolean DEFAULT true)
RETURNS SETOF tenure.claim_row
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    lapse_limit CONSTANT int := 32;
    group_limit CONSTANT int := 64;
    pass_limit  CONSTANT int := 100;
    group_mask  CONSTANT bigint := (1::bigint << 46) - 1;
    t       bigint;
    e       bigint;
    late    bigint;     -- leases that were over by then are taken back
    known   tenure.marks;
    read_   bigint[];   -- what was read before of the indexes of waiting, running and ready jobs
    dead    bigint;     -- and in vain since
    queues  text[];     -- those asked for that are not paused
    due     text[];     -- those of them in which a waiting job's time has come
    over    boolean;    -- whether a lease looks over
    alone   boolean;    -- whether the worker holds no suspect: then also one whose next crash would bury it
    allowed boolean;    -- whether a suspect may still be taken: one at a time for each worker
    kinds   bigint[];   -- the numbers of the kinds asked for; NULL for all
    whole   bigint[];   -- the first and last group of each stretch of the ring, in order
    ranges  bigint[];   -- those that are left
    start   bigint := least(p_cursor, 1::bigint << 46);  -- the ring ends there
    stop    bigint := least(coalesce(p_round, start), 1::bigint << 46);
    to_pass int := CASE WHEN p_round IS NULL THEN 2147483647 ELSE pass_limit END;  -- how many more lanes may be passed by
    room    int := p_n; -- how many more are wanted
    settled record;
    walked  record;
    picked  tenure.picked;
    groups  int;        -- how many groups may have more
    rich    int[];      -- their places; NULL for all that were walked to
    share   int;
    seen    int;        -- how many were promoted, or lapsed
    most    int;        -- of how many
    ours    bigint[] := '{}';
    reached bigint := p_cursor;
    walked_to bigint;
    answer  tenure.claim_row;
BEGIN
    IF pg_current_xact_id_if_assigned() IS NOT NULL THEN PERFORM tenure.check_alone(p_in_transaction); END IF;
    PERFORM tenure.check_batch(p_n), tenure.check_lease(p_lease_ms), tenure.check_worker(p_worker);
    IF coalesce(cardinality(p_queues), 0) = 0 THEN
        PERFORM tenure.invalid('queues', 'a claim names at least one queue', 'Jobs that name none are in ''default''.');
    END IF;
    IF current_setting('synchronous_commit') = 'off' THEN PERFORM tenure.be_durable(); END IF;

    -- settle: what the worker has done, if it has done something.
    IF cardinality(p_jobs) IS DISTINCT FROM 0 THEN
        settled := tenure.settle_completions(p_jobs, p_tokens, p_verbs, p_after_ms, p_notes, p_results);
        answer.what := 'settled';
        answer.verdict := 'settled';
        answer.became := 4 /* succeeded */;
        FOREACH answer.place IN ARRAY settled.applied LOOP
            RETURN NEXT answer;
        END LOOP;
        IF cardinality(settled.applied) < cardinality(p_jobs) THEN
            FOR answer.place, answer.verdict, answer.became, answer.token, answer.state IN
                SELECT r.n, r.verdict, r.became, r.token, r.state
                  FROM tenure.settle_others(p_jobs, p_tokens, p_verbs, p_after_ms, p_notes, p_results, settled.applied, settled.t) r
            LOOP
                RETURN NEXT answer;
            END LOOP;
        END IF;
        answer := NULL;
    END IF;

    -- fold: make jobs ready whose condition has come true (no job has a condition: see tenure.fold).
    t := tenure.clock_ms();
    seen := tenure.fold(p_n, t);

    -- What the next four steps need to know, in one statement. The ring goes from the cursor to its end, and then from its
    -- beginning to where the round began.
    late := t - tenure.check_grace(p_grace_ms);
    known := tenure.read_marks(p_marks, t);
    read_ := ARRAY[tenure.read_of('tenure.jobs_waiting'), tenure.read_of('tenure.jobs_running'), tenure.read_of('tenure.jobs_ready')];
    SELECT q.queues, q.due,
           EXISTS (SELECT 1 FROM tenure.jobs r
                    WHERE r.state = 2 /* running */ AND r.lease_until >= known.running_from AND r.lease_until <= late),
           s.alone, s.allowed AND p_suspects,
           CASE WHEN p_kinds IS NOT NULL THEN ARRAY(SELECT tenure.prefix(k, 15) FROM unnest(p_kinds) k) END,
           ARRAY(SELECT b.bound
                   FROM (SELECT DISTINCT tenure.prefix(u, 20) AS number FROM unnest(q.queues) u) n
                  CROSS JOIN LATERAL (VALUES
                      (0, greatest(n.number << 26, start + 1),
                          least(((n.number + 1) << 26) - 1, CASE WHEN stop > start THEN stop END)),
                      (1, n.number << 26,
                          least(((n.number + 1) << 26) - 1, CASE WHEN stop > start THEN -1 ELSE stop END))) p(part, first, last)
                  CROSS JOIN LATERAL (VALUES (0, p.first), (1, p.last)) b(side, bound)
                  WHERE p.first <= p.last ORDER BY p.part, p.first, b.side),
           (SELECT f.floor FROM tenure.floor_here() f)
      INTO queues, due, over, alone, allowed, kinds, whole, e
      FROM (SELECT array_agg(u.queue), array_agg(u.queue) FILTER (WHERE EXISTS (
                       SELECT 1 FROM tenure.jobs w
                        WHERE w.state = 1 /* waiting */ AND w.queue = u.queue AND w.run_at >= known.waiting_from AND w.run_at <= t))
              FROM (SELECT DISTINCT a.queue FROM unnest(p_queues) a(queue)) u
             WHERE NOT EXISTS (SELECT 1 FROM tenure.queues s WHERE s.queue = u.queue AND s.paused_at IS NOT NULL)) q(queues, due)
     CROSS JOIN tenure.suspects_of(p_worker, t) s;
    e := coalesce(e, tenure.floor_kept(t));

    -- promote: make waiting jobs ready whose time has come, in the queues asked for, up to tenure.promote_limit.
    seen := 0;
    IF due IS NOT NULL THEN
        most := tenure.promote_limit(p_n, cardinality(due));
        seen := tenure.promote(due, most, known.waiting_from, t);
    END IF;
    dead := tenure.read_of('tenure.jobs_waiting') - read_[1];
    IF tenure.mark_for(dead) IS NOT NULL AND (due IS NULL OR seen < most) THEN
        known := tenure.mark_waiting(known, dead, t);
    END IF;

    -- lapse: take jobs back whose leases are over, so that they go on even if no sweeper runs.
    seen := 0;
    IF over THEN
        RETURN QUERY SELECT l.* FROM tenure.lapse_over(known.running_from, late, lapse_limit, t, e) l;
        GET DIAGNOSTICS seen = ROW_COUNT;
        SELECT s.alone, s.allowed AND p_suspects INTO alone, allowed FROM tenure.suspects_of(p_worker, t) s;
    END IF;
    dead := tenure.read_of('tenure.jobs_running') - read_[2];
    IF tenure.mark_for(dead) IS NOT NULL AND seen < lapse_limit THEN
        known := tenure.mark_running(known, dead, late, t);
    END IF;

    -- ring: walk the stretches that are left, while there is room. Pages read on the way to a lane are not in vain.
    ranges := whole;
    WHILE room > 0 AND to_pass > 0 AND cardinality(ranges) > 0 LOOP
        -- walk: to the next groups that have something.
        walked := tenure.walk(ranges, kinds, allowed, least(room, group_limit), to_pass, known);
        to_pass := to_pass - walked.passed;
        read_[3] := read_[3] + 50 * (cardinality(ranges) + walked.passed + coalesce(cardinality(walked.lanes), 0));
        walked_to := walked.last & group_mask;
        ranges := CASE WHEN walked.last IS NULL THEN '{}' ELSE walked_to + 1 || ranges[(walked.last >> 46)::int * 2 :] END;
        groups := walked.groups;
        rich := NULL;
        WHILE room > 0 AND groups > 0 LOOP
            -- pick: an equal share from each of these groups.
            share := (room + groups - 1) / groups;
            picked := tenure.pick(walked.lanes, walked.places, rich, queues, p_kinds, share, room, allowed, alone, known);
            -- admit: those of them that may be taken.
            picked := tenure.admit(picked);
            read_[3] := read_[3] + 50 * cardinality(walked.lanes);
            EXIT WHEN picked.jobs IS NULL;
            -- take: the attempt is counted here, not at failure: a worker that never comes back has used one up. The new
            -- token is above every earlier one of this job, also across epochs.
            RETURN QUERY
            UPDATE tenure.jobs j
               SET state = 2 /* running */,
                   attempt = j.attempt + 1,
                   token = greatest(j.token, e) + 1,
                   worker = p_worker, request = p_request, started_at = t, leased_at = t, lease_ms = p_lease_ms,
                   lease_until = t + least(p_lease_ms, j.max_runtime),
                   returns_until = NULL, progress = NULL, progress_note = NULL
              FROM unnest(picked.jobs, picked.spots) WITH ORDINALITY p(id, spot, place)
             WHERE j.ctid = p.spot AND j.id + 0 = p.id
               AND j.state + 0 = 0 /* ready */
            RETURNING 'claimed', cardinality(ours) + p.place::int, j.id, j.token, NULL::text, NULL::smallint, NULL::smallint, NULL::text,
                      j.kind, coalesce(j.args, (SELECT l.args FROM tenure.payloads l WHERE l.job_id = j.id)),
                      j.queue, j.tenant, j.attempt, j.max_attempts, j.crashes, j.max_crashes,
                      j.retry, j.max_runtime, j.run_at, j.started_at, j.enqueued_at, j.lease_until, j.key,
                      j.extras, NULL::bigint, NULL::bigint, NULL::text;
            ours := ours || picked.jobs;
            room := room - cardinality(picked.jobs);
            allowed := allowed AND NOT picked.with_suspect;
            reached := tenure.group_of(walked.lanes[array_position(walked.places, picked.givers[cardinality(picked.givers)])]);
            -- Only a group that gave all that was wanted of it may have more.
            IF room > 0 THEN
                SELECT array_agg(g.place), count(*) INTO rich, groups
                  FROM (SELECT u.place FROM unnest(picked.givers) u(place) GROUP BY u.place HAVING count(*) >= share) g;
            END IF;
        END LOOP;
    END LOOP;
    -- Each job that was taken was read twice, once on the way to its lane.
    dead := tenure.read_of('tenure.jobs_ready') - read_[3] - 2 * cardinality(ours);
    IF known.lanes IS NOT NULL OR tenure.mark_for(dead) IS NOT NULL THEN
        known := tenure.mark_ready(known, ours, CASE WHEN room > 0 AND to_pass > 0 THEN whole END, kinds, allowed, dead, t);
    END IF;

    -- answer: where the next claim goes on, and when the next waiting job is due.
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
    answer.marks := CASE WHEN coalesce(known.ready_until, known.waiting_until, known.running_until) IS NOT NULL
                         THEN row_to_json(known) END;
    RETURN NEXT answer;
END $$;

-- A claim alone.
CREATE OR REPLACE FUNCTION tenure.claim_many(p_worker text, p_queues text[], p_kinds text[], p_n int, p_lease_ms bigint,
    p_cursor bigint DEFAULT 0, p_marks text DEFAULT NULL, p_grace_ms bigint DEFAULT 0, p_in_transaction boolean DEFAULT false,
    p_round bigint DEFAULT NULL, p_request bigint DEFAULT NULL)
RETURNS SETOF tenure.claim_row
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN QUERY SELECT c.* FROM tenure.settle_and_claim('{}', '{}', '{}', '{}', '{}', '{}', p_worker, p_queues, p_kinds, p_n,
        p_lease_ms, p_cursor, p_marks, p_grace_ms, p_in_transaction, p_round, p_request) c;
END $$;

-- Makes up to p_limit jobs ready that waited for a condition which has come true, and answers how many. A claim calls
-- this first. No job has a condition, so this does nothing.
CREATE OR REPLACE FUNCTION tenure.fold(p_limit int, t bigint) RETURNS int
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$ SELECT 0 $$;

-- Leaves out picked jobs that a limit forbids to take. There are no limits, so it leaves out none.
CREATE OR REPLACE FUNCTION tenure.admit(picked tenure.picked) RETURNS tenure.picked
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$ SELECT picked $$;

-- Whether a worker holds no suspect (alone), and whether it may take one (allowed): not while it holds one that began
-- less than a minute ago, or one that the next crash would bury.
CREATE OR REPLACE FUNCTION tenure.suspects_of(p_worker text, t bigint) RETURNS TABLE (alone boolean, allowed boolean)
LANGUAGE sql STABLE AS
$$ SELECT count(*) = 0, coalesce(bool_and(r.started_at <= t - 60000 AND r.crashes + 1 < r.max_crashes), true)
     FROM tenure.jobs r
    WHERE r.state = 2 /* running */ AND r.lane & 2305843009213693952 <> 0 AND r.worker = p_worker $$;

-- How many waiting jobs of each of p_queues queues become ready in a claim of p_n jobs. Over all queues that is ten
-- times p_n, but at least 100 and at most 1,000.
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
    -- MATERIALIZED makes the planner run this once, whatever the plan is. If it ran again, it would skip what was
    -- updated meanwhile, and so exceed its limit.
    WITH due AS MATERIALIZED (
        SELECT d.id, d.spot FROM unnest(p_queues) q(queue) CROSS JOIN LATERAL (
            SELECT w.id, w.ctid AS spot FROM tenure.jobs w
             WHERE w.state = 1 /* waiting */ AND w.queue = q.queue AND w.run_at >= p_from AND w.run_at <= t
             ORDER BY w.run_at, w.id LIMIT p_limit FOR UPDATE SKIP LOCKED) d)
    UPDATE tenure.jobs j SET state = 0 /* ready */ FROM due
     WHERE j.ctid = due.spot AND j.id + 0 = due.id AND j.state + 0 = 1 /* waiting */;
    GET DIAGNOSTICS promoted = ROW_COUNT;
    RETURN promoted;
END $$;

-- Takes back up to p_limit jobs whose lease looks over, longest over first, and answers them.
CREATE OR REPLACE FUNCTION tenure.lapse_over(p_from bigint, late bigint, p_limit int, t bigint, e bigint)
RETURNS SETOF tenure.claim_row
LANGUAGE plpgsql
AS $$
#variable_conflict use_column
DECLARE
    b      record;     -- the server's start and the last breaks
    over   record;
    lapsed tenure.lapse_row;
    answer tenure.claim_row;
BEGIN
    answer.what := 'lapsed';
    SELECT l.started, l.broke, l.broke_before INTO b FROM tenure.last_breaks(t) l;
    FOR over IN
        SELECT r.id, r.token FROM tenure.jobs r
         WHERE r.state = 2 /* running */ AND r.lease_until >= p_from AND r.lease_until <= late
           AND tenure.pardoned_until(r.leased_at, r.lease_ms, r.started_at, r.max_runtime,
                                     b.started, b.broke, b.broke_before) <= late
         ORDER BY r.lease_until, r.id LIMIT p_limit FOR UPDATE SKIP LOCKED
    LOOP
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
END $$;

-- The number of the group that a lane is in: the queue and the tenant. A suspect's lane is in the same group.
CREATE OR REPLACE FUNCTION tenure.group_of(lane bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$ SELECT (lane & ~2305843009213693952) >> 15 $$;

-- The next groups of the ring that have ready jobs of a kind asked for, and their lanes, each with the place of its
-- group. It reads by a skip-scan: one index probe for each lane. p_ranges has the first and the last group of each
-- stretch. Suspects have lanes of their own, with higher numbers. The walk ends early with the group in which it has
-- passed by p_to_pass lanes of other kinds. last is where it ended: the number of the stretch, then 46 bits of the
-- group; NULL for the end of the ring.
CREATE OR REPLACE FUNCTION tenure.walk(p_ranges bigint[], p_kinds bigint[], p_suspects boolean, p_limit int, p_to_pass int,
    known tenure.marks, OUT lanes bigint[], OUT places int[], OUT groups int, OUT last bigint, OUT passed int)
LANGUAGE plpgsql
AS $$
#variable_conflict use_column
DECLARE
    suspect_lane CONSTANT bigint := 1::bigint << 61;
    past bigint[];   -- what a walk past the marks has found
BEGIN
    IF known.ready_until IS NOT NULL THEN
        past := tenure.walk_past_marks(p_ranges, 0, p_kinds, p_limit, p_to_pass, known);
        IF p_suspects THEN
            past := past || tenure.walk_past_marks(p_ranges, suspect_lane, p_kinds, p_limit, p_to_pass, known);
        END IF;
    END IF;
    WITH RECURSIVE walk(lane, side, stretch, group_, found, passed_by) AS (
        SELECT NULL::bigint, s.side, 0, NULL::bigint, 0, 0
          FROM (VALUES (0::bigint), (suspect_lane)) s(side)
         WHERE past IS NULL AND (s.side = 0 OR p_suspects)
        UNION ALL
        SELECT (SELECT j.lane FROM tenure.jobs j
                 WHERE j.state = 0 /* ready */ AND j.lane >= l.low AND j.lane < l.high
                 ORDER BY j.lane LIMIT 1),
               w.side, n.stretch, n.group_, n.found, n.passed_by
          FROM walk w
         CROSS JOIN LATERAL (SELECT w.lane IS NOT NULL AND (p_kinds IS NULL OR w.lane & 32767 = ANY (p_kinds)) AS served) k
         CROSS JOIN LATERAL (SELECT CASE WHEN w.lane IS NULL THEN w.stretch + 1 ELSE w.stretch END AS stretch,
                                    CASE WHEN k.served THEN w.lane >> 15 ELSE w.group_ END AS group_,
                                    w.found + (k.served AND w.lane >> 15 IS DISTINCT FROM w.group_)::int AS found,
                                    w.passed_by + (w.lane IS NOT NULL AND NOT k.served)::int AS passed_by) n
         -- Once enough groups are found, or enough lanes passed by, look only for the other lanes of the last group.
         CROSS JOIN LATERAL (SELECT CASE WHEN w.lane IS NULL THEN (p_ranges[2 * n.stretch - 1] << 15) + w.side
                                         ELSE w.lane + 1 END AS low,
                                    CASE WHEN n.found < p_limit AND n.passed_by < p_to_pass
                                         THEN ((p_ranges[2 * n.stretch] + 1) << 15) + w.side
                                         ELSE ((w.lane >> 15) + 1) << 15 END AS high) l
         WHERE w.lane IS NOT NULL
            OR w.found < p_limit AND w.passed_by < p_to_pass AND 2 * n.stretch <= cardinality(p_ranges)),
    found AS (
        SELECT w.lane, w.stretch FROM walk w WHERE w.lane IS NOT NULL
        UNION ALL
        SELECT u.lane, (SELECT min(i) FROM generate_series(1, cardinality(p_ranges) / 2) i
                         WHERE tenure.group_of(u.lane) BETWEEN p_ranges[2 * i - 1] AND p_ranges[2 * i])
          FROM unnest(past) u(lane)),
    numbered AS (
        SELECT f.lane, (f.stretch::bigint << 46) | tenure.group_of(f.lane) AS spot,
               p_kinds IS NULL OR f.lane & 32767 = ANY (p_kinds) AS served
          FROM found f),
    counted AS (
        SELECT n.lane, n.spot, n.served,
               count(*) FILTER (WHERE NOT n.served) OVER (PARTITION BY n.spot) AS others,
               count(*) FILTER (WHERE NOT n.served) OVER (ORDER BY n.spot) AS passed_by,
               dense_rank() OVER (PARTITION BY n.served ORDER BY n.spot) AS place
          FROM numbered n)
    SELECT array_agg(c.lane) FILTER (WHERE c.served AND c.place <= p_limit),
           array_agg(c.place::int) FILTER (WHERE c.served AND c.place <= p_limit),
           coalesce(max(c.place) FILTER (WHERE c.served AND c.place <= p_limit), 0),
           coalesce(max(c.spot) FILTER (WHERE c.served AND c.place = p_limit),
                    max(c.spot) FILTER (WHERE c.passed_by >= p_to_pass)),
           coalesce(max(c.passed_by) FILTER (WHERE c.served AND c.place = p_limit), max(c.passed_by), 0)
      INTO lanes, places, groups, last, passed
      FROM counted c WHERE c.passed_by - c.others < p_to_pass;
END $$;

-- The first jobs of each group, locked: a share from each, with the lanes of a group merged by priority and age, and
-- with one suspect at most in all. p_rich has the places of the groups to take from, NULL for all. Names are compared
-- too, since different names may have the same lane.
CREATE OR REPLACE FUNCTION tenure.pick(p_lanes bigint[], p_places int[], p_rich int[], p_queues text[], p_kinds text[],
    p_share int, p_room int, p_suspects boolean, p_alone boolean, known tenure.marks,
    OUT jobs bigint[], OUT spots tid[], OUT givers int[], OUT with_suspect boolean)
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
            ON m.lane = u.lane AND known.ready_until IS NOT NULL
         WHERE (p_rich IS NULL OR u.place = ANY (p_rich)) AND (p_suspects OR u.lane < 1::bigint << 61)),
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
    -- At most one suspect is taken: the first group on the ring that has one in its share keeps it, and the others do
    -- without.
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
-- Index entries of jobs that are gone stay in front of those of living jobs until a vacuum removes them, which it
-- cannot do while an old transaction is open. Every claim reads past them. A mark says where to begin instead. The
-- caller keeps it and passes it to its next claim. A claim makes a mark when it has read more than 10,000 entries in
-- vain; each page counts as ten. How long a mark is used is in proportion to that number, so that scans from the
-- beginning take a twentieth of the time. A job that enters the index before a mark waits that long at most. Then one
-- claim begins at the beginning. If that claim again reads more than 10,000 entries in vain and has room left at its
-- end, the old marks of its queues, kinds and suspects are used once more. Without marks, jobs are claimed in exact
-- order.

-- How much of an index this transaction has read, in entries, dead ones included. A page counts as ten: entries that the index
-- knows to be dead are passed without being counted.
CREATE OR REPLACE FUNCTION tenure.read_of(index regclass) RETURNS bigint
LANGUAGE sql VOLATILE AS $$ SELECT pg_stat_get_xact_tuples_returned(index) + 10 * pg_stat_get_xact_blocks_fetched(index) $$;

-- For how many milliseconds a mark is used that saves reading this many entries: 3 microseconds for each, twenty times what
-- reading one takes. NULL: too few for a mark.
CREATE OR REPLACE FUNCTION tenure.mark_for(dead bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$ SELECT CASE WHEN dead > 10000 THEN dead * 3 / 1000 END $$;

-- The marks whose time is not over. Where the time of the ready jobs' marks is over, only ready_until is dropped: mark_ready may
-- use their places once more.
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
            known.ready_until := NULL;
        END IF;
    END IF;
    known.waiting_from := coalesce(known.waiting_from, '-9223372036854775808'::bigint);
    known.running_from := coalesce(known.running_from, '-9223372036854775808'::bigint);
    RETURN known;
END $$;

-- Sets the mark of waiting jobs to this moment: in the queues that were asked for, all jobs that were due are ready
-- now, or locked.
CREATE OR REPLACE FUNCTION tenure.mark_waiting(known tenure.marks, dead bigint, t bigint) RETURNS tenure.marks
LANGUAGE plpgsql AS $$
BEGIN
    known.waiting_from := t;
    known.waiting_until := coalesce(known.waiting_until, t + tenure.mark_for(dead));
    RETURN known;
END $$;

-- Sets the mark of leases to `late` (now, less the caller's grace), or to the first lease that is over and was not
-- taken back, because a break in time has extended it or its row is locked.
CREATE OR REPLACE FUNCTION tenure.mark_running(known tenure.marks, dead bigint, late bigint, t bigint) RETURNS tenure.marks
LANGUAGE plpgsql AS $$
BEGIN
    known.running_from := coalesce((SELECT r.lease_until FROM tenure.jobs r
                                     WHERE r.state = 2 /* running */ AND r.lease_until >= known.running_from AND r.lease_until <= late
                                     ORDER BY r.lease_until LIMIT 1), late);
    known.running_until := coalesce(known.running_until, t + tenure.mark_for(dead));
    RETURN known;
END $$;

-- Sets the mark of each lane to the last job that was taken from it: those before it are taken, gone, locked, or of
-- names that this claim did not ask for. Marks in use stay in use. Marks whose time is over are used once more where
-- the claim has seen all there is: in the groups of p_whole, of these kinds, and for suspects if the claim could take
-- one.
CREATE OR REPLACE FUNCTION tenure.mark_ready(known tenure.marks, p_jobs bigint[], p_whole bigint[], p_kinds bigint[],
    p_suspects boolean, dead bigint, t bigint) RETURNS tenure.marks
LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    IF known.ready_until IS NOT NULL AND p_jobs = '{}' THEN
        RETURN known;
    END IF;
    SELECT array_agg(m.lane ORDER BY m.lane), array_agg(m.priority ORDER BY m.lane),
           array_agg(m.run_at ORDER BY m.lane), array_agg(m.id ORDER BY m.lane)
      INTO known.lanes, known.priorities, known.run_at, known.ids
      FROM (SELECT DISTINCT ON (l.lane) l.lane, l.priority, l.run_at, l.id
              FROM (SELECT j.lane, j.priority, j.run_at, j.id
                      FROM unnest(p_jobs) p(id) JOIN tenure.jobs j ON j.id = p.id
                    UNION ALL
                    SELECT k.lane, k.priority, k.run_at, k.id
                      FROM unnest(known.lanes, known.priorities, known.run_at, known.ids) k(lane, priority, run_at, id)
                     WHERE known.ready_until IS NOT NULL
                        OR (p_kinds IS NULL OR k.lane & 32767 = ANY (p_kinds)) AND (p_suspects OR k.lane < 1::bigint << 61)
                       AND EXISTS (SELECT 1 FROM generate_series(1, cardinality(p_whole) / 2) i
                                    WHERE tenure.group_of(k.lane) BETWEEN p_whole[2 * i - 1] AND p_whole[2 * i])) l
             WHERE known.ready_until IS NOT NULL OR tenure.mark_for(dead) IS NOT NULL
             ORDER BY l.lane, l.priority DESC, l.run_at DESC, l.id DESC) m;
    IF known.lanes IS NOT NULL THEN
        known.ready_until := coalesce(known.ready_until, t + tenure.mark_for(dead));
    END IF;
    RETURN known;
END $$;

-- The lanes that have ready jobs, as tenure.walk finds them, but without reading what lies before the marks. p_side is
-- added to each lane number: 0, or the bit of the suspects' lanes.
CREATE OR REPLACE FUNCTION tenure.walk_past_marks(p_ranges bigint[], p_side bigint, p_kinds bigint[], p_limit int, p_to_pass int,
    known tenure.marks)
RETURNS bigint[]
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    lanes  bigint[] := '{}';
    groups int := 0;
    group_ bigint;
    to_pass int := p_to_pass;
    low    bigint;
    high   bigint;
    found_ bigint;
    mark   record;
BEGIN
    FOR stretch IN 1..cardinality(p_ranges) / 2 LOOP
        low := (p_ranges[2 * stretch - 1] << 15) + p_side;
        high := ((p_ranges[2 * stretch] + 1) << 15) + p_side;
        LOOP
            SELECT m.lane, m.priority, m.run_at, m.id INTO mark
              FROM unnest(known.lanes, known.priorities, known.run_at, known.ids) m(lane, priority, run_at, id)
             WHERE m.lane >= low AND m.lane < high ORDER BY m.lane LIMIT 1;
            SELECT j.lane INTO found_ FROM tenure.jobs j
             WHERE j.state = 0 /* ready */ AND j.lane >= low AND j.lane < coalesce(mark.lane, high) ORDER BY j.lane LIMIT 1;
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
            -- Once enough groups are found, or enough lanes passed by, look only for the other lanes of the last group.
            IF (groups >= p_limit OR to_pass <= 0) AND found_ >> 15 <> lanes[cardinality(lanes)] >> 15 THEN
                RETURN lanes;
            END IF;
            IF p_kinds IS NULL OR found_ & 32767 = ANY (p_kinds) THEN
                groups := groups + (found_ >> 15 IS DISTINCT FROM group_)::int;
                group_ := found_ >> 15;
            ELSE
                to_pass := to_pass - 1;
            END IF;
            lanes := lanes || found_;
        END LOOP;
        EXIT WHEN groups >= p_limit OR to_pass <= 0;
    END LOOP;
    RETURN lanes;
END $$;
