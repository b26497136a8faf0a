-- name: user_by_id
SELECT id, email, created_at FROM users WHERE id = :id;

-- name: subscriptions
-- An ACTIVE one whose period is over reads as INACTIVE, without a job having run.
SELECT s.id, s.user_id, s.product, s.current_period_end, s.created_at, s.updated_at,
       CASE WHEN s.status = 'ACTIVE' AND s.current_period_end <= now()
            THEN 'INACTIVE' ELSE s.status END AS status
  FROM subscriptions AS s
 WHERE s.user_id = :user_id
 ORDER BY s.product;
