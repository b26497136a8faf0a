-- Migrations --------------------------------------------------------------------------------

-- name: current_revision
SELECT version_num FROM paidonce.alembic_version;

-- name: has_revisions
SELECT to_regclass('paidonce.alembic_version') IS NOT NULL AS is_there;

-- name: wait_without_limit
-- For this session: a migration may take longer than a session usually waits for a lock.
SET lock_timeout = 0;

-- name: lock_migrations
SELECT pg_advisory_lock(7161203458912);

-- name: unlock_migrations
SELECT pg_advisory_unlock(7161203458912);

-- Partitions --------------------------------------------------------------------------------

-- name: lock_partitions
SELECT pg_advisory_xact_lock(7161203458914);

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
