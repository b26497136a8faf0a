-- name: bury
-- One that was taken after all, or discarded, and comes and fails again, is open again.
INSERT INTO bus_dead_letters AS d (
    consumer, event_id, topic, key, type, version, time, body, error, attempts)
VALUES (:consumer, :event_id, :topic, :key, :type, :version, :time, :body, :error, :attempts)
ON CONFLICT (consumer, event_id) DO UPDATE
   SET error = excluded.error, attempts = d.attempts + excluded.attempts,
       died_at = now(), retried_at = NULL, taken_at = NULL,
       discarded_at = NULL, discarded_by = NULL, discard_reason = NULL;

-- name: list
-- Of the two sorts, whoever asks leaves out one.
SELECT id, consumer, event_id, topic, key, type, error, attempts, died_at, retried_at,
       discarded_at, discarded_by, discard_reason
  FROM bus_dead_letters
 WHERE taken_at IS NULL
   AND discarded_at IS NULL -- open
   AND discarded_at IS NOT NULL -- discarded
   AND (:consumer::text IS NULL OR consumer = :consumer)
   AND (:type::text IS NULL OR type = :type)
   AND (:topic::text IS NULL OR topic = :topic)
   AND (:since::timestamptz IS NULL OR died_at >= :since)
   AND (:until::timestamptz IS NULL OR died_at < :until)
   AND (:after::bigint IS NULL OR id < :after)
 ORDER BY id DESC
 LIMIT :limit::bigint;

-- name: lock_page
-- Open ones that match, the oldest first; what somebody has in hand is passed over. Who only looks
-- leaves out the locks, and what is retried already counts for those that are to be discarded.
SELECT id
  FROM bus_dead_letters
 WHERE id > :after::bigint
   AND taken_at IS NULL AND discarded_at IS NULL
   AND retried_at IS NULL -- unasked
   AND (:consumer::text IS NULL OR consumer = :consumer)
   AND (:type::text IS NULL OR type = :type)
   AND (:topic::text IS NULL OR topic = :topic)
   AND (:since::timestamptz IS NULL OR died_at >= :since)
   AND (:until::timestamptz IS NULL OR died_at < :until)
 ORDER BY id
 LIMIT :limit::bigint
   FOR UPDATE SKIP LOCKED; -- locks

-- name: ask_retry
-- One that was taken or discarded already is left as it is.
UPDATE bus_dead_letters SET retried_at = coalesce(retried_at, now())
 WHERE id = ANY (:id::bigint[]) AND taken_at IS NULL AND discarded_at IS NULL
RETURNING id, consumer, event_id, topic, key, type, error, attempts, died_at, retried_at,
          discarded_at, discarded_by, discard_reason;

-- name: discard
-- The same. Its consumer does not get it any more, even if somebody has asked for that.
UPDATE bus_dead_letters
   SET discarded_at = now(), discarded_by = :actor, discard_reason = :reason, retried_at = NULL
 WHERE id = ANY (:id::bigint[]) AND taken_at IS NULL AND discarded_at IS NULL
RETURNING id, consumer, event_id, topic, key, type, error, attempts, died_at, retried_at,
          discarded_at, discarded_by, discard_reason;

-- name: ended
SELECT discarded_by FROM bus_dead_letters WHERE id = :id;

-- name: next_retried
-- Those that were asked for together come in the order in which they have died.
SELECT id, event_id, topic, key, type, version, time, body
  FROM bus_dead_letters
 WHERE consumer = :consumer AND retried_at IS NOT NULL AND taken_at IS NULL
 ORDER BY retried_at, id
 LIMIT 1
   FOR UPDATE SKIP LOCKED;

-- name: taken
UPDATE bus_dead_letters SET taken_at = greatest(now(), retried_at) WHERE id = :id;

-- name: failed_again
UPDATE bus_dead_letters
   SET retried_at = NULL, died_at = now(), error = :error, attempts = attempts + 1
 WHERE id = :id AND taken_at IS NULL AND discarded_at IS NULL;

-- name: count_open
SELECT consumer,
       (SELECT count(*) FROM (SELECT 1 FROM bus_dead_letters AS d
                               WHERE d.consumer = g.consumer AND d.taken_at IS NULL
                                 AND d.discarded_at IS NULL
                               LIMIT :most::bigint) AS few) AS number
  FROM (SELECT DISTINCT consumer FROM bus_cursors) AS g
 ORDER BY consumer;
