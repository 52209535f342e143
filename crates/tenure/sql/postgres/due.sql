-- How many jobs are due and not claimed, by queue and kind. It counts the first $2 jobs of each of the first $1 lanes
-- (a lane is a number for queue, tenant and kind), and the first $1 waiting jobs whose time has come but that no claim
-- has made ready yet. So the cost is bounded, whatever the backlog is.
--
-- $1  how many lanes are looked at, and how many waiting jobs
-- $2  how many ready jobs of a lane are counted
WITH RECURSIVE lanes AS (
    (SELECT j.lane, 1 AS n FROM tenure.jobs j WHERE j.state = 0 /* ready */ ORDER BY j.lane LIMIT 1)
    UNION ALL
    SELECT (SELECT j.lane FROM tenure.jobs j WHERE j.state = 0 /* ready */ AND j.lane > l.lane ORDER BY j.lane LIMIT 1), l.n + 1
      FROM lanes l
     WHERE l.lane IS NOT NULL AND l.n < $1
), clock AS MATERIALIZED (
    SELECT (extract(epoch FROM tenure.now()) * 1000)::bigint AS at
)
SELECT d.queue, d.kind, count(*) AS jobs
  FROM (SELECT r.queue, r.kind
          FROM lanes l
         -- ORDER BY as in the index; without it the planner may read the whole table for every lane.
         CROSS JOIN LATERAL (SELECT j.queue, j.kind FROM tenure.jobs j WHERE j.state = 0 /* ready */ AND j.lane = l.lane
                              ORDER BY j.priority, j.run_at, j.id LIMIT $2) r
        UNION ALL
        SELECT w.queue, w.kind
          FROM (SELECT j.queue, j.kind FROM tenure.jobs j
                 WHERE j.state = 1 /* waiting */ AND j.run_at <= (SELECT c.at FROM clock c) ORDER BY j.run_at LIMIT $1) w) d
 GROUP BY d.queue, d.kind
 ORDER BY d.queue, d.kind
