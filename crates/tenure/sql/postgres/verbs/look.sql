-- Questions that change nothing.

-- The token and the state of each job, and nothing else: for a worker whose handler may have completed a job itself. No row
-- for a job that is not there, or no longer.
CREATE OR REPLACE FUNCTION tenure.current_many(p_jobs bigint[]) RETURNS TABLE (n int, token bigint, state smallint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
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

-- The jobs that a worker holds; with p_request only those of that claim. A worker asks this when the answer to a claim
-- was lost. The claim itself may arrive later, so the same question may have another answer a moment later.
CREATE OR REPLACE FUNCTION tenure.held(p_worker text, p_request bigint DEFAULT NULL) RETURNS SETOF tenure.record
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN QUERY SELECT r.* FROM tenure.record r
                  WHERE r.state = 2 /* running */ AND r.worker = p_worker AND (p_request IS NULL OR r.request = p_request) ORDER BY r.id;
END $$;

-- A page of jobs, newest first. p_state 1 (queued) means ready or waiting.
CREATE OR REPLACE FUNCTION tenure.page(p_state smallint, p_queue text, p_tenant text, p_kind text, p_before bigint,
    p_limit int, p_tag text DEFAULT NULL, p_key text DEFAULT NULL) RETURNS SETOF tenure.record
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    ids bigint[] := '{}';
BEGIN
    PERFORM tenure.check_batch(p_limit);
    IF coalesce(p_state, 0) < 4 THEN
        ids := ids || ARRAY(
            SELECT j.id FROM tenure.jobs j
             WHERE j.id < p_before
               AND (p_state IS NULL OR greatest(j.state, 1::smallint /* waiting */) = p_state)
               AND (p_queue IS NULL OR j.queue = p_queue)
               AND (p_tenant IS NULL OR j.tenant = p_tenant)
               AND (p_kind IS NULL OR j.kind = p_kind)
               AND (p_key IS NULL OR j.key = p_key)
               AND (p_tag IS NULL OR (j.extras -> 'tags')::jsonb ? p_tag)
             ORDER BY j.id DESC LIMIT p_limit);
    END IF;
    IF p_state = 5 /* dead */ THEN
        -- Dead jobs have an index of their own, so that they are found among millions that succeeded.
        ids := ids || ARRAY(
            SELECT d.id FROM tenure.done d
             WHERE d.id < p_before
               AND d.state = 5 /* dead */
               AND (p_queue IS NULL OR d.queue = p_queue)
               AND (p_tenant IS NULL OR d.tenant = p_tenant)
               AND (p_kind IS NULL OR d.kind = p_kind)
               AND (p_key IS NULL OR d.key = p_key)
               AND (p_tag IS NULL OR (d.extras -> 'tags')::jsonb ? p_tag)
             ORDER BY d.id DESC LIMIT p_limit);
    ELSIF p_state IS NULL OR p_state >= 4 /* ended */ THEN
        ids := ids || ARRAY(
            SELECT d.id FROM tenure.done d
             WHERE d.id < p_before
               AND (p_state IS NULL OR d.state = p_state)
               AND (p_queue IS NULL OR d.queue = p_queue)
               AND (p_tenant IS NULL OR d.tenant = p_tenant)
               AND (p_kind IS NULL OR d.kind = p_kind)
               AND (p_key IS NULL OR d.key = p_key)
               AND (p_tag IS NULL OR (d.extras -> 'tags')::jsonb ? p_tag)
             ORDER BY d.id DESC LIMIT p_limit);
    END IF;
    RETURN QUERY SELECT r.* FROM tenure.record r WHERE r.id = ANY (ids) ORDER BY r.id DESC LIMIT p_limit;
END $$;

-- All queues at a glance: a line for each queue and tenant that has jobs. A job that is due counts as ready, whether or
-- not a claim has made it ready yet.
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
               count(*) FILTER (WHERE j.state = 0 /* ready */ OR j.state = 1 /* waiting */ AND j.run_at <= t) AS ready,
               count(*) FILTER (WHERE j.state = 1 /* waiting */ AND j.run_at > t) AS waiting,
               count(*) FILTER (WHERE j.state = 2 /* running */) AS running,
               count(*) FILTER (WHERE j.state = 3 /* parked */) AS parked,
               0::bigint AS dead, min(j.run_at) FILTER (WHERE j.state = 0 /* ready */ OR j.state = 1 /* waiting */ AND j.run_at <= t) AS oldest,
               0::bigint AS succeeded_lately, 0::bigint AS died_lately
          FROM tenure.jobs j GROUP BY j.queue, j.tenant
        UNION ALL
        SELECT d.queue, d.tenant, 0, 0, 0, 0, count(*), NULL, 0, 0
          FROM tenure.done d WHERE d.state = 5 /* dead */ GROUP BY d.queue, d.tenant
        UNION ALL
        SELECT h.queue, r.tenant, 0, 0, 0, 0, 0, NULL, r.succeeded, r.died
          FROM history h CROSS JOIN LATERAL (
            SELECT d.tenant, count(*) FILTER (WHERE d.state = 4 /* succeeded */) AS succeeded, count(*) FILTER (WHERE d.state = 5 /* dead */) AS died
              FROM tenure.done d
             WHERE d.queue = h.queue AND d.state IN (4 /* succeeded */, 5 /* dead */) AND d.finished_at > t - 60000 GROUP BY d.tenant) r)
    SELECT t, l.queue, l.tenant, sum(l.ready)::bigint, sum(l.waiting)::bigint, sum(l.running)::bigint,
           sum(l.parked)::bigint, sum(l.dead)::bigint, CASE WHEN min(l.oldest) IS NOT NULL THEN greatest(least(t - min(l.oldest)::numeric, 9223372036854775807), 0)::bigint END,
           sum(l.succeeded_lately)::bigint, sum(l.died_lately)::bigint
      FROM line l GROUP BY l.queue, l.tenant ORDER BY l.queue, l.tenant;
END $$;

-- The leases that end soonest.
CREATE OR REPLACE FUNCTION tenure.leases(p_limit int)
RETURNS TABLE (job bigint, kind text, token bigint, worker text, started_at bigint, lease_until bigint)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    PERFORM tenure.check_batch(p_limit);
    RETURN QUERY SELECT j.id, j.kind, j.token, j.worker, j.started_at, j.lease_until FROM tenure.jobs j
                  WHERE j.state = 2 /* running */ ORDER BY j.lease_until, j.id LIMIT p_limit;
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

-- Which installation this is, its epoch now, and how it came to that: a row for each time that the epoch was raised,
-- oldest first. The last of them may be noticed only now, and not stored yet. If the epoch was never raised, there is
-- one row, with NULL for the raise.
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
