-- The condition of the server, as far as this role may see it: its clock, the transaction that has been open the longest,
-- and what vacuum has left of the table of jobs. $1 is the schema's name.
SELECT (extract(epoch FROM t.at) * 1000)::int8                  AS at,
       o.pid,
       o.name,
       o.state,
       (extract(epoch FROM t.at - o.since) * 1000)::int8        AS age_ms,
       -- Sessions whose details this role may not see: it sees that they hold a snapshot, but not since when.
       (SELECT count(*) FROM pg_stat_activity a
         WHERE a.datname = current_database() AND a.backend_xmin IS NOT NULL AND a.backend_type IS NULL) AS hidden,
       s.n_live_tup                                             AS live,
       s.n_dead_tup                                             AS dead,
       (extract(epoch FROM s.last_autovacuum) * 1000)::int8     AS vacuumed_at
  FROM (SELECT clock_timestamp() AS at) t
  LEFT JOIN LATERAL (
       SELECT a.pid, concat_ws(' ', a.usename, nullif(a.application_name, '')) AS name, a.state, a.xact_start AS since
         FROM pg_stat_activity a
        WHERE a.xact_start IS NOT NULL AND a.pid <> pg_backend_pid() AND a.backend_type <> 'autovacuum worker'
          AND (a.datname = current_database() OR a.datname IS NULL)
       UNION ALL
       -- A prepared transaction belongs to no session, and stays open until it is committed or rolled back by name.
       SELECT NULL, p.gid, 'prepared', p.prepared FROM pg_prepared_xacts p WHERE p.database = current_database()
        ORDER BY since
        LIMIT 1) o ON true
  LEFT JOIN pg_stat_user_tables s ON s.schemaname = $1 AND s.relname = 'jobs'
