-- name: events
-- Read from the inside: the newest rows of the leading filter; at most :budget of them; those that match
-- the other filters. The leading column is compared and ordered together with the id, so that only the
-- index on both can be used. The bounds of the id alone choose the partitions.
SELECT e.id, e.key, e.type, e.status, e.error_code, e.error_message, e.external_payment_id AS payment,
       e.order_reference AS "order", e.attempts, e.received_at, e.processed_at, e.occurred_at,
       e.is_test, e.signature_valid, e.signature_method, e.request_id, e.conflicts_with,
       e.remote_address, e.erased_at, e.transaction_id::text AS transaction_id,
       (SELECT s.name FROM paidonce.sources AS s WHERE s.id = e.source_id) AS source,
       (SELECT s.provider FROM paidonce.sources AS s WHERE s.id = e.source_id) AS provider,
       (SELECT min(d.run_at) FROM paidonce.event_queue AS d WHERE d.event_id = e.id) AS next_attempt_at,
       e.matches, e.position
  FROM (
    SELECT looked_at.*, row_number() OVER () AS position,
           true
           AND order_reference = :order  -- order
           AND error_code IS NOT DISTINCT FROM :error_code  -- error_code
           AND status = :unusual_status  -- unusual_status
           AND status = :status  -- status
           AND is_test = :test  -- test
           AND is_test  -- is_test
           AND source_id = (SELECT id FROM paidonce.sources WHERE name = :source)  -- source
           AS matches
      FROM (
        SELECT e.id, e.source_id, e.key, e.type, e.status, e.error_code, e.error_message,
               e.external_payment_id, e.order_reference, e.attempts, e.received_at,
               e.processed_at, e.occurred_at, e.is_test, e.signature_valid, e.signature_method,
               e.request_id, e.conflicts_with, e.remote_address, e.erased_at, e.transaction_id
          FROM paidonce.webhook_events AS e
         WHERE e.id >= :first_id AND e.id <= :last_id
           AND e.id = ANY (ARRAY(  -- by payments
               SELECT found.id  -- by payments
                 FROM unnest(:payments::text[]) AS named (payment)  -- by payments
                CROSS JOIN LATERAL (  -- by payments
                    SELECT w.id FROM paidonce.webhook_events AS w  -- by payments
                     WHERE w.id >= :first_id AND w.id <= :last_id  -- by payments
                       AND w.external_payment_id IS NOT NULL  -- by payments
                       AND ROW (w.external_payment_id, w.id)  -- by payments
                        >= ROW (named.payment, :first_id::uuid)  -- by payments
                       AND ROW (w.external_payment_id, w.id)  -- by payments
                        <= ROW (named.payment, :last_id::uuid)  -- by payments
                     ORDER BY w.external_payment_id DESC, w.id DESC  -- by payments
                     LIMIT :budget) AS found  -- by payments
                ORDER BY found.id DESC  -- by payments
                LIMIT :budget))  -- by payments
           AND e.external_payment_id IS NOT NULL  -- by payment
           AND ROW (e.external_payment_id, e.id) >= ROW (:payment, :first_id)  -- by payment
           AND ROW (e.external_payment_id, e.id) <= ROW (:payment, :last_id)  -- by payment
           AND e.order_reference IS NOT NULL  -- by order
           AND ROW (e.order_reference, e.id) >= ROW (:order, :first_id)  -- by order
           AND ROW (e.order_reference, e.id) <= ROW (:order, :last_id)  -- by order
           AND e.error_code IS NOT NULL  -- by error_code
           AND ROW (e.error_code, e.id) >= ROW (:error_code, :first_id)  -- by error_code
           AND ROW (e.error_code, e.id) <= ROW (:error_code, :last_id)  -- by error_code
           AND e.status <> 'PROCESSED'  -- by unusual_status
           AND ROW (e.status, e.id) >= ROW (:unusual_status, :first_id)  -- by unusual_status
           AND ROW (e.status, e.id) <= ROW (:unusual_status, :last_id)  -- by unusual_status
           AND e.is_test  -- by is_test
           AND ROW (e.source_id, e.id)  -- by source
            >= ROW ((SELECT id FROM paidonce.sources WHERE name = :source), :first_id)  -- by source
           AND ROW (e.source_id, e.id)  -- by source
            <= ROW ((SELECT id FROM paidonce.sources WHERE name = :source), :last_id)  -- by source
         ORDER BY
               e.external_payment_id DESC,  -- by payment
               e.order_reference DESC,  -- by order
               e.error_code DESC,  -- by error_code
               e.status DESC,  -- by unusual_status
               e.source_id DESC,  -- by source
               e.id DESC
         LIMIT :budget) AS looked_at) AS e
 WHERE e.matches OR e.position = :budget
 LIMIT :limit;

-- name: ids_of_payment
SELECT external_id FROM paidonce.payment_ids WHERE payment_id = :payment_id LIMIT :limit;

-- name: deliveries
-- The stored headers and the raw body.
SELECT e.id, e.headers, e.raw_body
  FROM paidonce.webhook_events AS e
 WHERE e.id = ANY (:event_id::uuid[])
   AND e.id BETWEEN :first_id AND :last_id;

-- name: evidence
SELECT headers, substring(raw_body FROM 1 FOR :limit) AS body, octet_length(raw_body) AS size
  FROM paidonce.webhook_events
 WHERE id = :event_id;

-- name: backlog
-- Of each status, the oldest :max_counted events.
SELECT pending.status, count(*) AS number,
       extract(epoch FROM now() - min(e.received_at))::float8 AS oldest_s
  FROM unnest(ARRAY['VALIDATED', 'FAILED_RETRYABLE', 'DEAD_LETTER'])
       AS pending (status)
 CROSS JOIN LATERAL (
     SELECT e.received_at
       FROM paidonce.webhook_events AS e
      WHERE e.status <> 'PROCESSED'
        AND ROW (e.status, e.id) >= ROW (pending.status, :first_id::uuid)
        AND ROW (e.status, e.id) <= ROW (pending.status, :last_id::uuid)
      ORDER BY e.status, e.id
      LIMIT :max_counted) AS e
 GROUP BY pending.status;
