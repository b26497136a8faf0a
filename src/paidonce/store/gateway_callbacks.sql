-- name: write
-- Each word of a transaction once. Only of a new one the outside is told; whoever sends it again
-- finds it done. The message has the id of the callback, which tells when it was written.
WITH new AS (
    INSERT INTO gateway_callbacks (
        id, source_id, transaction_id, says, amount_minor, currency, event_id, try_at, received_at)
    SELECT id, source_id, transaction_id, says, amount_minor, currency, event_id,
           clock_timestamp() + :first_delay_s::float8 * interval '1 second', received_at
      FROM unnest(
          :id::uuid[], :source_id::smallint[], :transaction_id::text[], :says::text[],
          :event_id::uuid[], :received_at::timestamptz[], :amount_minor::bigint[],
          :currency::text[])
          AS given (id, source_id, transaction_id, says, event_id, received_at, amount_minor,
                    currency)
     ORDER BY source_id, transaction_id, says
    ON CONFLICT (source_id, transaction_id, says) DO NOTHING
    RETURNING id, source_id, transaction_id, says, received_at
)
INSERT INTO outbox (id, aggregate_type, aggregate_id, type, version, payload, occurred_at)
SELECT new.id, 'gateway-callback', new.id, 'ProviderCallbackReceived', 1,
       jsonb_build_object(
           'callback_id', new.id, 'source', s.name, 'transaction_id', new.transaction_id,
           'says', new.says),
       new.received_at
  FROM new
  JOIN sources AS s ON s.id = new.source_id
 ORDER BY new.id;

-- name: waiting
-- Of what these tell, as far as it has not been heard.
SELECT id, source_id, transaction_id
  FROM gateway_callbacks
 WHERE id = ANY (:id::uuid[])
   AND status = 'WAITING';

-- name: due
-- By the time at which the transaction began: that one can be looked up in the index.
SELECT id, source_id, transaction_id
  FROM gateway_callbacks
 WHERE try_at <= now()
 ORDER BY try_at
 LIMIT :limit;

-- name: lock_unheard
-- What the gateway has said of these transactions and nobody has heard, the first word first. Also
-- what had been given up: now its payment is there.
SELECT id, source_id, transaction_id, says, amount_minor, currency
  FROM gateway_callbacks
 WHERE (source_id, transaction_id) IN (
           SELECT * FROM unnest(:source_id::smallint[], :transaction_id::text[]))
   AND status <> 'DONE'
 ORDER BY id
   FOR UPDATE;

-- name: finish
UPDATE gateway_callbacks AS c
   SET status = 'DONE', payment_id = d.payment_id, try_at = NULL, ended_at = clock_timestamp()
  FROM unnest(:id::uuid[], :payment_id::text[]) AS d (id, payment_id)
 WHERE c.id = d.id
   AND c.status <> 'DONE';

-- name: put_off
-- No payment has this transaction: later again, after its delay, or never when those are used up.
-- Who holds one now has found its payment, or puts it off himself.
UPDATE gateway_callbacks AS c
   SET attempts = c.attempts + 1,
       status = CASE WHEN c.attempts + 1 >= :max_attempts::integer THEN 'DEAD' ELSE 'WAITING' END,
       try_at = CASE WHEN c.attempts + 1 < :max_attempts
                     THEN clock_timestamp() + interval '1 second'
                          * (:delays_s::float8[])[least(c.attempts + 2, cardinality(:delays_s))] END,
       ended_at = CASE WHEN c.attempts + 1 >= :max_attempts THEN clock_timestamp() END
 WHERE c.id = ANY (ARRAY(
     SELECT d.id FROM gateway_callbacks AS d
      WHERE d.id = ANY (:id::uuid[]) AND d.status = 'WAITING' AND d.try_at <= clock_timestamp()
        FOR UPDATE SKIP LOCKED))
RETURNING c.id, c.source_id, c.transaction_id, c.says, c.status, c.event_id, c.attempts;

-- name: dead
SELECT c.id, s.name AS source, c.transaction_id, c.says, c.event_id, c.attempts, c.received_at,
       c.ended_at
  FROM gateway_callbacks AS c
  JOIN sources AS s ON s.id = c.source_id
 WHERE c.status = 'DEAD'
   AND c.id <= :last_id
 ORDER BY c.id DESC
 LIMIT :limit;

-- name: wake
-- A person wants it tried again.
UPDATE gateway_callbacks
   SET status = 'WAITING', attempts = 0, try_at = clock_timestamp(), ended_at = NULL
 WHERE id = :id
   AND status = 'DEAD'
RETURNING id;

-- name: count_dead
SELECT count(*) AS number
  FROM (SELECT 1 FROM gateway_callbacks WHERE status = 'DEAD' ORDER BY id LIMIT :most) AS few;
