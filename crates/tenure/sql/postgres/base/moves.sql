-- The moves of a job: from tenure.jobs to tenure.done and back, back to the queue, and out.

-- The row of tenure.done for a live job that has ended, with the columns in that table's order. Every statement that
-- moves a job there calls this function, which the planner inlines, so that the list of columns stands only here.
CREATE OR REPLACE FUNCTION tenure.as_ended(was tenure.jobs, p_state smallint, p_token bigint, p_crashes int, p_at bigint,
    p_result json, p_reason text) RETURNS SETOF tenure.done
LANGUAGE sql STABLE AS
$$ SELECT was.id, was.run_at, p_token, was.enqueued_at, was.started_at, p_at, was.max_runtime, was.parent, was.attempt,
          was.max_attempts, p_crashes, was.max_crashes, was.priority, p_state, was.queue, was.tenant, was.kind, was.args,
          was.retry, was.key, was.extras, was.limit_key, was.worker, p_result, p_reason $$;

-- The row of tenure.jobs for an ended job that is queued again, due at p_at.
CREATE OR REPLACE FUNCTION tenure.as_queued(was tenure.done, p_token bigint, p_at bigint) RETURNS SETOF tenure.jobs
LANGUAGE sql STABLE AS
$$ SELECT was.id, tenure.lane(was.queue, was.tenant, was.kind, false), p_at, p_token, was.enqueued_at, NULL::bigint,
          NULL::bigint, NULL::bigint, NULL::bigint, was.max_runtime, was.parent, 0, was.max_attempts, 0, was.max_crashes,
          was.priority, 0::smallint /* ready */, was.queue, was.tenant, was.kind, was.args, was.retry, was.key, was.extras,
          was.limit_key, NULL::text, NULL::bigint, NULL::text, NULL::smallint, NULL::text, NULL::bigint, NULL::bigint $$;

-- Ends one job, which the caller has locked. Settling, lapsing and cancelling call this.
CREATE OR REPLACE FUNCTION tenure.end_job(p_job bigint, p_state smallint, p_token bigint, p_crashes int,
    p_at bigint, p_result json, p_reason text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    WITH ended AS (DELETE FROM tenure.jobs j WHERE j.id = p_job RETURNING j AS was)
    INSERT INTO tenure.done
    SELECT d.* FROM ended e
     CROSS JOIN LATERAL tenure.as_ended(e.was, p_state, p_token, p_crashes, p_at, p_result, p_reason) d;
END $$;

-- Puts one job back into the queue, due at p_run_at, or parks it. Settling, lapsing and resuming call this.
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

-- Deletes what the other tables have of jobs that are deleted from both tables of jobs.
CREATE OR REPLACE FUNCTION tenure.forget(p_jobs bigint[]) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM tenure.payloads p WHERE p.job_id = ANY (p_jobs);
    DELETE FROM tenure.timeline l WHERE l.job_id = ANY (p_jobs);
    DELETE FROM tenure.ledger e WHERE e.job_id = ANY (p_jobs);
    DELETE FROM tenure.steps s WHERE s.job_id = ANY (p_jobs);
END $$;

-- Notifies waiting workers that a queue has ready jobs, unless this session's last notification was for the same queue,
-- a moment ago. Each notification goes to every worker's session; one in each transaction would halve the commits per
-- second of eight callers. So the more workers there are, the longer that moment is: 2 ms for up to 14, 50 ms from 250
-- on. A notification is only a hint: workers find by looking what is not announced. A session may turn notifications
-- off (tenure_session.quiet), because a transaction that has notified cannot be prepared.
CREATE OR REPLACE FUNCTION tenure.announce(p_queue text, p_at bigint) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    longest CONSTANT bigint := 50;
    pause bigint;
    since bigint;
    -- The queue and the schema: a session may enqueue into several schemas. A schema's name may have spaces, so it
    -- comes last.
    place CONSTANT text := p_queue || ' ' || left('tenure.', -1);
    said  text := current_setting('tenure_session.announced', true);
BEGIN
    IF current_setting('tenure_session.quiet', true) = 'on' THEN
        RETURN;
    END IF;
    -- Any role may set this value, and behind a pooler several clients share it. So it counts only if it has the form
    -- that is written below, and names this queue and schema.
    IF said ~ '^[0-9]{1,15} ' AND substr(said, strpos(said, ' ') + 1) = place THEN
        since := p_at - split_part(said, ' ', 1)::bigint;
        IF since BETWEEN 0 AND longest THEN
            pause := (SELECT greatest(count(*) / 5, 2) FROM (SELECT 1 FROM tenure.workers w LIMIT 5 * longest) known);
            IF since <= pause THEN
                RETURN;
            END IF;
        END IF;
    END IF;
    PERFORM set_config('tenure_session.announced', p_at || ' ' || place, false),
            pg_notify(left('tenure.', -1), p_queue);
END $$;
