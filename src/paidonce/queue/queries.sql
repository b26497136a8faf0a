-- A claim finds and locks events by one of the `find_` queries, and then deletes their rows from the
-- queue. It is rolled back with its transaction, so there are no leases. Events that another
-- transaction has locked are skipped and stay in the queue.

-- name: find_due
-- The lookup queue (1) has an index and queries of its own. The lower bound is a hint: see
-- ClaimQueue in store.py.
SELECT d.event_id, d.run_at
  FROM paidonce.event_queue AS d
  JOIN paidonce.webhook_events AS e ON e.id = d.event_id
 WHERE d.queue_name = :queue_name AND d.queue_name <> 1
   AND d.run_at BETWEEN :not_before AND now()
 ORDER BY d.run_at
 LIMIT :limit
   FOR UPDATE OF d SKIP LOCKED
   FOR NO KEY UPDATE OF e SKIP LOCKED;

-- name: find_blocked
SELECT d.event_id
  FROM paidonce.event_queue AS d
  JOIN paidonce.webhook_events AS e ON e.id = d.event_id
 WHERE d.blocked_on = ANY (:blocked_on::bytea[])
 LIMIT :limit
   FOR UPDATE OF d SKIP LOCKED
   FOR NO KEY UPDATE OF e SKIP LOCKED;

-- name: record_start
INSERT INTO paidonce.crash_guard (event_id, starts) VALUES (:event_id, 1)
ON CONFLICT (event_id) DO UPDATE SET starts = least(crash_guard.starts + 1, 32767)
RETURNING starts;

-- name: forget_start
UPDATE paidonce.crash_guard SET starts = starts - 1 WHERE event_id = :event_id AND starts > 0;

-- name: find_events
SELECT d.event_id
  FROM paidonce.event_queue AS d
  JOIN paidonce.webhook_events AS e ON e.id = d.event_id
 WHERE d.event_id = ANY (:event_id::uuid[])
   FOR UPDATE OF d SKIP LOCKED
   FOR NO KEY UPDATE OF e SKIP LOCKED;

-- name: claim
-- To claim also events that are final already, the marked line is left out.
WITH claimed AS (
    DELETE FROM paidonce.event_queue
     WHERE id = ANY (ARRAY(
         SELECT id FROM paidonce.event_queue
          WHERE event_id = ANY (:event_id::uuid[])
            FOR UPDATE SKIP LOCKED))
    RETURNING event_id, attempt, blocked_on, queue_name
),
ended AS (
    DELETE FROM paidonce.crash_guard WHERE event_id = ANY (:event_id::uuid[])
),
whole AS (
    SELECT event_id, max(attempt) AS faults, max(queue_name) AS queue_name,
           (array_agg(blocked_on) FILTER (WHERE blocked_on IS NOT NULL))[1] AS blocked_on
      FROM claimed
     GROUP BY event_id
)
SELECT e.id AS event_id, e.source_id, e.attempts, e.received_at, e.request_id, e.headers,
       e.raw_body AS body, e.status, e.error_code, e.signature_method, e.is_test,
       e.was_processed IS TRUE AS was_processed,
       w.faults, w.blocked_on, w.queue_name
  FROM whole AS w
  JOIN paidonce.webhook_events AS e ON e.id = w.event_id
 WHERE e.id BETWEEN :first_id AND :last_id
   AND e.status IN ('VALIDATED', 'FAILED_RETRYABLE')  -- pending
 ORDER BY e.id;

-- name: events
-- Locks the events, so that no other transaction processes them, and skips locked ones. To read them
-- without locks, the marked line is left out.
SELECT e.id AS event_id, e.source_id, e.status, e.key, e.error_code, e.conflicts_with,
       e.signature_method, e.is_test, e.attempts, e.received_at, e.processed_at, e.remote_address,
       e.request_id, e.headers, e.raw_body AS body, e.erased_at IS NOT NULL AS is_erased,
       e.was_processed IS TRUE AS was_processed,
       0 AS faults, NULL::bytea AS blocked_on, 0 AS queue_name
  FROM paidonce.webhook_events AS e
 WHERE e.id = ANY (:event_id::uuid[])
   AND e.id BETWEEN :first_id AND :last_id
 ORDER BY e.id
   FOR NO KEY UPDATE OF e SKIP LOCKED;  -- locks

-- name: put_back
INSERT INTO paidonce.event_queue (run_at, event_id, attempt, blocked_on, queue_name, source_id)
VALUES (now() + :delay::interval, :event_id, :faults, :blocked_on, :queue_name, :source_id);

-- name: next_run
-- Seconds until an event is due; no row when the queue is empty.
SELECT extract(epoch FROM d.run_at - now())::float8 AS in_s
  FROM paidonce.event_queue AS d
 WHERE d.queue_name = :queue_name AND d.queue_name <> 1
   AND d.run_at >= :not_before
   AND EXISTS (SELECT 1 FROM paidonce.webhook_events AS e WHERE e.id = d.event_id)
 ORDER BY d.run_at
 LIMIT 1;
