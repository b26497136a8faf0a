-- Events that are processed again, whatever became of them before.

-- name: events
-- In a transaction they are locked, so that nobody else settles them; what somebody has in hand is
-- passed over. Outside of one, the marked line is left out.
SELECT e.id, e.source_id, e.status, e.key, e.error_code, e.conflicts_with, e.signature_valid,
       e.signature_method, e.is_test, e.attempts, e.received_at, e.processed_at,
       e.remote_address, e.request_id, e.headers, e.raw_body
  FROM webhook_events AS e
 WHERE e.id = ANY (:event_id::uuid[])
   AND e.id BETWEEN :first_id AND :last_id
 ORDER BY e.id
   FOR NO KEY UPDATE OF e SKIP LOCKED;  -- locks

-- name: take_due
-- All that stands in the queue for events that are locked.
WITH taken AS (
    DELETE FROM due
     WHERE id = ANY (ARRAY(
         SELECT id FROM due
          WHERE event_id = ANY (:event_id::uuid[])
            FOR UPDATE SKIP LOCKED))
    RETURNING event_id, waits_on
),
ended AS (
    DELETE FROM started WHERE event_id = ANY (:event_id::uuid[])
)
SELECT event_id, (array_agg(waits_on) FILTER (WHERE waits_on IS NOT NULL))[1] AS waits_on
  FROM taken
 GROUP BY event_id;

-- name: put_off
UPDATE due AS d
   SET run_at = now() + p.delay
  FROM unnest(:event_id::uuid[], :delay::interval[]) AS p (event_id, delay)
 WHERE d.event_id = p.event_id;

-- name: record_actions
-- With the time at which they are written: after all that the same transaction has done before.
INSERT INTO audit_log (at, event_id, actor, action, success, details)
SELECT coalesce(a.at, clock_timestamp()), a.event_id, a.actor, a.action, a.success, a.details
  FROM unnest(:at::timestamptz[], :event_id::uuid[], :actor::text[], :action::text[],
              :success::boolean[], :details::jsonb[])
       AS a (at, event_id, actor, action, success, details);

-- name: discard
-- Dead letters among these that nobody has in hand. Their payments stay as they are.
WITH chosen AS (
    SELECT id FROM webhook_events
     WHERE id = ANY (:event_id::uuid[])
       AND id BETWEEN :first_id AND :last_id
       AND status = 'DEAD_LETTER'
     ORDER BY id
       FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE webhook_events AS e
   SET status = 'FAILED_FINAL', error_message = :message, processed_at = clock_timestamp(),
       transaction_id = pg_current_xact_id()
 WHERE e.id = ANY (ARRAY(SELECT id FROM chosen))
   AND e.id BETWEEN :first_id AND :last_id
RETURNING e.id, e.error_code;
