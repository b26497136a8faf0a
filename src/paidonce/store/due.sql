-- name: claim_due
-- Take what is due. The claim is undone with its transaction: nobody holds a lease.
WITH claimed AS (
    DELETE FROM due
     WHERE id = ANY (ARRAY(
         SELECT id FROM due
          WHERE run_at <= now()
          ORDER BY run_at, id
          LIMIT :limit
            FOR UPDATE SKIP LOCKED))
    RETURNING event_id, waits_on
)
SELECT e.id, e.source_id, e.attempts, e.received_at, e.request_id, e.headers, e.raw_body,
       c.waits_on
  FROM claimed AS c
  JOIN webhook_events AS e ON e.id = c.event_id
 WHERE e.status IN ('RECEIVED', 'VALIDATED', 'FAILED_RETRYABLE')
   FOR NO KEY UPDATE OF e SKIP LOCKED;

-- name: claim_waiting
-- Take what waits for something that is there now, whenever it is due.
WITH claimed AS (
    DELETE FROM due
     WHERE id = ANY (ARRAY(
         SELECT id FROM due
          WHERE waits_on = ANY (:waits_on::bytea[])
          ORDER BY id
          LIMIT :limit
            FOR UPDATE SKIP LOCKED))
    RETURNING event_id, waits_on
)
SELECT e.id, e.source_id, e.attempts, e.received_at, e.request_id, e.headers, e.raw_body,
       c.waits_on
  FROM claimed AS c
  JOIN webhook_events AS e ON e.id = c.event_id
 WHERE e.status IN ('RECEIVED', 'VALIDATED', 'FAILED_RETRYABLE')
   FOR NO KEY UPDATE OF e SKIP LOCKED;

-- name: put_back
INSERT INTO due (run_at, event_id, attempt, waits_on)
SELECT now() + :delay::interval, e.id, e.attempts, :waits_on::bytea FROM webhook_events AS e WHERE e.id = :event_id;

-- name: next_run
-- How long until something is due; no row when nothing waits.
SELECT extract(epoch FROM run_at - now())::float8 AS in_s
  FROM due
 ORDER BY run_at, id
 LIMIT 1;
