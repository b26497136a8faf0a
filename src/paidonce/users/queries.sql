-- name: users
-- Newest first.
SELECT u.id, u.email, u.created_at, u.erased_at,
       ARRAY(SELECT e.email FROM user_emails AS e
              WHERE e.user_id = u.id AND NOT e.is_current
              ORDER BY e.created_at DESC, e.email_key
              LIMIT :max_emails) AS former_emails
  FROM users AS u
 WHERE u.id <= :last_id
 ORDER BY u.id DESC
 LIMIT :limit;

-- name: subscriptions
-- Of a user, or one. An ACTIVE one whose period is over reads as INACTIVE, without a job having run.
SELECT s.id, s.user_id, s.product, s.current_period_end, s.created_at, s.updated_at,
       CASE WHEN s.status = 'ACTIVE' AND s.current_period_end <= now()
            THEN 'INACTIVE' ELSE s.status END AS status
  FROM subscriptions AS s
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
  FROM subscriptions AS s
  JOIN payments AS p ON p.user_id = s.user_id
 WHERE s.id = ANY (:subscription_id::uuid[]) AND p.subscription_id = s.id
 ORDER BY p.period_end DESC, p.id DESC
 LIMIT :limit;
