-- name: add
-- An existing payment is left unchanged: its id is the key.
INSERT INTO paidonce.wallet_payments (
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

-- name: payments
-- By payment id, by transaction, or a page; perhaps locked. The currency of the wallet is null if it does
-- not exist.
SELECT p.*,
       (SELECT w.currency FROM paidonce.wallets AS w WHERE w.id = p.wallet_id) AS wallet_currency, -- lock
       clock_timestamp() AS now, -- lock
       (SELECT s.name FROM paidonce.sources AS s WHERE s.id = p.source_id) AS source
  FROM paidonce.wallet_payments AS p
 WHERE p.payment_id = ANY (:payment_id::text[]) -- payment_id
 WHERE (p.source_id, p.transaction_id) IN ( -- transaction
           SELECT * FROM unnest(:source_id::smallint[], :transaction_id::text[])) -- transaction
 WHERE p.payment_id > :after -- page
   AND p.review IS NOT NULL -- any_review
   AND p.review = :review -- review
 ORDER BY p.payment_id
 LIMIT :limit -- page
   FOR NO KEY UPDATE; -- lock

-- name: save
-- Writes only rows that have not changed: a payment ends once. Fewer written rows mean that another
-- transaction was first.
WITH changed AS (
    UPDATE paidonce.wallet_payments AS p
       SET status = c.status, transaction_id = c.transaction_id, failure = c.failure,
           review = c.review, next_attempt_at = c.next_attempt_at, version = c.version,
           updated_at = c.updated_at
      FROM unnest(
          :payment_id::text[], :status_before::text[], :version_before::bigint[], :status::text[],
          :transaction_id::text[], :failure::text[], :review::text[],
          :next_attempt_at::timestamptz[], :version::bigint[], :updated_at::timestamptz[])
          AS c (payment_id, status_before, version_before, status, transaction_id, failure, review,
                next_attempt_at, version, updated_at)
     WHERE p.payment_id = c.payment_id
       AND p.status = c.status_before
       AND p.version = c.version_before
    RETURNING 1
)
SELECT paidonce.require_written((SELECT count(*) FROM changed), :expected);

-- name: claim
-- A lease instead of a lock: no transaction waits for the gateway. Compared with now() and not with
-- clock_timestamp(), which cannot use the index.
UPDATE paidonce.wallet_payments AS p
   SET next_attempt_at = clock_timestamp() + :lease_s::float8 * interval '1 second',
       attempts = p.attempts + 1
 WHERE p.payment_id = ANY (ARRAY(
     SELECT d.payment_id FROM paidonce.wallet_payments AS d
      WHERE d.next_attempt_at <= now()
      ORDER BY d.next_attempt_at
      LIMIT :limit
        FOR UPDATE SKIP LOCKED))
RETURNING p.*, (SELECT s.name FROM paidonce.sources AS s WHERE s.id = p.source_id) AS source;

-- name: has_other_payment
SELECT EXISTS (
    SELECT 1 FROM paidonce.wallet_payments
     WHERE source_id = :source_id AND transaction_id = :transaction_id
       AND payment_id <> :payment_id) AS found;

-- name: count_reviews
SELECT review AS reason, count(*) AS number
  FROM (SELECT review FROM paidonce.wallet_payments
         WHERE review IS NOT NULL
         ORDER BY payment_id
         LIMIT :max_counted) AS few
 GROUP BY review;

-- name: pending_transactions
SELECT id, source_id, transaction_id
  FROM paidonce.gateway_callbacks
 WHERE id = ANY (:id::uuid[])
   AND status = 'PENDING';

-- name: due_callbacks
-- Compared with now() and not with clock_timestamp(), which cannot use the index.
SELECT id, source_id, transaction_id
  FROM paidonce.gateway_callbacks
 WHERE next_attempt_at <= now()
 ORDER BY next_attempt_at
 LIMIT :limit;

-- name: lock_callbacks
-- Callbacks that were not applied, in the order of their arrival. Dead ones too: now they have a
-- payment.
SELECT id, source_id, transaction_id, gateway_status, amount_minor, currency
  FROM paidonce.gateway_callbacks
 WHERE (source_id, transaction_id) IN (
           SELECT * FROM unnest(:source_id::smallint[], :transaction_id::text[]))
   AND status <> 'DONE'
 ORDER BY id
   FOR UPDATE;

-- name: finish_callbacks
UPDATE paidonce.gateway_callbacks AS c
   SET status = 'DONE', payment_id = d.payment_id, next_attempt_at = NULL,
       ended_at = clock_timestamp()
  FROM unnest(:id::uuid[], :payment_id::text[]) AS d (id, payment_id)
 WHERE c.id = d.id
   AND c.status <> 'DONE';

-- name: postpone_callbacks
-- Schedules the next attempt, or makes a dead letter. A locked callback is skipped: whoever holds the
-- lock applies or postpones it.
UPDATE paidonce.gateway_callbacks AS c
   SET attempts = c.attempts + 1,
       status = CASE WHEN c.attempts + 1 >= :max_attempts::integer THEN 'DEAD_LETTER' ELSE 'PENDING' END,
       next_attempt_at = CASE WHEN c.attempts + 1 < :max_attempts
                     THEN clock_timestamp() + interval '1 second'
                          * (:delays_s::float8[])[least(c.attempts + 2, cardinality(:delays_s))] END,
       ended_at = CASE WHEN c.attempts + 1 >= :max_attempts THEN clock_timestamp() END
 WHERE c.id = ANY (ARRAY(
     SELECT d.id FROM paidonce.gateway_callbacks AS d
      WHERE d.id = ANY (:id::uuid[]) AND d.status = 'PENDING'
        AND d.next_attempt_at <= clock_timestamp()
        FOR UPDATE SKIP LOCKED))
RETURNING c.id, (SELECT s.name FROM paidonce.sources AS s WHERE s.id = c.source_id) AS source,
          c.transaction_id, c.gateway_status, c.event_id, c.attempts, c.received_at, c.ended_at;

-- name: dead_callbacks
SELECT c.id, s.name AS source, c.transaction_id, c.gateway_status, c.event_id, c.attempts, c.received_at,
       c.ended_at
  FROM paidonce.gateway_callbacks AS c
  JOIN paidonce.sources AS s ON s.id = c.source_id
 WHERE c.status = 'DEAD_LETTER'
   AND c.id <= :last_id
 ORDER BY c.id DESC
 LIMIT :limit;

-- name: retry_callback
UPDATE paidonce.gateway_callbacks
   SET status = 'PENDING', attempts = 0, next_attempt_at = clock_timestamp(), ended_at = NULL
 WHERE id = :id
   AND status = 'DEAD_LETTER'
RETURNING id;

-- name: count_dead_callbacks
SELECT count(*) AS number
  FROM (SELECT 1 FROM paidonce.gateway_callbacks WHERE status = 'DEAD_LETTER' ORDER BY id LIMIT :max_counted)
       AS few;

-- name: save_views
-- One view for each payment. Unless all are rebuilt, it changes only to a newer version that is not older
-- in time, and only forward: COMPLETED is final, FAILED changes only to COMPLETED.
INSERT INTO paidonce.payment_views AS v (payment_id, status, amount_minor, currency, version, updated_at)
SELECT * FROM unnest(
    :payment_id::text[], :status::text[], :amount_minor::bigint[], :currency::text[],
    :version::bigint[], :updated_at::timestamptz[])
 ORDER BY 1
ON CONFLICT (payment_id) DO UPDATE
   SET status = excluded.status, amount_minor = excluded.amount_minor,
       currency = excluded.currency, version = excluded.version, updated_at = excluded.updated_at
 WHERE v.version < excluded.version -- newer
   AND v.updated_at <= excluded.updated_at -- newer
   AND array_position(ARRAY['INITIATED', 'PROCESSING', 'FAILED', 'COMPLETED'], v.status::text) -- newer
       < array_position(ARRAY['INITIATED', 'PROCESSING', 'FAILED', 'COMPLETED'], -- newer
                        excluded.status::text); -- newer

-- name: find_view
SELECT payment_id, status, amount_minor, currency, version, updated_at
  FROM paidonce.payment_views
 WHERE payment_id = :payment_id;

-- name: lock_views
-- No view changes before the end of this transaction: the outbox then has every message that a view
-- is built from.
LOCK TABLE paidonce.payment_views IN SHARE ROW EXCLUSIVE MODE;

-- name: messages_in_outbox
-- All messages of the next payments.
SELECT aggregate_name AS key, id, type, version, occurred_at AS time,
       convert_to(payload::text, 'UTF8') AS body
  FROM paidonce.outbox
 WHERE aggregate_type = 'wallet-payment'
   AND aggregate_name = ANY (ARRAY(
     SELECT DISTINCT aggregate_name
       FROM paidonce.outbox
      WHERE aggregate_type = 'wallet-payment'
        AND aggregate_name > :after
      ORDER BY aggregate_name
      LIMIT :limit))
 ORDER BY aggregate_name, version;
