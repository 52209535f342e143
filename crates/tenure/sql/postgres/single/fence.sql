-- For a user's own transaction: prove at its COMMIT that the job is still held, without keeping renewals out
-- while it is open.

-- Asks for the proof at COMMIT, and refuses a stale token at once. With strict => true it also refuses a lease that is
-- over, even if no worker has taken the job yet: use that before a call to an outside system.
CREATE OR REPLACE FUNCTION tenure.fence(job bigint, token bigint, strict boolean DEFAULT false) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    until bigint;
    t     bigint := tenure.clock_ms();
BEGIN
    SELECT j.lease_until INTO until FROM tenure.jobs j WHERE j.id = job AND j.token = fence.token AND j.state + 0 = 2 /* running */;
    IF NOT FOUND THEN
        PERFORM tenure.stale(job, token, 'fence');
    ELSIF strict AND until <= t THEN
        RAISE EXCEPTION USING ERRCODE = 'TN001',
            MESSAGE = format('fence refused: the lease on job %s under token %s is over', job, token),
            DETAIL = format('lease_expired: it was over at %s; nobody has taken the job yet.', tenure.at(until)),
            HINT = 'Renew it with tenure.renew before you call anything outside.';
    END IF;
    -- Settlements look for fences only in a transaction that has some.
    PERFORM set_config('tenure_session.fenced', 'yes', true);
    INSERT INTO tenure.fences (job_id, token) VALUES (job, token);
END $$;

-- At COMMIT: if the row is gone, a settlement in this transaction has proved the fence; else the job must be running
-- under the token. The lock keeps the job from being taken until the COMMIT is through.
CREATE OR REPLACE FUNCTION tenure.check_fence() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    DELETE FROM tenure.fences f WHERE f.seq = NEW.seq;
    IF FOUND THEN
        PERFORM 1 FROM tenure.jobs j
          WHERE j.id = NEW.job_id
            AND j.token = NEW.token AND j.state + 0 = 2 /* running */
            FOR NO KEY UPDATE;
        IF NOT FOUND THEN
            PERFORM tenure.stale(NEW.job_id, NEW.token, 'commit');
        END IF;
    END IF;
    RETURN NULL;
END $$;

DO $$ BEGIN
    IF NOT EXISTS (SELECT 1 FROM pg_trigger t WHERE t.tgrelid = 'tenure.fences'::regclass AND t.tgname = 'fence') THEN
        CREATE CONSTRAINT TRIGGER fence AFTER INSERT ON tenure.fences
            DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION tenure.check_fence();
    END IF;
END $$;

-- A settlement proves the fences of its own transaction. The functions that settle call this only if there are fences.
CREATE OR REPLACE FUNCTION tenure.prove_fences(p_jobs bigint[], p_tokens bigint[]) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    DELETE FROM tenure.fences f USING unnest(p_jobs, p_tokens) s(id, token)
     WHERE f.job_id = s.id AND f.token = s.token;
END $$;

-- Locks the job for the rest of the transaction, and answers until when the lease holds. Call it first in a transaction
-- at REPEATABLE READ or above. Otherwise a renewal after the transaction's snapshot makes the settlement fail with
-- 40001, which means that the transaction may run again, and never that the token is stale.
CREATE OR REPLACE FUNCTION tenure.hold(job bigint, token bigint) RETURNS timestamptz
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    until bigint;
BEGIN
    SELECT j.lease_until INTO until FROM tenure.jobs j
     WHERE j.id = job
       AND j.token = hold.token AND j.state + 0 = 2 /* running */
       FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        PERFORM tenure.stale(job, token, 'hold');
    END IF;
    RETURN tenure.at(until);
END $$;

-- Writes a refusal into the timeline, for a caller whose transaction TN001 has rolled back, and the line with it.
-- Writes nothing if the token is not stale; the answer tells whether it was.
CREATE OR REPLACE FUNCTION tenure.refused(job bigint, token bigint, verb text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    found_ record;
BEGIN
    IF verb IS NULL OR verb NOT IN ('complete', 'retry', 'snooze', 'release', 'bury', 'park', 'renew', 'progress', 'fence', 'hold',
        'commit', 'effect_open', 'effect_commit', 'effect_fail', 'effect_resolve', 'step_get', 'step_put') THEN
        PERFORM tenure.invalid('verb', coalesce(quote_literal(verb), 'NULL') || ' is not a call that can be refused',
            'Use the verb that the message of TN001 begins with.');
    END IF;
    SELECT c.token, c.state INTO found_ FROM tenure.current(job) c;
    IF found_.token IS NULL OR refused.token IS NULL OR found_.token = refused.token AND found_.state = 2 /* running */ THEN
        RETURN false;
    END IF;
    -- The timeline knows the verbs of jobs; a fence, a hold and a commit are steps towards a completion.
    PERFORM tenure.refuse(job, token, CASE WHEN verb IN ('fence', 'hold', 'commit') THEN 'complete' ELSE verb END, tenure.clock_ms());
    RETURN true;
END $$;
