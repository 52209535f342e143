-- Extends a lease: fenced, never shorter than it was, never beyond the maximal runtime. It does not
-- touch the token.

-- :extend
UPDATE tenure_jobs
   SET leased_at = :now,
       lease_ms = :lease_ms,
       lease_until = max(lease_until, min(:now + :lease_ms, coalesce(started_at + max_runtime, :now + :lease_ms)))
 WHERE id = :job
   AND token = :token AND state = 2 /* running */
RETURNING lease_until
