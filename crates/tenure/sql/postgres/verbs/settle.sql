-- Ends attempts. The token decides: a settlement under a running job's latest token is applied, however late.
--
-- Completions are the everyday case and go in one statement. Rows are locked in the order of their
-- ids, so that two batches never wait for each other in a circle.
CREATE OR REPLACE FUNCTION tenure.settle_many(p_jobs bigint[], p_tokens bigint[], p_verbs text[], p_after_ms bigint[],
    p_notes text[], p_results json[])
RETURNS TABLE (n int, verdict text, became smallint, token bigint, state smallint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    settled record;
BEGIN
    IF cardinality(p_jobs) = 0 THEN
        RETURN;
    END IF;
    settled := tenure.settle_completions(p_jobs, p_tokens, p_verbs, p_after_ms, p_notes, p_results);
    RETURN QUERY SELECT h.n, 'settled', 4::smallint /* succeeded */, NULL::bigint, NULL::smallint
                   FROM unnest(settled.applied) h(n);
    IF cardinality(settled.applied) < cardinality(p_jobs) THEN
        RETURN QUERY SELECT r.n, r.verdict, r.became, r.token, r.state
                       FROM tenure.settle_others(p_jobs, p_tokens, p_verbs, p_after_ms, p_notes, p_results,
                                                 settled.applied, settled.t) r;
    END IF;
END $$;

-- Checks a batch of settlements, locks its jobs, and applies its completions; none if a job is in the batch twice.
-- Answers the places in the batch of the completions that were applied, and the time of all settlements of the batch.
-- The rest is for tenure.settle_others.
CREATE OR REPLACE FUNCTION tenure.settle_completions(p_jobs bigint[], p_tokens bigint[], p_verbs text[], p_after_ms bigint[],
    p_notes text[], p_results json[], OUT applied int[], OUT t bigint)
LANGUAGE plpgsql
AS $$
#variable_conflict use_column
DECLARE
    size      int := cardinality(p_jobs);
    distinct_ boolean := true;   -- no job is there twice
    plain     boolean;           -- and all are completions
    -- At REPEATABLE READ and above the snapshot may be older than the job's last effect, and would leave that behind
    -- when the job is deleted. Then the job is kept, and pruning deletes it later.
    forgets   boolean := current_setting('transaction_isolation') IN ('read committed', 'read uncommitted');
    forgotten bigint[];          -- jobs whose queue deletes them as they succeed
BEGIN
    PERFORM tenure.check_batch(size, cardinality(p_tokens), cardinality(p_verbs), cardinality(p_after_ms),
        cardinality(p_notes), cardinality(p_results)), tenure.check_results(p_results);
    IF size = 1 THEN
        plain := p_verbs[1] = 'complete';
    ELSE
        SELECT count(DISTINCT u.id) = size, bool_and(u.verb = 'complete') INTO distinct_, plain
          FROM unnest(p_jobs, p_verbs) u(id, verb);
    END IF;
    -- A refusal inserts a line into the timeline, and another transaction that inserts the same line waits for that, as
    -- for a lock. Batches insert in the order of jobs, so they do not wait in a circle. But lines of one job come in
    -- the order of the batch. So batches that have a job more than once run one at a time.
    IF NOT distinct_ THEN
        PERFORM pg_advisory_xact_lock('tenure.jobs'::regclass::oid::int, 1);
    END IF;
    IF current_setting('synchronous_commit') = 'off' THEN PERFORM tenure.be_durable(); END IF;
    t := tenure.clock_ms();
    applied := '{}';
    IF NOT (distinct_ AND plain) THEN
        PERFORM 1 FROM (SELECT DISTINCT u.id, u.token FROM unnest(p_jobs, p_tokens) u(id, token) ORDER BY u.id, u.token) s
          CROSS JOIN LATERAL (SELECT 1 FROM tenure.jobs j WHERE j.id = s.id AND j.token = s.token AND j.state + 0 = 2 /* running */
                                 FOR UPDATE) l;
    END IF;
    IF NOT distinct_ THEN
        RETURN;
    END IF;
    WITH shown AS MATERIALIZED (
        SELECT u.id, u.token, u.result, u.n
          FROM unnest(p_jobs, p_tokens, p_verbs, p_results) WITH ORDINALITY u(id, token, verb, result, n)
         WHERE u.verb = 'complete' ORDER BY u.id),
    ended AS (
        DELETE FROM tenure.jobs j USING shown s
         WHERE j.id = ANY (ARRAY[s.id])
           AND j.token = s.token AND j.state + 0 = 2 /* running */
        RETURNING s.n, s.result, j.id, j AS was,
                  -- A job with an effect in doubt is kept, even in a queue that deletes succeeded jobs at once.
                  forgets AND j.queue IN (SELECT q.queue FROM tenure.queues q WHERE q.keep_ms = 0)
                  AND NOT EXISTS (SELECT 1 FROM tenure.ledger l WHERE l.job_id = j.id AND l.state = 0 /* open */) AS goes),
    kept AS (
        INSERT INTO tenure.done
        SELECT d.* FROM ended e
         CROSS JOIN LATERAL tenure.as_ended(e.was, 4::smallint /* succeeded */, (e.was).token, (e.was).crashes, t, e.result, NULL) d
         WHERE NOT e.goes)
    SELECT coalesce(array_agg(e.n), '{}'), array_agg(e.id) FILTER (WHERE e.goes) INTO applied, forgotten FROM ended e;
    IF forgotten IS NOT NULL THEN
        -- The jobs are locked now, so that no effect can be opened for them any more. But one may have been opened
        -- since the statement above took its snapshot, and it must not go with its job.
        IF EXISTS (SELECT 1 FROM tenure.ledger l WHERE l.state = 0 /* open */ AND l.job_id = ANY (forgotten)) THEN
            RAISE EXCEPTION 'an effect was opened at the moment at which its job was completed'
                USING ERRCODE = 'serialization_failure', HINT = 'Send it again.';
        END IF;
        PERFORM tenure.forget(forgotten);
    END IF;
    -- Only a settlement that was applied proves a fence. A stale one is only a verdict, which the caller may ignore;
    -- then the fence must still keep the caller's own writes from being committed.
    IF current_setting('tenure_session.fenced', true) = 'yes' THEN
        PERFORM tenure.prove_fences(array_agg(u.id), array_agg(u.token))
           FROM unnest(p_jobs, p_tokens) WITH ORDINALITY u(id, token, n) WHERE u.n = ANY (applied);
    END IF;
END $$;

-- Settles what tenure.settle_completions has left, one after the other: what is no completion, what did not pass the
-- fence, and everything in a batch that has a job twice.
CREATE OR REPLACE FUNCTION tenure.settle_others(p_jobs bigint[], p_tokens bigint[], p_verbs text[], p_after_ms bigint[],
    p_notes text[], p_results json[], p_applied int[], t bigint)
RETURNS TABLE (n int, verdict text, became smallint, token bigint, state smallint)
LANGUAGE plpgsql
AS $$
#variable_conflict use_column
DECLARE
    e         bigint := tenure.floor_of_now(t);
    forgetful text[] := '{}';   -- queues whose succeeded jobs are deleted at once
    shown     record;
BEGIN
    IF current_setting('transaction_isolation') IN ('read committed', 'read uncommitted') THEN
        forgetful := ARRAY(SELECT q.queue FROM tenure.queues q WHERE q.keep_ms = 0);
    END IF;
    FOR shown IN
        SELECT u.id, u.token, u.verb, u.after_ms, u.note, u.result, u.n::int AS n
          FROM unnest(p_jobs, p_tokens, p_verbs, p_after_ms, tenure.shortened(p_notes), p_results) WITH ORDINALITY
               u(id, token, verb, after_ms, note, result, n)
         WHERE u.n <> ALL (p_applied) ORDER BY u.id, u.n
    LOOP
        n := shown.n;
        SELECT s.verdict, s.became, s.token, s.state INTO verdict, became, token, state
          FROM tenure.settle_one(shown.id, shown.token, shown.verb, shown.after_ms, shown.note, shown.result, t, e, forgetful) s;
        IF verdict = 'settled' AND current_setting('tenure_session.fenced', true) = 'yes' THEN
            PERFORM tenure.prove_fences(ARRAY[shown.id], ARRAY[shown.token]);
        END IF;
        RETURN NEXT;
    END LOOP;
END $$;

-- One settlement: settled, repeated (applied when it was first sent), stale or not_found. What becomes of the job is
-- decided in lifecycle.rs for SQLite and here for PostgreSQL; one table of test cases checks both.
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
    -- it is decided who may settle. settle_completions has locked it.
    SELECT j.* INTO was
      FROM tenure.jobs j
     WHERE j.id = p_job
       AND j.token = p_token AND j.state + 0 = 2 /* running */;
    IF NOT FOUND THEN
        SELECT l.verdict, l.became, l.token, l.state INTO verdict, became, token, state
          FROM tenure.answer_late(p_job, p_token, p_verb, t) l;
        RETURN;
    END IF;
    verdict := 'settled';
    -- Waiting is not failing: these give their attempt back.
    tries := CASE WHEN p_verb IN ('snooze', 'release', 'park') THEN greatest(was.attempt - 1, 0) ELSE was.attempt END;
    -- A job whose handler has returned by itself is no suspect. But its crashes count until the last one is an hour
    -- old: otherwise a job that returns and kills its worker in turns would never be buried. A release changes neither,
    -- because the worker decides it and not the handler.
    suspect := p_verb = 'release' AND tenure.is_suspect(was.lane);
    crashes := CASE WHEN p_verb = 'release' OR was.crashed_at > t - tenure.crash_memory() THEN was.crashes ELSE 0 END;
    crashed_at := CASE WHEN crashes > 0 THEN was.crashed_at END;
    IF p_verb = 'complete' THEN
        became := 4 /* succeeded */;
        IF was.queue = ANY (forgetful)
           AND NOT EXISTS (SELECT 1 FROM tenure.ledger l WHERE l.job_id = p_job AND l.state = 0 /* open */) THEN
            DELETE FROM tenure.jobs j WHERE j.id = p_job;
            PERFORM tenure.forget(ARRAY[p_job]);
        ELSE
            PERFORM tenure.end_job(p_job, became, was.token, was.crashes, t, p_result, NULL);
        END IF;
        RETURN;
    -- The database enforces the limit: no client can retry for ever.
    ELSIF p_verb = 'bury' OR p_verb = 'retry' AND was.attempt >= was.max_attempts THEN
        became := 5 /* dead */;
        PERFORM tenure.end_job(p_job, became, was.token, was.crashes, t, NULL, p_note);
    ELSIF p_verb = 'park' THEN
        became := 3 /* parked */;
        PERFORM tenure.put_back(p_job, true, was.run_at, was.token, tries, crashes, crashed_at, suspect, p_note, t);
    ELSIF p_verb = 'release' THEN
        became := 0 /* ready */;
        PERFORM tenure.put_back(p_job, false, was.run_at, tenure.next_token(was.token, e), tries, crashes, crashed_at,
            suspect, NULL, t);
    ELSE
        became := 0 /* ready */;
        PERFORM tenure.put_back(p_job, false, tenure.later(t, p_after_ms), was.token, tries, crashes, crashed_at, suspect,
            NULL, t);
    END IF;
    PERFORM tenure.note(p_job, t, p_verb, false, was.token, was.attempt, was.worker, was.started_at, became,
        CASE WHEN p_verb IN ('retry', 'bury', 'park') THEN p_note END);
END $$;

-- The answer to a settlement that did not pass the fence: applied before, stale, or not_found.
CREATE OR REPLACE FUNCTION tenure.answer_late(p_job bigint, p_token bigint, p_verb text, t bigint,
    OUT verdict text, OUT became smallint, OUT token bigint, OUT state smallint)
LANGUAGE plpgsql
AS $$
#variable_conflict use_column
BEGIN
    SELECT c.token, c.state INTO token, state FROM tenure.current(p_job) c;
    IF token IS NULL THEN
        verdict := 'not_found';
        RETURN;
    END IF;
    -- A success leaves no line in the timeline: the ended job itself tells who completed it.
    IF p_verb = 'complete' THEN
        became := CASE WHEN state = 4 /* succeeded */ AND token = p_token THEN 4 /* succeeded */ END;
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
-- for a caller that has more to write before it settles them in the same transaction.
CREATE OR REPLACE FUNCTION tenure.hold_many(p_jobs bigint[], p_tokens bigint[]) RETURNS TABLE (n int)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    PERFORM tenure.check_batch(cardinality(p_jobs), cardinality(p_tokens));
    RETURN QUERY
    SELECT s.n::int FROM (SELECT u.id, u.token, u.n FROM unnest(p_jobs, p_tokens) WITH ORDINALITY u(id, token, n)
                           ORDER BY u.id, u.n) s
     CROSS JOIN LATERAL (SELECT 1 FROM tenure.jobs j WHERE j.id = s.id AND j.token = s.token AND j.state + 0 = 2 /* running */
                            FOR NO KEY UPDATE) l;
END $$;

-- Says in the timeline of a held job that something which was to follow it was not enqueued.
CREATE OR REPLACE FUNCTION tenure.follow_refused(p_job bigint, p_token bigint, p_note text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM tenure.note(j.id, tenure.clock_ms(), 'follow', true, j.token, j.attempt, j.worker, j.started_at, j.state, p_note)
       FROM tenure.jobs j WHERE j.id = p_job AND j.token = p_token AND j.state + 0 = 2 /* running */;
END $$;
