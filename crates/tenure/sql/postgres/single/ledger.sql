-- Effects and steps for people and other languages. Each raises TN001 where tenure.ledger_many answers stale or
-- not_found, and TN003 for what the ledger does not allow. Call them in transactions of their own: an intent counts
-- from its COMMIT on, so that must come before the call to the outside.

-- One entry, or an error.
CREATE OR REPLACE FUNCTION tenure.ledger_entry(p_job bigint, p_token bigint, p_verb text, p_name text, p_result json, p_note text,
    OUT answer text, OUT result json)
LANGUAGE plpgsql
AS $$
DECLARE
    stands text;
BEGIN
    IF p_result IS NOT NULL THEN
        PERFORM tenure.check_json('result', p_result, 262144);
    END IF;
    SELECT l.verdict, l.result, ('{open,committed,failed,resend}'::text[])[l.standing + 1] INTO answer, result, stands
      FROM tenure.ledger_many(ARRAY[p_job], ARRAY[p_token], ARRAY[p_verb], ARRAY[p_name], ARRAY[p_result],
                              ARRAY[left(p_note, 2048)]) l;
    IF answer IN ('stale', 'not_found') THEN
        PERFORM tenure.stale(p_job, p_token, p_verb);
    ELSIF answer = 'not_allowed' AND stands IS NULL THEN
        PERFORM tenure.invalid('effect', format('job %s has no effect %s', p_job, p_name), 'Open it first, with tenure.effect_open.');
    ELSIF answer = 'not_allowed' THEN
        PERFORM tenure.invalid('effect', format('effect %s of job %s is %s; this attempt cannot %s', p_name, p_job, stands, p_verb),
            'Ask tenure.effect_open where it stands. Only who opened an effect may commit or fail it; only what is in doubt can be settled.');
    END IF;
END $$;

-- The key that outside systems deduplicate by: the same for every attempt of this effect of this job, and unique in the
-- world, because it contains the installation's random id and, in the job's id, the epoch in which the job was
-- enqueued.
CREATE OR REPLACE FUNCTION tenure.effect_key(p_job bigint, p_effect text) RETURNS text
LANGUAGE plpgsql STABLE
AS $$
BEGIN
    RETURN (SELECT format('%s/%s/%s/%s', replace(m.installation::text, '-', ''), p_job >> 40, p_job, p_effect) FROM tenure.meta m);
END $$;

-- Writes the intent of an effect, before the call to the outside. Answers opened: make the call, under this key;
-- committed: it has happened, with this result; in_doubt: an earlier attempt may have made the call, and the store
-- cannot know.
CREATE OR REPLACE FUNCTION tenure.effect_open(job bigint, token bigint, effect text)
RETURNS TABLE (answer text, result json, key text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    SELECT e.answer, e.result INTO answer, result
      FROM tenure.ledger_entry(effect_open.job, effect_open.token, 'effect_open', effect_open.effect, NULL, NULL) e;
    IF answer = 'decided' THEN
        -- A person has decided about this effect, and a client in SQL goes on with the result at once. So record that:
        -- from here on the person cannot correct the decision.
        PERFORM tenure.ledger_entry(effect_open.job, effect_open.token, 'effect_resolve', effect_open.effect, result, NULL);
        answer := 'committed';
    END IF;
    key := tenure.effect_key(effect_open.job, effect_open.effect);
    RETURN NEXT;
END $$;

-- The call was made, and this came back.
CREATE OR REPLACE FUNCTION tenure.effect_commit(job bigint, token bigint, effect text, result json) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$ BEGIN PERFORM tenure.ledger_entry(job, token, 'effect_commit', effect, result, NULL); END $$;

-- The call had no effect; the effect may be opened again.
CREATE OR REPLACE FUNCTION tenure.effect_fail(job bigint, token bigint, effect text, error text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$ BEGIN PERFORM tenure.ledger_entry(job, token, 'effect_fail', effect, NULL, error); END $$;

-- Raises TN003 unless exactly one of the two decisions about an effect in doubt is given.
CREATE OR REPLACE FUNCTION tenure.check_resolution(committed json, resend boolean) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    IF (committed IS NOT NULL) = coalesce(resend, false) THEN
        PERFORM tenure.invalid('committed', 'say one of two things: it happened and this came back, or send it again',
            'Pass committed => ''…'', with ''null'' where nothing came back, or resend => true.');
    END IF;
END $$;

-- Resolves an effect in doubt, for a holder that knows what happened: the call was made and `committed` came back, or
-- the effect is to be sent again under the same key.
CREATE OR REPLACE FUNCTION tenure.effect_settle(job bigint, token bigint, effect text, committed json DEFAULT NULL,
    resend boolean DEFAULT false) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM tenure.check_resolution(committed, resend),
            tenure.ledger_entry(job, token, 'effect_resolve', effect, committed, NULL);
END $$;

-- A person's decision about an effect in doubt, for a job that is not running. If the job is parked and no other effect
-- of it is in doubt, it is queued again. Answers the job's state afterwards.
CREATE OR REPLACE FUNCTION tenure.effect_resolve(job bigint, effect text, committed json DEFAULT NULL,
    resend boolean DEFAULT false) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    answer record;
BEGIN
    PERFORM tenure.check_resolution(committed, resend);
    IF committed IS NOT NULL THEN
        PERFORM tenure.check_json('committed', committed, 262144);
    END IF;
    SELECT r.verdict, r.state, ('{open,committed,failed,resend}'::text[])[r.standing + 1] AS standing INTO answer
      FROM tenure.resolve_effect(job, effect, committed) r;
    CASE answer.verdict
        WHEN 'not_found' THEN
            PERFORM tenure.invalid('job', format('there is no job %s, or no longer', coalesce(job::text, 'NULL')), 'Look for it in the view tenure.job.');
        WHEN 'no_such_effect' THEN
            PERFORM tenure.invalid('effect', format('job %s has no effect %s', job, effect), 'Look for it in the view tenure.effect.');
        WHEN 'not_in_doubt' THEN
            PERFORM tenure.invalid('effect', format('effect %s of job %s is %s, and so not in doubt', effect, job, answer.standing),
                'What stands is in the view tenure.effect. A decision can be corrected until an attempt has gone on with it.');
        WHEN 'succeeded' THEN
            PERFORM tenure.invalid('job', format('job %s has succeeded, and nobody would send effect %s again', job, effect),
                'If it happened, say so with committed => ….');
        WHEN 'running' THEN
            PERFORM tenure.invalid('job', format('job %s is running, and its holder decides', job),
                'Wait until it parks or ends, or cancel it first.');
        ELSE
            RETURN tenure.state_name(answer.state);
    END CASE;
END $$;

-- What is remembered of a step; NULL if nothing is.
CREATE OR REPLACE FUNCTION tenure.step_get(job bigint, token bigint, step text) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$ BEGIN RETURN (SELECT e.result FROM tenure.ledger_entry(job, token, 'step_get', step, NULL, NULL) e); END $$;

-- Remembers the result of a step, and answers it. A result that is remembered already stays, and is the answer.
CREATE OR REPLACE FUNCTION tenure.step_put(job bigint, token bigint, step text, result json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$ BEGIN RETURN (SELECT e.result FROM tenure.ledger_entry(job, token, 'step_put', step, result, NULL) e); END $$;
