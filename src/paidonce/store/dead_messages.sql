-- name: bury
-- One that was taken after all, and comes and fails again, is open again.
INSERT INTO bus_dead_letters AS d (
    consumer, event_id, topic, key, type, version, time, body, error, attempts)
VALUES (:consumer, :event_id, :topic, :key, :type, :version, :time, :body, :error, :attempts)
ON CONFLICT (consumer, event_id) DO UPDATE
   SET error = excluded.error, attempts = d.attempts + excluded.attempts,
       died_at = now(), retried_at = NULL, taken_at = NULL;

-- name: list
SELECT id, consumer, event_id, topic, key, type, error, attempts, died_at, retried_at
  FROM bus_dead_letters
 WHERE taken_at IS NULL
   AND (:consumer::text IS NULL OR consumer = :consumer)
   AND (:after::bigint IS NULL OR id < :after)
 ORDER BY id DESC
 LIMIT :limit::bigint;

-- name: ask_retry
-- One that was taken already is left as it is.
UPDATE bus_dead_letters SET retried_at = coalesce(retried_at, now())
 WHERE id = :id AND taken_at IS NULL
RETURNING id, consumer, event_id, topic, key, type, error, attempts, died_at, retried_at;

-- name: is_known
SELECT 1 AS known FROM bus_dead_letters WHERE id = :id;

-- name: next_retried
SELECT id, event_id, topic, key, type, version, time, body
  FROM bus_dead_letters
 WHERE consumer = :consumer AND retried_at IS NOT NULL AND taken_at IS NULL
 ORDER BY retried_at
 LIMIT 1
   FOR UPDATE SKIP LOCKED;

-- name: taken
UPDATE bus_dead_letters SET taken_at = greatest(now(), retried_at) WHERE id = :id;

-- name: failed_again
UPDATE bus_dead_letters
   SET retried_at = NULL, died_at = now(), error = :error, attempts = attempts + 1
 WHERE id = :id AND taken_at IS NULL;

-- name: count_open
SELECT consumer,
       (SELECT count(*) FROM (SELECT 1 FROM bus_dead_letters AS d
                               WHERE d.consumer = g.consumer AND d.taken_at IS NULL
                               LIMIT :most::bigint) AS few) AS number
  FROM (SELECT DISTINCT consumer FROM bus_cursors) AS g
 ORDER BY consumer;
