-- name: create_user
-- No row: the address is the current one of a user. A former address of another user goes over to the
-- new one. Fails if another transaction created a user with it meanwhile; the caller locks its name.
WITH new AS (
    INSERT INTO paidonce.users (id, email)
    SELECT :id, :email
     WHERE NOT EXISTS (SELECT 1 FROM paidonce.user_emails WHERE email_key = :email_key AND is_current)
    RETURNING id, email, created_at
),
named AS (
    INSERT INTO paidonce.user_emails (email_key, email, user_id, is_current)
    SELECT :email_key, :email, id, true FROM new
    ON CONFLICT (email_key)
    DO UPDATE SET email = excluded.email, user_id = excluded.user_id, is_current = true,
                  created_at = now()
            WHERE NOT user_emails.is_current
    RETURNING 1
)
SELECT new.id, new.email, new.created_at, NULL::timestamptz AS erased_at, '{}'::text[] AS former_emails,
       paidonce.require_written((SELECT count(*) FROM named), 1)
  FROM new;

-- name: users
-- By any of their addresses, or by id. The id of a merged user leads to the remaining one.
SELECT u.id, u.email, u.created_at, u.erased_at,
       ARRAY(SELECT e.email FROM paidonce.user_emails AS e
              WHERE e.user_id = u.id AND NOT e.is_current
              ORDER BY e.created_at DESC, e.email_key
              LIMIT :max_emails) AS former_emails
  FROM paidonce.users AS u
 WHERE true
   AND u.id = (SELECT e.user_id FROM paidonce.user_emails AS e WHERE e.email_key = :email_key)  -- email
   AND u.id = coalesce((SELECT m.merged_into FROM paidonce.merged_users AS m WHERE m.id = :id), :id)  -- id
   FOR NO KEY UPDATE OF u;  -- locks

-- name: owner_of_email
-- Locked, so that nobody else takes the address.
SELECT user_id, is_current FROM paidonce.user_emails WHERE email_key = :email_key FOR UPDATE;

-- name: retire_email
UPDATE paidonce.user_emails SET is_current = false WHERE user_id = :user_id AND is_current;

-- name: take_email
INSERT INTO paidonce.user_emails (email_key, email, user_id, is_current)
VALUES (:email_key, :email, :user_id, true)
ON CONFLICT (email_key)
DO UPDATE SET email = excluded.email, user_id = excluded.user_id, is_current = true,
              created_at = now();

-- name: set_email
UPDATE paidonce.users SET email = :email, updated_at = now() WHERE id = :user_id;

-- name: unapplied_payments_of_email
-- What a new user may have paid for already, by the payment's address or by its order's; first what
-- waits for nothing else.
SELECT id, review IS DISTINCT FROM 'USER_MISSING' AS is_later FROM paidonce.payments
 WHERE email_key = :email_key AND order_reference IS NULL AND applied_at IS NULL
   AND user_id IS NULL AND captured_minor > refunded_minor
   AND source_id = ANY (:source_ids::smallint[])
UNION
SELECT p.id, p.review IS DISTINCT FROM 'USER_MISSING'
  FROM paidonce.orders AS o
  JOIN paidonce.payments AS p ON p.order_reference = o.reference
 WHERE o.email_key = :email_key AND o.user_id IS NULL AND p.applied_at IS NULL
   AND p.captured_minor > p.refunded_minor
 ORDER BY is_later, id
 LIMIT :limit;

-- name: create_order
INSERT INTO paidonce.orders (
    id, reference, kind, status, amount_minor, currency, user_id, email, email_key, plan_id,
    wallet_id, sources, expires_at, request_hash, version)
VALUES (
    :id, :reference, :kind, 'PENDING', :amount_minor, :currency, :user_id, :email, :email_key,
    :plan_id, :wallet_id, :sources, :expires_at, :request_hash, 1)
ON CONFLICT (reference) DO NOTHING
RETURNING id;

-- name: request_hash
SELECT request_hash FROM paidonce.orders WHERE reference = :reference;

-- name: close_order
-- Waits for the lock of a transaction that is paying it now.
UPDATE paidonce.orders
   SET status = CASE status WHEN 'PENDING' THEN 'CANCELED' ELSE status END,
       closed_at = coalesce(closed_at, now()),
       canceled_at = CASE status WHEN 'PENDING' THEN now() ELSE canceled_at END,
       version = version + 1, updated_at = now(), transaction_id = pg_current_xact_id()
 WHERE reference = :reference AND status <> 'PAID'
RETURNING user_id;

-- name: unapplied_payments_of_order
SELECT id FROM paidonce.payments
 WHERE order_reference = :reference AND applied_at IS NULL AND captured_minor > 0
 ORDER BY review IS DISTINCT FROM 'ORDER_MISSING', id
 LIMIT :limit;

-- name: payments_with_refund
SELECT r.payment_id
  FROM paidonce.payments AS p
  JOIN paidonce.refunds AS r ON r.source_id = p.source_id
 WHERE p.id = :payment_id AND r.refund_id = ANY (:refund_id::text[]);
