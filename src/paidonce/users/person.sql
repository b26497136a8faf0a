-- What is known of one person: the rows of the user, and those that only have an address of the user.

-- name: person
WITH keys AS (
    SELECT email_key FROM paidonce.user_emails WHERE user_id = :user_id LIMIT :limit
),
own_orders AS (
    SELECT reference FROM paidonce.orders WHERE user_id = :user_id
    UNION
    SELECT reference FROM paidonce.orders WHERE email_key IN (SELECT email_key FROM keys)
     LIMIT :limit
)
SELECT ARRAY(SELECT id FROM paidonce.payments WHERE user_id = :user_id
             UNION
             SELECT id FROM paidonce.payments WHERE email_key IN (SELECT email_key FROM keys)
             UNION
             SELECT p.id FROM paidonce.payments AS p JOIN own_orders AS o ON o.reference = p.order_reference
              WHERE p.user_id IS NULL OR p.user_id = :user_id
              ORDER BY id
              LIMIT :limit) AS payments,
       ARRAY(SELECT reference FROM own_orders ORDER BY reference) AS orders,
       ARRAY(SELECT email_key FROM keys) AS email_keys,
       ARRAY(SELECT email FROM paidonce.user_emails WHERE user_id = :user_id LIMIT :limit) AS emails;

-- name: addresses
SELECT email, is_current, created_at
  FROM paidonce.user_emails WHERE user_id = :user_id ORDER BY is_current DESC, created_at DESC LIMIT :limit;

-- name: merged_users
SELECT id, merged_at FROM paidonce.merged_users WHERE merged_into = :user_id ORDER BY merged_at DESC LIMIT :limit;

-- name: orders
SELECT o.id, o.reference, o.kind, o.status, o.amount_minor, o.currency, o.email, o.plan_id, o.wallet_id,
       o.applied_payment_id, o.created_at, o.paid_at, o.canceled_at, o.refunded_at, o.closed_at,
       o.fulfilled_at, o.reversed_at
  FROM paidonce.orders AS o WHERE o.reference = ANY (:reference::text[]) ORDER BY o.id DESC LIMIT :limit;

-- name: payments
SELECT p.id, s.name AS source,
       ARRAY(SELECT i.kind || ' ' || i.external_id FROM paidonce.payment_ids AS i
              WHERE i.payment_id = p.id ORDER BY i.kind, i.external_id LIMIT :limit) AS ids,
       p.order_reference AS order, p.email, p.plan_id, p.status, p.currency, p.captured_minor,
       p.refunded_minor, p.reversed_minor, p.paid_at, p.failed_at, p.canceled_at, p.refunded_at,
       p.disputed_at, p.applied_at, p.subscription_id, p.period_start, p.period_end, p.review,
       p.acceptance, p.created_at
  FROM paidonce.payments AS p JOIN paidonce.sources AS s ON s.id = p.source_id
 WHERE p.id = ANY (:payment_id::uuid[]) ORDER BY p.id DESC LIMIT :limit;

-- name: events
SELECT e.id, s.name AS source, e.type, e.key, e.status, e.error_code, e.error_message,
       e.external_payment_id AS payment, e.order_reference AS order, e.received_at, e.processed_at,
       e.occurred_at, e.erased_at, e.headers, substring(e.raw_body FROM 1 FOR :max_body) AS body,
       octet_length(e.raw_body) AS size
  FROM paidonce.payment_ids AS i
  JOIN paidonce.webhook_events AS e ON e.external_payment_id = i.external_id AND e.source_id = i.source_id
  JOIN paidonce.sources AS s ON s.id = e.source_id
 WHERE i.payment_id = ANY (:payment_id::uuid[])
 ORDER BY e.id DESC LIMIT :limit;

-- name: wallets
-- Also those that were merged into them: their entries explain the money.
SELECT w.id, w.currency, w.balance_minor, w.reserved_minor, w.receivable_minor, w.merged_into, w.created_at
  FROM paidonce.wallets AS w
 WHERE w.id IN (
     SELECT id FROM paidonce.wallets WHERE owner = ANY (:owner::text[])
     UNION
     SELECT m.id FROM paidonce.wallets AS o JOIN paidonce.wallets AS m ON m.merged_into = o.id
      WHERE o.owner = ANY (:owner::text[]))
 ORDER BY w.id DESC LIMIT :limit;

-- name: entries
SELECT e.id, e.movement_id, e.account, e.amount_minor, e.currency, e.payment_id, e.reservation, e.at
  FROM paidonce.ledger_entries AS e
 WHERE e.account = ANY (:account::text[]) ORDER BY e.id DESC LIMIT :limit;

-- name: audit
SELECT a.id, a.at, a.actor, a.action, a.reason, a.success, a.event_id, a.payment_id,
       a.order_reference AS "order", a.user_id, a.details
  FROM paidonce.audit_log AS a
 WHERE (a.at, a.id) IN (
     SELECT at, id FROM paidonce.audit_log WHERE user_id = :user_id
     UNION SELECT at, id FROM paidonce.audit_log WHERE payment_id = ANY (:payment_id::uuid[])
     UNION SELECT at, id FROM paidonce.audit_log WHERE event_id = ANY (:event_id::uuid[]))
 ORDER BY a.at DESC, a.id DESC LIMIT :limit;

-- name: unfinished_events
SELECT count(*) FILTER (WHERE e.status <> 'DEAD_LETTER') AS pending,
       count(*) FILTER (WHERE e.status = 'DEAD_LETTER') AS dead_letters
  FROM paidonce.payment_ids AS i
  JOIN paidonce.webhook_events AS e ON e.external_payment_id = i.external_id AND e.source_id = i.source_id
 WHERE i.payment_id = ANY (:payment_id::uuid[])
   AND e.status IN ('VALIDATED', 'FAILED_RETRYABLE', 'DEAD_LETTER');

-- name: erase_events
-- All but the ids, the result and the times. Final ones only: the others have still to be read.
WITH chosen AS (
    SELECT DISTINCT e.id
      FROM paidonce.payment_ids AS i
      JOIN paidonce.webhook_events AS e ON e.external_payment_id = i.external_id AND e.source_id = i.source_id
     WHERE i.payment_id = ANY (:payment_id::uuid[])
       AND e.erased_at IS NULL AND e.processed_at IS NOT NULL
     LIMIT :limit
),
erased AS (
    UPDATE paidonce.webhook_events AS e
       SET headers = '{}', raw_body = '', remote_address = NULL, erased_at = now(),
           error_message = CASE WHEN e.error_message IS NOT NULL THEN 'erased' END
     WHERE e.id IN (SELECT id FROM chosen) AND e.processed_at IS NOT NULL
    RETURNING 1
)
SELECT count(*) FROM erased;

-- name: erase_payments
WITH erased AS (
    UPDATE paidonce.payments
       SET email = NULL, email_key = NULL,
           acceptance = CASE WHEN acceptance IS NOT NULL
                             THEN jsonb_set(acceptance, '{reason}', '"erased"') END,
           version = version + 1, updated_at = now()
     WHERE id = ANY (:payment_id::uuid[])
       AND (email IS NOT NULL OR acceptance ->> 'reason' <> 'erased')
    RETURNING 1
)
SELECT count(*) FROM erased;

-- name: erase_orders
-- An order that only had the address belongs to the user from now on.
WITH erased AS (
    UPDATE paidonce.orders
       SET email = NULL, email_key = NULL, user_id = coalesce(user_id, :user_id),
           version = version + 1, updated_at = now()
     WHERE reference = ANY (:reference::text[]) AND email IS NOT NULL
    RETURNING 1
)
SELECT count(*) FROM erased;

-- name: erase_wallets
-- The owner of a wallet may be named by an address.
UPDATE paidonce.wallets SET owner = 'erased:' || id, version = version + 1, updated_at = now()
 WHERE owner = ANY (:address::text[]);

-- name: erase_notifications
-- Addresses are masked in them. There is no index: they are few and are deleted by age.
UPDATE paidonce.notifications SET details = details - 'email'
 WHERE payment_id = ANY (:payment_id::uuid[]) AND details ? 'email';

-- name: erase_addresses
DELETE FROM paidonce.user_emails WHERE user_id = :user_id;

-- name: erase_user
UPDATE paidonce.users SET email = NULL, erased_at = now(), updated_at = now()
 WHERE id = :user_id AND erased_at IS NULL
RETURNING id;
