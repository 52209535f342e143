-- Enqueue for people, triggers and other languages: one job, by named parameters, inside any transaction.

-- Stores a job and answers its id. With a key that is taken by the same request it answers that job's id
-- and stores nothing; by another request it raises TN002.
CREATE OR REPLACE FUNCTION tenure.enqueue(kind text, args json DEFAULT '{}', queue text DEFAULT 'default', tenant text DEFAULT '',
    key text DEFAULT NULL, priority int DEFAULT 0, delay interval DEFAULT NULL, run_at timestamptz DEFAULT NULL,
    max_attempts int DEFAULT 6, max_crashes int DEFAULT 5, max_runtime interval DEFAULT NULL, retry json DEFAULT NULL,
    key_window interval DEFAULT '24 hours', trace text DEFAULT NULL, tags text[] DEFAULT NULL, parent bigint DEFAULT NULL)
RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    verdict text;
    job     bigint;
BEGIN
    IF delay IS NOT NULL AND run_at IS NOT NULL THEN
        PERFORM tenure.invalid('delay', 'given together with run_at', 'Say when the job is due in one way.');
    ELSIF priority IS NULL OR priority NOT BETWEEN -32768 AND 32767 THEN
        PERFORM tenure.invalid('priority', 'outside -32768 to 32767', 'Lower numbers run first; leave it out for 0.');
    END IF;
    PERFORM tenure.check_json('args', args, 262144), tenure.check_retry(retry);
    SELECT e.verdict, e.job INTO verdict, job
      FROM tenure.enqueue_many(
        ARRAY[kind], ARRAY[args], ARRAY[coalesce(queue, 'default')], ARRAY[coalesce(tenant, '')],
        CASE WHEN key IS NOT NULL THEN ARRAY[key] END,
        CASE WHEN key IS NOT NULL THEN ARRAY[tenure.fingerprint(kind, args)] END,
        ARRAY[json_build_object('priority', priority, 'run_at', tenure.ms('run_at', run_at),
            'delay_ms', tenure.ms('delay', delay), 'max_attempts', max_attempts, 'max_crashes', max_crashes, 'retry', retry,
            'max_runtime_ms', tenure.ms('max_runtime', max_runtime), 'key_window_ms', tenure.ms('key_window', key_window),
            'parent', parent)],
        CASE WHEN trace IS NOT NULL OR cardinality(tags) > 0
             THEN ARRAY[json_strip_nulls(json_build_object('trace', trace,
                            'tags', CASE WHEN cardinality(tags) > 0 THEN to_json(tags) END))] END) e;
    IF verdict = 'conflict' THEN
        RAISE EXCEPTION USING ERRCODE = 'TN002',
            MESSAGE = format('key %L belongs to job %s, which was another request', key, job),
            DETAIL = 'A key stands for one kind with the same args; nothing was stored.',
            HINT = 'Use another key, or send the same kind and args to be given that job.';
    END IF;
    RETURN job;
END $$;

-- The fingerprint of a request under a key: SHA-256 over the kind, a NUL and the canonical args. The library computes
-- the same one, so that a request may be repeated from another language; and this refuses the args that the library
-- refuses.
CREATE OR REPLACE FUNCTION tenure.fingerprint(kind text, args json) RETURNS bytea
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF args IS NOT NULL THEN
        PERFORM tenure.check_json('args', args, 16777216);
    END IF;
    RETURN sha256(convert_to(kind, 'UTF8') || decode('00', 'hex') || convert_to(tenure.canonical(args), 'UTF8'));
END $$;

-- The one spelling of a JSON value: object keys sorted bytewise, no white space, the last of duplicate keys,
-- numbers as written, strings minimally escaped.
CREATE OR REPLACE FUNCTION tenure.canonical(value json) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN CASE json_typeof(value)
        WHEN 'object' THEN (
            SELECT '{' || coalesce(string_agg(to_json(f.key)::text || ':' || tenure.canonical(f.value), ',' ORDER BY f.key COLLATE "C"), '') || '}'
              FROM (SELECT DISTINCT ON (e.key COLLATE "C") e.key, e.value FROM json_each(value) WITH ORDINALITY e(key, value, n)
                     ORDER BY e.key COLLATE "C", e.n DESC) f)
        WHEN 'array' THEN (
            SELECT '[' || coalesce(string_agg(tenure.canonical(e.value), ',' ORDER BY e.n), '') || ']'
              FROM json_array_elements(value) WITH ORDINALITY e(value, n))
        WHEN 'string' THEN to_json(value #>> '{}')::text
        ELSE btrim(value::text, E' \t\n\r')
    END;
END $$;

-- Refuses JSON that the library would refuse: above its limit, nested more than 127 deep, with a NUL or half
-- a surrogate pair in a string.
CREATE OR REPLACE FUNCTION tenure.check_json(field text, value json, byte_limit int) RETURNS void
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    size int := octet_length(value::text);
BEGIN
    IF value IS NULL THEN
        PERFORM tenure.invalid(field, 'NULL is not JSON', 'Pass ''{}'' or the JSON value ''null''.');
    ELSIF size > byte_limit THEN
        PERFORM tenure.invalid(field, size || ' bytes are above the limit of ' || byte_limit || ' bytes',
            'Store the data elsewhere and pass a reference to it.');
    END IF;
    BEGIN
        -- jsonb decodes every string, and so finds what cannot be decoded.
        PERFORM value::jsonb;
    EXCEPTION WHEN data_exception OR untranslatable_character OR program_limit_exceeded THEN
        PERFORM tenure.invalid(field, 'cannot be stored as JSON: ' || SQLERRM,
            E'Leave out \\u0000, halves of surrogate pairs, and numbers beyond all measure.');
    END;
    -- Measuring the depth costs a pass for each level, so it is done only if there are enough brackets to be too deep.
    IF size - length(translate(value::text, '[{', '')) > 127 AND tenure.depth(value, 128) > 127 THEN
        PERFORM tenure.invalid(field, 'cannot be stored as JSON: nested more than 127 deep', 'Make it flatter.');
    END IF;
END $$;

-- How deeply a value is nested; it does not look further than `enough`.
CREATE OR REPLACE FUNCTION tenure.depth(value json, enough int) RETURNS int
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    level json[] := ARRAY[value];
    found int := 0;
BEGIN
    LOOP
        SELECT array_agg(v) INTO level FROM unnest(level) v WHERE json_typeof(v) IN ('object', 'array');
        EXIT WHEN level IS NULL OR found >= enough;
        found := found + 1;
        SELECT array_agg(c.value) INTO level
          FROM unnest(level) v CROSS JOIN LATERAL (
            SELECT e.value FROM json_each(CASE WHEN json_typeof(v) = 'object' THEN v ELSE '{}' END) e
            UNION ALL
            SELECT a.value FROM json_array_elements(CASE WHEN json_typeof(v) = 'array' THEN v ELSE '[]' END) a) c;
    END LOOP;
    RETURN found;
END $$;

-- A length of time in milliseconds, for the port.
CREATE OR REPLACE FUNCTION tenure.ms(field text, length interval) RETURNS bigint
LANGUAGE plpgsql IMMUTABLE STRICT
AS $$
DECLARE
    ms numeric := extract(epoch FROM length) * 1000;
BEGIN
    IF ms < 0 THEN
        PERFORM tenure.invalid(field, length || ' is negative', 'Give a length of time, such as ''30 seconds''.');
    END IF;
    RETURN floor(least(ms, tenure.end_of_time()))::bigint;
END $$;

-- A moment in milliseconds.
CREATE OR REPLACE FUNCTION tenure.ms(field text, moment timestamptz) RETURNS bigint
LANGUAGE plpgsql IMMUTABLE STRICT
AS $$
BEGIN
    IF moment = '-infinity' OR moment = 'infinity' THEN
        PERFORM tenure.invalid(field, 'is not a moment', 'Give a date and time, or a delay.');
    END IF;
    RETURN floor(extract(epoch FROM moment) * 1000)::bigint;
END $$;
