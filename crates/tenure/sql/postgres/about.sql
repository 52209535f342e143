-- What is in the schema whose name is $1, and what this role may do there. No right on the schema is needed to ask.
SELECT n.oid IS NOT NULL                                        AS "exists",
       coalesce(has_schema_privilege(n.oid, 'USAGE'), false)    AS is_usable,
       -- Whether the tables can be made here: that needs CREATE on the schema or, while the schema is missing, on the
       -- database.
       coalesce(has_schema_privilege(n.oid, 'CREATE'),
                has_database_privilege(current_database(), 'CREATE')) AS is_open,
       current_user::text                                       AS role,
       current_database()::text                                 AS database,
       coalesce(o.rolname::text, '')                            AS owner,
       coalesce(pg_has_role(o.oid, 'USAGE'), false)             AS is_owner,
       -- Whether the roles named after the schema are there, or can be made.
       (SELECT r.rolsuper OR r.rolcreaterole FROM pg_roles r WHERE r.rolname = current_user)
           OR 3 = (SELECT count(*) FROM pg_roles r
                    WHERE r.rolname IN ($1 || '_worker', $1 || '_enqueuer', $1 || '_reader')) AS has_roles,
       -- Whether the schema has Tenure's tables. Other programs have tables of these names too, but not with these
       -- columns.
       EXISTS (SELECT 1 FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
                WHERE c.relnamespace = n.oid AND c.relkind = 'r' AND NOT a.attisdropped
                  AND (c.relname, a.attname) IN (('migrations', 'min_client'), ('meta', 'functions_client'), ('jobs', 'lease_until')))
                                                                AS is_ours,
       -- What was made there, by sort and name. What another object of the schema brings along is left out:
       -- indexes, the sequences of identity columns, the row types of tables.
       ARRAY(
           SELECT CASE c.relkind WHEN 'r' THEN 'table ' WHEN 'v' THEN 'view ' WHEN 'S' THEN 'sequence ' ELSE 'relation ' END
                  || c.relname
             FROM pg_class c
            WHERE c.relnamespace = n.oid AND c.relkind NOT IN ('i', 'I', 'c', 't')
              AND NOT EXISTS (SELECT 1 FROM pg_depend d
                               WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.deptype = 'i')
           UNION ALL
           SELECT 'function ' || p.proname FROM pg_proc p WHERE p.pronamespace = n.oid
           UNION ALL
           SELECT 'type ' || t.typname FROM pg_type t LEFT JOIN pg_class c ON c.oid = t.typrelid
            WHERE t.typnamespace = n.oid AND (c.relkind = 'c' OR t.typrelid = 0 AND t.typcategory <> 'A')
           UNION ALL
           SELECT 'trigger ' || t.tgname FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
            WHERE c.relnamespace = n.oid AND NOT t.tgisinternal)  AS parts
  FROM (SELECT 1) one
  LEFT JOIN pg_namespace n ON n.nspname = $1
  -- Who owns the tables; while there are none, who owns the schema.
  LEFT JOIN pg_roles o ON o.oid = coalesce(
      (SELECT c.relowner FROM pg_class c WHERE c.relnamespace = n.oid AND c.relkind = 'r'
          AND c.relname IN ('migrations', 'meta', 'jobs') LIMIT 1),
      n.nspowner)
