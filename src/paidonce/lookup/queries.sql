-- Events that wait for a lookup at their gateway.

-- name: find_due
-- The due events of each of these sources, the oldest first, without running lookups.
SELECT s.source_id, d.event_id
  FROM unnest(:source_id::smallint[]) AS s (source_id)
 CROSS JOIN LATERAL (
     SELECT d.event_id, d.run_at
       FROM paidonce.event_queue AS d
       JOIN paidonce.webhook_events AS e ON e.id = d.event_id
      WHERE d.queue_name = 1
        AND d.source_id = s.source_id
        AND d.run_at <= now()
        AND d.event_id <> ALL (:running::uuid[])
      ORDER BY d.run_at
      LIMIT :limit) AS d
 ORDER BY d.run_at;

-- name: seconds_until_due
-- The time until the next event of these sources is due; null if there is none.
SELECT extract(epoch FROM min(d.run_at) - now())::float8 AS seconds
  FROM unnest(:source_id::smallint[]) AS s (source_id)
 CROSS JOIN LATERAL (
     SELECT d.run_at
       FROM paidonce.event_queue AS d
      WHERE d.queue_name = 1
        AND d.source_id = s.source_id
        AND d.event_id <> ALL (:running::uuid[])
      ORDER BY d.run_at
      LIMIT 1) AS d;
