-- Partitions --------------------------------------------------------------------------------

-- name: partitions
-- Every partition of webhook_events, whether its detach is unfinished, and whether it has a mark.
SELECT child.relname AS name, inhdetachpending AS is_detaching,
       coalesce(obj_description(child.oid, 'pg_class') = ANY (:marks::text[]), false) AS is_marked
  FROM pg_inherits
  JOIN pg_class AS child ON child.oid = inhrelid
 WHERE inhparent = 'webhook_events'::regclass
 ORDER BY child.relname;

-- name: has_pending_events
-- Whether an event of this month is not final, is a dead letter, or is in the queue.
SELECT EXISTS (
    SELECT 1 FROM webhook_events
     WHERE status <> 'PROCESSED'
       AND status IN ('VALIDATED', 'FAILED_RETRYABLE', 'DEAD_LETTER')
       AND id >= :first_id AND id < :end_id)
    OR (SELECT event_id FROM event_queue
         WHERE event_id >= :first_id AND event_id < :end_id
         ORDER BY event_id
         LIMIT 1) IS NOT NULL AS is_so;

-- name: events_after
-- All columns of each event, as JSON; the raw body in base64.
SELECT e.id,
       (to_jsonb(e) || jsonb_build_object(
           'raw_body', translate(encode(e.raw_body, 'base64'), E'\n', '')))::text AS line
  FROM webhook_events AS e
 WHERE e.id > :after
 ORDER BY e.id
 LIMIT :limit;

-- name: detached_partitions
-- Partitions that were detached to be dropped. A table that an operator keeps has no such mark.
SELECT relname AS name
  FROM pg_class
 WHERE relkind = 'r' AND NOT relispartition
   AND relname LIKE 'webhook\_events\_%'
   AND pg_table_is_visible(oid)
   AND obj_description(oid, 'pg_class') = ANY (:marks::text[])
 ORDER BY relname;

-- Retention ---------------------------------------------------------------------------------
-- Each statement reads one page of a table, after :after, and deletes the rows of it that are older than
-- :before. `next` is where to continue, `more` whether to continue now. Statements that serve several
-- tables are written for one of them; retention.py puts in the names of the others.

-- name: sweep_evidence
-- Deliveries that could not be verified. All of them are FAILED_FINAL, which has an index; other
-- FAILED_FINAL events are skipped once, because `next` does not start over.
WITH page AS (
    SELECT id, signature_valid FROM webhook_events
     WHERE status <> 'PROCESSED' AND status = 'FAILED_FINAL'
       AND id > :after::uuid AND id < :before::uuid
     ORDER BY id
     LIMIT :limit::bigint
),
gone AS (
    DELETE FROM webhook_events
     WHERE id = ANY (ARRAY(SELECT id FROM page WHERE NOT signature_valid))
       AND id > :after AND id < :before
    RETURNING 1
)
SELECT (SELECT count(*) FROM gone) AS deleted,
       coalesce((SELECT id FROM page ORDER BY id DESC LIMIT 1), :after) AS next,
       (SELECT count(*) FROM page) = :limit AS more;

-- name: sweep_numbered
-- In the order of ids. Where ids are not in the order of time, the marked line is left out.
WITH page AS (
    SELECT id, at AS old_since FROM notifications
     WHERE id > :after::bigint
     ORDER BY id
     LIMIT :limit::bigint
),
gone AS (
    DELETE FROM notifications
     WHERE id = ANY (ARRAY(SELECT id FROM page WHERE old_since < :before::timestamptz))
    RETURNING 1
),
seen AS (
    SELECT max(id) AS last, count(*) = :limit
           AND max(old_since) < :before  -- in order of time
           AS more
      FROM page
)
SELECT (SELECT count(*) FROM gone) AS deleted,
       CASE WHEN more THEN last ELSE 0 END AS next, coalesce(more, false) AS more
  FROM seen;

-- name: sweep_outbox
-- Published messages. Unpublished ones are kept, however old, and so are those that a group which reads
-- here has not consumed, unless the group has been absent for as long.
WITH page AS (
    SELECT seq, aggregate_type, pos, occurred_at, published_at FROM outbox
     WHERE seq > :after::bigint
     ORDER BY seq
     LIMIT :limit::bigint
),
held AS (
    SELECT aggregate_type, min(pos) AS pos
      FROM bus_cursors
     WHERE lag IS NULL AND seen_at >= :before::timestamptz
     GROUP BY aggregate_type
),
gone AS (
    DELETE FROM outbox
     WHERE seq = ANY (ARRAY(
         SELECT p.seq FROM page AS p
          WHERE p.published_at < :before
            AND NOT EXISTS (SELECT 1 FROM held AS h
                             WHERE h.aggregate_type = p.aggregate_type AND h.pos < p.pos)))
       AND published_at IS NOT NULL
    RETURNING 1
),
seen AS (
    SELECT max(seq) AS last,
           count(*) = :limit AND coalesce(max(published_at), max(occurred_at)) < :before AS more
      FROM page
)
SELECT (SELECT count(*) FROM gone) AS deleted,
       CASE WHEN more THEN last ELSE 0 END AS next, coalesce(more, false) AS more
  FROM seen;

-- name: sweep_dated
-- The oldest first, by an index or in a small table: `next` does not move.
WITH gone AS (
    DELETE FROM processed_events
     WHERE ctid = ANY (ARRAY(
         SELECT ctid FROM processed_events
          WHERE processed_at < :before::timestamptz
          ORDER BY processed_at
          LIMIT :limit::bigint))
       AND processed_at < :before
    RETURNING 1
)
SELECT count(*) AS deleted, :after::bigint AS next, count(*) = :limit AS more FROM gone;

-- name: sweep_finished
-- Ids are in the order of time. Open findings of a reconciliation stay.
WITH gone AS (
    DELETE FROM replays
     WHERE id = ANY (ARRAY(
         SELECT id FROM replays
          WHERE id > :after::uuid AND id < :before::uuid
            AND finished_at IS NOT NULL  -- can be unfinished
          ORDER BY id
          LIMIT :limit::bigint))
    RETURNING 1
)
SELECT count(*) AS deleted, :after AS next, count(*) = :limit AS more FROM gone;

-- name: sweep_blocks
-- The tables have no index by age, which every event would pay for: they are read block by block, :limit
-- blocks at a time, and then from the beginning again.
WITH gone AS (
    DELETE FROM event_keys AS k
     WHERE k.ctid >= format('(%s,0)', :after::bigint)::tid
       AND k.ctid < format('(%s,0)', :after + :limit::bigint)::tid
       AND k.event_id < :before::uuid  -- keys
       AND NOT EXISTS (SELECT 1 FROM event_queue AS d WHERE d.event_id = k.event_id)  -- keys
       AND k.seen_at < :before::timestamptz  -- nonces
    RETURNING 1
),
seen AS (
    SELECT :after + :limit AS last,
           (:after + :limit) * current_setting('block_size')::bigint
           < pg_relation_size('event_keys') AS more
)
SELECT (SELECT count(*) FROM gone) AS deleted,
       CASE WHEN more THEN last ELSE 0 END AS next, more
  FROM seen;

-- Clock jumps -------------------------------------------------------------------------------

-- name: ban_earlier
UPDATE bans
   SET banned_at = banned_at - :step::interval, until = until - :step::interval, changed_at = now()
 WHERE ctid = ANY (ARRAY(
     SELECT ctid FROM bans
      WHERE banned_at > now() + :tolerance::interval
      LIMIT :limit
        FOR UPDATE SKIP LOCKED))
RETURNING 1 AS changed;

-- name: schedule_earlier
UPDATE event_queue SET run_at = run_at - :step::interval
 WHERE ctid = ANY (ARRAY(
     SELECT ctid FROM event_queue
      WHERE run_at > now() + :step::interval - :tolerance::interval
      LIMIT :limit
        FOR UPDATE SKIP LOCKED))
RETURNING 1 AS changed;
