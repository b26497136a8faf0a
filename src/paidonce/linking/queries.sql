-- name: create_user
INSERT INTO users (id, email, email_key)
VALUES (:id, :email, :email_key)
ON CONFLICT (email_key) DO NOTHING
RETURNING id, email, created_at;

-- name: user_by_email
SELECT id, email, created_at FROM users WHERE email_key = :email_key;

-- name: unapplied_payments_of_email
-- What a new user may have paid for already, by the payment's address or by its order's; first what
-- waits for nothing else.
SELECT id, review IS DISTINCT FROM 'USER_MISSING' AS is_later FROM payments
 WHERE email_key = :email_key AND order_reference IS NULL AND applied_at IS NULL
   AND user_id IS NULL AND captured_minor > refunded_minor
   AND source_id = ANY (:source_ids::smallint[])
UNION
SELECT p.id, p.review IS DISTINCT FROM 'USER_MISSING'
  FROM orders AS o
  JOIN payments AS p ON p.order_reference = o.reference
 WHERE o.email_key = :email_key AND o.user_id IS NULL AND p.applied_at IS NULL
   AND p.captured_minor > p.refunded_minor
 ORDER BY is_later, id
 LIMIT :limit;

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

-- name: close_order
-- Waits for the lock of a transaction that is paying it now.
UPDATE orders
   SET status = CASE status WHEN 'PENDING' THEN 'CANCELED' ELSE status END,
       closed_at = coalesce(closed_at, now()),
       canceled_at = CASE status WHEN 'PENDING' THEN now() ELSE canceled_at END,
       version = version + 1, updated_at = now(), transaction_id = pg_current_xact_id()
 WHERE reference = :reference AND status <> 'PAID'
RETURNING user_id;

-- name: unapplied_payments_of_order
SELECT id FROM payments
 WHERE order_reference = :reference AND applied_at IS NULL AND captured_minor > 0
 ORDER BY review IS DISTINCT FROM 'ORDER_MISSING', id
 LIMIT :limit;

-- name: payments_with_refund
SELECT r.payment_id
  FROM payments AS p
  JOIN refunds AS r ON r.source_id = p.source_id
 WHERE p.id = :payment_id AND r.refund_id = ANY (:refund_id::text[]);
