-- name: payments
-- The newest first; ids are in the order of creation. `applied = false` is money that was received
-- and not applied.
SELECT p.id, s.name AS source, p.order_reference, p.user_id, p.email, p.plan_id, p.status,
       p.captured_minor, p.refunded_minor, p.reversed_minor, p.currency, p.applied_at, p.paid_at,
       p.failed_at, p.voided_at, p.canceled_at, p.refunded_at, p.subscription_id, p.created_at,
       p.is_test,
       p.transaction_id::text AS transaction_id,
       CASE WHEN p.dispute_won_at IS NULL OR p.dispute_won_at < p.disputed_at
            THEN p.disputed_at END AS disputed_at,
       CASE WHEN p.applied_at IS NULL AND p.captured_minor > p.refunded_minor
             AND p.canceled_at IS NULL
            THEN extract(epoch FROM now() - p.created_at)::bigint END AS unapplied_s,
       CASE WHEN p.review <> 'PAYMENT_MISSING' OR p.created_at < now() - interval '1 day'
            THEN p.review END AS review,
       ARRAY(SELECT ROW (i.kind, i.external_id) FROM payment_ids AS i
              WHERE i.payment_id = p.id ORDER BY i.kind, i.external_id) AS ids
  FROM payments AS p
  JOIN sources AS s ON s.id = p.source_id
 WHERE (:before::uuid IS NULL OR p.id < :before)
   AND (:payment_id::uuid IS NULL OR p.id = :payment_id)
   AND (:source::text IS NULL OR s.name = :source)
   AND (:status::text IS NULL OR p.status = :status)
   AND (:email_key::text IS NULL OR p.email_key = :email_key)
   AND (:order_reference::text IS NULL OR p.order_reference = :order_reference)
   AND (:applied::boolean IS NULL
        OR (:applied AND p.applied_at IS NOT NULL)
        OR (NOT :applied AND p.applied_at IS NULL AND p.captured_minor > p.refunded_minor
            AND p.canceled_at IS NULL))
   AND (:review::text IS NULL OR p.review = :review)
   AND (:review::text IS DISTINCT FROM 'PAYMENT_MISSING'
        OR p.created_at < now() - interval '1 day')
 ORDER BY p.id DESC
 LIMIT :limit;

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

-- name: events
SELECT e.id, s.name AS source, s.provider, e.key, e.type, e.status, e.error_code,
       e.error_message, e.external_payment_id, e.order_reference, e.attempts, e.received_at,
       e.processed_at, e.occurred_at, e.is_test, e.signature_valid, e.signature_method,
       e.request_id, e.conflicts_with, e.remote_address,
       e.transaction_id::text AS transaction_id,
       (SELECT min(d.run_at) FROM due AS d WHERE d.event_id = e.id) AS next_attempt_at
  FROM webhook_events AS e
  JOIN sources AS s ON s.id = e.source_id
 WHERE e.id >= :first_id AND e.id <= :last_id
   AND (:source::text IS NULL OR s.name = :source)
   AND (:status::text IS NULL OR e.status = :status)
   AND (:error_code::text IS NULL OR e.error_code = :error_code)
   AND (:order_reference::text IS NULL OR e.order_reference = :order_reference)
   AND (:payments::text[] IS NULL OR e.external_payment_id = ANY (:payments))
 ORDER BY e.id DESC
 LIMIT :limit;

-- name: evidence_of_event
SELECT headers, substring(raw_body FROM 1 FOR :limit) AS body, octet_length(raw_body) AS size
  FROM webhook_events
 WHERE id = :event_id;

-- name: ids_of_payment
SELECT external_id FROM payment_ids WHERE payment_id = :payment_id;

-- name: audit_of_event
SELECT at, action, success, actor, details
  FROM audit_log
 WHERE event_id = :event_id
 ORDER BY id
 LIMIT :limit;

-- name: backlog
SELECT status, count(*) AS number,
       extract(epoch FROM now() - min(received_at))::float8 AS oldest_s
  FROM webhook_events
 WHERE status <> 'PROCESSED'
   AND status IN ('RECEIVED', 'VALIDATED', 'FAILED_RETRYABLE', 'DEAD_LETTER')
 GROUP BY status;

-- name: unapplied_money
SELECT currency, coalesce(review, '') AS reason, count(*) AS number,
       sum(captured_minor - refunded_minor)::bigint AS sum_minor,
       extract(epoch FROM now() - min(created_at))::float8 AS oldest_s
  FROM payments
 WHERE applied_at IS NULL AND captured_minor > refunded_minor AND canceled_at IS NULL
 GROUP BY currency, review;

-- name: to_review
-- What a person should look at, applied or not. A refund whose payment may still come is not among it
-- for a day (PAY-6).
SELECT review AS reason, count(*) AS number,
       extract(epoch FROM now() - min(created_at))::float8 AS oldest_s
  FROM payments
 WHERE review IS NOT NULL
   AND (review <> 'PAYMENT_MISSING' OR created_at < now() - interval '1 day')
 GROUP BY review;

-- name: record_action
INSERT INTO audit_log (event_id, payment_id, actor, action, success, details)
VALUES (:event_id, :payment_id, :actor, :action, true, :details);

-- name: ping
SELECT 1;
