-- Claim, renew and progress for people and other languages.

-- Leases up to n due jobs and answers them in the order in which they are to run.
CREATE OR REPLACE FUNCTION tenure.claim(worker text, queues text[] DEFAULT '{default}', n int DEFAULT 1,
    lease interval DEFAULT '30 seconds', kinds text[] DEFAULT NULL)
RETURNS TABLE (id bigint, token bigint, kind text, queue text, tenant text, args json, attempt int, lease_until timestamptz)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    IF claim.n IS NULL OR claim.n < 0 THEN
        PERFORM tenure.invalid('n', 'a claim asks for 0 to 1000 jobs', 'Leave it out for 1.');
    END IF;
    RETURN QUERY
    SELECT c.job, c.token, c.kind, c.queue, c.tenant, c.args, c.attempt, tenure.at(c.lease_until)
      FROM tenure.settle_and_claim('{}', '{}', '{}', '{}', '{}', '{}', claim.worker, claim.queues, claim.kinds, claim.n,
               tenure.ms('lease', claim.lease),
               -- A random place on the ring: this caller keeps no cursor, and from a fixed place claims would not be
               -- fair.
               floor(random() * (1::bigint << 46))::bigint) c
     WHERE c.what = 'claimed' ORDER BY c.place;
END $$;

-- Extends a lease and answers until when it holds, or raises TN001. If another open transaction has the job locked, no
-- worker can take the job; then the lease is not extended, and the answer is until when it holds as it is.
CREATE OR REPLACE FUNCTION tenure.renew(job bigint, token bigint, lease interval DEFAULT '30 seconds') RETURNS timestamptz
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    answer record;
BEGIN
    SELECT r.verdict, r.lease_until INTO answer
      FROM tenure.renew_many(ARRAY[renew.job], ARRAY[renew.token], tenure.ms('lease', renew.lease)) r;
    IF answer.verdict IN ('stale', 'not_found') THEN
        PERFORM tenure.stale(renew.job, renew.token, 'renew');
    ELSIF answer.verdict = 'busy' THEN
        SELECT j.lease_until INTO answer.lease_until FROM tenure.jobs j
         WHERE j.id = renew.job
           AND j.token = renew.token AND j.state + 0 = 2 /* running */;
        IF NOT FOUND THEN
            -- The transaction that had the job locked has settled it since.
            PERFORM tenure.stale(renew.job, renew.token, 'renew');
        END IF;
    END IF;
    RETURN tenure.at(answer.lease_until);
END $$;

-- Notes which part of the whole is done, from 0 to 1, and in a few words what is being done; or raises TN001. Answers
-- whether it was noted: false if another open transaction has the job locked, because this call does not wait for it.
CREATE OR REPLACE FUNCTION tenure.progress(job bigint, token bigint, fraction double precision, note text DEFAULT NULL)
RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    answer text;
BEGIN
    IF fraction IS NULL THEN
        PERFORM tenure.invalid('fraction', 'NULL is no part of the whole', 'Use 0 for nothing, 1 for all.');
    END IF;
    SELECT p.verdict INTO answer
      FROM tenure.progress_many(ARRAY[progress.job], ARRAY[progress.token], ARRAY[tenure.permille(fraction)], ARRAY[note]) p;
    IF answer IN ('stale', 'not_found') THEN
        PERFORM tenure.stale(progress.job, progress.token, 'progress');
    END IF;
    RETURN answer = 'noted';
END $$;

-- A part of the whole in thousandths. The library counts the same in job/progress.rs, and one table of test cases
-- checks both.
CREATE OR REPLACE FUNCTION tenure.permille(fraction double precision) RETURNS smallint
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS
$$ SELECT CASE WHEN fraction = 'NaN' THEN 0 ELSE floor(least(greatest(fraction, 0), 1) * 1000 + 0.5) END::smallint $$;
