-- Notes how far a job has come: fenced, in place of what was noted before. It touches neither the lease nor the token.

-- :report
UPDATE tenure_jobs
   SET progress = :permille,
       progress_note = :note
 WHERE id = :job
   AND token = :token AND state = 2 /* running */
