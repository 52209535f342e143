-- What can be known of a schema without any right on it. $1 is its name.
SELECT n.oid IS NOT NULL AS "exists",
       coalesce(has_schema_privilege(n.oid, 'USAGE'), false) AS is_usable,
       (SELECT count(*) FROM pg_class c
         WHERE c.relnamespace = n.oid AND c.relkind = 'r'
           AND c.relname IN ('migrations', 'meta', 'clock', 'jobs', 'done', 'payloads', 'timeline', 'keys', 'queues', 'fences')) AS tables,
       (SELECT count(*) FROM pg_class c WHERE c.relnamespace = n.oid AND c.relkind IN ('r', 'v', 'm', 'S', 'p', 'f'))
       + (SELECT count(*) FROM pg_proc p WHERE p.pronamespace = n.oid) AS others,
       EXISTS (SELECT 1 FROM pg_proc p WHERE p.pronamespace = n.oid AND p.proname = 'history') AS tells
  FROM (SELECT 1) one LEFT JOIN pg_namespace n ON n.nspname = $1
