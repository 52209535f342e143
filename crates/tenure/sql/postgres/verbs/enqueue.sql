-- Stores jobs, all or none, and answers each in the order given: created, existing or conflict. A list that is NULL
-- stands for its default in every place. Args are plain JSON of up to p_args_limit bytes; those above 2 KiB go into
-- tenure.payloads. p_options has the values that some function decides by and that most jobs do not have. p_extras has
-- the values that no function decides by.
--
-- Keys are taken in their order, after all that can be read without a lock has been read, so that two
-- batches never wait for each other in a circle. A key whose winner rolls back is free again: the next
-- request waits for it and then stores its own job.

-- What may be asked for a job beyond its kind, args, queue, tenant and key; NULL for the usual. The job is due at
-- run_at; without that after delay_ms; without either at once.
SELECT tenure.put_type('job_options', 'priority smallint, run_at bigint, delay_ms bigint, max_attempts integer, '
    'max_crashes integer, retry json, max_runtime_ms bigint, key_window_ms bigint, parent bigint');

CREATE OR REPLACE FUNCTION tenure.enqueue_many(p_kinds text[], p_args json[], p_queues text[] DEFAULT NULL,
    p_tenants text[] DEFAULT NULL, p_keys text[] DEFAULT NULL, p_fingerprints bytea[] DEFAULT NULL,
    p_options json[] DEFAULT NULL, p_extras json[] DEFAULT NULL, p_args_limit int DEFAULT 262144)
RETURNS TABLE (n int, verdict text, job bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    t        bigint;
    e        bigint;     -- ids too are of an epoch: one that was forgotten is never issued again
    size     int := cardinality(p_kinds);
    options  tenure.job_options[];
    ids      bigint[];   -- one for each job that is created, in the order of the batch; NULL for the others
    verdicts text[];
    loud     text[];     -- queues that have ready jobs now
BEGIN
    PERFORM tenure.check_batch(size, cardinality(p_args));
    PERFORM tenure.check_batch(size, l) FROM unnest(ARRAY[cardinality(p_queues), cardinality(p_tenants), cardinality(p_keys),
        cardinality(p_fingerprints), cardinality(p_options), cardinality(p_extras)]) l WHERE l IS NOT NULL;
    PERFORM tenure.check_names('kind', p_kinds);
    IF p_queues IS NOT NULL THEN PERFORM tenure.check_names('queue', array_remove(p_queues, NULL)); END IF;
    IF p_tenants IS NOT NULL THEN PERFORM tenure.check_names('tenant', array_remove(array_remove(p_tenants, NULL), '')); END IF;
    IF p_options IS NOT NULL THEN options := tenure.read_options(p_options); END IF;
    IF p_extras IS NOT NULL THEN PERFORM tenure.check_extras(p_extras); END IF;
    PERFORM tenure.check_new(p_args, coalesce(p_args_limit, 262144), p_keys, p_fingerprints);
    IF current_setting('synchronous_commit') = 'off' THEN PERFORM tenure.be_durable(); END IF;
    t := tenure.clock_ms();
    e := tenure.floor_of_now(t);

    IF p_keys IS NULL OR p_keys = array_fill(NULL::text, ARRAY[size]) THEN
        SELECT array_agg(e + nextval('tenure.job_id')) INTO ids FROM generate_series(1, size);
    ELSE
        SELECT k.ids, k.verdicts INTO ids, verdicts
          FROM tenure.take_keys(p_tenants, p_keys, ARRAY(SELECT o.key_window_ms FROM unnest(options) o), p_fingerprints, t, e) k;
    END IF;

    WITH incoming AS MATERIALIZED (
        SELECT u.id, u.kind, u.args, coalesce(u.queue, 'default') AS queue, coalesce(u.tenant, '') AS tenant, u.key, u.extras,
               coalesce(u.priority, 0::smallint) AS priority,
               CASE WHEN u.run_at IS NULL THEN tenure.later(t, coalesce(u.delay_ms, 0))
                    ELSE least(u.run_at, tenure.end_of_time()) END AS run_at,
               coalesce(u.max_attempts, 6) AS max_attempts, coalesce(u.max_crashes, 5) AS max_crashes,
               u.retry, u.max_runtime, u.parent, octet_length(u.args::text) > 2048 AS apart
          FROM unnest(ids, p_kinds, p_args, p_queues, p_tenants, p_keys, p_extras, options)
               AS u(id, kind, args, queue, tenant, key, extras,
                    priority, run_at, delay_ms, max_attempts, max_crashes, retry, max_runtime, key_window, parent)
         WHERE u.id IS NOT NULL),
    -- One lane for each different (queue, tenant, kind): hashing three names costs more than storing a job, and most
    -- batches are of one kind.
    place AS MATERIALIZED (
        SELECT d.queue, d.tenant, d.kind, tenure.lane(d.queue, d.tenant, d.kind, false) AS lane
          FROM (SELECT DISTINCT i.queue, i.tenant, i.kind FROM incoming i) d),
    large AS (
        INSERT INTO tenure.payloads (job_id, args) SELECT i.id, i.args FROM incoming i WHERE i.apart),
    stored AS (
        INSERT INTO tenure.jobs (id, state, lane, priority, run_at, token, attempt, max_attempts, crashes, max_crashes,
                                 queue, tenant, kind, args, retry, max_runtime, key, extras, parent, enqueued_at)
        SELECT i.id, CASE WHEN i.run_at > t THEN 1 /* waiting */ ELSE 0 /* ready */ END,
               p.lane, i.priority, i.run_at, 0, 0, i.max_attempts, 0, i.max_crashes,
               i.queue, i.tenant, i.kind, CASE WHEN NOT i.apart THEN i.args END, i.retry, i.max_runtime, i.key,
               i.extras, i.parent, t
          FROM incoming i JOIN place p ON p.queue = i.queue AND p.tenant = i.tenant AND p.kind = i.kind)
    SELECT array_agg(DISTINCT i.queue) INTO loud FROM incoming i WHERE i.run_at <= t;
    PERFORM tenure.announce(q, t) FROM unnest(loud) q;

    IF verdicts IS NULL THEN
        RETURN QUERY SELECT u.n::int, 'created', u.id FROM unnest(ids) WITH ORDINALITY u(id, n);
    ELSE
        RETURN QUERY SELECT u.n::int, split_part(u.verdict, ' ', 1),
                            coalesce(u.id, split_part(u.verdict, ' ', 2)::bigint)
                       FROM unnest(ids, verdicts) WITH ORDINALITY u(id, verdict, n);
    END IF;
END $$;

-- Decides which jobs of a batch get their keys. The answer has for each job an id if it is to be created, and a
-- verdict, with the id of the job that has its key if there is one. Of equal keys in a batch the first wins. A key with
-- a window of 0 is not remembered, so it wins nothing: later jobs of the batch with the same key are created too.
CREATE OR REPLACE FUNCTION tenure.take_keys(p_tenants text[], p_keys text[], p_windows_ms bigint[],
    p_fingerprints bytea[], t bigint, e bigint, OUT ids bigint[], OUT verdicts text[])
LANGUAGE plpgsql
AS $$
#variable_conflict use_column
DECLARE
    owners bigint[];  -- the job that has the key already
    marks  bytea[];   -- and its fingerprint
    firsts int[];     -- the place in the batch that wins the key
    takers int;
    taken  int;
BEGIN
    LOOP
        -- Find the jobs that have the keys already, and the place in this batch that comes first with each key. No lock
        -- is taken for what is only read.
        SELECT array_agg(k.job_id ORDER BY a.n), array_agg(k.fingerprint ORDER BY a.n),
               array_agg(CASE WHEN a.key IS NOT NULL THEN a.first END ORDER BY a.n)
          INTO owners, marks, firsts
          FROM (SELECT u.tenant, u.key, u.n, (min(u.n) FILTER (WHERE u.ms > 0) OVER earlier)::int AS first
                  FROM (SELECT coalesce(v.tenant, '') AS tenant, v.key, coalesce(v.ms, 86400000) AS ms, v.n
                          FROM unnest(p_tenants, p_keys, p_windows_ms) WITH ORDINALITY v(tenant, key, ms, n)) u
                WINDOW earlier AS (PARTITION BY u.tenant, u.key ORDER BY u.n
                                   ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)) a
          -- Each key is looked up by itself, so that no plan comes to read all keys instead.
          LEFT JOIN LATERAL (
            SELECT k.job_id, k.fingerprint FROM tenure.keys k
             WHERE k.tenant = a.tenant AND k.scope = 0 AND k.key = a.key AND k.expires_at > t LIMIT 1) k ON true;

        -- Ids in the order of the batch, for jobs whose key is free.
        SELECT array_agg(CASE WHEN o.owner IS NULL AND o.first IS NULL THEN e + nextval('tenure.job_id') END ORDER BY o.n)
          INTO ids FROM unnest(owners, firsts) WITH ORDINALITY o(owner, first, n);

        -- If several jobs of this batch are created under one key, the last one is remembered: the windows of the
        -- others are 0.
        WITH taker AS MATERIALIZED (
            SELECT DISTINCT ON (u.tenant, u.key) u.tenant, u.key, u.fingerprint, u.id, u.expires_at
              FROM (SELECT coalesce(v.tenant, '') COLLATE "C" AS tenant, v.key COLLATE "C" AS key, v.fingerprint, v.id,
                           v.n, tenure.later(t, coalesce(v.ms, 86400000)) AS expires_at
                      FROM unnest(p_tenants, p_keys, p_fingerprints, p_windows_ms, ids) WITH ORDINALITY
                           v(tenant, key, fingerprint, ms, id, n)
                     WHERE v.key IS NOT NULL AND v.id IS NOT NULL) u
             ORDER BY u.tenant, u.key, u.n DESC),
        took AS (
            INSERT INTO tenure.keys AS k (tenant, scope, key, fingerprint, job_id, expires_at)
            SELECT w.tenant, 0, w.key, w.fingerprint, w.id, w.expires_at FROM taker w ORDER BY w.tenant, w.key
            ON CONFLICT (tenant, scope, key) DO UPDATE
               SET fingerprint = excluded.fingerprint, job_id = excluded.job_id, expires_at = excluded.expires_at
             WHERE k.expires_at <= t
            RETURNING 1)
        SELECT (SELECT count(*) FROM taker), (SELECT count(*) FROM took) INTO takers, taken;
        EXIT WHEN takers = taken;
        -- Another transaction has taken one of the keys meanwhile. Read again, and take only the keys that are still
        -- free. Those are fewer than before, and this transaction has inserted all of them already, so that it waits
        -- for no other transaction out of order.
        DELETE FROM tenure.keys k USING unnest(p_tenants, p_keys, ids) o(tenant, key, id)
         WHERE k.tenant = coalesce(o.tenant, '') AND k.scope = 0 AND k.key = o.key AND k.job_id = o.id;
    END LOOP;

    SELECT array_agg(CASE
               WHEN o.id IS NOT NULL THEN 'created'
               WHEN coalesce(o.mark, p_fingerprints[o.first]) = o.fingerprint
                   THEN 'existing ' || coalesce(o.owner, ids[o.first])
               ELSE 'conflict ' || coalesce(o.owner, ids[o.first])
           END ORDER BY o.n)
      INTO verdicts
      FROM unnest(ids, owners, marks, firsts, p_fingerprints) WITH ORDINALITY o(id, owner, mark, first, fingerprint, n);
END $$;

-- The options of each job as a row; raises TN003 for a value that makes no sense. Fields of other names are ignored.
CREATE OR REPLACE FUNCTION tenure.read_options(p_options json[]) RETURNS tenure.job_options[]
LANGUAGE plpgsql
AS $$
DECLARE
    options tenure.job_options[];
    bad     text;
BEGIN
    BEGIN
        SELECT array_agg(json_populate_record(NULL::tenure.job_options, u.option) ORDER BY u.n) INTO options
          FROM unnest(p_options) WITH ORDINALITY u(option, n);
    EXCEPTION WHEN data_exception OR invalid_parameter_value THEN
        PERFORM tenure.invalid('options', SQLERRM, 'Pass an object of numbers for each job, or NULL where nothing is asked for.');
    END;
    SELECT f.field INTO bad
      FROM unnest(options) o
     CROSS JOIN LATERAL (SELECT CASE
        WHEN o.max_attempts NOT BETWEEN 1 AND 65535 THEN 'max_attempts'
        WHEN o.max_crashes NOT BETWEEN 1 AND 65535 THEN 'max_crashes'
        WHEN o.max_runtime_ms < 1 THEN 'max_runtime'
        WHEN o.key_window_ms < 0 THEN 'key_window' END AS field) f
     WHERE f.field IS NOT NULL LIMIT 1;
    CASE bad
        WHEN 'max_attempts' THEN PERFORM tenure.invalid('max_attempts', 'outside 1 to 65535', 'Leave it out for 6.');
        WHEN 'max_crashes' THEN PERFORM tenure.invalid('max_crashes', 'outside 1 to 65535', 'Leave it out for 5.');
        WHEN 'max_runtime' THEN PERFORM tenure.invalid('max_runtime', 'a runtime is at least 1 ms', 'Leave it out for no limit.');
        WHEN 'key_window' THEN
            PERFORM tenure.invalid('key_window', 'a key cannot be remembered for less than no time', 'Leave it out for 24 hours.');
        ELSE NULL;
    END CASE;
    PERFORM tenure.check_retry(o.retry) FROM unnest(options) o WHERE o.retry IS NOT NULL;
    RETURN options;
END $$;

-- Raises TN003 unless the library could read this retry policy.
CREATE OR REPLACE FUNCTION tenure.check_retry(retry json) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    IF NOT tenure.is_retry_policy(retry) THEN
        PERFORM tenure.invalid('retry', 'not a policy that can be followed',
            'Write {"exponential":{"base_ms":1000,"cap_ms":300000}}, {"fixed":{"ms":500}} or {"list":{"ms":[100,200]}} with 1 to 64 delays.');
    END IF;
END $$;

-- Checks the extras, which no function decides by, and raises TN003 for what is not allowed: a trace has up to 512
-- printable ASCII characters, a job has up to 16 tags, and its extras have up to 4 KiB in all.
CREATE OR REPLACE FUNCTION tenure.check_extras(p_extras json[]) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM tenure.check_jsons('extras', p_extras, 4096);
    IF EXISTS (SELECT 1 FROM unnest(p_extras) x WHERE json_typeof(x) <> 'object') THEN
        PERFORM tenure.invalid('extras', 'not an object', 'Leave it out where there is nothing to say.');
    ELSIF EXISTS (SELECT 1 FROM unnest(p_extras) x WHERE json_typeof(x -> 'trace') <> 'string'
                     OR x ->> 'trace' !~ '^[ -~]*$' OR length(x ->> 'trace') > 512) THEN
        PERFORM tenure.invalid('trace', 'a trace has up to 512 printable ASCII characters', 'Pass a W3C traceparent.');
    ELSIF EXISTS (SELECT 1 FROM unnest(p_extras) x
                   WHERE CASE json_typeof(x -> 'tags') WHEN 'array' THEN json_array_length(x -> 'tags') NOT BETWEEN 1 AND 16
                              ELSE x -> 'tags' IS NOT NULL END) THEN
        PERFORM tenure.invalid('tags', 'a job has up to 16 tags', 'Leave the list out where there are none.');
    END IF;
    PERFORM tenure.check_names('tag', (SELECT array_agg(w.tag) FROM unnest(p_extras) x,
        json_array_elements_text(coalesce(x -> 'tags', '[]')) w(tag)));
END $$;

-- Checks the args and keys of new jobs. The library has checked its own already; other clients call this function too.
CREATE OR REPLACE FUNCTION tenure.check_new(p_args json[], p_args_limit int, p_keys text[], p_fingerprints bytea[]) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    IF p_args_limit NOT BETWEEN 1 AND 16777216 THEN
        PERFORM tenure.invalid('args_limit', 'outside 1 byte to 16 MiB', 'Leave it out for 256 KiB.');
    END IF;
    PERFORM tenure.check_json('args', u.args, p_args_limit) FROM unnest(p_args) u(args) WHERE u.args IS NULL;
    PERFORM tenure.check_jsons('args', p_args, p_args_limit);
    IF p_keys IS NULL THEN
        RETURN;
    END IF;
    IF EXISTS (SELECT 1 FROM unnest(p_keys) k
                WHERE octet_length(k) NOT BETWEEN 1 AND 255 OR k ~ E'[\\u0001-\\u001f\\u007f-\\u009f]') THEN
        PERFORM tenure.invalid('key', 'a key has 1 to 255 bytes and no control characters', 'Use another key.');
    ELSIF EXISTS (SELECT 1 FROM unnest(p_keys, p_fingerprints) f(key, print)
                   WHERE f.key IS NOT NULL AND octet_length(f.print) IS DISTINCT FROM 32) THEN
        PERFORM tenure.invalid('fingerprint', 'a job with a key needs a fingerprint of 32 bytes',
            'Call tenure.enqueue, which computes it, or tenure.fingerprint(kind, args).');
    END IF;
END $$;

-- Refuses the values that the library would refuse; NULL is no value. To parse each value would cost more than most
-- calls. So only these are parsed: values that are too large, that have an escape which may stand for no character, or
-- that have enough brackets to be nested too deeply.
CREATE OR REPLACE FUNCTION tenure.check_jsons(field text, p_values json[], byte_limit int) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM tenure.check_json(field, u.value, byte_limit) FROM unnest(p_values) u(value)
      WHERE octet_length(u.value::text) > byte_limit OR u.value::text LIKE E'%\\\\u%'
         OR octet_length(u.value::text) > 255
            AND octet_length(u.value::text) - octet_length(replace(replace(u.value::text, '[', ''), '{', '')) > 127;
END $$;

-- The same for results, most of which are short or NULL. The limit here is 16 MiB each, since programs set their own.
CREATE OR REPLACE FUNCTION tenure.check_results(p_results json[]) RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    all_ text := array_to_string(p_results, ' ');
BEGIN
    IF octet_length(all_) > 255 OR strpos(all_, E'\\u') > 0 THEN
        PERFORM tenure.check_jsons('result', p_results, 16777216);
    END IF;
END $$;

-- Notes, each cut to 8,192 characters.
CREATE OR REPLACE FUNCTION tenure.shortened(p_notes text[]) RETURNS text[]
LANGUAGE plpgsql IMMUTABLE
AS $$
BEGIN
    IF octet_length(array_to_string(p_notes, '')) <= 8192 THEN
        RETURN p_notes;
    END IF;
    RETURN ARRAY(SELECT left(u.note, 8192) FROM unnest(p_notes) WITH ORDINALITY u(note, n) ORDER BY u.n);
END $$;

-- Whether the library could read this as a retry policy.
CREATE OR REPLACE FUNCTION tenure.is_retry_policy(retry json) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE
AS $$
DECLARE
    policy text;
    rule   json;
    fields bigint;
BEGIN
    IF retry IS NULL THEN
        RETURN true;
    ELSIF json_typeof(retry) <> 'object' OR (SELECT count(*) FROM json_object_keys(retry)) <> 1 THEN
        RETURN false;
    END IF;
    SELECT e.key, e.value INTO policy, rule FROM json_each(retry) e;
    IF json_typeof(rule) <> 'object' THEN
        RETURN false;
    END IF;
    SELECT count(*) INTO fields FROM json_object_keys(rule);
    RETURN CASE policy
        WHEN 'exponential' THEN fields = 2 AND tenure.is_delay(rule -> 'base_ms') AND tenure.is_delay(rule -> 'cap_ms')
        WHEN 'fixed' THEN fields = 1 AND tenure.is_delay(rule -> 'ms')
        WHEN 'list' THEN coalesce(fields = 1 AND json_typeof(rule -> 'ms') = 'array'
            AND json_array_length(rule -> 'ms') BETWEEN 1 AND 64
            AND (SELECT bool_and(tenure.is_delay(m)) FROM json_array_elements(rule -> 'ms') m), false)
        ELSE false
    END;
END $$;

-- Whether it is a whole number that fits the library's 64 bits.
CREATE OR REPLACE FUNCTION tenure.is_delay(value json) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE
AS $$
BEGIN
    RETURN coalesce(json_typeof(value) = 'number', false)
       AND value #>> '{}' ~ '^(0|[1-9][0-9]{0,19})$'
       AND CASE WHEN length(value #>> '{}') = 20 THEN (value #>> '{}')::numeric <= 18446744073709551615 ELSE true END;
END $$;
