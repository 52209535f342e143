-- What was installed, and what its promises rest on.
--
-- Functions that people or workers call are SECURITY DEFINER with a fixed search_path, so that a role needs EXECUTE and
-- no right on any table. Most other functions of this directory are helpers, which run only inside those.

-- Makes a composite type, unless it exists with just these columns. If it has other columns, this drops our functions
-- that use it, and then the type; the files that follow make all these functions again. Fails if an object of the
-- user's depends on the type.
CREATE OR REPLACE FUNCTION tenure.put_type(p_name text, p_columns text) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    type_ regclass := to_regclass('tenure.' || quote_ident(p_name));
    user_ regprocedure;
BEGIN
    IF p_columns = (SELECT string_agg(a.attname || ' ' || format_type(a.atttypid, a.atttypmod), ', ' ORDER BY a.attnum)
                      FROM pg_attribute a WHERE a.attrelid = type_) THEN
        RETURN;
    ELSIF type_ IS NOT NULL THEN
        FOR user_ IN
            SELECT DISTINCT d.objid::regprocedure
              FROM pg_class c JOIN pg_type y ON y.oid = c.reltype
              JOIN pg_depend d ON d.refclassid = 'pg_type'::regclass AND d.refobjid IN (y.oid, y.typarray)
              JOIN pg_proc p ON d.classid = 'pg_proc'::regclass AND p.oid = d.objid
             WHERE c.oid = type_ AND p.pronamespace = c.relnamespace
        LOOP
            EXECUTE format('DROP FUNCTION %s', user_);
        END LOOP;
        EXECUTE format('DROP TYPE %s', type_);
    END IF;
    EXECUTE format('CREATE TYPE tenure.%I AS (%s)', p_name, p_columns);
END $$;

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

-- Makes the COMMIT of this transaction wait for the disk, unless the installation has turned that off. Every function
-- calls it whose answer promises a token, an outcome or a job: if a crash of the server lost a commit that was
-- acknowledged, the server could give the same token to another worker. Call it only if synchronous_commit is off: it
-- always sets on, which would lower remote_apply. The caller's check also costs much less than this call.
CREATE OR REPLACE FUNCTION tenure.be_durable() RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM set_config('synchronous_commit', 'on', true) FROM tenure.meta m WHERE m.durability = 'on';
END $$;

-- What the promises of this installation rest on: its setting for commits, and whether a commit of this session is on
-- disk before it is acknowledged; and whether the server tells the two numbers (see whereabouts) that show that the
-- database has gone back in time.
CREATE OR REPLACE FUNCTION tenure.terms(OUT durability text, OUT is_synced boolean, OUT tells_timeline boolean, OUT tells_system boolean)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS
$$ SELECT m.durability,
          current_setting('fsync')::boolean AND (m.durability = 'on' OR current_setting('synchronous_commit') <> 'off'),
          m.wal_timeline <> 0, m.system <> 0
     FROM tenure.meta m $$;
