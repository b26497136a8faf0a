-- name: appear
INSERT INTO bus_cursors (consumer, about)
SELECT :consumer, about FROM unnest(:about::text[]) AS a (about) ORDER BY about
ON CONFLICT (consumer, about) DO NOTHING;

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
   SET seen_at = now(), lag = :lag::bigint
 WHERE (c.consumer, c.about) IN (
     SELECT f.consumer, f.about FROM bus_cursors AS f
      WHERE f.consumer = :consumer AND f.about = ANY (:about::text[])
        FOR UPDATE SKIP LOCKED);

-- name: claim
-- In the transaction of the effect: whoever else has the same message waits for its end. Sorted, so
-- that two of them do not wait for each other.
INSERT INTO processed_events (consumer, event_id)
SELECT DISTINCT :consumer, id FROM unnest(:ids::uuid[]) AS i (id) ORDER BY id
ON CONFLICT (consumer, event_id) DO NOTHING
RETURNING event_id;

-- name: groups
-- Counted up to :most. A group that reads elsewhere has said its lag itself.
SELECT c.consumer, c.about, c.seen_at,
       coalesce(c.lag, (SELECT count(*)
                          FROM (SELECT 1 FROM outbox AS o
                                 WHERE o.aggregate_type = c.about AND o.pos IS NOT NULL
                                   AND o.pos > c.pos
                                 LIMIT :most::bigint) AS few)) AS lag
  FROM bus_cursors AS c
 ORDER BY c.consumer, c.about;
