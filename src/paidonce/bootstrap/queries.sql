-- name: register_source
INSERT INTO paidonce.sources (name, provider) VALUES (:name, :provider) ON CONFLICT (name) DO NOTHING;

-- name: find_source
SELECT id, provider FROM paidonce.sources WHERE name = :name;

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
