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

-- A worker that was thought to be gone has presented its token again: the crash does not count, once. One whose lease was over may
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
