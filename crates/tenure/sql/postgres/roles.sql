-- Roles for those who work, enqueue and read. They belong to the whole server.
DO $$
DECLARE
    role text;
BEGIN
    FOREACH role IN ARRAY ARRAY['tenure_worker', 'tenure_enqueuer', 'tenure_reader'] LOOP
        BEGIN
            IF NOT EXISTS (SELECT 1 FROM pg_roles r WHERE r.rolname = role) THEN
                EXECUTE format('CREATE ROLE %I NOLOGIN', role);
            END IF;
        EXCEPTION WHEN duplicate_object OR unique_violation THEN
            -- Somebody made it at this moment, for another database.
            NULL;
        END;
    END LOOP;
END $$
