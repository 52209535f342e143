-- What took effect, once per (job, effect), and what steps came to. The holder of a job writes it: the intent before
-- the call to the outside, the outcome after it. Besides the holder, only a person's decision writes it
-- (resolve_effect). If an earlier attempt has left an intent without an outcome, the effect is in doubt, and is not
-- opened again.
--
-- Answers, by entry: opened (make the call), committed (with what came back), decided (the same, decided by a person;
-- the attempt goes on with it by effect_resolve with the same result), in_doubt (the token that opened it, and since
-- when), recorded, remembered (what the step came to), unknown (no result of the step is remembered), not_allowed (with
-- where the effect stands instead, or NULL), stale (with the job's token and state) or not_found. The library decides
-- the same in ledger.rs.
CREATE OR REPLACE FUNCTION tenure.ledger_many(p_jobs bigint[], p_tokens bigint[], p_verbs text[], p_names text[],
    p_results json[], p_notes text[])
RETURNS TABLE (n int, verdict text, result json, token bigint, since bigint, standing smallint, state smallint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    t     bigint;
    held  bigint[];   -- the places of entries whose token owns the job
    entry record;
BEGIN
    PERFORM tenure.check_batch(cardinality(p_jobs), cardinality(p_tokens), cardinality(p_verbs), cardinality(p_names),
        cardinality(p_results), cardinality(p_notes)), tenure.check_names('effect', p_names), tenure.check_results(p_results);
    p_notes := tenure.shortened(p_notes);
    IF current_setting('synchronous_commit') = 'off' THEN PERFORM tenure.be_durable(); END IF;
    t := tenure.clock_ms();
    -- In the order of their ids, so that two batches never wait for each other in a circle.
    SELECT coalesce(array_agg(s.n), '{}') INTO held
      FROM (SELECT u.id, u.token, u.n FROM unnest(p_jobs, p_tokens) WITH ORDINALITY u(id, token, n) ORDER BY u.id, u.n) s
     CROSS JOIN LATERAL (SELECT 1 FROM tenure.jobs j WHERE j.id = s.id AND j.token = s.token AND j.state + 0 = 2 /* running */
                             FOR NO KEY UPDATE) l;
    FOR entry IN
        SELECT u.id, u.token, u.verb, u.name, u.result, u.note, u.n::int AS n
          FROM unnest(p_jobs, p_tokens, p_verbs, p_names, p_results, p_notes) WITH ORDINALITY
               u(id, token, verb, name, result, note, n)
         -- A refusal inserts a line into the timeline, and another transaction that inserts the same line waits for
         -- that, as for a lock. So all batches insert in the same order.
         ORDER BY u.id, u.n <> ALL (held), CASE WHEN u.n <> ALL (held) THEN u.token END,
                  CASE WHEN u.n <> ALL (held) THEN u.verb COLLATE "C" END, u.n
    LOOP
        n := entry.n;
        SELECT o.verdict, o.result, o.token, o.since, o.standing, o.state INTO verdict, result, token, since, standing, state
          FROM tenure.ledger_one(entry.id, entry.token, entry.verb, entry.name, entry.result, entry.note, t) o;
        RETURN NEXT;
    END LOOP;
END $$;

-- One entry.
CREATE OR REPLACE FUNCTION tenure.ledger_one(p_job bigint, p_token bigint, p_verb text, p_name text, p_result json,
    p_note text, t bigint,
    OUT verdict text, OUT result json, OUT token bigint, OUT since bigint, OUT standing smallint, OUT state smallint)
LANGUAGE plpgsql
AS $$
#variable_conflict use_column
DECLARE
    found_ tenure.ledger;
    ours   boolean;
BEGIN
    IF p_verb IS NULL OR p_verb NOT IN ('effect_open', 'effect_commit', 'effect_fail', 'effect_resolve', 'step_get', 'step_put') THEN
        PERFORM tenure.invalid('verb', coalesce(quote_literal(p_verb), 'NULL') || ' is nothing that the ledger can be asked',
            'Use effect_open, effect_commit, effect_fail, effect_resolve, step_get or step_put.');
    ELSIF p_verb IN ('effect_commit', 'step_put') AND p_result IS NULL THEN
        PERFORM tenure.invalid('result', 'is missing', 'Where nothing came back, write ''null'', which is JSON for it.');
    END IF;
    -- The running job that this token owns. Here, and nowhere else, it is decided who may write. ledger_many has locked it.
    PERFORM 1
       FROM tenure.jobs j
      WHERE j.id = p_job
        AND j.token = p_token AND j.state + 0 = 2 /* running */;
    IF NOT FOUND THEN
        SELECT l.verdict, l.result, l.token, l.state INTO verdict, result, token, state
          FROM tenure.ledger_late(p_job, p_token, p_verb, p_name, p_result, t) l;
        RETURN;
    END IF;

    IF p_verb = 'step_put' THEN
        -- What is remembered already stays.
        INSERT INTO tenure.steps (job_id, step, token, at, result) VALUES (p_job, p_name, p_token, t, p_result)
        ON CONFLICT (job_id, step) DO NOTHING;
    END IF;
    IF p_verb IN ('step_get', 'step_put') THEN
        SELECT s.result INTO result FROM tenure.steps s WHERE s.job_id = p_job AND s.step = p_name;
        verdict := CASE WHEN FOUND THEN 'remembered' ELSE 'unknown' END;
        RETURN;
    END IF;

    IF p_verb = 'effect_open' THEN
        -- Insert first and look afterwards: the table's primary key keeps a second intent out.
        INSERT INTO tenure.ledger (job_id, effect, token, state, opened_at) VALUES (p_job, p_name, p_token, 0 /* open */, t)
        ON CONFLICT (job_id, effect) DO NOTHING;
        IF FOUND THEN
            verdict := 'opened';
            RETURN;
        END IF;
    END IF;
    SELECT l.* INTO found_ FROM tenure.ledger l WHERE l.job_id = p_job AND l.effect = p_name;
    ours := coalesce(found_.token = p_token, false);
    CASE
        WHEN p_verb = 'effect_open' AND found_.state IN (2 /* failed */, 3 /* resend */) THEN
            UPDATE tenure.ledger l SET state = 0 /* open */, token = p_token, opened_at = t, ended_at = NULL, note = NULL
             WHERE l.job_id = p_job AND l.effect = p_name;
            verdict := 'opened';
        -- The same attempt opens the effect again: the answer to its first call was lost.
        WHEN p_verb = 'effect_open' AND found_.state = 0 /* open */ AND ours THEN
            verdict := 'opened';
        WHEN p_verb = 'effect_open' AND found_.state = 0 /* open */ THEN
            verdict := 'in_doubt';
            token := found_.token;
            since := found_.opened_at;
        WHEN p_verb = 'effect_open' THEN
            verdict := CASE WHEN tenure.can_be_corrected(found_) THEN 'decided' ELSE 'committed' END;
            result := found_.result;
        -- The attempt goes on with what a person decided.
        WHEN p_verb = 'effect_resolve' AND tenure.can_be_corrected(found_) AND found_.result::text = p_result::text THEN
            UPDATE tenure.ledger l SET token = p_token, ended_at = t
             WHERE l.job_id = p_job AND l.effect = p_name;
            verdict := 'recorded';
        -- The attempt that wrote the intent may record how it ended. Once committed, that is final.
        WHEN p_verb = 'effect_commit' AND found_.state IN (0 /* open */, 2 /* failed */) AND ours THEN
            UPDATE tenure.ledger l SET state = 1 /* committed */, result = p_result, note = NULL, ended_at = t
             WHERE l.job_id = p_job AND l.effect = p_name;
            verdict := 'recorded';
        WHEN p_verb = 'effect_fail' AND found_.state = 0 /* open */ AND ours THEN
            UPDATE tenure.ledger l SET state = 2 /* failed */, note = p_note, ended_at = t
             WHERE l.job_id = p_job AND l.effect = p_name;
            verdict := 'recorded';
        -- Only an effect in doubt can be resolved: an intent of an earlier attempt.
        WHEN p_verb = 'effect_resolve' AND p_result IS NOT NULL AND found_.state = 0 /* open */ AND NOT ours THEN
            UPDATE tenure.ledger l SET state = 1 /* committed */, token = p_token, result = p_result, ended_at = t
             WHERE l.job_id = p_job AND l.effect = p_name;
            verdict := 'recorded';
        WHEN p_verb = 'effect_resolve' AND p_result IS NULL AND found_.state = 0 /* open */ THEN
            UPDATE tenure.ledger l SET token = p_token, opened_at = t
             WHERE l.job_id = p_job AND l.effect = p_name AND NOT ours;
            verdict := 'recorded';
        ELSE
            standing := found_.state;
            verdict := CASE WHEN tenure.ledger_heard(p_job, p_token, p_verb, p_name, p_result) THEN 'recorded' ELSE 'not_allowed' END;
    END CASE;
END $$;

-- Whether a person decided this, and no attempt has gone on with the decision: then the person may still correct it. If
-- an effect that is committed or to be sent again has a note, a person decided so; its token is 0 until an attempt goes
-- on.
CREATE OR REPLACE FUNCTION tenure.can_be_corrected(p_effect tenure.ledger) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS
$$ SELECT coalesce(p_effect.state IN (1 /* committed */, 3 /* resend */) AND p_effect.note IS NOT NULL AND p_effect.token = 0, false) $$;

-- Whether this very attempt has written this outcome before: then the repeated call is answered `recorded`, however
-- late. The two answers that allow the attempt to make the call, to effect_open and to effect_resolve without a result,
-- are not repeated to an attempt that has ended.
CREATE OR REPLACE FUNCTION tenure.ledger_heard(p_job bigint, p_token bigint, p_verb text, p_name text, p_result json)
RETURNS boolean
LANGUAGE plpgsql
AS $$
BEGIN
    RETURN EXISTS (
        SELECT 1 FROM tenure.ledger l
         WHERE l.job_id = p_job AND l.effect = p_name AND l.token = p_token
           AND l.state = CASE WHEN p_verb = 'effect_commit' OR p_verb = 'effect_resolve' AND p_result IS NOT NULL THEN 1
                              WHEN p_verb = 'effect_fail' THEN 2 END);
END $$;

-- The answer to an entry that did not pass the fence: recorded before, stale, or not_found.
CREATE OR REPLACE FUNCTION tenure.ledger_late(p_job bigint, p_token bigint, p_verb text, p_name text, p_result json, t bigint,
    OUT verdict text, OUT result json, OUT token bigint, OUT state smallint)
LANGUAGE plpgsql
AS $$
#variable_conflict use_column
BEGIN
    IF tenure.ledger_heard(p_job, p_token, p_verb, p_name, p_result) THEN
        verdict := 'recorded';
        RETURN;
    ELSIF p_verb = 'step_put' THEN
        SELECT s.result INTO result FROM tenure.steps s
         WHERE s.job_id = p_job AND s.step = p_name AND s.token = p_token;
        IF FOUND THEN
            verdict := 'remembered';
            RETURN;
        END IF;
    END IF;
    SELECT r.token, r.state INTO token, state FROM tenure.refuse(p_job, p_token, p_verb, t) r;
    verdict := CASE WHEN token IS NULL THEN 'not_found' ELSE 'stale' END;
END $$;

-- A person's decision about an effect in doubt, for a job that is not running: it happened, and p_result came back; or,
-- if that is NULL, it is to be sent again. It can be corrected until an attempt has gone on with it. If the job is
-- parked and no other effect of it is in doubt, it is queued again. Answers applied with the job's state, not_in_doubt
-- with where the effect stands, running, succeeded, no_such_effect or not_found.
CREATE OR REPLACE FUNCTION tenure.resolve_effect(p_job bigint, p_effect text, p_result json,
    OUT verdict text, OUT state smallint, OUT standing smallint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    decided CONSTANT smallint := CASE WHEN p_result IS NULL THEN 3 /* resend */ ELSE 1 /* committed */ END;
    t      bigint := tenure.clock_ms();
    hit    record;
    was    tenure.jobs;
    found_ tenure.ledger;
BEGIN
    PERFORM tenure.check_names('effect', ARRAY[p_effect]);
    IF current_setting('synchronous_commit') = 'off' THEN PERFORM tenure.be_durable(); END IF;
    -- find locks the job, so that no worker claims it and no other decision is applied meanwhile.
    SELECT f.live, f.ended, f.state INTO hit FROM tenure.find(p_job) f;
    was := hit.live;
    state := hit.state;
    SELECT l.* INTO found_ FROM tenure.ledger l WHERE l.job_id = p_job AND l.effect = p_effect;
    standing := found_.state;
    IF state IS NULL THEN
        verdict := 'not_found';
    ELSIF standing IS NULL THEN
        verdict := 'no_such_effect';
    ELSIF found_.note IS NOT NULL AND standing = decided AND found_.result::text IS NOT DISTINCT FROM p_result::text THEN
        -- Said before.
        verdict := 'applied';
    ELSIF standing <> 0 /* open */ AND NOT tenure.can_be_corrected(found_) THEN
        verdict := 'not_in_doubt';
    ELSIF state = 2 /* running */ THEN
        verdict := 'running';
    ELSIF state = 4 /* succeeded */ AND decided = 3 /* resend */ THEN
        -- No attempt would ever send it.
        verdict := 'succeeded';
    ELSE
        verdict := 'applied';
        UPDATE tenure.ledger l SET state = decided, token = 0, result = p_result, ended_at = t, note = 'a person decided'
         WHERE l.job_id = p_job AND l.effect = p_effect;
        IF state = 3 /* parked */ AND NOT EXISTS (SELECT 1 FROM tenure.ledger l WHERE l.job_id = p_job AND l.state = 0 /* open */) THEN
            state := 0 /* ready */;
            PERFORM tenure.put_back(was.id, false, t, was.token, was.attempt, was.crashes, was.crashed_at,
                        tenure.is_suspect(was.lane), NULL, t),
                    tenure.note(was.id, t, 'resume', false, was.token, was.attempt, was.worker, was.started_at, 0::smallint /* ready */,
                        'effect ' || p_effect || ' resolved: ' || CASE WHEN decided = 1 /* committed */ THEN 'committed' ELSE 'resend' END);
        END IF;
    END IF;
END $$;

-- A page of effects, those of the newest jobs first: only those in doubt, or all. Effects in doubt are read from the
-- index of intents without an outcome: they are few among many.
CREATE OR REPLACE FUNCTION tenure.effects_page(p_in_doubt boolean, p_job bigint, p_before bigint, p_limit int)
RETURNS TABLE (job bigint, effect text, standing smallint, token bigint, opened_at bigint, ended_at bigint, result json,
               note text, in_doubt boolean, state smallint, kind text, tenant text)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    lowest  bigint := coalesce(p_job, '-9223372036854775808'::bigint);
    highest bigint := coalesce(p_job, 9223372036854775807);
    before  bigint := coalesce(p_before, 9223372036854775807);
BEGIN
    PERFORM tenure.check_batch(p_limit);
    IF p_in_doubt THEN
        RETURN QUERY
        SELECT l.job_id, l.effect, l.state, l.token, l.opened_at, l.ended_at, l.result, l.note, true, o.state, o.kind, o.tenant
          FROM tenure.ledger l CROSS JOIN LATERAL tenure.owner_of(l.job_id) o
         WHERE l.state = 0 /* open */ AND l.job_id BETWEEN lowest AND highest AND l.job_id < before AND NOT (o.state = 2 /* running */ AND o.token = l.token)
         ORDER BY l.job_id DESC, l.effect LIMIT p_limit;
    ELSE
        RETURN QUERY
        SELECT l.job_id, l.effect, l.state, l.token, l.opened_at, l.ended_at, l.result, l.note,
               l.state = 0 /* open */ AND NOT (o.state = 2 /* running */ AND o.token = l.token), o.state, o.kind, o.tenant
          FROM tenure.ledger l CROSS JOIN LATERAL tenure.owner_of(l.job_id) o
         WHERE l.job_id BETWEEN lowest AND highest AND l.job_id < before
         ORDER BY l.job_id DESC, l.effect LIMIT p_limit;
    END IF;
END $$;

-- The job of an effect, live or ended.
CREATE OR REPLACE FUNCTION tenure.owner_of(p_job bigint)
RETURNS TABLE (state smallint, token bigint, kind text, tenant text)
LANGUAGE sql STABLE AS
$$ SELECT j.state, j.token, j.kind, j.tenant FROM tenure.jobs j WHERE j.id = p_job
   UNION ALL
   SELECT d.state, d.token, d.kind, d.tenant FROM tenure.done d WHERE d.id = p_job $$;
