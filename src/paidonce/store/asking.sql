-- What waits for an answer of its gateway. Nothing here holds a transaction open.

-- name: due_of_sources
-- What is due of each of these sources, the oldest first, without what is being asked already.
SELECT s.source_id, d.event_id
  FROM unnest(:source_id::smallint[]) AS s (source_id)
 CROSS JOIN LATERAL (
     SELECT d.event_id, d.run_at
       FROM due AS d
       JOIN webhook_events AS e ON e.id = d.event_id
      WHERE d.lane = 1
        AND d.source_id = s.source_id
        AND d.run_at <= now()
        AND d.event_id <> ALL (:in_hand::uuid[])
      ORDER BY d.run_at
      LIMIT :limit) AS d
 ORDER BY d.run_at;

-- name: next_of_sources
-- How long until something is due of one of them; null when nothing waits.
SELECT extract(epoch FROM min(d.run_at) - now())::float8 AS in_s
  FROM unnest(:source_id::smallint[]) AS s (source_id)
 CROSS JOIN LATERAL (
     SELECT d.run_at
       FROM due AS d
      WHERE d.lane = 1
        AND d.source_id = s.source_id
        AND d.event_id <> ALL (:in_hand::uuid[])
      ORDER BY d.run_at
      LIMIT 1) AS d;

-- name: read
SELECT id, source_id, received_at, headers, raw_body,
       status IN ('RECEIVED', 'VALIDATED', 'FAILED_RETRYABLE') AS waits
  FROM webhook_events
 WHERE id = ANY (:event_id::uuid[])
   AND id BETWEEN :first_id AND :last_id;

-- name: lock_sources
-- Those of these sources whose gateways nobody else is asking. A session that ends lets go.
SELECT source_id
  FROM unnest(:source_id::smallint[]) AS s (source_id)
 WHERE pg_try_advisory_lock(716120346, source_id);

-- name: unlock_sources
SELECT pg_advisory_unlock(716120346, source_id)
  FROM unnest(:source_id::smallint[]) AS s (source_id);
