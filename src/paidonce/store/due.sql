-- The queue. A claim takes events by one of the `take` queries and then all that stands in the queue
-- for them; it is undone with its transaction, so that nobody holds a lease. An event that somebody
-- else is settling is passed over, and stays in the queue.

-- name: take_due
-- What is due. The lower bound is a hint: see DueClaims in due.py.
SELECT d.event_id, d.run_at
  FROM due AS d
  JOIN webhook_events AS e ON e.id = d.event_id
 WHERE d.run_at BETWEEN :not_before AND now()
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

-- name: take_started
-- The event that `start_next` has named, unless somebody else was faster.
SELECT d.event_id
  FROM due AS d
  JOIN webhook_events AS e ON e.id = d.event_id
 WHERE d.event_id = :event_id
   AND e.id = :event_id
 LIMIT 1
   FOR UPDATE OF d SKIP LOCKED
   FOR NO KEY UPDATE OF e SKIP LOCKED;

-- name: start_next
-- Say, and commit, which event is tried next and how often that was said before: one that ends the
-- process each time is noticed.
UPDATE due
   SET starts = starts + 1
 WHERE id = (SELECT id FROM due
              WHERE run_at BETWEEN :not_before AND now()
              ORDER BY run_at
              LIMIT 1
                FOR UPDATE SKIP LOCKED)
RETURNING event_id, run_at;

-- name: claim
WITH claimed AS (
    DELETE FROM due
     WHERE id = ANY (ARRAY(
         SELECT id FROM due
          WHERE event_id = ANY (:event_id::uuid[])
            FOR UPDATE SKIP LOCKED))
    RETURNING event_id, attempt, starts, waits_on
),
whole AS (
    SELECT event_id, max(attempt) AS faults, max(starts) AS starts,
           (array_agg(waits_on) FILTER (WHERE waits_on IS NOT NULL))[1] AS waits_on
      FROM claimed
     GROUP BY event_id
)
SELECT e.id, e.source_id, e.attempts, e.received_at, e.request_id, e.headers, e.raw_body,
       w.faults, w.starts, w.waits_on
  FROM whole AS w
  JOIN webhook_events AS e ON e.id = w.event_id
 WHERE e.id BETWEEN :first_id AND :last_id
   AND e.status IN ('RECEIVED', 'VALIDATED', 'FAILED_RETRYABLE')
 ORDER BY e.id;

-- name: put_back
INSERT INTO due (run_at, event_id, attempt, waits_on)
VALUES (now() + :delay::interval, :event_id, :faults, :waits_on);

-- name: next_run
-- How long until something is due; no row when nothing waits.
SELECT extract(epoch FROM run_at - now())::float8 AS in_s
  FROM due
 WHERE run_at >= :not_before
 ORDER BY run_at
 LIMIT 1;

-- name: ring
NOTIFY paidonce_due;
