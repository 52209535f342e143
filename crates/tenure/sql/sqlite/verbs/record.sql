-- A job as row.rs reads it. Other verbs write {live} or {ended} for these columns.

-- :live
id, state, queue, tenant, kind, coalesce(args, (SELECT p.args FROM tenure_payloads p WHERE p.job_id = id)),
priority, run_at, token, attempt, max_attempts, crashes, max_crashes, retry, max_runtime, key, trace, tags, parent,
enqueued_at, worker, started_at, leased_at, lease_ms, lease_until, NULL, NULL, reason, progress, progress_note

-- :ended
id, state, queue, tenant, kind, coalesce(args, (SELECT p.args FROM tenure_payloads p WHERE p.job_id = id)),
priority, run_at, token, attempt, max_attempts, crashes, max_crashes, retry, max_runtime, key, trace, tags, parent,
enqueued_at, worker, started_at, NULL, NULL, NULL, finished_at, result, reason, NULL, NULL
