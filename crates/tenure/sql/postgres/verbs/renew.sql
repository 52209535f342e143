-- Extends leases: fenced, never shorter than they were, never beyond the maximal runtime. It does not touch the token.
-- It never waits for a row: if another open transaction has the job locked, the verdict is `busy`, and the lease is
-- neither extended nor stale. Claim and lapse skip locked rows too, so no worker can take the job meanwhile.
CREATE OR REPLACE FUNCTION tenure.renew_many(p_jobs bigint[], p_tokens bigint[], p_lease_ms bigint)
RETURNS TABLE (n int, verdict text, lease_until bigint, token bigint, state smallint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
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
               AND j.token = s.token AND j.state + 0 = 2 /* running */
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
    RETURN QUERY SELECT h.n, 'extended', h.until, NULL::bigint, NULL::smallint FROM unnest(held, until) h(n, until);
    IF cardinality(held) = cardinality(p_jobs) THEN
        RETURN;
    END IF;

    FOR shown IN
        SELECT u.id, u.token, u.n::int AS n FROM unnest(p_jobs, p_tokens) WITH ORDINALITY u(id, token, n)
         -- A refusal inserts a line into the timeline, and another transaction that inserts the same line waits for
         -- that, as for a lock. So all batches insert in the same order.
         WHERE held IS NULL OR u.n <> ALL (held) ORDER BY u.id, u.token, u.n
    LOOP
        n := shown.n;
        lease_until := NULL;
        IF EXISTS (SELECT 1 FROM tenure.jobs j WHERE j.id = shown.id AND j.token = shown.token AND j.state + 0 = 2 /* running */) THEN
            verdict := 'busy';
        ELSE
            SELECT r.token, r.state INTO token, state FROM tenure.refuse(shown.id, shown.token, 'renew', t) r;
            verdict := CASE WHEN token IS NULL THEN 'not_found' ELSE 'stale' END;
        END IF;
        RETURN NEXT;
    END LOOP;
END $$;
