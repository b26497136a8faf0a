-- name: appear
INSERT INTO bus_cursors (consumer, about)
SELECT :consumer, about FROM unnest(:about::text[]) AS a (about) ORDER BY about
ON CONFLICT (consumer, about) DO NOTHING;

-- name: is_behind
SELECT 1 AS yes
  FROM bus_cursors AS c
 WHERE c.consumer = :consumer AND c.about = ANY (:about::text[])
   AND EXISTS (SELECT 1 FROM outbox AS o
                WHERE o.aggregate_type = c.about AND o.pos IS NOT NULL AND o.pos > c.pos)
 LIMIT 1;

-- name: lock
-- One process of a group at a time reads a topic; whoever comes second gets nothing and waits for
-- nobody. The lock ends with the transaction, or with the process that held it.
SELECT about, pos
  FROM bus_cursors
 WHERE consumer = :consumer AND about = ANY (:about::text[])
 ORDER BY about
   FOR UPDATE SKIP LOCKED;

-- name: advance
UPDATE bus_cursors AS c
   SET pos = a.pos, lag = NULL, seen_at = now()
  FROM unnest(:about::text[], :pos::bigint[]) AS a (about, pos)
 WHERE c.consumer = :consumer AND c.about = a.about AND c.pos < a.pos;

-- name: be_seen
-- A row that another process of the group holds is seen to by that one.
UPDATE bus_cursors AS c
   SET seen_at = now(), lag = free.lag
  FROM (SELECT f.consumer, f.about, a.lag
          FROM unnest(:about::text[], :lag::bigint[]) AS a (about, lag)
          JOIN bus_cursors AS f ON f.consumer = :consumer AND f.about = a.about
           FOR UPDATE OF f SKIP LOCKED) AS free
 WHERE c.consumer = free.consumer AND c.about = free.about;

-- name: be_here
UPDATE bus_cursors AS c
   SET seen_at = now()
  FROM (SELECT f.consumer, f.about FROM bus_cursors AS f
         WHERE f.consumer = :consumer AND f.about = ANY (:about::text[])
           FOR UPDATE SKIP LOCKED) AS free
 WHERE c.consumer = free.consumer AND c.about = free.about;

-- name: claim
-- In the transaction of the effect: whoever else has the same message waits for its end. Sorted, so
-- that two of them do not wait for each other.
WITH new AS (
    INSERT INTO processed_events (consumer, event_id)
    SELECT DISTINCT :consumer, id FROM unnest(:ids::uuid[]) AS i (id) ORDER BY id
    ON CONFLICT (consumer, event_id) DO NOTHING
    RETURNING consumer, event_id
), closed AS (
    UPDATE bus_dead_letters AS d
       SET retried_at = coalesce(d.retried_at, now()), taken_at = greatest(now(), d.retried_at),
           discarded_at = NULL, discarded_by = NULL, discard_reason = NULL
      FROM new
     WHERE d.consumer = new.consumer AND d.event_id = new.event_id AND d.taken_at IS NULL
)
SELECT event_id FROM new;

-- name: groups
-- Counted up to :most. A group that reads elsewhere has said its lag itself.
SELECT c.consumer, c.about, c.seen_at,
       greatest(extract(epoch FROM clock_timestamp() - c.seen_at), 0)::float8 AS absent_s,
       coalesce(c.lag, (SELECT count(*)
                          FROM (SELECT 1 FROM outbox AS o
                                 WHERE o.aggregate_type = c.about AND o.pos IS NOT NULL
                                   AND o.pos > c.pos
                                 LIMIT :most::bigint) AS few)) AS lag
  FROM bus_cursors AS c
 ORDER BY c.consumer, c.about;
