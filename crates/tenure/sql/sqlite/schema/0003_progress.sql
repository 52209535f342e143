-- How far running jobs have come, by the word of their holders. Only what is owed has it: an ended job is done.
--
-- A binary of version 2 may go on. It names the columns it reads and writes, and the fence is not touched. Two things it
-- cannot do, and neither decides anything: its claims do not clear what an earlier attempt said, so a screen may show that
-- until the new attempt speaks; and the timeline of a job in which a report was refused is not for it to read.
ALTER TABLE tenure_jobs ADD COLUMN progress INTEGER CHECK (progress BETWEEN 0 AND 1000); -- thousandths
ALTER TABLE tenure_jobs ADD COLUMN progress_note TEXT;   -- what is being done

-- The same as before, with the new columns at the end.
DROP VIEW tenure_job;
CREATE VIEW tenure_job AS
SELECT id,
       CASE state WHEN 2 THEN 'running' WHEN 3 THEN 'parked' ELSE 'queued' END AS state,
       queue, tenant, kind, coalesce(args, (SELECT p.args FROM tenure_payloads p WHERE p.job_id = id)) AS args,
       priority, attempt, max_attempts, crashes, token, worker,
       datetime(enqueued_at / 1000, 'unixepoch') AS enqueued_at, datetime(run_at / 1000, 'unixepoch') AS run_at,
       datetime(started_at / 1000, 'unixepoch') AS started_at, NULL AS finished_at, NULL AS result, reason,
       progress / 1000.0 AS progress, progress_note
  FROM tenure_jobs
UNION ALL
SELECT id,
       CASE state WHEN 4 THEN 'succeeded' WHEN 5 THEN 'dead' ELSE 'cancelled' END,
       queue, tenant, kind, coalesce(args, (SELECT p.args FROM tenure_payloads p WHERE p.job_id = id)),
       priority, attempt, max_attempts, crashes, token, worker,
       datetime(enqueued_at / 1000, 'unixepoch'), datetime(run_at / 1000, 'unixepoch'),
       datetime(started_at / 1000, 'unixepoch'), datetime(finished_at / 1000, 'unixepoch'), result, reason,
       NULL, NULL
  FROM tenure_done;
