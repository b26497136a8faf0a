-- name: users
-- Newest first.
SELECT u.id, u.email, u.created_at, u.erased_at,
       ARRAY(SELECT e.email FROM paidonce.user_emails AS e
              WHERE e.user_id = u.id AND NOT e.is_current
              ORDER BY e.created_at DESC, e.email_key
              LIMIT :max_emails) AS former_emails
  FROM paidonce.users AS u
 WHERE u.id <= :last_id
 ORDER BY u.id DESC
 LIMIT :limit;

-- name: subscriptions
-- Of a user, or one. An ACTIVE one whose period is over reads as INACTIVE, without a job having run. A
-- canceled one is ACTIVE until it ends.
SELECT s.id, s.user_id, s.product, s.canceled_at, s.created_at, s.updated_at,
       least(s.current_period_end, s.ended_at) AS current_period_end,
       CASE WHEN s.status = 'INACTIVE' THEN s.status
            WHEN least(s.current_period_end, s.ended_at) > now() THEN 'ACTIVE'
            WHEN s.status = 'CANCELED' THEN s.status
            ELSE 'INACTIVE' END AS status
  FROM paidonce.subscriptions AS s
 WHERE true
   AND s.user_id = :user_id  -- user_id
   AND s.id = :id  -- id
 ORDER BY s.product
 LIMIT :limit;

-- name: periods
-- The periods of subscriptions, the last one first, and the payments that granted them. There is no
-- index for them: they are those of one user.
SELECT p.subscription_id, p.period_start AS start, p.period_end AS end, p.id AS payment_id, p.plan_id,
       coalesce(p.granted_at, p.applied_at) AS granted_at, p.status AS payment_status
  FROM paidonce.subscriptions AS s
  JOIN paidonce.payments AS p ON p.user_id = s.user_id
 WHERE s.id = ANY (:subscription_id::uuid[]) AND p.subscription_id = s.id
 ORDER BY p.period_end DESC, p.id DESC
 LIMIT :limit;

-- name: lock_subscription
-- Waits for a transaction that extends it.
SELECT user_id, canceled_at, ended_at FROM paidonce.subscriptions WHERE id = :id FOR NO KEY UPDATE;

-- name: cancel_subscription
UPDATE paidonce.subscriptions
   SET status = 'CANCELED', canceled_at = coalesce(canceled_at, now()),
       ended_at = CASE WHEN :ends_now THEN now() END, version = version + 1, updated_at = now()
 WHERE id = :id;

-- name: resume_subscription
UPDATE paidonce.subscriptions
   SET status = CASE WHEN current_period_end > now() THEN 'ACTIVE' ELSE 'INACTIVE' END,
       canceled_at = NULL, ended_at = NULL, version = version + 1, updated_at = now()
 WHERE id = :id;

-- name: payments_of_canceled
-- Money that was not applied because the subscriptions of the user were canceled.
SELECT id FROM paidonce.payments
 WHERE review = 'SUBSCRIPTION_CANCELED' AND applied_at IS NULL
   AND (user_id = :user_id
        OR order_reference IN (
            SELECT reference FROM paidonce.orders WHERE user_id = :user_id
            UNION
            SELECT o.reference FROM paidonce.user_emails AS e JOIN paidonce.orders AS o ON o.email_key = e.email_key
             WHERE e.user_id = :user_id AND o.user_id IS NULL))
 ORDER BY id
 LIMIT :limit;
