-- Takes jobs back from holders whose lease is over, or whose process is gone.

-- ── one look for all workers ──────────────────────────────────────────────────────────────────────

-- Advances the pulse (the time of the last look for all workers), if half a second has passed and jobs are running.
-- Answers whether this call did (leads): then its caller looks for leases that are over and for lost workers, for all
-- workers. Announces the queues in which waiting jobs have become due since the last announcement, so that workers may
-- look seldom by themselves; their claims make the jobs ready. All this takes no lock and does not wait for the disk: a
-- pulse that is lost with a server is only older, which is on the safe side, and an announcement is a hint. Answers
-- also whether jobs are running, and how many workers are registered, up to 1,000. seen tells how far the server has
-- come. The caller passes it with its next call, as p_seen. If it shows that the server was put back, the call only
-- begins a new epoch, for which it does lock and wait: see tenure.witnessed.
CREATE OR REPLACE FUNCTION tenure.beat(p_seen text DEFAULT NULL, OUT leads boolean, OUT leases_are_out boolean, OUT workers int,
    OUT seen text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    pulse_ms CONSTANT bigint := 500;
    t     bigint := tenure.clock_ms();
    -- A pulse in the future was written before the clock was set back; it does not count.
    early boolean := (SELECT t - p.last_value BETWEEN 0 AND pulse_ms - 1 FROM tenure.pulse p);
    told  bigint := (SELECT CASE WHEN a.last_value <= t THEN a.last_value ELSE 0 END FROM tenure.announced a);
    due   text[];
BEGIN
    leads := false;
    leases_are_out := EXISTS (SELECT 1 FROM tenure.jobs j WHERE j.state = 2 /* running */);
    workers := (SELECT count(*) FROM (SELECT 1 FROM tenure.workers w LIMIT 1000) known);
    seen := tenure.progress_of_server();
    IF p_seen IS NOT NULL AND tenure.witnessed(p_seen, t) THEN
        -- A new epoch has begun, so this commit must wait for the disk. What follows would turn that off.
        RETURN;
    END IF;
    IF NOT early AND leases_are_out THEN
        PERFORM set_config('synchronous_commit', 'off', true);
        PERFORM tenure.last_breaks(t);
        PERFORM setval('tenure.pulse', greatest(t, 1));
        leads := true;
    END IF;
    IF t - told >= pulse_ms THEN
        due := ARRAY(SELECT DISTINCT w.queue
                       FROM (SELECT j.queue FROM tenure.jobs j
                              WHERE j.state + 0 = 1 /* waiting */ AND j.run_at + 0 > told AND j.run_at + 0 <= t
                              ORDER BY j.run_at + 0 LIMIT 1000) w);
        IF cardinality(due) > 0 THEN
            PERFORM set_config('synchronous_commit', 'off', true);
            PERFORM setval('tenure.announced', greatest(t, 1));
            PERFORM tenure.announce(q.queue, t) FROM unnest(due) q(queue);
        END IF;
    END IF;
END $$;

-- ── leases that are over ──────────────────────────────────────────────────────────────────────────

-- Jobs whose leases have been over for p_grace_ms at the least, the longest first. A caller that runs late (its machine
-- was suspended) passes a grace, since other workers may have been suspended with it. This reads without locks; what it
-- finds is checked again before anything is written.
CREATE OR REPLACE FUNCTION tenure.overdue(p_limit int, p_grace_ms bigint DEFAULT 0) RETURNS TABLE (job bigint, token bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    t    bigint := tenure.clock_ms();
    late bigint := t - tenure.check_grace(p_grace_ms);
    b    record;
BEGIN
    PERFORM tenure.check_batch(p_limit);
    IF NOT EXISTS (SELECT 1 FROM tenure.jobs j WHERE j.state = 2 /* running */ AND j.lease_until <= late) THEN
        RETURN;
    END IF;
    SELECT l.started, l.broke, l.broke_before INTO b FROM tenure.last_breaks(t, false) l;
    RETURN QUERY SELECT j.id, j.token FROM tenure.jobs j
                  WHERE j.state = 2 /* running */ AND j.lease_until <= late
                    AND tenure.pardoned_until(j.leased_at, j.lease_ms, j.started_at, j.max_runtime,
                                              b.started, b.broke, b.broke_before) <= late
                  ORDER BY j.lease_until, j.id LIMIT p_limit;
END $$;

-- A job that was taken back: the worker that held it, what it became, and the fields that events need.
SELECT tenure.put_type('lapse_row', 'job bigint, token bigint, worker text, became smallint, kind text, queue text, '
    'tenant text, attempt integer, extras json');

CREATE OR REPLACE FUNCTION tenure.lapse_row_of(was tenure.jobs, became smallint) RETURNS tenure.lapse_row
LANGUAGE sql STABLE AS
$$ SELECT was.id, was.token, was.worker, became, was.kind, was.queue, was.tenant, was.attempt, was.extras $$;

CREATE OR REPLACE FUNCTION tenure.lapse_many(p_jobs bigint[], p_tokens bigint[])
RETURNS TABLE (n int, verdict text, lapsed tenure.lapse_row)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    t     bigint;
    e     bigint;
    b     record;
    shown record;
BEGIN
    PERFORM tenure.check_batch(cardinality(p_jobs), cardinality(p_tokens));
    IF current_setting('synchronous_commit') = 'off' THEN PERFORM tenure.be_durable(); END IF;
    t := tenure.clock_ms();
    e := tenure.floor_kept(t);
    SELECT l.started, l.broke, l.broke_before INTO b FROM tenure.last_breaks(t) l;
    FOR shown IN SELECT u.id, u.token, u.n::int AS n FROM unnest(p_jobs, p_tokens) WITH ORDINALITY u(id, token, n) LOOP
        n := shown.n;
        lapsed := tenure.lapse_one(shown.id, shown.token, t, e, b.started, b.broke, b.broke_before);
        verdict := CASE
            WHEN lapsed.job IS NOT NULL THEN 'taken_back'
            -- Still over, but locked: its holder may be about to commit.
            WHEN EXISTS (SELECT 1 FROM tenure.jobs j WHERE j.id = shown.id AND j.token = shown.token
                            AND j.state + 0 = 2 /* running */ AND j.lease_until + 0 <= t
                            AND tenure.pardoned_until(j.leased_at, j.lease_ms, j.started_at, j.max_runtime,
                                                      b.started, b.broke, b.broke_before) + 0 <= t)
                THEN 'busy'
            ELSE 'left_alone'
        END;
        RETURN NEXT;
    END LOOP;
END $$;

-- Takes one job back, if its lease is still over and no transaction has it locked; else the answer is NULL.
CREATE OR REPLACE FUNCTION tenure.lapse_one(p_job bigint, p_token bigint, t bigint, e bigint, started bigint, broke bigint,
    broke_before bigint) RETURNS tenure.lapse_row
LANGUAGE plpgsql
AS $$
#variable_conflict use_column
DECLARE
    was tenure.jobs;
BEGIN
    -- Only the attempt that was seen, and only if its lease is still over: its holder may have renewed
    -- or settled since.
    SELECT j.* INTO was
      FROM tenure.jobs j
     WHERE j.id = p_job
       AND tenure.pardoned_until(j.leased_at, j.lease_ms, j.started_at, j.max_runtime,
                                 lapse_one.started, lapse_one.broke, lapse_one.broke_before) <= t
       AND j.token = p_token AND j.state + 0 = 2 /* running */
       AND j.lease_until + 0 <= t
       FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    RETURN tenure.lapse_row_of(was, tenure.take_back(was, 'lapse', t, e));
END $$;

-- Takes a job from its holder, and answers what it became. The caller has locked the job. After its first crash the job
-- keeps its place in the queue. From the second on it waits as its policy says, without randomness, so that the library
-- and this agree. It is buried when its crashes or its attempts are used up.
CREATE OR REPLACE FUNCTION tenure.take_back(was tenure.jobs, p_verb text, t bigint, e bigint, OUT became smallint)
LANGUAGE plpgsql
AS $$
DECLARE
    why    text := CASE p_verb WHEN 'vanish' THEN 'its worker vanished' ELSE 'its lease was over' END;
    buried boolean := false;
    due    bigint := was.run_at;
BEGIN
    IF was.crashes + 1 >= was.max_crashes THEN
        buried := true;
        why := 'crashed too often: max_crashes times its lease was over or its worker vanished';
    ELSIF was.attempt >= was.max_attempts THEN
        buried := true;
        why := why || ' during the last attempt';
    ELSIF was.crashes > 0 THEN
        due := tenure.later(t, tenure.base_delay(was.retry, was.crashes));
        why := why || ', after an earlier crash';
    END IF;
    IF buried THEN
        became := 5 /* dead */;
        PERFORM tenure.end_job(was.id, became, tenure.next_token(was.token, e), was.crashes + 1, t, NULL, why);
    ELSE
        became := 0 /* ready */;
        PERFORM tenure.put_back(was.id, false, due, tenure.next_token(was.token, e), was.attempt, was.crashes + 1,
            t, tenure.makes_suspect(was.crashes + 1, was.max_crashes), NULL, t);
        -- Only the lease was over, so the worker may be alive. It may come back until the lease would have been over
        -- once more.
        IF p_verb = 'lapse' AND (was.started_at + was.max_runtime <= t) IS NOT TRUE THEN
            UPDATE tenure.jobs j SET returns_until = t + was.lease_ms WHERE j.id = was.id;
        END IF;
    END IF;
    PERFORM tenure.note(was.id, t, p_verb, false, was.token, was.attempt, was.worker, was.started_at, became, why);
END $$;

-- ── workers whose process is gone ─────────────────────────────────────────────────────────────────
--
-- A worker's session holds an advisory lock, which the server frees when the session ends, and so when the process
-- dies. But a freed lock is not always a dead process: an administrator ends a session under a living client, a restart
-- ends them all. So a free lock counts only if it was taken since the server's last start or recovery, and has been
-- seen free twice, with time between to take it again: the guard gap of the installation. A worker whose connections
-- are cut for longer than that loses its jobs, whatever its lease. The fence keeps every such mistake safe, and a crash
-- that was none is taken back.

-- The number of a worker's lock. The schema is part of it, since several installations may share a database.
CREATE OR REPLACE FUNCTION tenure.guard_key(worker text) RETURNS bigint
LANGUAGE sql STABLE PARALLEL SAFE AS
$$ SELECT ('x' || encode(substring(sha256(convert_to(left('tenure.', -1) || ' ' || worker, 'UTF8')) FROM 1 FOR 8), 'hex'))::bit(64)::bigint $$;

-- All advisory locks of this database that a session holds, by number. This reads the server's table of locks instead
-- of trying to take each lock: a try would get in the way of a worker that is taking its lock, and it would succeed in
-- the very session that holds it.
CREATE OR REPLACE FUNCTION tenure.held_locks() RETURNS bigint[]
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN (SELECT coalesce(array_agg((l.classid::bigint << 32) | l.objid::bigint), '{}') FROM pg_locks l
             WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.mode = 'ExclusiveLock' AND l.granted
               AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database()));
END $$;

-- Takes the lock of a worker for this session, if the session has not got it yet, and answers whether it has it now.
-- Waits for up to 200 ms: the server may not have noticed yet that the worker's earlier session has ended.
CREATE OR REPLACE FUNCTION tenure.guard(p_worker text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '200ms'
AS $$
BEGIN
    PERFORM tenure.check_worker(p_worker);
    IF NOT tenure.is_guarding(p_worker) THEN
        PERFORM pg_advisory_lock(tenure.guard_key(p_worker));
    END IF;
    RETURN true;
EXCEPTION WHEN lock_not_available THEN
    RETURN false;
END $$;

-- Whether this very session has the lock. The library asks in a statement of its own: behind a pooler, that may run in
-- another session than the statement that took the lock.
CREATE OR REPLACE FUNCTION tenure.is_guarding(p_worker text) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN EXISTS (SELECT 1 FROM pg_locks l
                    WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.mode = 'ExclusiveLock' AND l.granted
                      AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
                      AND l.pid = pg_backend_pid()
                      AND (l.classid::bigint << 32) | l.objid::bigint = tenure.guard_key(p_worker));
END $$;

-- Makes a worker known, after it has taken its lock or failed to (p_guarded). Each call counts as another taking, so
-- that what was seen of the lock before no longer counts.
CREATE OR REPLACE FUNCTION tenure.register(p_worker text, p_queues text[], p_kinds text[], p_guarded boolean) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    PERFORM tenure.check_worker(p_worker), tenure.check_names('queue', p_queues);
    IF p_kinds IS NOT NULL THEN PERFORM tenure.check_names('kind', p_kinds); END IF;
    IF p_queues IS NULL OR p_guarded IS NULL THEN
        PERFORM tenure.invalid('queues', 'a worker says from which queues it works, and whether it has its lock',
            'Call tenure.guard(worker) first, and pass its answer.');
    END IF;
    INSERT INTO tenure.workers AS w (worker, queues, kinds, guarded, under, takings, taken_at)
    VALUES (p_worker, array_to_string(p_queues, ' '), array_to_string(p_kinds, ' '), p_guarded, tenure.started_ms(), 1,
            tenure.clock_ms())
    ON CONFLICT (worker) DO UPDATE
       SET queues = excluded.queues, kinds = excluded.kinds, guarded = excluded.guarded, under = excluded.under,
           takings = w.takings + 1, taken_at = excluded.taken_at, free_since = NULL;
END $$;

-- Forgets a worker that has nothing left to do, and gives its lock back if this session has it.
CREATE OR REPLACE FUNCTION tenure.retire(p_worker text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    DELETE FROM tenure.workers w WHERE w.worker = p_worker;
    IF tenure.is_guarding(p_worker) THEN
        PERFORM pg_advisory_unlock(tenure.guard_key(p_worker));
    END IF;
END $$;

-- Looks at the locks of all workers, and takes back up to p_limit jobs of those that are gone, whatever their leases
-- say. One call cannot tell: a lock must have been seen free by two, the guard gap apart. This never waits: a job that
-- an open transaction has locked is left for the next call.
CREATE OR REPLACE FUNCTION tenure.vanished(p_limit int) RETURNS SETOF tenure.lapse_row
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    gap_ms bigint := (SELECT m.guard_gap FROM tenure.meta m);
    t    bigint;
    e    bigint;
    s    bigint;
    locks bigint[];
    gone text[] := '{}';   -- who is
    seen record;
    was  tenure.jobs;
BEGIN
    PERFORM tenure.check_batch(p_limit);
    t := tenure.clock_ms();
    s := tenure.started_ms();
    -- After a break in the pulse, workers reconnect one by one, and take their locks again as they do.
    IF (SELECT l.broke FROM tenure.last_breaks(t, false) l) > t - 10000 THEN
        gap_ms := greatest(gap_ms, 5000);
    END IF;
    locks := tenure.held_locks();
    -- Only these workers need work: those whose lock is free, and those whose lock was seen free and is held again.
    -- Nothing is written for the others.
    FOR seen IN
        WITH looked AS MATERIALIZED (
            SELECT w.worker, w.takings, w.free_since, w.guarded, w.under,
                   tenure.guard_key(w.worker) IN (SELECT unnest(locks)) AS is_held
              FROM tenure.workers w)
        SELECT w.worker, w.takings, w.free_since, w.is_held FROM looked w
         WHERE CASE WHEN w.is_held THEN w.free_since IS NOT NULL ELSE w.guarded AND w.under = s END
         ORDER BY w.worker
    LOOP
        IF seen.is_held OR seen.free_since IS NULL THEN
            UPDATE tenure.workers w SET free_since = CASE WHEN NOT seen.is_held THEN t END
             WHERE w.worker = ANY (ARRAY(SELECT f.worker FROM tenure.workers f
                                          WHERE f.worker = seen.worker AND f.takings = seen.takings FOR UPDATE SKIP LOCKED));
            CONTINUE;
        END IF;
        CONTINUE WHEN seen.free_since + gap_ms > t;
        PERFORM 1 FROM tenure.workers w
          WHERE w.worker = seen.worker
            AND w.takings = seen.takings AND w.free_since = seen.free_since
            FOR UPDATE SKIP LOCKED;
        CONTINUE WHEN NOT FOUND;
        gone := gone || seen.worker;
    END LOOP;
    IF cardinality(gone) = 0 THEN
        RETURN;
    END IF;
    IF current_setting('synchronous_commit') = 'off' THEN PERFORM tenure.be_durable(); END IF;
    e := tenure.floor_kept(t);
    -- One pass over the running jobs, however many workers are gone.
    FOR was IN
        SELECT j.* FROM tenure.jobs j
         WHERE j.state = 2 /* running */ AND j.worker = ANY (gone)
         ORDER BY j.worker, j.lease_until, j.id LIMIT p_limit FOR UPDATE SKIP LOCKED
    LOOP
        RETURN NEXT tenure.lapse_row_of(was, tenure.take_back(was, 'vanish', t, e));
    END LOOP;
    DELETE FROM tenure.workers w
     WHERE w.worker = ANY (gone)
       AND w.worker NOT IN (SELECT j.worker FROM tenure.jobs j WHERE j.state = 2 /* running */ AND j.worker = ANY (gone));
END $$;
