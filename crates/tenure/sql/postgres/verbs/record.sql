-- A job as row.rs reads it, its timeline, and the answer to a caller that did not pass the fence.

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

-- Writes a line of the timeline, unless the same call has written it before. A job keeps the last 20 lines of each
-- verb, those of the highest tokens, because only they are looked up again. A worker's return is looked up for as long
-- as the line of its crash is there, and is written later than that line, so 60 of them stay. Refusals all stay: they
-- are written without the job's lock, and dropping some would have to wait for other transactions.
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

-- The token and state that a job has now, for the answer to a caller that did not pass the fence. It looks among the
-- live jobs, then the ended ones, and then the live ones again: meanwhile the job may have been moved either way.
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

-- Writes a refusal into the timeline, once per job, token and verb, and answers the job's token and state; NULL if
-- there is no such job. The line names the attempt and the worker that had the refused token. They are known from the
-- line that ended that attempt, or from the job if the attempt completed it; if neither is kept, the attempt is 0. A
-- call without a token leaves no line.
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

-- Takes a crash back, once: a worker that was thought to be gone has presented its token again. A worker whose lease
-- was over may come back too, but only within one more lease's length and while the job waits for its next attempt.
-- This never waits for a lock, since renewals call it; if the job is locked now, its crash stays.
CREATE OR REPLACE FUNCTION tenure.take_crash_back(p_job bigint, p_shown bigint, p_at bigint) RETURNS void
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    was    record;
    lapsed boolean := false;
BEGIN
    IF tenure.heard(p_job, p_shown, 'vanish') IS NULL THEN
        lapsed := true;
        -- Checked before the row is locked: the job may be another worker's by now, and this transaction may stay open
        -- for long. Its lock must not delay that worker.
        IF NOT EXISTS (SELECT 1 FROM tenure.jobs j WHERE j.id = p_job AND j.returns_until >= p_at)
           OR tenure.heard(p_job, p_shown, 'lapse') IS NULL THEN
            RETURN;
        END IF;
    END IF;
    -- The crash is not among those counted now if the count has begun anew since: by a requeue, or by a handler that
    -- returned long enough after the crash. After a lapse, nothing at all may have happened to the job since.
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
    -- Look for an earlier 'return' only now that the row is locked. Otherwise two calls with the same token could both
    -- find none, and take two crashes back instead of one.
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

-- Whether a line about this job may be written, because it will not outlive the job. This locks an ended job against
-- deletion until the line is committed, and also a live job whose queue deletes jobs as they succeed. A job that is
-- being deleted at this moment gets no line. It never waits for a lock, since renewals call it.
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

-- What this verb under this token made of the job, if it was applied before; else NULL.
CREATE OR REPLACE FUNCTION tenure.heard(p_job bigint, p_token bigint, p_verb text) RETURNS smallint
LANGUAGE plpgsql AS $$
BEGIN
    RETURN (SELECT l.became FROM tenure.timeline l
             WHERE l.job_id = p_job AND l.token = p_token AND l.verb = p_verb AND l.refused = false);
END $$;
