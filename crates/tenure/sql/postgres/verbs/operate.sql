-- What operators do to jobs, queues, epochs and the installation: cancel, requeue, resume, purge, configure, raise, prune.
--
-- Each call goes through its jobs in the order of their ids, and so never waits for another call in a
-- circle. Answers carry the place in the list that was given: applied, refused with the state that forbids it,
-- or not_found.

-- Locks a job that an operator wants to change, in the table where it is. While this waits for the lock, the job may be
-- moved to the other table, so it looks in both tables twice.
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
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
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
        verdict := CASE WHEN state IS NULL THEN 'not_found' WHEN state IN (4 /* succeeded */, 5 /* dead */) THEN 'refused' ELSE 'applied' END;
        IF state < 4 /* ended */ THEN
            PERFORM tenure.end_job(was.id, 6::smallint /* cancelled */, tenure.next_token(was.token, e), was.crashes, t, NULL, NULL),
                    tenure.note(was.id, t, 'cancel', false, was.token, was.attempt, was.worker, was.started_at, 6::smallint /* cancelled */, NULL);
        END IF;
        RETURN NEXT;
    END LOOP;
END $$;

-- Queues dead or cancelled jobs again, with their counts reset and a token above every earlier one. With a token the
-- call may be repeated: it queues the job only if the job is still as the caller saw it.
CREATE OR REPLACE FUNCTION tenure.requeue_many(p_jobs bigint[], p_if_tokens bigint[])
RETURNS TABLE (n int, verdict text, state smallint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
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
            verdict := 'not_found';
        ELSIF tenure.heard(asked.id, asked.token, 'requeue') IS NOT NULL THEN
            verdict := 'applied';
        ELSIF coalesce(state IN (5 /* dead */, 6 /* cancelled */) AND was.token = coalesce(asked.token, was.token), false) THEN
            verdict := 'applied';
            WITH again AS (DELETE FROM tenure.done d WHERE d.id = asked.id RETURNING d AS was)
            INSERT INTO tenure.jobs
            SELECT j.* FROM again a CROSS JOIN LATERAL tenure.as_queued(a.was, tenure.next_token((a.was).token, e), t) j;
            PERFORM tenure.note(was.id, t, 'requeue', false, was.token, was.attempt, NULL, NULL, 0::smallint /* ready */, NULL),
                    tenure.announce(was.queue, t);
        ELSE
            verdict := 'refused';
        END IF;
        RETURN NEXT;
    END LOOP;
END $$;

-- Queues parked jobs again.
CREATE OR REPLACE FUNCTION tenure.resume_many(p_jobs bigint[]) RETURNS TABLE (n int, verdict text, state smallint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
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
        IF state = 3 /* parked */ THEN
            verdict := 'applied';
            PERFORM tenure.put_back(was.id, false, t, was.token, was.attempt, was.crashes, was.crashed_at,
                        tenure.is_suspect(was.lane), NULL, t),
                    tenure.note(was.id, t, 'resume', false, was.token, was.attempt, was.worker, was.started_at, 0::smallint /* ready */, NULL);
        ELSE
            -- Resumed before, if no worker has claimed the job since: its token is still the one it was parked under.
            verdict := CASE
                WHEN state IS NULL THEN 'not_found'
                WHEN state IN (0 /* ready */, 1 /* waiting */) AND tenure.heard(was.id, was.token, 'resume') IS NOT NULL THEN 'applied'
                ELSE 'refused'
            END;
        END IF;
        RETURN NEXT;
    END LOOP;
END $$;

-- Deletes ended jobs and all that is known of them.
CREATE OR REPLACE FUNCTION tenure.purge_many(p_jobs bigint[], p_if_tokens bigint[])
RETURNS TABLE (n int, verdict text, state smallint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
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
            WHEN state IS NULL THEN 'not_found'
            WHEN state >= 4 /* ended */ AND was.token = coalesce(asked.token, was.token) THEN 'applied'
            ELSE 'refused'
        END;
        IF verdict = 'applied' THEN
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

-- Begins a new epoch, and answers it: for an operator who knows that the database may have gone back in time where it
-- cannot notice that by itself. An epoch that the database has noticed by itself is stored first.
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

-- Sets for the whole installation whether commits wait for the disk ('on'), or do as each session's synchronous_commit
-- says ('off').
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

-- Sets for the whole installation how long a worker's lock must have been free before its process counts as gone, and
-- answers what was set before.
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

-- Deletes up to p_limit ended jobs that have been kept long enough, queue by queue, state by state, the oldest first,
-- and up to as many expired keys. Deletes also workers that last registered a day ago or earlier, if their locks tell
-- nothing: they have none, or took it before the server's last start. Locked rows are skipped, and an effect in doubt
-- keeps its job.
CREATE OR REPLACE FUNCTION tenure.prune(p_limit int, OUT jobs int, OUT keys int)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
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
                   AND NOT EXISTS (SELECT 1 FROM tenure.ledger l WHERE l.job_id = d.id AND l.state = 0 /* open */)
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
