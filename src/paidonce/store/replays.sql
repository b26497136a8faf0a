-- Which events a replay is of, and how far it has come.

-- name: page
-- Looks at :scan events after :after at most, in the order of their ids, and names up to :limit of
-- them that match; `last` is the last one looked at. One filter leads, as in event_search.sql, and
-- lines that end in `-- by filter` are there only while it does. All that one order or payment has
-- is read each time: there is never much of it.
WITH page AS (
    SELECT e.id,
           (:source::text IS NULL OR e.source_id = (SELECT s.id FROM sources AS s
                                                     WHERE s.name = :source))
           AND (:status::text IS NULL OR e.status = :status)
           AND (:error_code::text IS NULL OR e.error_code = :error_code)
           AND (:order::text IS NULL OR e.order_reference = :order)
           AND (:payments::text[] IS NULL OR e.external_payment_id = ANY (:payments)) AS matches
      FROM webhook_events AS e
     WHERE e.id > :after AND e.id < :before
       AND e.id = ANY (ARRAY(SELECT w.id FROM webhook_events AS w  -- by order
                              WHERE w.order_reference = :order))  -- by order
       AND e.id = ANY (ARRAY(SELECT w.id FROM webhook_events AS w  -- by payments
                              WHERE w.external_payment_id = ANY (:payments)))  -- by payments
       AND e.status <> 'PROCESSED'  -- by unusual_status
       AND ROW (e.status, e.id) > ROW (:status, :after)  -- by unusual_status
       AND ROW (e.status, e.id) < ROW (:status, :before)  -- by unusual_status
       AND ROW (e.source_id, e.id)  -- by source
         > ROW ((SELECT s.id FROM sources AS s WHERE s.name = :source), :after)  -- by source
       AND ROW (e.source_id, e.id)  -- by source
         < ROW ((SELECT s.id FROM sources AS s WHERE s.name = :source), :before)  -- by source
     ORDER BY
           e.status,  -- by unusual_status
           e.source_id,  -- by source
           e.id
     LIMIT :scan
)
SELECT ARRAY(SELECT id FROM page WHERE matches ORDER BY id LIMIT :limit) AS ids,
       (SELECT id FROM page ORDER BY id DESC LIMIT 1) AS last,
       (SELECT count(*) FROM page) AS looked;

-- name: create
INSERT INTO replays (id, filter, is_dry_run, rate, actor)
VALUES (:id, :filter, :is_dry_run, :rate, :actor);

-- name: replays
-- One, or a page of them, the newest first.
SELECT id, status, filter, is_dry_run, rate, actor, cursor, left_over, total, done, counts, applied,
       sample, error, version, starts, created_at, started_at, paused_at, finished_at,
       extract(epoch FROM next_at - clock_timestamp())::float8 AS wait_s
  FROM replays
 WHERE (:replay_id::uuid IS NULL OR id = :replay_id)
   AND (:before::uuid IS NULL OR id < :before)
 ORDER BY id DESC
 LIMIT :limit;

-- name: active
-- What somebody has to run, the oldest first.
SELECT id FROM replays WHERE status IN ('PENDING', 'RUNNING') ORDER BY id LIMIT :limit;

-- name: begin
-- A process has taken it up. A dry run remembers nothing of what another one has seen: from the start.
UPDATE replays
   SET status = 'RUNNING', started_at = coalesce(started_at, now()), starts = starts + 1,
       version = version + 1,
       cursor = CASE WHEN is_dry_run THEN NULL ELSE cursor END,
       done = CASE WHEN is_dry_run THEN 0 ELSE done END,
       counts = CASE WHEN is_dry_run THEN '{}' ELSE counts END,
       applied = CASE WHEN is_dry_run THEN '{}' ELSE applied END,
       sample = CASE WHEN is_dry_run THEN '[]' ELSE sample END
 WHERE id = :replay_id AND status IN ('PENDING', 'RUNNING')
RETURNING starts;

-- name: give_back_start
UPDATE replays SET starts = starts - 1 WHERE id = :replay_id AND starts > 0;

-- name: set_total
UPDATE replays SET total = :total WHERE id = :replay_id;

-- name: advance
-- In the transaction of what was done. No row when it was paused or canceled meanwhile, or another
-- process was first: then nothing of it may stay. It goes on when its rate allows more, and when
-- gateways that have to be asked have been.
UPDATE replays
   SET cursor = :cursor, left_over = :left_over, done = done + :done, counts = :counts,
       applied = :applied, sample = :sample, version = version + 1, starts = 0,
       next_at = greatest(next_at, now()) + make_interval(
           secs => greatest(:done::float8 / rate, :asking_s::float8)),
       total = CASE WHEN :is_over THEN done + :done ELSE total END,
       status = CASE WHEN :is_over THEN 'DONE' ELSE status END,
       finished_at = CASE WHEN :is_over THEN clock_timestamp() END
 WHERE id = :replay_id AND status = 'RUNNING' AND version = :version
RETURNING version;

-- name: fail
UPDATE replays
   SET status = 'FAILED', finished_at = clock_timestamp(), error = :error
 WHERE id = :replay_id AND status IN ('PENDING', 'RUNNING')
RETURNING id;

-- name: pause
UPDATE replays
   SET status = 'PAUSED', paused_at = now()
 WHERE id = :replay_id AND status IN ('PENDING', 'RUNNING')
RETURNING id;

-- name: resume
UPDATE replays
   SET status = CASE WHEN started_at IS NULL THEN 'PENDING' ELSE 'RUNNING' END, paused_at = NULL
 WHERE id = :replay_id AND status = 'PAUSED'
RETURNING id;

-- name: cancel
UPDATE replays
   SET status = 'CANCELED', paused_at = NULL, finished_at = clock_timestamp()
 WHERE id = :replay_id AND status IN ('PENDING', 'RUNNING', 'PAUSED')
RETURNING id;
