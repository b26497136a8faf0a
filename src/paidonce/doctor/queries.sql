-- name: rights
-- What the role may do. The owner's rights are needed to add partitions.
-- A schema that is not there may be created with a right on the database.
-- Tables are found by their names: to_regclass needs the right to use the schema.
SELECT current_user AS role, n.oid IS NOT NULL AS has_schema,
       coalesce(has_schema_privilege(n.oid, 'USAGE'), true) AS may_use,
       CASE WHEN n.oid IS NULL THEN has_database_privilege(current_database(), 'CREATE')
            ELSE has_schema_privilege(n.oid, 'CREATE') END AS may_create,
       coalesce((SELECT pg_has_role(relowner, 'USAGE') FROM pg_class
                  WHERE relnamespace = n.oid AND relname = 'webhook_events'), true) AS is_owner,
       coalesce((SELECT bool_and(has_table_privilege(oid, 'SELECT, INSERT')) FROM pg_class
                  WHERE relnamespace = n.oid
                    AND relname IN ('webhook_events', 'event_keys', 'payments')), true) AS may_insert
  FROM (VALUES (:schema::text)) AS wanted (name)
  LEFT JOIN pg_namespace AS n ON n.nspname = wanted.name;

-- name: sources
SELECT name, provider FROM paidonce.sources ORDER BY name;

-- name: overdue
SELECT extract(epoch FROM now() - run_at)::float8 AS overdue_s
  FROM paidonce.event_queue
 ORDER BY run_at, id
 LIMIT 1;

-- name: failing_sources
SELECT s.name, f.first_at
  FROM paidonce.failing_sources AS f JOIN paidonce.sources AS s ON s.id = f.source_id
 WHERE f.failures >= :enough
 ORDER BY s.name;
