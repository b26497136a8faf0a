-- name: rights
-- What the role may do. The owner's rights are needed to add partitions.
SELECT current_user AS role, current_schema() AS schema,
       has_schema_privilege(current_schema(), 'CREATE') AS may_create,
       coalesce((SELECT pg_has_role(relowner, 'USAGE') FROM pg_class
                  WHERE oid = to_regclass('paidonce.webhook_events')), true) AS is_owner,
       coalesce((SELECT bool_and(has_table_privilege(oid, 'SELECT, INSERT')) FROM pg_class
                  WHERE oid IN (to_regclass('paidonce.webhook_events'), to_regclass('paidonce.event_keys'),
                                to_regclass('paidonce.payments'))), true) AS may_insert;

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
