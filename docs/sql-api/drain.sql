-- A worker in SQL: runs what is due, one job after the other, until nothing is left.
CREATE OR REPLACE PROCEDURE drain(me text) LANGUAGE plpgsql AS $$
DECLARE
    job record;
BEGIN
    LOOP
        SELECT c.id, c.token, c.args INTO job FROM tenure.claim(me, kinds => '{greet}', lease => '1 minute') c;
        EXIT WHEN NOT FOUND;
        COMMIT;  -- from here on the lease is ours, and all workers see it
        BEGIN
            INSERT INTO greetings (name) VALUES (job.args ->> 'name');
            PERFORM tenure.complete(job.id, job.token);
        EXCEPTION
            WHEN SQLSTATE 'TN001' THEN
                PERFORM tenure.refused(job.id, job.token, 'complete');  -- another worker has it
            WHEN SQLSTATE 'TN004' THEN
                NULL;  -- it was done before, in an earlier transaction
            WHEN OTHERS THEN
                PERFORM tenure.fail(job.id, job.token, SQLERRM);
        END;
        COMMIT;
    END LOOP;
END $$;
