-- name: register_source
INSERT INTO paidonce.sources (name, provider) VALUES (:name, :provider) ON CONFLICT (name) DO NOTHING;

-- name: find_source
SELECT id, provider FROM paidonce.sources WHERE name = :name;

-- name: all_sources
SELECT name, provider FROM paidonce.sources;

-- name: lock_plans
SELECT pg_advisory_xact_lock(hashtextextended('paidonce.plans', 0));

-- name: next_version
-- When the next versions begin: now, read behind the lock, and after all earlier ones whatever the clock says.
SELECT greatest(clock_timestamp(), max(greatest(valid_from, valid_until)) + interval '1 microsecond')
  FROM paidonce.plan_versions;

-- name: all_plans
SELECT plan_id AS id, price_minor, currency, product, days, months, is_default, valid_from, valid_until
  FROM paidonce.plan_versions
 ORDER BY plan_id, valid_from;

-- name: end_plan
UPDATE paidonce.plan_versions SET valid_until = :now WHERE plan_id = :plan_id AND valid_until IS NULL;

-- name: add_plan
INSERT INTO paidonce.plan_versions
       (plan_id, valid_from, price_minor, currency, product, days, months, is_default)
VALUES (:plan_id, :now, :price_minor, :currency, :product, :days, :months, :is_default);

-- Readiness ---------------------------------------------------------------------------------

-- name: make_probe
-- For this session. EXTERNAL: what is written is not compressed.
CREATE TEMPORARY TABLE readiness_probe (filler bytea) ON COMMIT DELETE ROWS;

-- name: make_probe_large
ALTER TABLE readiness_probe ALTER filler SET STORAGE EXTERNAL;

-- name: is_read_only
-- A temporary table can be written all the same.
SELECT pg_is_in_recovery() OR current_setting('transaction_read_only')::boolean AS is_so;

-- name: has_partition
SELECT EXISTS (
    SELECT 1 FROM pg_inherits
      JOIN pg_class AS child ON child.oid = inhrelid
     WHERE inhparent = 'paidonce.webhook_events'::regclass AND child.relname = :name AND NOT inhdetachpending)
       AS is_there;

-- name: lock_as_a_delivery
-- The tables that deliveries write, locked as they do it.
LOCK TABLE ONLY paidonce.webhook_events, paidonce.event_keys, paidonce.payments, paidonce.payment_ids,
           paidonce.refunds, paidonce.subscriptions, paidonce.orders, paidonce.wallets, paidonce.users,
           paidonce.user_emails, paidonce.outbox, paidonce.event_queue, paidonce.event_count_deltas,
           paidonce.audit_log
  IN ROW EXCLUSIVE MODE;

-- name: fill_probe
-- Files grow, if the disk has space. The rows are removed at the commit.
INSERT INTO readiness_probe (filler) VALUES (convert_to(repeat('x', 65536), 'UTF8'));

-- name: log_probe
-- Without this record the commit would not wait for the disk, or for a synchronous standby.
SELECT pg_logical_emit_message(true, 'paidonce', 'ready');
