-- Stores jobs. The caller holds the write lock, so that what it reads stays true until it commits.

-- The count of all jobs ever stored, over all epochs, plus one. The id of the next job is this number plus the epoch in
-- the high bits.
-- :next_id
SELECT next_id FROM tenure_meta

-- :set_next_id
UPDATE tenure_meta SET next_id = :next_id

-- The job that a key belongs to, while the key is remembered.
-- :find_key
SELECT job_id, fingerprint
  FROM tenure_keys
 WHERE tenant = :tenant AND scope = 0 AND key = :key
   AND expires_at > :now

-- An expired key is taken over.
-- :remember_key
INSERT INTO tenure_keys (tenant, scope, key, fingerprint, job_id, expires_at)
VALUES (:tenant, 0, :key, :fingerprint, :job, :expires_at)
ON CONFLICT (tenant, scope, key) DO UPDATE
   SET fingerprint = excluded.fingerprint, job_id = excluded.job_id, expires_at = excluded.expires_at

-- :store
INSERT INTO tenure_jobs (id, state, lane, priority, run_at, token, attempt, max_attempts, crashes, max_crashes,
                         queue, tenant, kind, args, retry, max_runtime, key, extras, parent, enqueued_at)
VALUES (:id, :state, :lane, :priority, :run_at, 0, 0, :max_attempts, 0, :max_crashes,
        :queue, :tenant, :kind, :args, :retry, :max_runtime, :key, :extras, :parent, :enqueued_at)

-- :store_payload
INSERT INTO tenure_payloads (job_id, args) VALUES (:id, :args)
