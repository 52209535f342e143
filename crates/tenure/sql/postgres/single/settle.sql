-- The ends of an attempt, for people and other languages. Each raises TN001 where tenure.settle_many answers stale or
-- not_found, so that the other writes of its transaction are rolled back too. Each may be repeated: if an earlier
-- transaction has done the same already, it raises TN004.

-- TN001: the job is not the caller's.
CREATE OR REPLACE FUNCTION tenure.stale(job bigint, shown bigint, verb text) RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    now_ record;
BEGIN
    SELECT c.token, c.state INTO now_ FROM tenure.current(job) c;
    RAISE EXCEPTION USING ERRCODE = 'TN001',
        MESSAGE = format('%s refused: token %s is not the right to job %s', verb, coalesce(shown::text, 'NULL'), coalesce(job::text, 'NULL')),
        DETAIL = CASE
            WHEN now_.token IS NULL THEN 'There is no such job, or no longer.'
            WHEN now_.token = shown THEN format('already_settled: the attempt has ended, and the job is %s.', tenure.state_name(now_.state))
            ELSE format('token_mismatch: the job''s token is %s, and it is %s.', now_.token, tenure.state_name(now_.state))
        END,
        HINT = format('Somebody else has the job, or it has ended. Stop working on it. To leave a trace, call tenure.refused(%s, %s, %L) in a new transaction.',
                      coalesce(job::text, 'NULL'), coalesce(shown::text, 'NULL'), verb);
END $$;

-- One settlement, or TN001. Raises TN004 if an earlier transaction has made this settlement already: if the repetition
-- were accepted, the other writes of this transaction would be committed a second time. So if the answer to a COMMIT
-- was lost and the transaction is sent again, TN004 tells that the COMMIT went through. Within the transaction that
-- settled, a repetition is accepted.
CREATE OR REPLACE FUNCTION tenure.settle(p_job bigint, p_token bigint, p_verb text, p_after_ms bigint, p_note text, p_result json)
RETURNS text
LANGUAGE plpgsql
AS $$
DECLARE
    answer record;
BEGIN
    SELECT s.verdict, s.became INTO answer
      FROM tenure.settle_many(ARRAY[p_job], ARRAY[p_token], ARRAY[p_verb], ARRAY[p_after_ms],
                              ARRAY[left(p_note, 2048)], ARRAY[p_result]) s;
    IF answer.verdict IN ('stale', 'not_found') THEN
        PERFORM tenure.stale(p_job, p_token, p_verb);
    ELSIF answer.verdict = 'repeated' AND NOT tenure.is_settled_here(p_job, p_token, p_verb) THEN
        RAISE EXCEPTION USING ERRCODE = 'TN004',
            MESSAGE = format('%s was done before: token %s has ended its attempt of job %s', p_verb, p_token, p_job),
            DETAIL = format('An earlier transaction made it %s. What this one writes is not part of that.',
                            tenure.state_name(answer.became)),
            HINT = 'Roll back: there is nothing left to do. If you repeat a transaction whose COMMIT was not answered, it went through.';
    END IF;
    RETURN tenure.state_name(answer.became);
END $$;

-- Whether the caller's own transaction made this settlement, even inside a savepoint. A settlement leaves a row: in done, or a
-- line of the timeline. The caller sees that row, so either another transaction has committed it, or the caller's own has
-- written it. Only in the second case is the transaction that wrote it (xmin) still in progress.
CREATE OR REPLACE FUNCTION tenure.is_settled_here(p_job bigint, p_token bigint, p_verb text) RETURNS boolean
LANGUAGE plpgsql
AS $$
DECLARE
    here   bigint := pg_current_xact_id_if_assigned()::text::bigint;
    writer xid;
BEGIN
    IF here IS NULL THEN
        RETURN false;
    END IF;
    SELECT d.xmin INTO writer FROM tenure.done d WHERE p_verb = 'complete' AND d.id = p_job AND d.token = p_token;
    IF NOT FOUND THEN
        SELECT l.xmin INTO writer FROM tenure.timeline l
         WHERE l.job_id = p_job AND l.token = p_token AND l.verb = p_verb AND NOT l.refused;
    END IF;
    -- Savepoints have numbers of their own, above their transaction's. A row keeps the low 32 bits of the number.
    RETURN coalesce(pg_xact_status(((here + ((writer::text::bigint - here) & 4294967295))::text)::xid8) = 'in progress', false);
EXCEPTION WHEN invalid_parameter_value THEN
    -- No transaction has that number yet: the writer is older than this transaction.
    RETURN false;
END $$;

-- It is done.
CREATE OR REPLACE FUNCTION tenure.complete(job bigint, token bigint, result json DEFAULT NULL) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF result IS NOT NULL THEN
        PERFORM tenure.check_json('result', result, 262144);
    END IF;
    PERFORM tenure.settle(job, token, 'complete', 0, NULL, result);
END $$;

-- It failed: another try if there is one left, after retry_in or, without that, the delay of the job's policy. Answers
-- what the job became: queued or dead.
CREATE OR REPLACE FUNCTION tenure.fail(job bigint, token bigint, error text, retry_in interval DEFAULT NULL) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    pause bigint := tenure.ms('retry_in', retry_in);
BEGIN
    IF pause IS NULL THEN
        SELECT tenure.retry_delay(j.retry, j.attempt, floor(random() * 4294967296)::bigint) INTO pause
          FROM tenure.jobs j WHERE j.id = job AND j.token = fail.token;
    END IF;
    RETURN tenure.settle(job, token, 'retry', coalesce(pause, 0), error, NULL);
END $$;

-- The delay before the next try. Only the exponential policy is randomised, by the 32 bits of jitter: half of its delay
-- is fixed and half is random, so that a thousand jobs that failed together do not come back together.
CREATE OR REPLACE FUNCTION tenure.retry_delay(retry json, failures int, jitter bigint) RETURNS bigint
LANGUAGE plpgsql IMMUTABLE
AS $$
DECLARE
    whole   bigint := tenure.base_delay(retry, failures);
    certain bigint := whole / 2;
BEGIN
    IF retry IS NULL OR retry -> 'exponential' IS NOT NULL THEN
        RETURN certain + floor((whole - certain)::numeric * jitter / 4294967296)::bigint;
    END IF;
    RETURN whole;
END $$;

-- It will never succeed.
CREATE OR REPLACE FUNCTION tenure.bury(job bigint, token bigint, reason text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$ BEGIN PERFORM tenure.settle(job, token, 'bury', 0, reason, NULL); END $$;

-- Not now; the attempt does not count.
CREATE OR REPLACE FUNCTION tenure.snooze(job bigint, token bigint, delay interval) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$ BEGIN PERFORM tenure.settle(job, token, 'snooze', tenure.ms('delay', delay), NULL, NULL); END $$;

-- Given back unfinished, as at shutdown; the attempt does not count.
CREATE OR REPLACE FUNCTION tenure.release(job bigint, token bigint) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$ BEGIN PERFORM tenure.settle(job, token, 'release', 0, NULL, NULL); END $$;

-- It waits for a person or a signal; the attempt does not count.
CREATE OR REPLACE FUNCTION tenure.park(job bigint, token bigint, reason text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$ BEGIN PERFORM tenure.settle(job, token, 'park', 0, reason, NULL); END $$;
