-- How many jobs are due and not claimed, by queue and kind. It counts the first :each jobs of each of the first :lanes
-- lanes (a lane is a number for queue, tenant and kind), and the first :lanes waiting jobs whose time has come but that
-- no claim has made ready yet. So the cost is bounded, whatever the backlog is.
--
-- :lanes  how many lanes are looked at, and how many waiting jobs
-- :each   how many ready jobs of a lane are counted
-- :now    the time
WITH RECURSIVE lanes (lane, n) AS (
    SELECT min(lane), 1 FROM tenure_jobs WHERE state = 0 /* ready */
    UNION ALL
    SELECT (SELECT min(j.lane) FROM tenure_jobs j WHERE j.state = 0 /* ready */ AND j.lane > l.lane), l.n + 1
      FROM lanes l
     WHERE l.lane IS NOT NULL AND l.n < :lanes
)
SELECT queue, kind, count(*)
  FROM (SELECT j.queue, j.kind
          FROM lanes l
         CROSS JOIN tenure_jobs j
            ON j.id IN (SELECT r.id FROM tenure_jobs r WHERE r.state = 0 /* ready */ AND r.lane = l.lane LIMIT :each)
        UNION ALL
        SELECT w.queue, w.kind
          FROM (SELECT queue, kind FROM tenure_jobs WHERE state = 1 /* waiting */ AND run_at <= :now ORDER BY run_at LIMIT :lanes) w)
 GROUP BY queue, kind
 ORDER BY queue, kind
