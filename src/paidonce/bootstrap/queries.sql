-- name: register_source
INSERT INTO sources (name, provider) VALUES (:name, :provider) ON CONFLICT (name) DO NOTHING;

-- name: find_source
SELECT id, provider FROM sources WHERE name = :name;

-- name: lock_plans
SELECT pg_advisory_xact_lock(7161203458913);

-- name: all_plans
SELECT plan_id AS id, price_minor, currency, product, days, months, is_default, valid_from
  FROM plan_versions
 ORDER BY plan_id, valid_from;

-- name: add_plan
INSERT INTO plan_versions (plan_id, price_minor, currency, product, days, months, is_default)
VALUES (:plan_id, :price_minor, :currency, :product, :days, :months, :is_default);
