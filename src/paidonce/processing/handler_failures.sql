-- Handlers that fail. A handler is failing if it was not released since its last failure.

-- name: record_failure
-- No row: another transaction records a failure of the same handler right now.
INSERT INTO paidonce.failing_handlers AS f (handler)
SELECT :handler::text WHERE pg_try_advisory_xact_lock(hashtextextended('paidonce.handler:' || :handler, 0))
ON CONFLICT (handler) DO UPDATE
   SET failures = CASE WHEN f.failed_at > now() - interval '1 hour' THEN f.failures + 1 ELSE 1 END,
       failing_since = CASE WHEN f.failed_at > now() - interval '1 hour' THEN f.failing_since ELSE now() END,
       failed_at = clock_timestamp(),
       notified_at = CASE
           WHEN f.failed_at > now() - interval '1 hour' AND f.failures + 1 >= :notify_after::bigint
                AND (f.notified_at > now() - make_interval(secs => :notify_every_s::float8)) IS NOT TRUE
           THEN now() ELSE f.notified_at END
RETURNING failures, failing_since, notified_at IS NOT DISTINCT FROM now() AS is_notified;

-- name: release
-- Events that other transactions hold are tried by them. What is left over is released the next time.
WITH worked AS (
    SELECT f.handler, g.digest
      FROM paidonce.failing_handlers AS f
      JOIN unnest(:handler::text[], :digest::bytea[]) AS g (handler, digest) USING (handler)
     WHERE (f.released_at >= f.failed_at) IS NOT TRUE
       AND (f.released_at > now() - make_interval(secs => :every_s::float8)) IS NOT TRUE
       FOR UPDATE OF f SKIP LOCKED
),
marked AS (
    UPDATE paidonce.failing_handlers AS f
       SET released_at = clock_timestamp()
      FROM worked AS w
     WHERE f.handler = w.handler
),
waiting AS (
    SELECT d.id, d.run_at, w.handler
      FROM worked AS w,
           LATERAL (SELECT q.id, q.run_at
                      FROM paidonce.event_queue AS q
                     WHERE q.blocked_on = w.digest
                     ORDER BY q.run_at
                     LIMIT :limit
                       FOR UPDATE SKIP LOCKED) AS d
),
released AS (
    UPDATE paidonce.event_queue AS q
       SET run_at = least(q.run_at, now() + n.place / :per_s::float8 * interval '1 second')
      FROM (SELECT id, handler, row_number() OVER (ORDER BY run_at) - 1 AS place FROM waiting) AS n
     WHERE q.id = n.id
    RETURNING n.handler
)
SELECT w.handler, (SELECT count(*) FROM released AS r WHERE r.handler = w.handler) AS released
  FROM worked AS w;
