-- name: open
-- A payment that is there already stays as it is: its id is the key.
INSERT INTO wallet_payments (
    payment_id, wallet_id, source_id, amount_minor, currency, request_hash, status, created_at,
    updated_at)
SELECT payment_id, wallet_id, source_id, amount_minor, currency, request_hash, 'INITIATED',
       now.at, greatest(now.at, started_at)
  FROM (SELECT clock_timestamp() AS at) AS now,
       unnest(
           :payment_id::text[], :source_id::smallint[], :wallet_id::uuid[],
           :amount_minor::bigint[], :currency::text[], :request_hash::bytea[],
           :started_at::timestamptz[])
           AS given (payment_id, source_id, wallet_id, amount_minor, currency, request_hash,
                     started_at)
 ORDER BY payment_id
ON CONFLICT (payment_id) DO NOTHING
RETURNING payment_id;

-- name: lock
-- The payments with these ids, and what their wallets are in, if they are there.
SELECT p.payment_id, p.wallet_id, p.source_id, p.amount_minor, p.currency, p.request_hash,
       p.status, p.created_at, p.updated_at, p.transaction_id, p.failure, p.review, p.ask_at,
       p.asked, p.version, clock_timestamp() AS now,
       (SELECT w.currency FROM wallets AS w WHERE w.id = p.wallet_id) AS wallet_currency
  FROM wallet_payments AS p
 WHERE p.payment_id = ANY (:payment_id::text[])
 ORDER BY p.payment_id
   FOR NO KEY UPDATE;

-- name: lock_of_transactions
SELECT p.payment_id, p.wallet_id, p.source_id, p.amount_minor, p.currency, p.request_hash,
       p.status, p.created_at, p.updated_at, p.transaction_id, p.failure, p.review, p.ask_at,
       p.asked, p.version, clock_timestamp() AS now
  FROM wallet_payments AS p
 WHERE (p.source_id, p.transaction_id) IN (
           SELECT * FROM unnest(:source_id::smallint[], :transaction_id::text[]))
 ORDER BY p.payment_id
   FOR NO KEY UPDATE;

-- name: save
-- Only what is still as it was seen is written: a payment ends once. Fewer rows than sent means that
-- somebody was first.
WITH changed AS (
    UPDATE wallet_payments AS p
       SET status = c.status, transaction_id = c.transaction_id, failure = c.failure,
           review = c.review, ask_at = c.ask_at, version = c.version, updated_at = c.updated_at
      FROM unnest(
          :payment_id::text[], :seen_status::text[], :seen_version::bigint[], :status::text[],
          :transaction_id::text[], :failure::text[], :review::text[], :ask_at::timestamptz[],
          :version::bigint[], :updated_at::timestamptz[])
          AS c (payment_id, seen_status, seen_version, status, transaction_id, failure, review,
                ask_at, version, updated_at)
     WHERE p.payment_id = c.payment_id
       AND p.status = c.seen_status
       AND p.version = c.seen_version
    RETURNING 1
)
SELECT require_written((SELECT count(*) FROM changed), :expected);

-- name: claim
-- Whoever asks has these to himself until the lease is over; no transaction waits for the gateway.
-- Due by the time at which the transaction began: that one can be looked up in the index.
UPDATE wallet_payments AS p
   SET ask_at = clock_timestamp() + :lease_s::float8 * interval '1 second', asked = p.asked + 1
 WHERE p.payment_id = ANY (ARRAY(
     SELECT d.payment_id FROM wallet_payments AS d
      WHERE d.ask_at <= now()
      ORDER BY d.ask_at
      LIMIT :limit
        FOR UPDATE SKIP LOCKED))
RETURNING p.payment_id, p.amount_minor, p.currency, p.asked, p.transaction_id;

-- name: is_taken
-- Whether another payment has this transaction already.
SELECT EXISTS (
    SELECT 1 FROM wallet_payments
     WHERE source_id = :source_id AND transaction_id = :transaction_id
       AND payment_id <> :payment_id) AS is_so;

-- name: find
SELECT p.payment_id, p.wallet_id, s.name AS source, p.amount_minor, p.currency, p.request_hash,
       p.status, p.transaction_id, p.failure, p.review, p.version, p.created_at, p.updated_at
  FROM wallet_payments AS p
  JOIN sources AS s ON s.id = p.source_id
 WHERE p.payment_id = :payment_id;

-- name: list
SELECT p.payment_id, p.wallet_id, s.name AS source, p.amount_minor, p.currency, p.request_hash,
       p.status, p.transaction_id, p.failure, p.review, p.version, p.created_at, p.updated_at
  FROM wallet_payments AS p
  JOIN sources AS s ON s.id = p.source_id
 WHERE p.payment_id > :after
   AND p.review IS NOT NULL -- any_review
   AND p.review = :review -- review
 ORDER BY p.payment_id
 LIMIT :limit;

-- name: to_review
SELECT review AS reason, count(*) AS number
  FROM (SELECT review FROM wallet_payments
         WHERE review IS NOT NULL
         ORDER BY payment_id
         LIMIT :most) AS few
 GROUP BY review;
