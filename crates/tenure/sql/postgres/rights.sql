-- What this role may call in the schema whose name is $1. No right on the schema is needed to ask.
SELECT current_user::text                                       AS role,
       coalesce(o.rolname::text, '')                            AS owner,
       coalesce(pg_has_role(o.oid, 'USAGE'), false)             AS is_owner,
       coalesce(has_schema_privilege(n.oid, 'USAGE'), false)    AS is_usable,
       ARRAY(SELECT DISTINCT p.proname::text FROM pg_proc p WHERE p.pronamespace = n.oid) AS functions,
       -- A name counts only if the role may call every function that has it.
       ARRAY(SELECT p.proname::text FROM pg_proc p WHERE p.pronamespace = n.oid
              GROUP BY p.proname HAVING bool_and(has_function_privilege(p.oid, 'EXECUTE'))) AS may,
       -- Those of the roles named after the schema that are there, and those whose rights this role has.
       ARRAY(SELECT r.rolname::text FROM pg_roles r
              WHERE r.rolname IN ($1 || '_worker', $1 || '_enqueuer', $1 || '_reader')) AS roles,
       ARRAY(SELECT r.rolname::text FROM pg_roles r
              WHERE r.rolname IN ($1 || '_worker', $1 || '_enqueuer', $1 || '_reader')
                AND pg_has_role(r.oid, 'USAGE'))                AS member_of
  FROM (SELECT 1) one
  LEFT JOIN pg_namespace n ON n.nspname = $1
  -- The owner of the tables; while there are none, the owner of the schema.
  LEFT JOIN pg_roles o ON o.oid = coalesce(
      (SELECT c.relowner FROM pg_class c WHERE c.relnamespace = n.oid AND c.relkind = 'r' AND c.relname = 'jobs'),
      n.nspowner)
