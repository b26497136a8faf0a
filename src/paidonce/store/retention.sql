-- Each statement reads one page of a table in the order of its keys, after :after, and deletes what
-- is older than :before in it. `next` is where to go on, `more` whether there is anything to go on
-- to now.

-- name: evidence
-- Deliveries that could not be verified. All of them are FAILED_FINAL, which the index has; what
-- else is, is passed over once: everything up to `next` has been looked at for good.
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

-- name: audit
-- Ids are in the order of time, but for those of transactions that ran at once.
WITH page AS (
    SELECT id, at FROM audit_log WHERE id > :after::bigint ORDER BY id LIMIT :limit::bigint
),
gone AS (
    DELETE FROM audit_log
     WHERE id = ANY (ARRAY(SELECT id FROM page WHERE at < :before::timestamptz))
    RETURNING 1
),
seen AS (
    SELECT max(id) AS last, count(*) = :limit AND max(at) < :before AS more FROM page
)
SELECT (SELECT count(*) FROM gone) AS deleted,
       CASE WHEN more THEN last ELSE 0 END AS next, coalesce(more, false) AS more
  FROM seen;

-- name: outbox
-- What was published. What was not is passed over, however old it is, and so is what a group that
-- reads here has not taken, unless nobody of that group has come for so long.
WITH page AS (
    SELECT seq, aggregate_type, pos, occurred_at, published_at FROM outbox
     WHERE seq > :after::bigint
     ORDER BY seq
     LIMIT :limit::bigint
),
held AS (
    SELECT about, min(pos) AS pos
      FROM bus_cursors
     WHERE lag IS NULL AND seen_at >= :before::timestamptz
     GROUP BY about
),
gone AS (
    DELETE FROM outbox
     WHERE seq = ANY (ARRAY(
         SELECT p.seq FROM page AS p
          WHERE p.published_at < :before
            AND NOT EXISTS (SELECT 1 FROM held AS h
                             WHERE h.about = p.aggregate_type AND h.pos < p.pos)))
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

-- name: processed_events
-- These rows are never changed, so that they stay where they are found.
WITH gone AS (
    DELETE FROM processed_events
     WHERE ctid = ANY (ARRAY(
         SELECT ctid FROM processed_events
          WHERE processed_at < :before::timestamptz
          ORDER BY processed_at
          LIMIT :limit::bigint))
    RETURNING 1
)
SELECT count(*) AS deleted, :after::bigint AS next, count(*) = :limit AS more FROM gone;

-- name: bus_dead_letters
-- What was taken after all, or discarded.
WITH page AS (
    SELECT id, coalesce(taken_at, discarded_at) AS ended_at FROM bus_dead_letters
     WHERE id > :after::bigint
     ORDER BY id
     LIMIT :limit::bigint
),
gone AS (
    DELETE FROM bus_dead_letters
     WHERE id = ANY (ARRAY(SELECT id FROM page WHERE ended_at < :before::timestamptz))
    RETURNING 1
),
seen AS (
    SELECT max(id) AS last, count(*) = :limit AS more FROM page
)
SELECT (SELECT count(*) FROM gone) AS deleted,
       CASE WHEN more THEN last ELSE 0 END AS next, coalesce(more, false) AS more
  FROM seen;

-- name: notices
-- Told or not: what a channel that is there no more was to be told goes too.
WITH page AS (
    SELECT id, at FROM notices WHERE id > :after::bigint ORDER BY id LIMIT :limit::bigint
),
gone AS (
    DELETE FROM notices
     WHERE id = ANY (ARRAY(SELECT id FROM page WHERE at < :before::timestamptz))
    RETURNING 1
),
seen AS (
    SELECT max(id) AS last, count(*) = :limit AND max(at) < :before AS more FROM page
)
SELECT (SELECT count(*) FROM gone) AS deleted,
       CASE WHEN more THEN last ELSE 0 END AS next, coalesce(more, false) AS more
  FROM seen;

-- name: notice_messages
-- Their ids are in the order of time.
WITH gone AS (
    DELETE FROM notice_messages
     WHERE id = ANY (ARRAY(
         SELECT id FROM notice_messages
          WHERE id > :after::uuid AND id < :before::uuid
          ORDER BY id
          LIMIT :limit::bigint))
    RETURNING 1
)
SELECT count(*) AS deleted, :after AS next, count(*) = :limit AS more FROM gone;

-- name: replays
-- What has ended; ids are in the order of time.
WITH gone AS (
    DELETE FROM replays
     WHERE id = ANY (ARRAY(
         SELECT id FROM replays
          WHERE id > :after::uuid AND id < :before::uuid AND finished_at IS NOT NULL
          ORDER BY id
          LIMIT :limit::bigint))
    RETURNING 1
)
SELECT count(*) AS deleted, :after AS next, count(*) = :limit AS more FROM gone;

-- name: reconciliations
-- What has ended; ids are in the order of time. What it found stays until it is resolved.
WITH gone AS (
    DELETE FROM reconciliations
     WHERE id = ANY (ARRAY(
         SELECT id FROM reconciliations
          WHERE id > :after::uuid AND id < :before::uuid AND finished_at IS NOT NULL
          ORDER BY id
          LIMIT :limit::bigint))
    RETURNING 1
)
SELECT count(*) AS deleted, :after AS next, count(*) = :limit AS more FROM gone;

-- name: reconciliation_findings
-- What is resolved.
WITH page AS (
    SELECT id, resolved_at FROM reconciliation_findings
     WHERE id > :after::bigint
     ORDER BY id
     LIMIT :limit::bigint
),
gone AS (
    DELETE FROM reconciliation_findings
     WHERE id = ANY (ARRAY(SELECT id FROM page WHERE resolved_at < :before::timestamptz))
    RETURNING 1
),
seen AS (
    SELECT max(id) AS last, count(*) = :limit AS more FROM page
)
SELECT (SELECT count(*) FROM gone) AS deleted,
       CASE WHEN more THEN last ELSE 0 END AS next, coalesce(more, false) AS more
  FROM seen;

-- name: keys
-- The table has no index by age, which every event would pay for and hardly anybody needs: it is
-- walked block by block, :limit blocks at a time, and then from its beginning again.
WITH gone AS (
    DELETE FROM event_keys AS k
     WHERE k.ctid >= format('(%s,0)', :after::bigint)::tid
       AND k.ctid < format('(%s,0)', :after + :limit::bigint)::tid
       AND k.event_id < :before::uuid
       AND NOT EXISTS (SELECT 1 FROM due AS d WHERE d.event_id = k.event_id)
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

-- name: nonces
-- Walked like the keys.
WITH gone AS (
    DELETE FROM nonces AS n
     WHERE n.ctid >= format('(%s,0)', :after::bigint)::tid
       AND n.ctid < format('(%s,0)', :after + :limit::bigint)::tid
       AND n.seen_at < :before::timestamptz
    RETURNING 1
),
seen AS (
    SELECT :after + :limit AS last,
           (:after + :limit) * current_setting('block_size')::bigint
           < pg_relation_size('nonces') AS more
)
SELECT (SELECT count(*) FROM gone) AS deleted,
       CASE WHEN more THEN last ELSE 0 END AS next, more
  FROM seen;

-- name: bans
-- The table is small: what is old in it is found by looking, and `next` is where it began.
WITH gone AS (
    DELETE FROM bans
     WHERE address = ANY (ARRAY(SELECT address FROM bans
                                 WHERE until < :before::timestamptz
                                 LIMIT :limit::bigint))
    RETURNING 1
)
SELECT count(*) AS deleted, :after::bigint AS next, count(*) = :limit AS more FROM gone;

-- name: known_addresses
WITH gone AS (
    DELETE FROM known_addresses
     WHERE address = ANY (ARRAY(SELECT address FROM known_addresses
                                 WHERE verified_at < :before::timestamptz
                                 LIMIT :limit::bigint))
    RETURNING 1
)
SELECT count(*) AS deleted, :after::bigint AS next, count(*) = :limit AS more FROM gone;
