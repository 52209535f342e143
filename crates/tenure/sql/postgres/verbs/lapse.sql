-- Takes jobs back from holders whose lease is over.

-- Longest over first. It is a look without locks; what it finds is checked again before anything is
-- written.
CREATE OR REPLACE FUNCTION tenure.overdue(p_limit int) RETURNS TABLE (job bigint, token bigint)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET jit = off SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
    t bigint := tenure.clock_ms();
BEGIN
    PERFORM tenure.check_batch(p_limit);
    RETURN QUERY SELECT j.id, j.token FROM tenure.jobs j
                  WHERE j.state = 2 AND j.lease_until <= t
                  ORDER BY j.lease_until, j.id LIMIT p_limit;
END $$;

CREATE OR REPLACE FUNCTION tenure.lapse_many(p_jobs bigint[], p_tokens bigint[])
RETURNS TABLE (n int, verdict text, became smallint)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET jit = off SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
    t     bigint;
    e     bigint;
    shown record;
BEGIN
    PERFORM tenure.check_batch(cardinality(p_jobs), cardinality(p_tokens));
    t := tenure.clock_ms();
    SELECT m.epoch INTO e FROM tenure.meta m;
    FOR shown IN SELECT u.id, u.token, u.n::int AS n FROM unnest(p_jobs, p_tokens) WITH ORDINALITY u(id, token, n) LOOP
        n := shown.n;
        SELECT l.became INTO became FROM tenure.lapse_one(shown.id, shown.token, t, e) l;
        verdict := CASE
            WHEN became IS NOT NULL THEN 'lapsed'
            -- Still over, but locked: its holder may be about to commit.
            WHEN EXISTS (SELECT 1 FROM tenure.jobs j WHERE j.id = shown.id AND j.token = shown.token
                            AND j.state + 0 = 2 AND j.lease_until + 0 <= t) THEN 'busy'
            ELSE 'no'
        END;
        RETURN NEXT;
    END LOOP;
END $$;

-- One job, if it is still over and nobody has it locked: what it became and who held it, or no row.
-- After its first crash it keeps its place in the queue; from the second on it backs off, without
-- chance, so that the library and this agree; and it is buried when crashes or attempts are used up.
CREATE OR REPLACE FUNCTION tenure.lapse_one(p_job bigint, p_token bigint, t bigint, e bigint)
RETURNS TABLE (became smallint, worker text)
LANGUAGE plpgsql
AS $$
#variable_conflict use_column
DECLARE
    was    tenure.jobs;
    why    text;
    buried boolean := false;
    due    bigint;
BEGIN
    -- Only the attempt that was seen, and only if its lease is still over: its holder may have renewed
    -- or settled since.
    SELECT j.* INTO was
      FROM tenure.jobs j
     WHERE j.id = p_job
       AND j.token = p_token AND j.state + 0 = 2
       AND j.lease_until + 0 <= t
       FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    due := was.run_at;
    IF was.crashes + 1 >= was.max_crashes THEN
        buried := true;
        why := 'crashed too often: its worker vanished max_crashes times';
    ELSIF was.attempt >= was.max_attempts THEN
        buried := true;
        why := 'its worker vanished during the last attempt';
    ELSIF was.crashes = 0 THEN
        why := 'its worker vanished';
    ELSE
        due := tenure.later(t, tenure.base_delay(was.retry, was.crashes));
        why := 'its worker vanished again';
    END IF;
    IF buried THEN
        became := 5;
        PERFORM tenure.end_job(p_job, became, tenure.next_token(was.token, e), was.crashes + 1, t, NULL, why);
    ELSE
        became := 0;
        PERFORM tenure.put_back(p_job, false, due, tenure.next_token(was.token, e), was.attempt, was.crashes + 1, NULL, t);
    END IF;
    PERFORM tenure.note(p_job, t, 'lapse', false, was.token, was.attempt, was.worker, was.started_at, became, why);
    worker := was.worker;
    RETURN NEXT;
END $$;
