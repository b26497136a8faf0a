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

-- name: evidence_of_event
SELECT headers, substring(raw_body FROM 1 FOR :limit) AS body, octet_length(raw_body) AS size
  FROM webhook_events
 WHERE id = :event_id;

-- name: audit_of_event
SELECT at, action, success, actor, details
  FROM audit_log
 WHERE event_id = :event_id
 ORDER BY id
 LIMIT :limit;

-- name: backlog
-- The oldest of each status come first, and no more than so many are counted.
SELECT waiting.status, count(*) AS number,
       extract(epoch FROM now() - min(e.received_at))::float8 AS oldest_s
  FROM unnest(ARRAY['RECEIVED', 'VALIDATED', 'FAILED_RETRYABLE', 'DEAD_LETTER'])
       AS waiting (status)
 CROSS JOIN LATERAL (
     SELECT e.received_at
       FROM webhook_events AS e
      WHERE e.status <> 'PROCESSED'
        AND ROW (e.status, e.id) >= ROW (waiting.status, :first_id::uuid)
        AND ROW (e.status, e.id) <= ROW (waiting.status, :last_id::uuid)
      ORDER BY e.status, e.id
      LIMIT :max_counted) AS e
 GROUP BY waiting.status;

-- name: unapplied_money
SELECT currency, coalesce(review, '') AS reason, count(*) AS number,
       sum(captured_minor - refunded_minor)::bigint AS sum_minor,
       extract(epoch FROM now() - min(created_at))::float8 AS oldest_s
  FROM (SELECT currency, review, captured_minor, refunded_minor, created_at
          FROM payments
         WHERE applied_at IS NULL AND captured_minor > refunded_minor AND canceled_at IS NULL
         ORDER BY id
         LIMIT :max_counted) AS owed
 GROUP BY currency, review;

-- name: to_review
-- What a person should look at, applied or not. A refund whose payment may still come is not among it
-- for a day (PAY-6). The index is entered once for each reason, not read through to find them.
WITH RECURSIVE reasons (reason, number) AS (
    (SELECT review, 1 FROM payments WHERE review IS NOT NULL ORDER BY review, id LIMIT 1)
    UNION ALL
    SELECT (SELECT p.review
              FROM payments AS p
             WHERE p.review IS NOT NULL AND p.review > r.reason
             ORDER BY p.review, p.id
             LIMIT 1), r.number + 1
      FROM reasons AS r
     WHERE r.reason IS NOT NULL AND r.number < :max_reasons
)
SELECT r.reason, count(*) AS number,
       extract(epoch FROM now() - min(p.created_at))::float8 AS oldest_s
  FROM reasons AS r
 CROSS JOIN LATERAL (
     SELECT p.created_at
       FROM payments AS p
      WHERE p.review IS NOT NULL
        AND ROW (p.review, p.id) >= ROW (r.reason, :first_id::uuid)
        AND ROW (p.review, p.id) <= ROW (r.reason, :last_id::uuid)
      ORDER BY p.review, p.id
      LIMIT :max_counted) AS p
 WHERE r.reason <> 'PAYMENT_MISSING' OR p.created_at < now() - interval '1 day'
 GROUP BY r.reason;

-- name: record_action
INSERT INTO audit_log (event_id, payment_id, actor, action, success, details)
VALUES (:event_id, :payment_id, :actor, :action, true, :details);

-- name: ping
SELECT 1;
