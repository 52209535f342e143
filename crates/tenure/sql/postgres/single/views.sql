-- What people look at.

-- Live and ended jobs together, with their states by name and times as timestamps.
CREATE OR REPLACE VIEW tenure.job AS
SELECT r.id, tenure.state_name(r.state) AS state, r.queue, r.tenant, r.kind, r.args, r.priority, r.attempt, r.max_attempts,
       r.crashes, r.max_crashes, r.token, r.worker, tenure.at(r.enqueued_at) AS enqueued_at, tenure.at(r.run_at) AS run_at,
       tenure.at(r.started_at) AS started_at, tenure.at(r.lease_until) AS lease_until,
       tenure.at(r.finished_at) AS finished_at, r.result, r.reason, r.key, r.extras ->> 'trace' AS trace,
       CASE WHEN json_typeof(r.extras -> 'tags') = 'array'
            THEN ARRAY(SELECT e.tag FROM json_array_elements_text(r.extras -> 'tags') e(tag)) END AS tags, r.parent,
       r.progress / 1000.0::double precision AS progress, r.progress_note
  FROM tenure.record r;

-- What happened to jobs and was not the happy path; refusals among them.
CREATE OR REPLACE VIEW tenure.event AS
SELECT l.seq, l.job_id AS job, tenure.at(l.at) AS at, l.verb, l.refused, l.token, l.attempt, l.worker,
       tenure.at(l.began) AS began, tenure.state_name(l.became) AS became, l.note, l.earlier
  FROM tenure.timeline l;

-- The effects of jobs, and whether each is in doubt: it may have happened, but its outcome was never written, and the
-- attempt that wrote its intent does not hold the job any more.
CREATE OR REPLACE VIEW tenure.effect AS
SELECT l.job_id AS job, l.effect, ('{open,committed,failed,resend}'::text[])[l.state + 1] AS state,
       l.state = 0 /* open */ AND NOT EXISTS (SELECT 1 FROM tenure.jobs j WHERE j.id = l.job_id AND j.token = l.token AND j.state + 0 = 2 /* running */)
           AS in_doubt,
       l.token, tenure.at(l.opened_at) AS opened_at, tenure.at(l.ended_at) AS ended_at, l.result, l.note
  FROM tenure.ledger l;

-- All queues at a glance.
CREATE OR REPLACE VIEW tenure.stats AS
SELECT o.queue, o.tenant, o.ready, o.waiting, o.running, o.parked, o.dead,
       least(o.oldest_wait_ms, 253402207200000) * interval '1 millisecond' AS oldest_wait, o.succeeded_last_minute, o.died_last_minute
  FROM tenure.overview() o;

-- What a job has come to: its state, its result once it has succeeded, and why it is dead or parked. No row for a job that
-- is not there, or no longer.
CREATE OR REPLACE FUNCTION tenure.outcome(job bigint) RETURNS TABLE (state text, result json, reason text)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY SELECT tenure.state_name(r.state), r.result, r.reason FROM tenure.record r WHERE r.id = outcome.job;
END $$;
