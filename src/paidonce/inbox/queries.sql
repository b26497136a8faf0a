-- name: pending_order
-- The order that waits for exactly this payment, from this source.
SELECT id
  FROM paidonce.orders
 WHERE reference = :reference
   AND status = 'PENDING'
   AND amount_minor = :amount_minor
   AND currency = :currency
   AND (sources IS NULL OR :source_id::smallint = ANY (sources));
