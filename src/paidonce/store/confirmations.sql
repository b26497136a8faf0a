-- name: is_expected
-- Whether an order waits for exactly this payment, from this source.
SELECT EXISTS (
    SELECT 1 FROM orders
     WHERE reference = :reference
       AND status = 'PENDING'
       AND amount_minor = :amount_minor
       AND currency = :currency
       AND (sources IS NULL OR :source_id::smallint = ANY (sources))) AS is_so;
