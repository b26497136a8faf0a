-- name: create_order
INSERT INTO orders (
    id, reference, kind, status, amount_minor, currency, user_id, email, email_key, plan_id,
    wallet_id, sources, request_hash, version)
VALUES (
    :id, :reference, :kind, 'PENDING', :amount_minor, :currency, :user_id, :email, :email_key,
    :plan_id, :wallet_id, :sources, :request_hash, 1)
ON CONFLICT (reference) DO NOTHING
RETURNING id;

-- name: request_hash
SELECT request_hash FROM orders WHERE reference = :reference;

-- name: order
SELECT o.id, o.reference, o.kind, o.status, o.amount_minor, o.currency, o.user_id, o.email,
       o.plan_id, o.wallet_id, o.applied_payment_id, o.paid_at, o.canceled_at, o.refunded_at,
       o.closed_at, o.fulfilled_at, o.reversed_at, o.created_at, o.updated_at,
       o.transaction_id::text AS transaction_id,
       CASE WHEN o.sources IS NOT NULL
            THEN ARRAY(SELECT s.name FROM sources AS s WHERE s.id = ANY (o.sources) ORDER BY s.name)
            END AS sources
  FROM orders AS o
 WHERE o.reference = :reference;

-- name: orders
-- The newest first; ids are in the order of creation. How it is read: see event_search.sql.
SELECT o.id, o.reference, o.kind, o.status, o.amount_minor, o.currency, o.user_id, o.email,
       o.plan_id, o.wallet_id, o.applied_payment_id, o.paid_at, o.canceled_at, o.refunded_at,
       o.closed_at, o.fulfilled_at, o.reversed_at, o.created_at, o.updated_at,
       o.transaction_id::text AS transaction_id,
       CASE WHEN o.sources IS NOT NULL
            THEN ARRAY(SELECT s.name FROM sources AS s WHERE s.id = ANY (o.sources) ORDER BY s.name)
            END AS sources,
       o.matches, o.position
  FROM (
    SELECT looked_at.*, row_number() OVER () AS position,
           true
           AND email_key = :email  -- email
           AND status = :status  -- status
           AND kind = :kind  -- kind
           AS matches
      FROM (
        SELECT o.*
          FROM orders AS o
         WHERE o.id >= :first_id AND o.id <= :last_id
           AND o.user_id IS NOT NULL  -- by user_id
           AND ROW (o.user_id, o.id) >= ROW (:user_id, :first_id)  -- by user_id
           AND ROW (o.user_id, o.id) <= ROW (:user_id, :last_id)  -- by user_id
           AND o.email_key IS NOT NULL  -- by email
           AND ROW (o.email_key, o.id) >= ROW (:email, :first_id)  -- by email
           AND ROW (o.email_key, o.id) <= ROW (:email, :last_id)  -- by email
         ORDER BY
               o.user_id DESC,  -- by user_id
               o.email_key DESC,  -- by email
               o.id DESC
         LIMIT :budget) AS looked_at) AS o
 WHERE o.matches OR o.position = :budget
 LIMIT :limit;

-- name: close_order
-- Whoever is paying it just now comes first: its lock is waited for.
UPDATE orders
   SET status = CASE status WHEN 'PENDING' THEN 'CANCELED' ELSE status END,
       closed_at = coalesce(closed_at, now()),
       canceled_at = CASE status WHEN 'PENDING' THEN now() ELSE canceled_at END,
       version = version + 1, updated_at = now(), transaction_id = pg_current_xact_id()
 WHERE reference = :reference AND status <> 'PAID'
RETURNING id;

-- name: unapplied_payments_of_order
SELECT id FROM payments
 WHERE order_reference = :reference AND applied_at IS NULL AND captured_minor > 0
 ORDER BY review IS DISTINCT FROM 'ORDER_MISSING', id
 LIMIT :limit;
