-- What operators do to one job. Each answers the job's state afterwards; what cannot be done raises TN003.

CREATE OR REPLACE FUNCTION tenure.changed(p_job bigint, p_verb text, p_verdict text, p_state smallint) RETURNS text
LANGUAGE plpgsql
AS $$
BEGIN
    IF p_verdict = 'not_found' THEN
        PERFORM tenure.invalid('job', format('there is no job %s, or no longer', coalesce(p_job::text, 'NULL')), 'Look for it in the view tenure.job.');
    ELSIF p_verdict = 'refused' THEN
        PERFORM tenure.invalid('job', format('job %s is %s; %s is not possible', p_job, tenure.state_name(p_state), p_verb),
            'Cancel what has not ended, requeue what is dead or cancelled, resume what is parked.');
    END IF;
    RETURN (SELECT tenure.state_name(c.state) FROM tenure.current(p_job) c);
END $$;

CREATE OR REPLACE FUNCTION tenure.cancel(job bigint) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$ BEGIN RETURN (SELECT tenure.changed(job, 'cancel', c.verdict, c.state) FROM tenure.cancel_many(ARRAY[job]) c); END $$;

CREATE OR REPLACE FUNCTION tenure.requeue(job bigint, if_token bigint DEFAULT NULL) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$ BEGIN RETURN (SELECT tenure.changed(job, 'requeue', c.verdict, c.state) FROM tenure.requeue_many(ARRAY[job], ARRAY[if_token]) c); END $$;

CREATE OR REPLACE FUNCTION tenure.resume(job bigint) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$ BEGIN RETURN (SELECT tenure.changed(job, 'resume', c.verdict, c.state) FROM tenure.resume_many(ARRAY[job]) c); END $$;
