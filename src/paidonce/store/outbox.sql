-- name: add
-- In the transaction of what they tell, while its row is locked: so for each key the order of `seq`
-- is the order of commits.
INSERT INTO outbox (id, aggregate_type, aggregate_name, type, version, payload, occurred_at)
SELECT id, aggregate_type, aggregate_name, type, version, payload, occurred_at
  FROM unnest(:messages::written_named_message[]) WITH ORDINALITY AS m
 ORDER BY m.ordinality;

-- name: unpublished
-- What is left is what has no flag, never what lies after a position: a transaction that took a
-- smaller number may commit after one that took a greater.
SELECT seq, id, aggregate_type AS about, coalesce(aggregate_name, aggregate_id::text) AS key,
       type, version, occurred_at,
       (payload || jsonb_build_object('version', version, 'occurred_at', occurred_at))::text AS body
  FROM outbox
 WHERE published_at IS NULL
 ORDER BY seq
 LIMIT :limit::bigint;

-- name: unpublished_places
-- The same without what they say.
SELECT seq FROM outbox WHERE published_at IS NULL ORDER BY seq LIMIT :limit::bigint;

-- name: mark_published
-- Positions are given in the order of :seq, all of them seen at once.
WITH placed AS MATERIALIZED (
    SELECT seq, nextval('outbox_positions') AS pos FROM unnest(:seq::bigint[]) AS s (seq)
)
UPDATE outbox AS o
   SET published_at = now(), pos = placed.pos
  FROM placed
 WHERE o.seq = placed.seq
   AND o.published_at IS NULL;

-- name: after
-- Of each topic the next messages after a position in it, in the order of their positions.
SELECT m.pos, m.id, c.about, coalesce(m.aggregate_name, m.aggregate_id::text) AS key,
       m.type, m.version, m.occurred_at, m.published_at,
       (m.payload
        || jsonb_build_object('version', m.version, 'occurred_at', m.occurred_at))::text AS body
  FROM unnest(:about::text[], :pos::bigint[]) AS c (about, pos),
       LATERAL (SELECT o.* FROM outbox AS o
                 WHERE o.aggregate_type = c.about AND o.pos IS NOT NULL AND o.pos > c.pos
                 ORDER BY o.aggregate_type, o.pos
                 LIMIT :limit::bigint) AS m
 ORDER BY m.pos
 LIMIT :limit;

-- name: backlog
-- Counted up to :most, so that it costs the same however much there is. An id of version 7 tells when
-- it was written: what it is of may have happened long before, such as a callback that was given again.
-- With the other ids everything is written as it happens.
SELECT (SELECT count(*) FROM (SELECT 1 FROM outbox WHERE published_at IS NULL
                               LIMIT :most::bigint) AS few) AS number,
       coalesce((SELECT extract(epoch FROM clock_timestamp() - CASE
                            WHEN get_byte(uuid_send(id), 6) >> 4 = 7 THEN to_timestamp(
                                ('x' || left(encode(uuid_send(id), 'hex'), 12))::bit(48)::bigint
                                / 1000.0)
                            ELSE occurred_at
                        END)
                   FROM outbox
                  WHERE published_at IS NULL
                  ORDER BY seq
                  LIMIT 1), 0)::float8 AS oldest_s;
