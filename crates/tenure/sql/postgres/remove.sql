-- Removes the schema and all that is Tenure's in it. Nothing is dropped that somebody else has made: what
-- depends on it makes this fail, and then nothing is removed.
DO $$
DECLARE
    home  oid := 'tenure.jobs'::regclass::oid;
    thing record;
BEGIN
    SELECT c.relnamespace INTO home FROM pg_class c WHERE c.oid = home;
    FOR thing IN
        -- The views that look at the others come last in the order of making, and so first here.
        SELECT format('DROP VIEW %s', c.oid::regclass) AS drop FROM pg_class c
         WHERE c.relnamespace = home AND c.relkind = 'v' AND c.relname IN ('job', 'event', 'stats')
    LOOP
        EXECUTE thing.drop;
    END LOOP;
    FOR thing IN
        SELECT format('DROP TRIGGER %I ON %s', t.tgname, t.tgrelid::regclass) AS drop FROM pg_trigger t
          JOIN pg_class c ON c.oid = t.tgrelid WHERE c.relnamespace = home AND NOT t.tgisinternal
    LOOP
        EXECUTE thing.drop;
    END LOOP;
    FOR thing IN
        SELECT format('DROP ROUTINE %s', p.oid::regprocedure) AS drop FROM pg_proc p WHERE p.pronamespace = home
         -- Those that are used in the text of others, which the database remembers, come after them.
         ORDER BY p.prolang = (SELECT l.oid FROM pg_language l WHERE l.lanname = 'sql'), p.oid DESC
    LOOP
        EXECUTE thing.drop;
    END LOOP;
    DROP VIEW IF EXISTS tenure.record;
    DROP TYPE IF EXISTS tenure.claim_row;
    FOR thing IN
        SELECT format('DROP TABLE %s', c.oid::regclass) AS drop FROM pg_class c
         WHERE c.relnamespace = home AND c.relkind = 'r'
           AND c.relname IN ('migrations', 'meta', 'clock', 'jobs', 'done', 'payloads', 'timeline', 'keys', 'queues', 'fences')
    LOOP
        EXECUTE thing.drop;
    END LOOP;
    DROP SEQUENCE IF EXISTS tenure.job_id;
    EXECUTE format('DROP SCHEMA %s', home::regnamespace);
END $$
