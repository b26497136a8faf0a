-- The queue. A claim takes events by one of the `take` queries and then all that stands in the queue
-- for them; it is undone with its transaction, so that nobody holds a lease. An event that somebody
-- else is settling is passed over, and stays in the queue.

-- name: take_due
-- What is due in a lane that settles; what is to be asked has an index of its own (asking.sql). The
-- lower bound is a hint: see DueClaims in due.py.
SELECT d.event_id, d.run_at
  FROM due AS d
  JOIN webhook_events AS e ON e.id = d.event_id
 WHERE d.lane = :lane AND d.lane <> 1
   AND d.run_at BETWEEN :not_before AND now()
 ORDER BY d.run_at
 LIMIT :limit
   FOR UPDATE OF d SKIP LOCKED
   FOR NO KEY UPDATE OF e SKIP LOCKED;

-- name: take_waiting
-- What waits for something that is there now, whenever it is due.
SELECT d.event_id
  FROM due AS d
  JOIN webhook_events AS e ON e.id = d.event_id
 WHERE d.waits_on = ANY (:waits_on::bytea[])
 LIMIT :limit
   FOR UPDATE OF d SKIP LOCKED
   FOR NO KEY UPDATE OF e SKIP LOCKED;

-- name: mark_start
-- Say, and commit by itself, that an event which is held is tried, and how often that was said.
INSERT INTO started (event_id, starts) VALUES (:event_id, 1)
ON CONFLICT (event_id) DO UPDATE SET starts = least(started.starts + 1, 32767)
RETURNING starts;

-- name: unmark_start
UPDATE started SET starts = starts - 1 WHERE event_id = :event_id AND starts > 0;

-- name: take_events
-- These, unless somebody has them in hand.
SELECT d.event_id
  FROM due AS d
  JOIN webhook_events AS e ON e.id = d.event_id
 WHERE d.event_id = ANY (:event_id::uuid[])
   FOR UPDATE OF d SKIP LOCKED
   FOR NO KEY UPDATE OF e SKIP LOCKED;

-- name: claim
WITH claimed AS (
    DELETE FROM due
     WHERE id = ANY (ARRAY(
         SELECT id FROM due
          WHERE event_id = ANY (:event_id::uuid[])
            FOR UPDATE SKIP LOCKED))
    RETURNING event_id, attempt, waits_on, lane
),
ended AS (
    DELETE FROM started WHERE event_id = ANY (:event_id::uuid[])
),
whole AS (
    SELECT event_id, max(attempt) AS faults, max(lane) AS lane,
           (array_agg(waits_on) FILTER (WHERE waits_on IS NOT NULL))[1] AS waits_on
      FROM claimed
     GROUP BY event_id
)
SELECT e.id, e.source_id, e.attempts, e.received_at, e.request_id, e.headers, e.raw_body,
       e.status, e.error_code, e.signature_method, e.is_test, w.faults, w.waits_on, w.lane
  FROM whole AS w
  JOIN webhook_events AS e ON e.id = w.event_id
 WHERE e.id BETWEEN :first_id AND :last_id
   AND e.status IN ('RECEIVED', 'VALIDATED', 'FAILED_RETRYABLE')
 ORDER BY e.id;

-- name: put_back
INSERT INTO due (run_at, event_id, attempt, waits_on, lane, source_id)
VALUES (now() + :delay::interval, :event_id, :faults, :waits_on, :lane, :source_id);

-- name: next_run
-- How long until something is due in a lane; no row when nothing waits there.
SELECT extract(epoch FROM d.run_at - now())::float8 AS in_s
  FROM due AS d
 WHERE d.lane = :lane AND d.lane <> 1
   AND d.run_at >= :not_before
   AND EXISTS (SELECT 1 FROM webhook_events AS e WHERE e.id = d.event_id)
 ORDER BY d.run_at
 LIMIT 1;

-- name: ring
NOTIFY paidonce_due;
