-- Time: the clock, breaks in it that kept workers from renewing, and the delay before the next try.

-- Milliseconds since 1970 UTC: the server's clock, or the test clock. Each call of a verb reads it once into a
-- variable, because a volatile function in a condition runs for every row and cannot bound an index scan. It is never
-- the transaction's own time, which stands still while the transaction is open.
CREATE OR REPLACE FUNCTION tenure.clock_ms() RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN coalesce((SELECT c.at FROM tenure.clock c),
                    floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint);
END $$;

-- The latest time that the library can print, close to the end of the year 9999: nothing is ever due later.
CREATE OR REPLACE FUNCTION tenure.end_of_time() RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$ SELECT 253402207200000::bigint $$;

-- `length` after `start`, and not beyond the end of time.
CREATE OR REPLACE FUNCTION tenure.later(start bigint, length bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS
$$ SELECT least(start + least(length, tenure.end_of_time()), tenure.end_of_time()) $$;

-- Since when the server has been running without a break in its sessions: the latest of three times. The first is its
-- start. The second is its last recovery from the crash of one backend, which ends all sessions but keeps the start
-- time; the recovery discards the statistics, and every role may read when that was. The third is when the database was
-- last found to be elsewhere, as after a promotion. With a test clock it is the start that the test has set, or 0 for
-- none.
CREATE OR REPLACE FUNCTION tenure.started_ms() RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN coalesce((SELECT coalesce(c.started_at, 0) FROM tenure.clock c),
                    greatest(floor(extract(epoch FROM pg_postmaster_start_time()) * 1000)::bigint,
                             floor(extract(epoch FROM pg_stat_get_bgwriter_stat_reset_time()) * 1000)::bigint,
                             (SELECT e.at FROM tenure.epochs e ORDER BY e.epoch DESC LIMIT 1)));
END $$;

-- The same for leases at the time t. A source that lies after t is ignored: the clock was set back since then.
CREATE OR REPLACE FUNCTION tenure.steady_since(t bigint) RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN (SELECT coalesce(max(s.at), 0)
              FROM (SELECT coalesce(c.started_at, 0) AS at FROM tenure.clock c
                    UNION ALL
                    SELECT u.at FROM unnest(ARRAY[
                        floor(extract(epoch FROM pg_postmaster_start_time()) * 1000)::bigint,
                        floor(extract(epoch FROM pg_stat_get_bgwriter_stat_reset_time()) * 1000)::bigint,
                        (SELECT e.at FROM tenure.epochs e ORDER BY e.epoch DESC LIMIT 1)]) u(at)
                     WHERE NOT EXISTS (SELECT 1 FROM tenure.clock)) s
             WHERE s.at <= t);
END $$;

-- The stored breaks, in which no worker could renew a lease: since when the server has been running (started), the end
-- of the last gap in the pulse (broke), and the end of the gap before it (broke_before); 0 for none. The pulse is the
-- time at which a worker last looked at the store for all workers (see tenure.beat). A time after t was stored before
-- the clock was set back, and counts as none.
CREATE OR REPLACE FUNCTION tenure.noted_breaks(t bigint, OUT started bigint, OUT broke bigint, OUT broke_before bigint)
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    started := tenure.steady_since(t);
    broke := (SELECT CASE WHEN b.last_value <= t THEN b.last_value ELSE 0 END FROM tenure.broke b);
    broke_before := (SELECT CASE WHEN b.last_value <= t THEN b.last_value ELSE 0 END FROM tenure.broke_before b);
END $$;

-- The stored breaks. In addition, a pulse that is too old while jobs are running means that a break ends now. With
-- p_note this break is stored, so that the next caller does not begin another one, and each lease is extended by one
-- break only. Callers ask only when a lease looks over.
CREATE OR REPLACE FUNCTION tenure.last_breaks(t bigint, p_note boolean DEFAULT true,
    OUT started bigint, OUT broke bigint, OUT broke_before bigint)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    stall_ms CONSTANT bigint := 3000;
    pulse    bigint := (SELECT p.last_value FROM tenure.pulse p);
BEGIN
    SELECT n.started, n.broke, n.broke_before INTO started, broke, broke_before FROM tenure.noted_breaks(t) n;
    IF pulse > 0 AND greatest(pulse, broke) < t - stall_ms
       -- While no job is running, the pulse does not advance. So an old pulse means a stall only if a lease was granted
       -- before then.
       AND EXISTS (SELECT 1 FROM tenure.jobs r WHERE r.state = 2 /* running */ AND r.leased_at < t - stall_ms) THEN
        broke_before := broke;
        broke := t;
        IF p_note THEN
            PERFORM setval('tenure.broke_before', broke_before), setval('tenure.broke', broke);
        END IF;
    END IF;
END $$;

-- Until when a break extends a lease, beyond the end that the lease itself has; the lowest number if no break does. A
-- lease that was granted before the server's start, or before the end of the last gap in the pulse, gets its whole
-- length again from then on, but not beyond the job's maximal runtime: its holder could not renew it during the break.
-- A gap extends only leases that were granted after the gap before it; the others were extended by that one.
CREATE OR REPLACE FUNCTION tenure.pardoned_until(leased_at bigint, lease_ms bigint, began bigint, max_runtime bigint,
    started bigint, broke bigint, broke_before bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS
$$ SELECT CASE
       WHEN leased_at >= started AND (leased_at >= broke OR leased_at < broke_before) THEN '-9223372036854775808'::bigint
       ELSE least(greatest(CASE WHEN leased_at < started THEN started END,
                           CASE WHEN leased_at >= broke_before AND leased_at < broke THEN broke END) + lease_ms,
                  began + least(max_runtime, tenure.end_of_time())) END $$;

-- Milliseconds since 1970 as a timestamp. A number before PostgreSQL's calendar begins is shown as its first day, so
-- that one such job does not make a whole view fail.
CREATE OR REPLACE FUNCTION tenure.at(ms bigint) RETURNS timestamptz
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS
$$ SELECT timestamptz 'epoch'
        + CASE WHEN ms < -210866803200000 THEN -210866803200000 ELSE ms END * interval '1 millisecond' $$;

-- The time on the store's clock, for people.
CREATE OR REPLACE FUNCTION tenure.now() RETURNS timestamptz
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS
$$ SELECT tenure.at(tenure.clock_ms()) $$;

-- The policy's delay in milliseconds after so many failures, before any randomness. The library decides the same in
-- lifecycle.rs, and one table of test cases checks both.
CREATE OR REPLACE FUNCTION tenure.base_delay(retry json, failures int) RETURNS bigint
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
    step   int := greatest(failures - 1, 0);
    policy text;
    rule   json;
    delay  numeric;
BEGIN
    SELECT e.key, e.value INTO policy, rule
      FROM json_each(coalesce(retry, '{"exponential":{"base_ms":1000,"cap_ms":300000}}')) e;
    delay := CASE policy
        WHEN 'fixed' THEN (rule ->> 'ms')::numeric
        WHEN 'list' THEN coalesce((rule -> 'ms' ->> step)::numeric, (rule -> 'ms' ->> -1)::numeric, 0)
        -- Doubled 64 times, anything is longer than every cap.
        ELSE least((rule ->> 'base_ms')::numeric * 2::numeric ^ least(step, 64), (rule ->> 'cap_ms')::numeric)
    END;
    -- Not limited to the end of time here: retry_delay may still take off up to half of it.
    RETURN least(delay, 9223372036854775807)::bigint;
END $$;
