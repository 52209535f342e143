-- Roles for workers, enqueuers and readers. A role belongs to the whole server, not to one database.
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
            -- Another session has made the role at this moment.
            NULL;
        END;
    END LOOP;
END $$
