-- Migrations --------------------------------------------------------------------------------

-- name: current_revision
SELECT version_num FROM paidonce.alembic_version;

-- name: has_revisions
SELECT to_regclass('paidonce.alembic_version') IS NOT NULL AS is_there;

-- name: has_schema
SELECT to_regnamespace(quote_ident(:name)) IS NOT NULL AS is_there;

-- name: other_schemas
SELECT n.nspname::text AS name
  FROM pg_class AS c
  JOIN pg_namespace AS n ON n.oid = c.relnamespace
 WHERE c.relname IN ('alembic_version', 'crash_guard', 'event_keys', 'webhook_events')
   AND n.nspname <> :name::text
 GROUP BY n.nspname
HAVING count(*) = 4
 ORDER BY n.nspname;

-- name: moves
-- Statements that move what has these names, and the partitions, to another schema. Indexes, and the
-- sequences of identity columns, go with their tables.
SELECT format('ALTER %s %I.%I SET SCHEMA %I',
              CASE c.relkind WHEN 'S' THEN 'SEQUENCE' WHEN 'c' THEN 'TYPE' ELSE 'TABLE' END,
              :source::text, c.relname, :target::text) AS statement
  FROM pg_class AS c
  JOIN pg_namespace AS n ON n.oid = c.relnamespace
 WHERE n.nspname = :source AND c.relkind IN ('r', 'p', 'S', 'c')
   AND (c.relname = ANY (:names::text[]) OR c.relname ~ '^webhook_events_[0-9]{4}_[0-9]{2}$')
UNION ALL
SELECT format('ALTER FUNCTION %I.%I SET SCHEMA %I', :source, f.proname, :target)
  FROM pg_proc AS f
  JOIN pg_namespace AS n ON n.oid = f.pronamespace
 WHERE n.nspname = :source AND f.proname = ANY (:names);

-- name: functions
SELECT pg_get_functiondef(f.oid) AS definition
  FROM pg_proc AS f
  JOIN pg_namespace AS n ON n.oid = f.pronamespace
 WHERE n.nspname = :schema::text AND f.proname = ANY (:names::text[]);

-- name: wait_without_limit
-- For this session: a migration may take longer than a session usually waits for a lock.
SET lock_timeout = 0;

-- name: lock_migrations
SELECT pg_advisory_lock(hashtextextended('paidonce.migrations', 0));

-- name: unlock_migrations
SELECT pg_advisory_unlock(hashtextextended('paidonce.migrations', 0));

-- Partitions --------------------------------------------------------------------------------

-- name: lock_partitions
SELECT pg_advisory_xact_lock(hashtextextended('paidonce.partitions', 0));

-- name: partition_names
SELECT child.relname
  FROM pg_inherits
  JOIN pg_class AS child ON child.oid = inhrelid
 WHERE inhparent = 'paidonce.webhook_events'::regclass;

-- Searches ----------------------------------------------------------------------------------

-- name: read_in_order
-- For this transaction: rows are read in the order of an index, and reading stops when there are
-- enough. Whatever the statistics say, nothing is collected in full to be sorted.
SELECT set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true),
       set_config('enable_sort', 'off', true), set_config('enable_incremental_sort', 'off', true),
       set_config('jit', 'off', true);
