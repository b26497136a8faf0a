-- name: merged_into
SELECT merged_into FROM paidonce.merged_users WHERE id = :id;

-- name: lock_users
-- Waits for transactions that give one of them a subscription, an order or a wallet.
SELECT id, erased_at FROM paidonce.users WHERE id = ANY (:id::uuid[]) ORDER BY id FOR UPDATE;

-- name: lock_orders
SELECT id FROM paidonce.orders
 WHERE id = ANY (ARRAY(
     SELECT id FROM paidonce.orders WHERE user_id = :gone_id
     UNION
     SELECT o.id FROM paidonce.wallets AS w JOIN paidonce.orders AS o ON o.wallet_id = w.id
      WHERE w.owner = :gone_id::uuid::text
      LIMIT :limit))
 ORDER BY id FOR NO KEY UPDATE;

-- name: lock_payments
-- Of both users: their periods may change.
SELECT id FROM paidonce.payments WHERE user_id = ANY (:id::uuid[]) ORDER BY id LIMIT :limit FOR NO KEY UPDATE;

-- name: lock_subscriptions
SELECT id FROM paidonce.subscriptions WHERE user_id = ANY (:id::uuid[]) ORDER BY id FOR UPDATE;

-- name: lock_wallets
SELECT id, owner, currency, balance_minor, reserved_minor, receivable_minor, version
  FROM paidonce.wallets
 WHERE owner = ANY (:owner::text[]) AND merged_into IS NULL
 ORDER BY id FOR NO KEY UPDATE;

-- name: move_emails
UPDATE paidonce.user_emails SET user_id = :into_id, is_current = false WHERE user_id = :gone_id;

-- name: move_orders
UPDATE paidonce.orders SET user_id = :into_id, version = version + 1, updated_at = now()
 WHERE user_id = :gone_id;

-- name: move_payments
UPDATE paidonce.payments SET user_id = :into_id, version = version + 1, updated_at = now()
 WHERE user_id = :gone_id;

-- name: move_subscriptions
-- Those to products that the remaining user has no subscription to.
UPDATE paidonce.subscriptions AS s SET user_id = :into_id, version = s.version + 1, updated_at = now()
 WHERE s.user_id = :gone_id
   AND NOT EXISTS (SELECT 1 FROM paidonce.subscriptions AS o
                    WHERE o.user_id = :into_id AND o.product = s.product);

-- name: join_subscriptions
-- The others: their payments go over to the subscription of the remaining user, and they are deleted.
WITH pairs AS (
    SELECT s.id AS gone_id, o.id AS into_id
      FROM paidonce.subscriptions AS s
      JOIN paidonce.subscriptions AS o ON o.user_id = :into_id AND o.product = s.product
     WHERE s.user_id = :gone_id
),
moved AS (
    UPDATE paidonce.payments AS p SET subscription_id = pairs.into_id, version = p.version + 1
      FROM pairs
     WHERE p.user_id = :into_id AND p.subscription_id = pairs.gone_id
),
gone AS (
    DELETE FROM paidonce.subscriptions WHERE id IN (SELECT gone_id FROM pairs)
)
SELECT into_id FROM pairs ORDER BY into_id;

-- name: give_wallet
UPDATE paidonce.wallets SET owner = :owner, version = version + 1, updated_at = now() WHERE id = :id;

-- name: empty_wallet
-- Earlier wallets that lead to it lead to the remaining one.
UPDATE paidonce.wallets
   SET balance_minor = 0, receivable_minor = 0, merged_into = :into_id, version = version + 1,
       updated_at = now()
 WHERE id = :gone_id OR merged_into = :gone_id;

-- name: fill_wallet
UPDATE paidonce.wallets
   SET balance_minor = :balance_minor, receivable_minor = :receivable_minor, version = version + 1,
       updated_at = now()
 WHERE id = :id;

-- name: move_money
INSERT INTO paidonce.ledger_entries (movement_id, account, currency, amount_minor, at)
SELECT :movement_id, account, :currency, amount_minor, clock_timestamp()
  FROM unnest(:account::text[], :amount_minor::bigint[]) AS entry (account, amount_minor);

-- name: move_wallet_orders
UPDATE paidonce.orders SET wallet_id = :into_id, version = version + 1, updated_at = now()
 WHERE wallet_id = :gone_id;

-- name: move_audit
UPDATE paidonce.audit_log SET user_id = :into_id WHERE user_id = :gone_id;

-- name: delete_user
-- The id stays known: it leads to the remaining user, as do the ids that led to it.
WITH known AS (
    INSERT INTO paidonce.merged_users (id, merged_into) VALUES (:gone_id, :into_id)
),
led AS (
    UPDATE paidonce.merged_users SET merged_into = :into_id WHERE merged_into = :gone_id
)
DELETE FROM paidonce.users WHERE id = :gone_id;
