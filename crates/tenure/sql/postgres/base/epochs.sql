-- Epochs.
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

-- Where the database is, by three numbers: the WAL timeline (a promotion or a recovery to a point in time begins another),
-- the server's system identifier, and the OID of the table of jobs (a dump may be restored into the same server). A managed
-- server may refuse to tell the first two: then they are 0, and the others decide. This function catches that refusal. It
-- runs when the schema is installed and when an epoch begins; claims do not ask again for what the server refused to tell.
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

-- What tokens and ids are above, as it is written down, if the database is where that was written; else no row. The server
-- writes it into the statement that asks.
CREATE OR REPLACE FUNCTION tenure.floor_here() RETURNS TABLE (floor bigint)
LANGUAGE sql STABLE AS
$$ SELECT m.floor FROM tenure.meta m
    WHERE m.wal_timeline IS NULL OR tenure.is_here(m.wal_timeline, m.system, m.jobs_table) $$;

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
    e bigint := (SELECT f.floor FROM tenure.floor_here() f);
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
