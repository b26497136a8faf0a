-- name: current_revision
SELECT version_num FROM alembic_version;

-- name: has_revisions
SELECT to_regclass('alembic_version') IS NOT NULL AS is_there;

-- name: wait_for_ever
-- For this session: a migration may take longer than a session usually waits for a lock.
SET lock_timeout = 0;

-- name: lock_migrations
SELECT pg_advisory_lock(7161203458912);

-- name: unlock_migrations
SELECT pg_advisory_unlock(7161203458912);

-- name: register_source
INSERT INTO sources (name, provider) VALUES (:name, :provider) ON CONFLICT (name) DO NOTHING;

-- name: find_source
SELECT id, provider FROM sources WHERE name = :name;

-- name: lock_plans
SELECT pg_advisory_xact_lock(7161203458913);

-- name: all_plans
SELECT plan_id, price_minor, currency, product, days, months, is_default, valid_from
  FROM plan_versions
 ORDER BY plan_id, valid_from;

-- name: add_plan
INSERT INTO plan_versions (plan_id, price_minor, currency, product, days, months, is_default)
VALUES (:plan_id, :price_minor, :currency, :product, :days, :months, :is_default);

-- name: lock_partitions
SELECT pg_advisory_xact_lock(7161203458914);

-- name: partition_names
SELECT child.relname
  FROM pg_inherits
  JOIN pg_class AS child ON child.oid = inhrelid
 WHERE inhparent = 'webhook_events'::regclass;
