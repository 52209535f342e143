-- Epochs.
--
-- A restored or promoted database has forgotten tokens and ids that were issued after the state it went back to. If
-- they were issued again, a worker from before would pass the fence, and an outside system would take a new payment for
-- an old one. So the database stores where it is (see whereabouts). When it is somewhere else, a new epoch has begun.

-- The WAL timeline, from the name of the segment that is written now. (pg_control_checkpoint() knows it too, but lags
-- after a promotion.) This is PL/pgSQL, which the planner does not inline: so on a server that refuses to tell the
-- timeline, a query fails only if it really calls this function.
CREATE OR REPLACE FUNCTION tenure.wal_timeline() RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint;
END $$;

-- The server's system identifier, in a function of its own for the same reason.
CREATE OR REPLACE FUNCTION tenure.system_id() RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN (pg_control_system()).system_identifier;
END $$;

-- Where the database is, by three numbers: the WAL timeline, the server's system identifier, and the OIDs of the
-- database and of its table of jobs, in one number. A promotion or a recovery to a point in time begins another
-- timeline. A dump that is restored into the same server has another table. A managed server may refuse to tell the
-- first two numbers: this function catches the refusal and answers 0, and the others decide. It runs when the schema is
-- installed, when an epoch begins, and when a query finds one that is not stored yet. Claims do not ask again for what
-- the server refused to tell.
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

-- The OIDs of the database and of its table of jobs, in one number. A restored dump has another table, and a copy of
-- the whole database is another database.
CREATE OR REPLACE FUNCTION tenure.place_of_jobs() RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN ((SELECT d.oid FROM pg_database d WHERE d.datname = current_database())::bigint << 32)
           | 'tenure.jobs'::regclass::oid::bigint;
END $$;

-- Whether the database is where these three stored numbers say. This is one SQL expression, which the planner inlines,
-- because every claim and every enqueue asks. The place of the table comes first: if it differs, the other two are not
-- asked for. A dump from another server may have stored numbers that this server refuses to tell, with an error.
CREATE OR REPLACE FUNCTION tenure.is_here(wal_timeline bigint, system bigint, jobs_table bigint) RETURNS boolean
LANGUAGE sql VOLATILE AS
$$ SELECT CASE WHEN jobs_table <> tenure.place_of_jobs() THEN false
               WHEN CASE WHEN system = 0 THEN false ELSE system <> tenure.system_id() END THEN false
               WHEN wal_timeline = 0 THEN true
               ELSE wal_timeline = tenure.wal_timeline() END $$;

-- The epoch after this one. It carries the time, in tens of minutes since 2026, so that a second restore of the same
-- old state, at least ten minutes later, comes to another epoch. The library has the same rule in lease.rs.
CREATE OR REPLACE FUNCTION tenure.raised(epoch bigint, at bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS
$$ SELECT least(greatest(epoch + 1, (at - 1767225600000) / 600000), 8388607) $$;

-- If an epoch begins now, its numbers begin at this offset, which is below 2^39 and depends on the server's start and
-- on the table. Two replicas that are promoted within ten minutes, or two restores of one dump, come to the same epoch
-- without knowing of each other; the offset keeps their numbers apart. With a test clock it is 0.
CREATE OR REPLACE FUNCTION tenure.salt() RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM tenure.clock) THEN
        RETURN 0;
    END IF;
    RETURN hashtextextended(extract(epoch FROM pg_postmaster_start_time()) || ' ' || tenure.place_of_jobs(), 0) & 549755813887;
END $$;

-- The stored floor: all tokens and ids of this epoch are above it. No row if the database is not where it was when the
-- floor was stored. The planner inlines this function into the query that calls it.
CREATE OR REPLACE FUNCTION tenure.floor_here() RETURNS TABLE (floor bigint)
LANGUAGE sql STABLE AS
$$ SELECT m.floor FROM tenure.meta m
    WHERE m.wal_timeline IS NULL OR tenure.is_here(m.wal_timeline, m.system, m.jobs_table) $$;

-- The floor that holds now, whether or not it is stored yet: the epoch in the high bits, and where the epoch's numbers
-- begin. It writes nothing, so that an enqueue in a user's transaction locks no row that others need. A standby issues
-- nothing and cannot tell where it is, so there the stored floor is the answer.
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

-- The floor that holds now. If it is new, it is stored, with the reason. This never waits: if another session is
-- storing it, or if this transaction's snapshot is too old to store it, the floor is used without being stored here.
CREATE OR REPLACE FUNCTION tenure.floor_kept(p_at bigint) RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    e bigint := (SELECT f.floor FROM tenure.floor_here() f);
BEGIN
    IF e IS NOT NULL THEN
        RETURN e;
    END IF;
    e := tenure.floor_of_now(p_at);
    BEGIN
        PERFORM 1 FROM tenure.meta m FOR UPDATE SKIP LOCKED;
        IF FOUND THEN
            -- Compute the floor again under the lock: another session may have stored a new one since.
            e := tenure.floor_of_now(p_at);
            PERFORM tenure.begin_epoch(e >> 40, p_at, tenure.moved_from()) FROM tenure.meta m WHERE m.epoch < e >> 40;
        END IF;
    EXCEPTION WHEN serialization_failure THEN
        NULL;
    END;
    RETURN e;
END $$;

-- What differs between where the database was and where it is, in words; NULL if nothing does.
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

-- How far the server has come: the installation, its epoch, and up to where the write-ahead log is on disk. NULL if the
-- server does not tell. What is on disk survives a crash of the server, so this never goes back by itself.
CREATE OR REPLACE FUNCTION tenure.progress_of_server() RETURNS text
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN (SELECT concat_ws(' ', m.installation, m.epoch, pg_current_wal_flush_lsn()) FROM tenure.meta m
             WHERE m.wal_timeline > 0);
END $$;

-- Workers remember how far the server had come when they last asked (progress_of_server), and pass that in p_seen. If
-- the server has not come that far, it was put back, for example by a snapshot of its disk, though its timeline and its
-- system identifier are the same. Then a new epoch begins, and the answer is true. An epoch that begins here carries
-- the time, so callers that pass invented values can begin one in ten minutes at most.
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
    -- If the database notices by itself that it is elsewhere, this begins an epoch above the one that the worker has
    -- seen.
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
