-- name: show
-- What the newest of these events say, one for each payment. A view changes only to a newer version
-- that is not older in time, and only onwards: COMPLETED stays, FAILED gives way to COMPLETED alone.
INSERT INTO payment_views AS v (payment_id, status, amount_minor, currency, version, updated_at)
SELECT * FROM unnest(
    :payment_id::text[], :status::text[], :amount_minor::bigint[], :currency::text[],
    :version::bigint[], :updated_at::timestamptz[])
 ORDER BY 1
ON CONFLICT (payment_id) DO UPDATE
   SET status = excluded.status, amount_minor = excluded.amount_minor,
       currency = excluded.currency, version = excluded.version, updated_at = excluded.updated_at
 WHERE v.version < excluded.version
   AND v.updated_at <= excluded.updated_at
   AND array_position(ARRAY['INITIATED', 'PROCESSING', 'FAILED', 'COMPLETED'], v.status::text)
       < array_position(ARRAY['INITIATED', 'PROCESSING', 'FAILED', 'COMPLETED'],
                        excluded.status::text);

-- name: find
SELECT payment_id, status, amount_minor, currency, version, updated_at
  FROM payment_views
 WHERE payment_id = :payment_id;

-- name: hold
-- Nobody shows anything meanwhile: what is read of the log next is all that was shown.
LOCK TABLE payment_views IN SHARE ROW EXCLUSIVE MODE;

-- name: payments_in_log
SELECT DISTINCT aggregate_name
  FROM outbox
 WHERE aggregate_type = 'wallet-payment'
   AND aggregate_name > :after
 ORDER BY aggregate_name
 LIMIT :limit;

-- name: log_of
SELECT aggregate_name AS key, id, type, version, payload, occurred_at
  FROM outbox
 WHERE aggregate_type = 'wallet-payment'
   AND aggregate_name = ANY (:payment_id::text[])
 ORDER BY aggregate_name, version;

-- name: replace
INSERT INTO payment_views (payment_id, status, amount_minor, currency, version, updated_at)
SELECT * FROM unnest(
    :payment_id::text[], :status::text[], :amount_minor::bigint[], :currency::text[],
    :version::bigint[], :updated_at::timestamptz[])
ON CONFLICT (payment_id) DO UPDATE
   SET status = excluded.status, amount_minor = excluded.amount_minor,
       currency = excluded.currency, version = excluded.version, updated_at = excluded.updated_at;
