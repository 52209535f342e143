-- Takes jobs back from holders whose lease is over.

-- Longest over first. It is a look, without the write lock; what it finds is checked again before
-- anything is written.
-- :overdue
SELECT id, token
  FROM tenure_jobs
 WHERE state = 2 AND lease_until <= :now
 ORDER BY lease_until, id
 LIMIT :limit

-- Only the attempt that was seen, and only if its lease is still over: its holder may have renewed
-- or settled since.
-- :check
SELECT {live}
  FROM tenure_jobs
 WHERE id = :job
   AND token = :token AND state = 2
   AND lease_until <= :now
