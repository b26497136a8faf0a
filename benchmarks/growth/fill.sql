-- name: add_users
-- Users, each with a subscription that payments extend.
WITH new AS (
    INSERT INTO paidonce.users (id, email)
    SELECT uuidv7(), email
      FROM unnest(:email::text[]) AS email
    RETURNING id, email
),
addresses AS (
    INSERT INTO paidonce.user_emails (email_key, email, user_id, is_current)
    SELECT email, email, id, true FROM new
)
INSERT INTO paidonce.subscriptions (id, user_id, product, status, current_period_end, version)
SELECT uuidv7(), id, :product, 'ACTIVE', now() + interval '30 days', 1
  FROM new;

-- name: add_history
-- The rows of processed events, from number :first of :total, the oldest first, spread over :span
-- until now. Each has a key, a payment with its id, and a published message; one in twenty has an
-- audit entry. Keys, ids and users are in random order, as gateways assign them.
WITH new AS MATERIALIZED (
    SELECT n, now() - age AS at, uuidv7(-age) AS event_id, uuidv7(-age) AS payment_id,
           md5('event' || n) AS event_key, md5('payment' || n) AS payment_key,
           u.id AS user_id, u.email, s.id AS subscription_id
      FROM unnest(:owner::text[]) WITH ORDINALITY AS owner (email, position)
     CROSS JOIN LATERAL (SELECT :first::bigint + position - 1) AS counted (n)
     CROSS JOIN LATERAL (SELECT :span::interval * (1 - n::float8 / :total::bigint)) AS past (age)
      JOIN paidonce.user_emails AS e ON e.email_key = owner.email
      JOIN paidonce.users AS u ON u.id = e.user_id
      JOIN paidonce.subscriptions AS s ON s.user_id = u.id
     ORDER BY n
),
keys AS (
    INSERT INTO paidonce.event_keys (source_id, digest, event_id, fingerprint, fingerprint_version)
    SELECT :source_id::smallint, decode(event_key, 'hex'), event_id,
           decode(md5(event_key), 'hex'), 1
      FROM new
),
events AS (
    INSERT INTO paidonce.webhook_events (
        id, source_id, status, key, type, external_event_id, external_payment_id,
        signature_valid, signature_method, is_test, attempts, received_at, processed_at,
        occurred_at, remote_address, request_id, headers, raw_body)
    SELECT event_id, :source_id, 'PROCESSED', event_key, 'paid', event_key, payment_key, true,
           'hmac-sha256', false, 1, at, at, at, '127.0.0.1', 'fill-' || n,
           jsonb_build_object('content-type', 'application/json', 'x-signature',
                              md5(event_key) || md5(payment_key)),
           convert_to(format(
               '{"external_payment_id":"%s","event_id":"%s","status":"paid","amount":"990.00",'
               '"currency":"RUB","email":"%s","plan_id":"monthly","paid_at":"%s","products":"%s"}',
               payment_key, event_key, email, at, repeat(md5(event_key), 12)), 'UTF8')
      FROM new
),
paid AS (
    INSERT INTO paidonce.payments (
        id, source_id, email, email_key, user_id, plan_id, currency, captured_minor,
        refund_total_minor, refunded_minor, paid_at, applied_at, subscription_id, period_start,
        period_end, version, created_at, updated_at)
    SELECT payment_id, :source_id, email, email, user_id, 'monthly', 'RUB', 99000, 0, 0, at, at,
           subscription_id, at, at + interval '30 days', 1, at, at
      FROM new
),
ids AS (
    INSERT INTO paidonce.payment_ids (source_id, kind, external_id, payment_id)
    SELECT :source_id, 'payment', payment_key, payment_id FROM new
),
messages AS (
    INSERT INTO paidonce.outbox (
        aggregate_type, aggregate_id, type, version, payload, pos, occurred_at, published_at)
    SELECT 'payment', payment_id, 'payment.applied', 1,
           jsonb_build_object(
               'payment_id', payment_id, 'source', 'bench', 'amount', '990.00',
               'currency', 'RUB', 'user_id', user_id, 'plan_id', 'monthly',
               'subscription_id', subscription_id, 'period_start', at,
               'period_end', at + interval '30 days'),
           nextval('paidonce.outbox_positions'), at, at
      FROM new
)
INSERT INTO paidonce.audit_log (at, event_id, action, success, details)
SELECT at, event_id, 'event_deduped', true, jsonb_build_object('request_id', 'again-' || n)
  FROM new
 WHERE n % 20 = 0;

-- name: enqueue
-- Insert queue rows that are deleted soon after; returns the id of the first.
WITH added AS (
    INSERT INTO paidonce.event_queue (run_at, event_id)
    SELECT clock_timestamp(), uuidv7() FROM generate_series(1, :number::bigint)
    RETURNING id
)
SELECT min(id) AS first_id FROM added;

-- name: dequeue
DELETE FROM paidonce.event_queue WHERE id >= :first_id;

-- name: applied
SELECT count(*) AS applied FROM paidonce.payments WHERE applied_at IS NOT NULL;
