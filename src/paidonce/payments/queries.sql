-- name: payments
-- Newest first; ids are in the order of creation. It is built like the search for events. A gateway's id
-- is looked for under each source and kind: the recursion enters the primary key of payment_ids once for
-- each of them, so that no further index is paid for by every payment.
SELECT p.id, p.order_reference AS "order", p.user_id, p.email, p.plan_id, p.status, p.captured_minor,
       p.refunded_minor, p.reversed_minor, p.currency, p.applied_at, p.paid_at, p.failed_at,
       coalesce(p.canceled_at, p.voided_at) AS canceled_at, p.refunded_at, p.subscription_id,
       p.created_at, p.is_test AS test, p.transaction_id::text AS transaction_id, p.acceptance,
       CASE WHEN p.applied_at IS NULL OR p.canceled_at IS NOT NULL THEN 0
            ELSE greatest(p.captured_minor - p.refunded_minor
                          - CASE WHEN p.reversed_minor < p.applied_minor
                                 THEN p.applied_minor ELSE 0 END, 0) END AS excess_minor,
       (SELECT s.name FROM paidonce.sources AS s WHERE s.id = p.source_id) AS source,
       CASE WHEN p.dispute_won_at IS NULL OR p.dispute_won_at < p.disputed_at
            THEN p.disputed_at END AS disputed_at,
       CASE WHEN p.dispute_won_at IS NULL OR p.dispute_won_at < p.disputed_at
            THEN p.dispute_answer_by END AS dispute_answer_by,
       CASE WHEN p.applied_at IS NULL AND (p.captured_minor > p.refunded_minor
             AND p.canceled_at IS NULL OR p.unreadable_at IS NOT NULL)
            THEN extract(epoch FROM now() - p.created_at)::bigint END AS unapplied_s,
       CASE WHEN p.review <> 'PAYMENT_MISSING' OR p.created_at < now() - interval '1 day'
            THEN p.review END AS review,
       ARRAY(SELECT ROW (i.kind, i.external_id) FROM paidonce.payment_ids AS i
              WHERE i.payment_id = p.id ORDER BY i.kind, i.external_id LIMIT :max_ids) AS ids,
       p.matches, p.position
  FROM (
    SELECT looked_at.*, row_number() OVER () AS position,
           true
           AND order_reference = :order  -- order
           AND email_key = :email  -- email
           AND review = :review  -- review
           AND (review IS DISTINCT FROM 'PAYMENT_MISSING'  -- is_to_be_seen
                OR created_at < now() - interval '1 day')  -- is_to_be_seen
           AND applied_at IS NULL  -- owed
           AND (captured_minor > refunded_minor AND canceled_at IS NULL  -- owed
                OR unreadable_at IS NOT NULL)  -- owed
           AND applied_at IS NOT NULL  -- applied
           AND disputed_at IS NOT NULL  -- disputed
           AND (dispute_won_at IS NULL OR dispute_won_at < disputed_at)  -- disputed
           AND (disputed_at IS NULL OR dispute_won_at >= disputed_at)  -- undisputed
           AND status = :unusual_status  -- unusual_status
           AND status = :status  -- status
           AND source_id = (SELECT id FROM paidonce.sources WHERE name = :source)  -- source
           AS matches
      FROM (
        SELECT p.*
          FROM paidonce.payments AS p
         WHERE p.id >= :first_id AND p.id <= :last_id
           AND p.id = ANY (ARRAY(  -- by external_payment_id
               WITH RECURSIVE kinds (source_id, kind, number) AS (  -- by external_payment_id
                   (SELECT i.source_id, i.kind, 1  -- by external_payment_id
                      FROM paidonce.payment_ids AS i  -- by external_payment_id
                     ORDER BY i.source_id, i.kind, i.external_id  -- by external_payment_id
                     LIMIT 1)  -- by external_payment_id
                   UNION ALL  -- by external_payment_id
                   SELECT next.source_id, next.kind, k.number + 1  -- by external_payment_id
                     FROM kinds AS k  -- by external_payment_id
                    CROSS JOIN LATERAL (  -- by external_payment_id
                        SELECT i.source_id, i.kind  -- by external_payment_id
                          FROM paidonce.payment_ids AS i  -- by external_payment_id
                         WHERE ROW (i.source_id, i.kind)  -- by external_payment_id
                             > ROW (k.source_id, k.kind)  -- by external_payment_id
                         ORDER BY i.source_id, i.kind, i.external_id  -- by external_payment_id
                         LIMIT 1) AS next  -- by external_payment_id
                    WHERE k.number < :max_kinds)  -- by external_payment_id
               SELECT i.payment_id  -- by external_payment_id
                 FROM kinds AS k  -- by external_payment_id
                CROSS JOIN LATERAL (  -- by external_payment_id
                    SELECT i.payment_id FROM paidonce.payment_ids AS i  -- by external_payment_id
                     WHERE i.source_id = k.source_id AND i.kind = k.kind  -- by external_payment_id
                       AND i.external_id = :external_payment_id  -- by external_payment_id
                     LIMIT 1) AS i))  -- by external_payment_id
           AND p.order_reference IS NOT NULL  -- by order
           AND ROW (p.order_reference, p.id) >= ROW (:order, :first_id)  -- by order
           AND ROW (p.order_reference, p.id) <= ROW (:order, :last_id)  -- by order
           AND p.email_key IS NOT NULL  -- by email
           AND ROW (p.email_key, p.id) >= ROW (:email, :first_id)  -- by email
           AND ROW (p.email_key, p.id) <= ROW (:email, :last_id)  -- by email
           AND p.review IS NOT NULL  -- by review
           AND ROW (p.review, p.id) >= ROW (:review, :first_id)  -- by review
           AND ROW (p.review, p.id) <= ROW (:review, :last_id)  -- by review
           AND p.applied_at IS NULL  -- by owed
           AND (p.captured_minor > p.refunded_minor AND p.canceled_at IS NULL  -- by owed
                OR p.unreadable_at IS NOT NULL)  -- by owed
           AND p.disputed_at IS NOT NULL  -- by disputed
           AND (p.dispute_won_at IS NULL OR p.dispute_won_at < p.disputed_at)  -- by disputed
           AND p.status <> 'SUCCEEDED'  -- by unusual_status
           AND ROW (p.status, p.id) >= ROW (:unusual_status, :first_id)  -- by unusual_status
           AND ROW (p.status, p.id) <= ROW (:unusual_status, :last_id)  -- by unusual_status
         ORDER BY
               p.order_reference DESC,  -- by order
               p.email_key DESC,  -- by email
               p.review DESC,  -- by review
               p.status DESC,  -- by unusual_status
               p.id DESC
         LIMIT :budget) AS looked_at) AS p
 WHERE p.matches OR p.position = :budget
 LIMIT :limit;

-- name: unapplied_money
SELECT currency, coalesce(review, '') AS reason, count(*) AS number,
       sum(captured_minor - refunded_minor)::bigint AS sum_minor,
       extract(epoch FROM now() - min(created_at))::float8 AS oldest_s
  FROM (SELECT currency, review, captured_minor, refunded_minor, created_at
          FROM paidonce.payments
         WHERE applied_at IS NULL
           AND (captured_minor > refunded_minor AND canceled_at IS NULL OR unreadable_at IS NOT NULL)
         ORDER BY id
         LIMIT :max_counted) AS owed
 GROUP BY currency, review;

-- name: to_review
-- Payments that need a review, applied or not. A refund without a payment counts after a day: the payment
-- may still arrive (PAY-6). The recursion enters the index once for each reason, and does not scan it.
WITH RECURSIVE reasons (reason, number) AS (
    (SELECT review, 1 FROM paidonce.payments WHERE review IS NOT NULL ORDER BY review, id LIMIT 1)
    UNION ALL
    SELECT (SELECT p.review
              FROM paidonce.payments AS p
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
       FROM paidonce.payments AS p
      WHERE p.review IS NOT NULL
        AND ROW (p.review, p.id) >= ROW (r.reason, :first_id::uuid)
        AND ROW (p.review, p.id) <= ROW (r.reason, :last_id::uuid)
      ORDER BY p.review, p.id
      LIMIT :max_counted) AS p
 WHERE r.reason <> 'PAYMENT_MISSING' OR p.created_at < now() - interval '1 day'
 GROUP BY r.reason;

-- name: open_disputes
SELECT count(*) AS number
  FROM (SELECT 1
          FROM paidonce.payments
         WHERE disputed_at IS NOT NULL AND (dispute_won_at IS NULL OR dispute_won_at < disputed_at)
         ORDER BY id
         LIMIT :max_counted) AS disputed;
