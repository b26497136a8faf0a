-- The outbox.

-- name: add_messages
-- In the transaction of their cause, while its row is locked: so for each key the order of `seq` is
-- the order of commits.
INSERT INTO paidonce.outbox (id, aggregate_type, aggregate_name, type, version, payload, occurred_at)
SELECT id, aggregate_type, aggregate_name, type, version, payload, occurred_at
  FROM unnest(:messages::paidonce.written_named_message[]) WITH ORDINALITY AS m
 ORDER BY m.ordinality;

-- name: unpublished
-- By the missing mark, never by a position: a transaction with a smaller number may commit after one
-- with a greater number.
SELECT seq AS position, id, aggregate_type, coalesce(aggregate_name, aggregate_id::text) AS key,
       type, version, occurred_at AS time,
       convert_to((payload || jsonb_build_object('version', version, 'occurred_at', occurred_at)
                  )::text, 'UTF8') AS body
  FROM paidonce.outbox
 WHERE published_at IS NULL
 ORDER BY seq
 LIMIT :limit::bigint;

-- name: unpublished_positions
SELECT seq FROM paidonce.outbox WHERE published_at IS NULL ORDER BY seq LIMIT :limit::bigint;

-- name: mark_published
-- Positions are assigned in the order of :seq.
WITH placed AS MATERIALIZED (
    SELECT seq, nextval('paidonce.outbox_positions') AS pos FROM unnest(:seq::bigint[]) AS s (seq)
)
UPDATE paidonce.outbox AS o
   SET published_at = now(), pos = placed.pos
  FROM placed
 WHERE o.seq = placed.seq
   AND o.published_at IS NULL;

-- name: published_after
SELECT m.pos AS position, m.id, c.aggregate_type,
       coalesce(m.aggregate_name, m.aggregate_id::text) AS key,
       m.type, m.version, m.occurred_at AS time, m.published_at,
       convert_to((m.payload || jsonb_build_object('version', m.version, 'occurred_at', m.occurred_at)
                  )::text, 'UTF8') AS body
  FROM unnest(:types::text[], :pos::bigint[]) AS c (aggregate_type, pos),
       LATERAL (SELECT o.* FROM paidonce.outbox AS o
                 WHERE o.aggregate_type = c.aggregate_type AND o.pos IS NOT NULL AND o.pos > c.pos
                 ORDER BY o.aggregate_type, o.pos
                 LIMIT :limit::bigint) AS m
 ORDER BY m.pos
 LIMIT :limit;

-- name: backlog
-- Counted up to :most, so that the cost is bounded. The age is the time since the message was written,
-- which an id of version 7 contains: its cause may have occurred long before, as with a retried callback.
-- Messages with other ids are written when they occur.
SELECT (SELECT count(*) FROM (SELECT 1 FROM paidonce.outbox WHERE published_at IS NULL
                               LIMIT :most::bigint) AS few) AS number,
       coalesce((SELECT extract(epoch FROM clock_timestamp() - CASE
                            WHEN get_byte(uuid_send(id), 6) >> 4 = 7 THEN to_timestamp(
                                ('x' || left(encode(uuid_send(id), 'hex'), 12))::bit(48)::bigint
                                / 1000.0)
                            ELSE occurred_at
                        END)
                   FROM paidonce.outbox
                  WHERE published_at IS NULL
                  ORDER BY seq
                  LIMIT 1), 0)::float8 AS oldest_s;

-- Consumer groups.

-- name: register
INSERT INTO paidonce.bus_cursors (consumer, aggregate_type)
SELECT :consumer, t.type FROM unnest(:types::text[]) AS t (type) ORDER BY t.type
ON CONFLICT (consumer, aggregate_type) DO NOTHING;

-- name: has_unread
SELECT 1 AS yes
  FROM paidonce.bus_cursors AS c
 WHERE c.consumer = :consumer AND c.aggregate_type = ANY (:types::text[])
   AND EXISTS (SELECT 1 FROM paidonce.outbox AS o
                WHERE o.aggregate_type = c.aggregate_type AND o.pos IS NOT NULL AND o.pos > c.pos)
 LIMIT 1;

-- name: lock_cursors
-- One process of a group at a time reads a topic; the others get nothing and do not wait.
SELECT aggregate_type, pos
  FROM paidonce.bus_cursors
 WHERE consumer = :consumer AND aggregate_type = ANY (:types::text[])
 ORDER BY aggregate_type
   FOR UPDATE SKIP LOCKED;

-- name: advance_cursors
UPDATE paidonce.bus_cursors AS c
   SET pos = a.pos, lag = NULL, seen_at = now()
  FROM unnest(:types::text[], :pos::bigint[]) AS a (type, pos)
 WHERE c.consumer = :consumer AND c.aggregate_type = a.type AND c.pos < a.pos;

-- name: heartbeat
-- A cursor that another process of the group holds is updated by that process.
UPDATE paidonce.bus_cursors AS c
   SET seen_at = now(), lag = CASE WHEN :has_lag::boolean THEN free.lag ELSE c.lag END
  FROM (SELECT f.consumer, f.aggregate_type, a.lag
          FROM unnest(:types::text[], :lag::bigint[]) AS a (type, lag)
          JOIN paidonce.bus_cursors AS f ON f.consumer = :consumer AND f.aggregate_type = a.type
           FOR UPDATE OF f SKIP LOCKED) AS free
 WHERE c.consumer = free.consumer AND c.aggregate_type = free.aggregate_type;

-- name: claim
-- Another transaction with the same message waits for this one. Sorted, to avoid deadlocks.
WITH new AS (
    INSERT INTO paidonce.processed_events (consumer, event_id)
    SELECT DISTINCT :consumer, id FROM unnest(:ids::uuid[]) AS i (id) ORDER BY id
    ON CONFLICT (consumer, event_id) DO NOTHING
    RETURNING consumer, event_id
), closed AS (
    UPDATE paidonce.bus_dead_letters AS d
       SET retried_at = coalesce(d.retried_at, now()), consumed_at = greatest(now(), d.retried_at),
           discarded_at = NULL, discarded_by = NULL, discard_reason = NULL
      FROM new
     WHERE d.consumer = new.consumer AND d.event_id = new.event_id AND d.consumed_at IS NULL
)
SELECT event_id FROM new;

-- name: list_groups
-- Groups that read another bus record their lag themselves.
SELECT c.consumer, c.aggregate_type, c.seen_at,
       greatest(extract(epoch FROM clock_timestamp() - c.seen_at), 0)::float8 AS inactive_s,
       coalesce(c.lag, (SELECT count(*)
                          FROM (SELECT 1 FROM paidonce.outbox AS o
                                 WHERE o.aggregate_type = c.aggregate_type AND o.pos IS NOT NULL
                                   AND o.pos > c.pos
                                 LIMIT :most::bigint) AS few)) AS lag
  FROM paidonce.bus_cursors AS c
 ORDER BY c.consumer, c.aggregate_type;

-- Dead letters.

-- name: add_dead_letter
-- One that was consumed or discarded, and is delivered and fails again, is open again.
INSERT INTO paidonce.bus_dead_letters AS d (
    consumer, event_id, topic, key, type, version, time, body, error, attempts)
VALUES (:consumer, :event_id, :topic, :key, :type, :version, :time, :body, :error, :attempts)
ON CONFLICT (consumer, event_id) DO UPDATE
   SET error = excluded.error, attempts = d.attempts + excluded.attempts,
       failed_at = now(), retried_at = NULL, consumed_at = NULL,
       discarded_at = NULL, discarded_by = NULL, discard_reason = NULL;

-- name: find_dead_letters
-- A list of open or discarded ones, newest first; or the ids of open ones, oldest first, to change
-- them, except those that another transaction holds. A count leaves out the locks.
SELECT id, consumer, event_id, topic, key, type, error, attempts, failed_at, retried_at, -- list
       discarded_at, discarded_by, discard_reason -- list
SELECT id -- ids
  FROM paidonce.bus_dead_letters
 WHERE consumed_at IS NULL
   AND discarded_at IS NULL -- open
   AND discarded_at IS NOT NULL -- discarded
   AND retried_at IS NULL -- unretried
   AND (:consumer::text IS NULL OR consumer = :consumer)
   AND (:type::text IS NULL OR type = :type)
   AND (:topic::text IS NULL OR topic = :topic)
   AND (:since::timestamptz IS NULL OR failed_at >= :since)
   AND (:until::timestamptz IS NULL OR failed_at < :until)
   AND (:cursor::bigint IS NULL OR id < :cursor) -- list
   AND id > :after::bigint -- ids
 ORDER BY id DESC -- list
 ORDER BY id -- ids
 LIMIT :limit::bigint
   FOR UPDATE SKIP LOCKED; -- locks

-- name: change_dead_letters
-- To discard one also cancels its retry.
UPDATE paidonce.bus_dead_letters
   SET retried_at = coalesce(retried_at, now()) -- retry
   SET discarded_at = now(), discarded_by = :actor, discard_reason = :reason, -- discard
       retried_at = NULL -- discard
 WHERE id = ANY (:ids::bigint[]) AND consumed_at IS NULL AND discarded_at IS NULL
RETURNING id, consumer, event_id, topic, key, type, error, attempts, failed_at, retried_at,
          discarded_at, discarded_by, discard_reason;

-- name: discarded_by
SELECT discarded_by FROM paidonce.bus_dead_letters WHERE id = :id;

-- name: next_retry
-- Those that were retried together are delivered in the order in which they became dead letters.
SELECT id AS letter_id, event_id AS id, topic, key, type, version, time, body
  FROM paidonce.bus_dead_letters
 WHERE consumer = :consumer AND retried_at IS NOT NULL AND consumed_at IS NULL
 ORDER BY retried_at, bus_dead_letters.id
 LIMIT 1
   FOR UPDATE SKIP LOCKED;

-- name: mark_consumed
UPDATE paidonce.bus_dead_letters SET consumed_at = greatest(now(), retried_at) WHERE id = :id;

-- name: retry_failed
UPDATE paidonce.bus_dead_letters
   SET retried_at = NULL, failed_at = now(), error = :error, attempts = attempts + 1
 WHERE id = :id AND consumed_at IS NULL AND discarded_at IS NULL;

-- name: count_dead_letters
SELECT consumer,
       (SELECT count(*) FROM (SELECT 1 FROM paidonce.bus_dead_letters AS d
                               WHERE d.consumer = g.consumer AND d.consumed_at IS NULL
                                 AND d.discarded_at IS NULL
                               LIMIT :most::bigint) AS few) AS number
  FROM (SELECT DISTINCT consumer FROM paidonce.bus_cursors) AS g
 ORDER BY consumer;
