-- Numbers that are computed: lanes, suspects, tokens.

-- The first bits of the SHA-256 of a name. (<< and | have one precedence in SQL: mind the parentheses.)
CREATE OR REPLACE FUNCTION tenure.prefix(name text, bits int) RETURNS bigint
LANGUAGE sql STABLE PARALLEL SAFE AS
$$ SELECT ('x' || encode(substring(sha256(convert_to(name, 'UTF8')) FROM 1 FOR 4), 'hex'))::bit(32)::bigint >> (32 - bits) $$;

-- Where a job stands in the claim index, the same number as on every engine:
-- bit 61 suspect, then 20 bits of the queue, 26 of the tenant, 15 of the kind.
CREATE OR REPLACE FUNCTION tenure.lane(queue text, tenant text, kind text, suspect boolean) RETURNS bigint
LANGUAGE sql STABLE PARALLEL SAFE AS
$$ SELECT (suspect::int::bigint << 61)
        | (tenure.prefix(queue, 20) << 41) | (tenure.prefix(tenant, 26) << 15) | tenure.prefix(kind, 15) $$;

-- Whether so many crashes make a job a suspect: with max_crashes above 3, from the second crash on. The first crash may
-- not be the job's fault, so the jobs of a lost machine run again at once, side by side. With max_crashes of 3 or less
-- a job is a suspect after its first crash. The library has the same rule in lifecycle.rs.
CREATE OR REPLACE FUNCTION tenure.makes_suspect(crashes int, max_crashes int) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$ SELECT crashes >= CASE WHEN max_crashes > 3 THEN 2 ELSE 1 END $$;

-- Whether a job that stands in this lane is a suspect.
CREATE OR REPLACE FUNCTION tenure.is_suspect(lane bigint) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$ SELECT lane & 2305843009213693952 <> 0 $$;

-- For how long a crash counts at the least, in milliseconds. A job's count is reset when a handler returns by itself
-- and the job's last crash is at least this old.
CREATE OR REPLACE FUNCTION tenure.crash_memory() RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$ SELECT 3600000::bigint $$;

-- The token after this one: above it, and above every token of an earlier epoch.
CREATE OR REPLACE FUNCTION tenure.next_token(token bigint, epoch_floor bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$ SELECT greatest(token, epoch_floor) + 1 $$;
