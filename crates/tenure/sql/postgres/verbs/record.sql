-- What the other verbs are written in: time, numbers, names, refusals, and a job as row.rs reads it.
--
-- Functions that people or workers call are SECURITY DEFINER with a fixed search_path, so that a
-- role needs EXECUTE and no right on any table. The helpers here run inside those and are called from nowhere
-- else.

-- Why `state + 0 = 2` in these files: there are partial indexes on states, and the planner would drive a
-- statement from one of them, over all running jobs and their dead entries. With `+ 0` it finds the row by
-- its id. Where an index on a state is meant, the bare `state = 2` stands (docs/decisions/0005).

-- ── types ─────────────────────────────────────────────────────────────────────────────────────────

-- Makes a composite type, or leaves it if it has these columns already. One that has others is dropped together with the
-- functions that use it; all of them are made again by the files that follow.
CREATE OR REPLACE FUNCTION tenure.put_type(p_name text, p_columns text) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    type_ regclass := to_regclass('tenure.' || quote_ident(p_name));
BEGIN
    IF p_columns = (SELECT string_agg(a.attname || ' ' || format_type(a.atttypid, a.atttypmod), ', ' ORDER BY a.attnum)
                      FROM pg_attribute a WHERE a.attrelid = type_) THEN
        RETURN;
    ELSIF type_ IS NOT NULL THEN
        EXECUTE format('DROP TYPE %s CASCADE', type_);
    END IF;
    EXECUTE format('CREATE TYPE tenure.%I AS (%s)', p_name, p_columns);
END $$;

-- ── time ──────────────────────────────────────────────────────────────────────────────────────────

-- Milliseconds since 1970 UTC: the server's clock, or the test clock. Each call reads it once into a
-- variable: a volatile function in a predicate is evaluated for each row and bounds no index. Never
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

-- Since when the server has been running without a break, as far as sessions and leases are concerned: its start; its last
-- recovery from a crash of one backend, which ends all sessions under the same start, but then the statistics are discarded,
-- and the time of that is for everybody to read; or the last time that the database was found to be elsewhere, as after a
-- promotion. A test clock has a start of its own, which counts as never broken if no test has set it.
CREATE OR REPLACE FUNCTION tenure.started_ms() RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN coalesce((SELECT coalesce(c.started_at, 0) FROM tenure.clock c),
                    greatest(floor(extract(epoch FROM pg_postmaster_start_time()) * 1000)::bigint,
                             floor(extract(epoch FROM pg_stat_get_bgwriter_stat_reset_time()) * 1000)::bigint,
                             (SELECT e.at FROM tenure.epochs e ORDER BY e.epoch DESC LIMIT 1)));
END $$;

-- The same for leases. Each source that lies in the future is left out by itself: the clock was set back since.
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

-- What kept all workers from renewing, as far as it was noted: since when the server has been running (started), the end of the
-- last break in the pulse (broke), and of the break before it (broke_before); 0 for none. One in the future is from before
-- the clock was set back.
CREATE OR REPLACE FUNCTION tenure.noted_breaks(t bigint, OUT started bigint, OUT broke bigint, OUT broke_before bigint)
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    started := tenure.steady_since(t);
    broke := (SELECT CASE WHEN b.last_value <= t THEN b.last_value ELSE 0 END FROM tenure.broke b);
    broke_before := (SELECT CASE WHEN b.last_value <= t THEN b.last_value ELSE 0 END FROM tenure.broke_before b);
END $$;

-- The same, and a pulse that is too old while leases are out means that a break ends now. With p_note it is noted, so that the
-- next caller does not begin another one, and each lease is pardoned by one break only. Callers ask only when a lease looks
-- over.
CREATE OR REPLACE FUNCTION tenure.last_breaks(t bigint, p_note boolean DEFAULT true,
    OUT started bigint, OUT broke bigint, OUT broke_before bigint)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    stall_ms CONSTANT bigint := 3000;
    pulse    bigint := (SELECT p.last_value FROM tenure.pulse p);
BEGIN
    SELECT n.started, n.broke, n.broke_before INTO started, broke, broke_before FROM tenure.noted_breaks(t) n;
    IF pulse > 0 AND greatest(pulse, broke) < t - stall_ms
       -- A store without leases has no pulse. Leases that were granted a moment ago tell of no stall.
       AND EXISTS (SELECT 1 FROM tenure.jobs r WHERE r.state = 2 /* running */ AND r.leased_at < t - stall_ms) THEN
        broke_before := broke;
        broke := t;
        IF p_note THEN
            PERFORM setval('tenure.broke_before', broke_before), setval('tenure.broke', broke);
        END IF;
    END IF;
END $$;

-- Until when a lease is not over, whatever it says. One that was granted before the server's start, or before the last
-- break in the pulse, gets its whole length from then on, but not beyond the job's maximal runtime: its holder could not
-- renew it meanwhile. One that was granted before the break before has had its pardon.
CREATE OR REPLACE FUNCTION tenure.pardoned_until(leased_at bigint, lease_ms bigint, began bigint, max_runtime bigint,
    started bigint, broke bigint, broke_before bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS
$$ SELECT CASE
       WHEN leased_at >= started AND (leased_at >= broke OR leased_at < broke_before) THEN '-9223372036854775808'::bigint
       ELSE least(greatest(CASE WHEN leased_at < started THEN started END,
                           CASE WHEN leased_at >= broke_before AND leased_at < broke THEN broke END) + lease_ms,
                  began + least(max_runtime, tenure.end_of_time())) END $$;

-- A number from before the calendar begins is shown as its first day, so that one such job does not
-- make a whole view fail.
CREATE OR REPLACE FUNCTION tenure.at(ms bigint) RETURNS timestamptz
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS
$$ SELECT timestamptz 'epoch'
        + CASE WHEN ms < -210866803200000 THEN -210866803200000 ELSE ms END * interval '1 millisecond' $$;

-- The time on the store's clock, for people.
CREATE OR REPLACE FUNCTION tenure.now() RETURNS timestamptz
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS
$$ SELECT tenure.at(tenure.clock_ms()) $$;

-- What was installed here, for those who may not read tables: the migrations, and as number 0 the
-- functions, with their release beside the name.
CREATE OR REPLACE FUNCTION tenure.history()
RETURNS TABLE (version bigint, name text, checksum text, min_client bigint, applied_at bigint)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS
$$ SELECT m.version, m.name, m.checksum, m.min_client, m.applied_at FROM tenure.migrations m
   UNION ALL
   SELECT 0, concat('functions ', m.functions_release), m.functions, m.functions_client, m.functions_at FROM tenure.meta m
    WHERE m.functions IS NOT NULL
    ORDER BY 1 $$;

-- ── durability ────────────────────────────────────────────────────────────────────────────────────

-- What answers for a token, an outcome or a job must be on disk when it is acknowledged: if a crash of the server forgot it, the
-- same token would go to another worker. So a function that promises something raises synchronous_commit for its transaction
-- where the session or its role says off, unless the installation has said off. It never lowers it: local and all that is above
-- wait for this server's disk. Each function asks for the setting itself, since that is much cheaper than this call.
CREATE OR REPLACE FUNCTION tenure.be_durable() RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM set_config('synchronous_commit', 'on', true) FROM tenure.meta m WHERE m.durability = 'on';
END $$;

-- What the promises of this installation rest on: what it has said about commits, and whether a commit of this session is on
-- disk before it is acknowledged; and by what it would notice that the database has gone back in time.
CREATE OR REPLACE FUNCTION tenure.terms(OUT durability text, OUT is_synced boolean, OUT tells_timeline boolean, OUT tells_system boolean)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS
$$ SELECT m.durability,
          current_setting('fsync')::boolean AND (m.durability = 'on' OR current_setting('synchronous_commit') <> 'off'),
          m.wal_timeline <> 0, m.system <> 0
     FROM tenure.meta m $$;

-- ── refusals ──────────────────────────────────────────────────────────────────────────────────────

-- TN003: what was asked makes no sense. The field's name travels beside the words, for programs.
CREATE OR REPLACE FUNCTION tenure.invalid(field text, problem text, hint text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = 'TN003', COLUMN = field,
        MESSAGE = field || ': ' || problem,
        DETAIL = 'Nothing was done.', HINT = hint;
END $$;

-- Every name that is given, or TN003 for the first that is none.
CREATE OR REPLACE FUNCTION tenure.check_names(field text, names text[]) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    bad text;
BEGIN
    SELECT n.name INTO bad FROM (SELECT DISTINCT u.name FROM unnest(names) u(name)) n
     WHERE n.name !~ '^[a-z0-9][a-z0-9_.:-]{0,62}$'
        OR n.name IS NULL LIMIT 1;
    IF FOUND THEN
        PERFORM tenure.invalid(field, coalesce(quote_literal(left(bad, 80)), 'NULL') || ' is not a valid name',
            'Use 1 to 63 of a-z 0-9 _ . : - and begin with a letter or digit.');
    END IF;
END $$;

CREATE OR REPLACE FUNCTION tenure.check_worker(worker text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF worker IS NULL OR worker !~ '^[!-~]{1,128}$' THEN
        PERFORM tenure.invalid('worker', 'a worker id has 1 to 128 printable ASCII characters',
            'Make one up for each process start, such as a UUID.');
    END IF;
END $$;

CREATE OR REPLACE FUNCTION tenure.check_lease(lease_ms bigint) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF lease_ms IS NULL OR lease_ms NOT BETWEEN 1 AND 86400000 THEN
        PERFORM tenure.invalid('lease', 'a lease of ' || coalesce(lease_ms::text, 'NULL') || ' ms is outside 1 ms to 24 h',
            'Renew it instead of making it longer.');
    END IF;
END $$;

-- A grace, or TN003. One that is longer than any lease is as good as that.
CREATE OR REPLACE FUNCTION tenure.check_grace(grace_ms bigint) RETURNS bigint
LANGUAGE plpgsql AS $$
BEGIN
    IF grace_ms IS NULL OR grace_ms < 0 THEN
        PERFORM tenure.invalid('grace', coalesce(grace_ms::text, 'NULL') || ' ms is no length of time', 'Leave it out for none.');
    END IF;
    RETURN least(grace_ms, tenure.end_of_time());
END $$;

-- All lists of a batch have one length, and not more than 1,000 items.
CREATE OR REPLACE FUNCTION tenure.check_batch(size int, VARIADIC others int[] DEFAULT '{}') RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF size IS NULL THEN
        PERFORM tenure.invalid('batch', 'NULL is not a batch', 'Pass a list, which may be empty.');
    ELSIF size < 0 THEN
        PERFORM tenure.invalid('batch', size || ' is less than nothing', 'Ask for 0 to 1000.');
    ELSIF size > 1000 THEN
        PERFORM tenure.invalid('batch', 'a batch of ' || size || ' is above the limit of 1000', 'Send it in parts.');
    ELSIF EXISTS (SELECT 1 FROM unnest(others) o WHERE o IS DISTINCT FROM size) THEN
        PERFORM tenure.invalid('batch', 'the lists differ in length', 'Give one value for each job in every list.');
    END IF;
END $$;

-- ── numbers ───────────────────────────────────────────────────────────────────────────────────────

-- The first bits of the SHA-256 of a name. (<< and | have one precedence in SQL: mind the parentheses.)
CREATE OR REPLACE FUNCTION tenure.prefix(name text, bits int) RETURNS bigint
LANGUAGE sql STABLE PARALLEL SAFE AS
$$ SELECT ('x' || encode(substring(sha256(convert_to(name, 'UTF8')) FROM 1 FOR 4), 'hex'))::bit(32)::bigint >> (32 - bits) $$;

-- Where a job stands in the claim index, the same number as on every engine:
-- bit 61 suspect, then 20 bits of the queue, 26 of the tenant, 15 of the kind.
CREATE OR REPLACE FUNCTION tenure.lane(queue text, tenant text, kind text, suspect boolean) RETURNS bigint
LANGUAGE sql STABLE PARALLEL SAFE AS
$$ SELECT (suspect::int::bigint << 61)
        | (tenure.prefix(queue, 20) << 41) | (tenure.prefix(tenant, 26) << 15) | tenure.prefix(kind, 15) $$;

-- Whether so many crashes make a job a suspect: from its second crash on. The first may be anybody's fault, and then the
-- jobs of a lost machine run again at once. A job with few crashes to lose is a suspect after its first. The library has the
-- same rule in lifecycle.rs.
CREATE OR REPLACE FUNCTION tenure.makes_suspect(crashes int, max_crashes int) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$ SELECT crashes >= CASE WHEN max_crashes > 3 THEN 2 ELSE 1 END $$;

-- Whether a job that stands in this lane is one.
CREATE OR REPLACE FUNCTION tenure.is_suspect(lane bigint) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$ SELECT lane & 2305843009213693952 <> 0 $$;

-- For how long a crash counts at the least, in milliseconds: the count goes when a handler returns by itself and the last
-- crash is as old as this.
CREATE OR REPLACE FUNCTION tenure.crash_memory() RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$ SELECT 3600000::bigint $$;

-- The token after this one: above it, and above every token of an earlier epoch.
CREATE OR REPLACE FUNCTION tenure.next_token(token bigint, epoch_floor bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$ SELECT greatest(token, epoch_floor) + 1 $$;

-- ── epochs ────────────────────────────────────────────────────────────────────────────────────────
--
-- A restored or promoted database has forgotten tokens and ids that were issued after the state it went back to. If they
-- were issued again, a worker from before would pass the fence, and an outside system would take a new payment for an old
-- one. So the database compares where it is with where it was, and where that differs a new epoch has begun.

-- The WAL timeline, from the name of the segment that is written now. (pg_control_checkpoint() knows it too, but lags after
-- a promotion.) In a function that is not inlined, so that a server which does not tell it can do without.
CREATE OR REPLACE FUNCTION tenure.wal_timeline() RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint;
END $$;

-- The same for the server's system identifier.
CREATE OR REPLACE FUNCTION tenure.system_id() RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN (pg_control_system()).system_identifier;
END $$;

-- Where the database is: on which WAL timeline, which a promotion and a recovery to a point in time leave; in which
-- server; and which table, since a dump may be restored into the same server. A managed server may not tell the first two: then
-- they are 0, and the rest decides. It is asked with care, when the schema is installed and when an epoch begins; what it does not
-- tell is not asked again by each claim.
CREATE OR REPLACE FUNCTION tenure.whereabouts(OUT wal_timeline bigint, OUT system bigint, OUT jobs_table bigint)
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    jobs_table := tenure.place_of_jobs();
    BEGIN
        wal_timeline := tenure.wal_timeline();
    EXCEPTION WHEN OTHERS THEN
        wal_timeline := 0;
    END;
    BEGIN
        system := tenure.system_id();
    EXCEPTION WHEN OTHERS THEN
        system := 0;
    END;
END $$;

-- Which table, in which database: a dump has another table, a copy of the database another database.
CREATE OR REPLACE FUNCTION tenure.place_of_jobs() RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN ((SELECT d.oid FROM pg_database d WHERE d.datname = current_database())::bigint << 32)
           | 'tenure.jobs'::regclass::oid::bigint;
END $$;

-- Whether that is where it is. On one line of a query, because every claim and every enqueue asks. In this order: a dump from
-- another server may remember what this one does not tell.
CREATE OR REPLACE FUNCTION tenure.is_here(wal_timeline bigint, system bigint, jobs_table bigint) RETURNS boolean
LANGUAGE sql VOLATILE AS
$$ SELECT CASE WHEN jobs_table <> tenure.place_of_jobs() THEN false
               WHEN CASE WHEN system = 0 THEN false ELSE system <> tenure.system_id() END THEN false
               WHEN wal_timeline = 0 THEN true
               ELSE wal_timeline = tenure.wal_timeline() END $$;

-- The epoch after this one: larger, and one that a second restore of the same old state does not come to again. So it
-- carries the time, in tens of minutes since 2026. The library has the same rule in lease.rs.
CREATE OR REPLACE FUNCTION tenure.raised(epoch bigint, at bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS
$$ SELECT least(greatest(epoch + 1, (at - 1767225600000) / 600000), 8388607) $$;

-- Where the numbers of an epoch that begins in this life of this server begin. Two replicas that are promoted within ten minutes,
-- and two restores of one dump, come to the same epoch without knowing of each other; so each begins it elsewhere. It is a number
-- below 2^39 that depends on the server's start and on the table. With a test clock it is 0.
CREATE OR REPLACE FUNCTION tenure.salt() RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM tenure.clock) THEN
        RETURN 0;
    END IF;
    RETURN hashtextextended(extract(epoch FROM pg_postmaster_start_time()) || ' ' || tenure.place_of_jobs(), 0) & 549755813887;
END $$;

-- What tokens and ids are above now: the epoch that they are issued in, in the high bits, and where its numbers begin, whether or
-- not it is written down yet. It writes nothing, so that enqueueing in anybody's transaction touches no row that others need. A
-- standby issues nothing and cannot tell where it is.
CREATE OR REPLACE FUNCTION tenure.floor_of_now(p_at bigint) RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN (SELECT CASE WHEN m.wal_timeline IS NULL OR pg_is_in_recovery() THEN m.floor
                        WHEN tenure.is_here(m.wal_timeline, m.system, m.jobs_table) THEN m.floor
                        ELSE (tenure.raised(m.epoch, p_at) << 40) + tenure.salt() END
              FROM tenure.meta m);
END $$;

-- The epoch alone.
CREATE OR REPLACE FUNCTION tenure.epoch_of_now(p_at bigint) RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN tenure.floor_of_now(p_at) >> 40;
END $$;

-- The same, written down if it is new, with the reason. It never waits: if another session is writing it down, or this
-- transaction's snapshot is too old to, the number is used all the same.
CREATE OR REPLACE FUNCTION tenure.floor_kept(p_at bigint) RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    e bigint := (SELECT m.floor FROM tenure.meta m
                  WHERE m.wal_timeline IS NULL OR tenure.is_here(m.wal_timeline, m.system, m.jobs_table));
BEGIN
    IF e IS NOT NULL THEN
        RETURN e;
    END IF;
    e := tenure.floor_of_now(p_at);
    BEGIN
        PERFORM 1 FROM tenure.meta m FOR UPDATE SKIP LOCKED;
        IF FOUND THEN
            -- Again, now that no other session can: it may have been written down since.
            e := tenure.floor_of_now(p_at);
            PERFORM tenure.begin_epoch(e >> 40, p_at, tenure.moved_from()) FROM tenure.meta m WHERE m.epoch < e >> 40;
        END IF;
    EXCEPTION WHEN serialization_failure THEN
        NULL;
    END;
    RETURN e;
END $$;

-- What tells that the database is not where it was, in words; NULL if it is.
CREATE OR REPLACE FUNCTION tenure.moved_from() RETURNS text
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN (SELECT string_agg(d.what || ' was ' || d.was || ' and is ' || d.is_, '; ' ORDER BY d.n)
              FROM tenure.meta m, tenure.whereabouts() h,
                   LATERAL (VALUES (1, 'the WAL timeline', m.wal_timeline, h.wal_timeline),
                                   (2, 'the server''s system identifier', m.system, h.system),
                                   (3, 'the place of the jobs table', m.jobs_table, h.jobs_table)) d(n, what, was, is_)
             WHERE m.wal_timeline IS NOT NULL AND d.was IS DISTINCT FROM d.is_);
END $$;

-- Writes down that an epoch has begun, and where the database is.
CREATE OR REPLACE FUNCTION tenure.begin_epoch(p_epoch bigint, p_at bigint, p_reason text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    UPDATE tenure.meta m SET epoch = p_epoch, floor = (p_epoch << 40) + tenure.salt(), wal_timeline = h.wal_timeline, system = h.system, jobs_table = h.jobs_table
      FROM tenure.whereabouts() h;
    INSERT INTO tenure.epochs (epoch, at, reason) VALUES (p_epoch, p_at, p_reason) ON CONFLICT (epoch) DO NOTHING;
END $$;

-- How far the server has come: the installation, its epoch, and up to where the write-ahead log is on disk. NULL if the server
-- does not tell. A crash of the server loses nothing of what this tells, so it never goes back by itself.
CREATE OR REPLACE FUNCTION tenure.progress_of_server() RETURNS text
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN (SELECT concat_ws(' ', m.installation, m.epoch, pg_current_wal_flush_lsn()) FROM tenure.meta m
             WHERE m.wal_timeline > 0);
END $$;

-- The workers are witnesses: a server that has not come as far as one of them has seen it was put back, by a snapshot of its
-- disk for example, though its timeline and its system identifier are the same. Then a new epoch begins, and the answer is true.
-- Each epoch that begins so carries the time, so callers that show what is not true begin one in ten minutes at most.
CREATE OR REPLACE FUNCTION tenure.witnessed(p_seen text, t bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    new_epoch CONSTANT bigint := tenure.raised(0, t);
    seen_epoch bigint;
    seen_lsn   pg_lsn;
    is_lsn     pg_lsn;
BEGIN
    IF p_seen !~ '^[0-9a-f-]{36} [0-9]{1,7} [0-9A-F]{1,8}/[0-9A-F]{1,8}$' THEN
        RETURN false;
    END IF;
    seen_lsn := split_part(p_seen, ' ', 3)::pg_lsn;
    is_lsn := (SELECT pg_current_wal_insert_lsn() FROM tenure.meta m WHERE m.wal_timeline > 0);
    IF (seen_lsn > is_lsn) IS NOT TRUE THEN
        RETURN false;
    END IF;
    -- If the database notices by itself that it is elsewhere, its epoch is above the one that was seen.
    PERFORM tenure.floor_kept(t);
    seen_epoch := split_part(p_seen, ' ', 2)::bigint;
    PERFORM 1 FROM tenure.meta m
      WHERE m.installation::text = split_part(p_seen, ' ', 1) AND m.epoch <= seen_epoch AND seen_epoch < new_epoch
        FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    IF current_setting('synchronous_commit') = 'off' THEN PERFORM tenure.be_durable(); END IF;
    PERFORM tenure.begin_epoch(new_epoch, t, format('a worker has seen the write-ahead log at %s, and it is at %s: '
        'the server was put back to an earlier state', seen_lsn, is_lsn));
    RETURN true;
END $$;

-- The policy's delay in milliseconds after so many failures, before any chance. The library decides
-- the same in lifecycle.rs, and one table of cases holds both to it.
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
    -- Not cut to the end of time yet: half of it may still be chance.
    RETURN least(delay, 9223372036854775807)::bigint;
END $$;

-- ── a job ─────────────────────────────────────────────────────────────────────────────────────────

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

-- A live job as it stands in tenure.done once it has ended, in the order of that table's columns. Every statement that moves
-- a job there reads this function, which the server writes into it. A list of columns stands nowhere else.
CREATE OR REPLACE FUNCTION tenure.as_ended(was tenure.jobs, p_state smallint, p_token bigint, p_crashes int, p_at bigint,
    p_result json, p_reason text) RETURNS SETOF tenure.done
LANGUAGE sql STABLE AS
$$ SELECT was.id, was.run_at, p_token, was.enqueued_at, was.started_at, p_at, was.max_runtime, was.parent, was.attempt,
          was.max_attempts, p_crashes, was.max_crashes, was.priority, p_state, was.queue, was.tenant, was.kind, was.args,
          was.retry, was.key, was.extras, was.limit_key, was.worker, p_result, p_reason $$;

-- An ended job as it stands in tenure.jobs when it is queued again, due at p_at: the same the other way.
CREATE OR REPLACE FUNCTION tenure.as_queued(was tenure.done, p_token bigint, p_at bigint) RETURNS SETOF tenure.jobs
LANGUAGE sql STABLE AS
$$ SELECT was.id, tenure.lane(was.queue, was.tenant, was.kind, false), p_at, p_token, was.enqueued_at, NULL::bigint,
          NULL::bigint, NULL::bigint, NULL::bigint, was.max_runtime, was.parent, 0, was.max_attempts, 0, was.max_crashes,
          was.priority, 0::smallint /* ready */, was.queue, was.tenant, was.kind, was.args, was.retry, was.key, was.extras,
          was.limit_key, NULL::text, NULL::bigint, NULL::text, NULL::smallint, NULL::text, NULL::bigint, NULL::bigint $$;

-- Ends one job, which the caller has locked. Settling, lapsing and cancelling end here.
CREATE OR REPLACE FUNCTION tenure.end_job(p_job bigint, p_state smallint, p_token bigint, p_crashes int,
    p_at bigint, p_result json, p_reason text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    WITH ended AS (DELETE FROM tenure.jobs j WHERE j.id = p_job RETURNING j AS was)
    INSERT INTO tenure.done
    SELECT d.* FROM ended e
     CROSS JOIN LATERAL tenure.as_ended(e.was, p_state, p_token, p_crashes, p_at, p_result, p_reason) d;
END $$;

-- Back to the queue, due at p_run_at, or aside. Settling, lapsing and resuming end here.
CREATE OR REPLACE FUNCTION tenure.put_back(p_job bigint, p_parked boolean, p_run_at bigint, p_token bigint,
    p_attempt int, p_crashes int, p_crashed_at bigint, p_suspect boolean, p_reason text, p_at bigint) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    ready boolean := NOT p_parked AND p_run_at <= p_at;
    place text;
BEGIN
    UPDATE tenure.jobs j
       SET state = CASE WHEN p_parked THEN 3 WHEN ready THEN 0 ELSE 1 END,
           lane = tenure.lane(j.queue, j.tenant, j.kind, p_suspect),
           run_at = p_run_at,
           token = p_token,
           attempt = p_attempt,
           crashes = p_crashes,
           crashed_at = p_crashed_at,
           reason = p_reason,
           worker = NULL, request = NULL, started_at = NULL, leased_at = NULL, lease_ms = NULL, lease_until = NULL
     WHERE j.id = p_job
    RETURNING j.queue INTO place;
    IF ready THEN
        PERFORM tenure.announce(place, p_at);
    END IF;
END $$;

-- Deletes what is known of a job that is in neither table any more.
CREATE OR REPLACE FUNCTION tenure.forget(p_jobs bigint[]) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM tenure.payloads p WHERE p.job_id = ANY (p_jobs);
    DELETE FROM tenure.timeline l WHERE l.job_id = ANY (p_jobs);
    DELETE FROM tenure.ledger e WHERE e.job_id = ANY (p_jobs);
    DELETE FROM tenure.steps s WHERE s.job_id = ANY (p_jobs);
END $$;

-- Tells waiting workers that a queue has ready jobs, unless this session said so a moment ago: a
-- notification in every transaction halves the commits of eight callers. A hint, never needed: what
-- it leaves out is found by looking. A session may ask for quiet: a transaction that has notified cannot be prepared.
CREATE OR REPLACE FUNCTION tenure.announce(p_queue text, p_at bigint) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    pause CONSTANT bigint := 50;
    -- The schema is part of it, since a session may enqueue into several. Its name may have spaces, so it comes last.
    place CONSTANT text := p_queue || ' ' || left('tenure.', -1);
    said  text := current_setting('tenure_session.announced', true);
BEGIN
    IF current_setting('tenure_session.quiet', true) = 'on' THEN
        RETURN;
    END IF;
    -- Anybody may set it, and through a pooler others share it: it is believed only if it is ours.
    IF said ~ '^[0-9]{1,15} ' AND substr(said, strpos(said, ' ') + 1) = place
       AND p_at - split_part(said, ' ', 1)::bigint BETWEEN 0 AND pause THEN
        RETURN;
    END IF;
    PERFORM set_config('tenure_session.announced', p_at || ' ' || place, false),
            pg_notify(left('tenure.', -1), p_queue);
END $$;
