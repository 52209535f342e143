-- Refuses arguments that make no sense.

-- Raises TN003: an argument makes no sense. The error's COLUMN has the argument's name, so that programs need not parse
-- the message.
CREATE OR REPLACE FUNCTION tenure.invalid(field text, problem text, hint text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = 'TN003', COLUMN = field,
        MESSAGE = field || ': ' || problem,
        DETAIL = 'Nothing was done.', HINT = hint;
END $$;

-- Raises TN003 if one of the names is not valid, and quotes it in the message.
CREATE OR REPLACE FUNCTION tenure.check_names(field text, names text[]) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    bad text;
BEGIN
    -- OFFSET 0 keeps the planner from moving the condition into the subquery. There it would test every name of the
    -- list, not each different name once.
    SELECT n.name INTO bad FROM (SELECT DISTINCT u.name FROM unnest(names) u(name) OFFSET 0) n
     WHERE n.name !~ '^[a-z0-9][a-z0-9_.:-]{0,62}$'
        OR n.name IS NULL LIMIT 1;
    IF FOUND THEN
        PERFORM tenure.invalid(field, coalesce(quote_literal(left(bad, 80)), 'NULL') || ' is not a valid name',
            'Use 1 to 63 of a-z 0-9 _ . : - and begin with a letter or digit.');
    END IF;
END $$;

CREATE OR REPLACE FUNCTION tenure.check_worker(worker text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF worker IS NULL OR worker !~ '^[!-~]{1,128}$' THEN
        PERFORM tenure.invalid('worker', 'a worker id has 1 to 128 printable ASCII characters',
            'Make one up for each process start, such as a UUID.');
    END IF;
END $$;

CREATE OR REPLACE FUNCTION tenure.check_lease(lease_ms bigint) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF lease_ms IS NULL OR lease_ms NOT BETWEEN 1 AND 86400000 THEN
        PERFORM tenure.invalid('lease', 'a lease of ' || coalesce(lease_ms::text, 'NULL') || ' ms is outside 1 ms to 24 h',
            'Renew it instead of making it longer.');
    END IF;
END $$;

-- Answers the grace, but at most end_of_time(), so that the caller's `t - grace` cannot overflow. Raises TN003 if the
-- grace is NULL or negative.
CREATE OR REPLACE FUNCTION tenure.check_grace(grace_ms bigint) RETURNS bigint
LANGUAGE plpgsql AS $$
BEGIN
    IF grace_ms IS NULL OR grace_ms < 0 THEN
        PERFORM tenure.invalid('grace', coalesce(grace_ms::text, 'NULL') || ' ms is no length of time', 'Leave it out for none.');
    END IF;
    RETURN least(grace_ms, tenure.end_of_time());
END $$;

-- All lists of a batch have one length, and not more than 1,000 items.
CREATE OR REPLACE FUNCTION tenure.check_batch(size int, VARIADIC others int[] DEFAULT '{}') RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF size IS NULL THEN
        PERFORM tenure.invalid('batch', 'NULL is not a batch', 'Pass a list, which may be empty.');
    ELSIF size < 0 THEN
        PERFORM tenure.invalid('batch', size || ' is less than nothing', 'Ask for 0 to 1000.');
    ELSIF size > 1000 THEN
        PERFORM tenure.invalid('batch', 'a batch of ' || size || ' is above the limit of 1000', 'Send it in parts.');
    ELSIF (size = ALL (others)) IS NOT TRUE THEN
        PERFORM tenure.invalid('batch', 'the lists differ in length', 'Give one value for each job in every list.');
    END IF;
END $$;
