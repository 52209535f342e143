-- The statements that remove what is Tenure's from the schema whose name is $1, and the schema. $2 has the parts that
-- are ours, such as 'table jobs'. No statement has CASCADE: if an object of the user's depends on one of ours, or is in
-- the schema, one statement fails, and nothing is removed.
WITH ours AS (SELECT split_part(part, ' ', 1) AS sort, split_part(part, ' ', 2) AS name FROM unnest($2::text[]) part),
home AS (SELECT n.oid, n.nspname FROM pg_namespace n WHERE n.nspname = $1),
relation AS (
    SELECT o.sort, c.relname, format('%I.%I', h.nspname, c.relname) AS name
      FROM home h JOIN pg_class c ON c.relnamespace = h.oid
      JOIN ours o ON o.name = c.relname
       AND o.sort = CASE c.relkind WHEN 'r' THEN 'table' WHEN 'v' THEN 'view' WHEN 'S' THEN 'sequence' WHEN 'c' THEN 'type' END)
-- Views call functions, and functions answer in rows of the view `record`, so that view comes after them. One statement
-- drops all other views, since they may depend on each other; and so for all functions, and for all tables.
SELECT 1 AS turn, 'DROP VIEW ' || string_agg(r.name, ', ') AS statement
  FROM relation r WHERE r.sort = 'view' AND r.relname <> 'record' HAVING count(*) > 0
UNION ALL
SELECT 2, format('DROP TRIGGER %I ON %I.%I', t.tgname, h.nspname, c.relname)
  FROM home h JOIN pg_class c ON c.relnamespace = h.oid JOIN pg_trigger t ON t.tgrelid = c.oid
  JOIN ours o ON o.sort = 'trigger' AND o.name = t.tgname WHERE NOT t.tgisinternal
UNION ALL
SELECT 3, 'DROP FUNCTION ' || string_agg(format('%I.%I(%s)', h.nspname, p.proname, pg_get_function_identity_arguments(p.oid)), ', ')
  FROM home h JOIN pg_proc p ON p.pronamespace = h.oid
 WHERE EXISTS (SELECT 1 FROM ours o WHERE o.sort = 'function' AND o.name = p.proname) HAVING count(*) > 0
UNION ALL
SELECT 4, 'DROP VIEW ' || r.name FROM relation r WHERE r.sort = 'view' AND r.relname = 'record'
UNION ALL
SELECT 5, 'DROP TYPE ' || r.name FROM relation r WHERE r.sort = 'type'
UNION ALL
SELECT 6, 'DROP TABLE ' || string_agg(r.name, ', ') FROM relation r WHERE r.sort = 'table' HAVING count(*) > 0
UNION ALL
SELECT 7, 'DROP SEQUENCE ' || r.name FROM relation r WHERE r.sort = 'sequence'
UNION ALL
SELECT 8, format('DROP SCHEMA %I', h.nspname) FROM home h
 ORDER BY 1
