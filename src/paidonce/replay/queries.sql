-- Replays, and stored events that are processed again.

-- name: page
-- Reads at most :scan events after :after, in the order of their ids, and returns up to :limit of them
-- that match; `last` is the last one read. As in the search for events, one filter leads: lines that
-- end in `-- by filter` are used only if it does. All events of an order or a payment are read each
-- time: they are few.
WITH page AS (
    SELECT e.id,
           (:source::text IS NULL OR e.source_id = (SELECT s.id FROM paidonce.sources AS s
                                                     WHERE s.name = :source))
           AND (:status::text IS NULL OR e.status = :status)
           AND (:error_code::text IS NULL OR e.error_code = :error_code)
           AND (:order::text IS NULL OR e.order_reference = :order)
           AND (:payments::text[] IS NULL OR e.external_payment_id = ANY (:payments)) AS matches
      FROM paidonce.webhook_events AS e
     WHERE e.id > :after AND e.id < :before
       AND e.id = ANY (ARRAY(SELECT w.id FROM paidonce.webhook_events AS w  -- by order
                              WHERE w.order_reference = :order))  -- by order
       AND e.id = ANY (ARRAY(SELECT w.id FROM paidonce.webhook_events AS w  -- by payments
                              WHERE w.external_payment_id = ANY (:payments)))  -- by payments
       AND e.status <> 'PROCESSED'  -- by unusual_status
       AND ROW (e.status, e.id) > ROW (:status, :after)  -- by unusual_status
       AND ROW (e.status, e.id) < ROW (:status, :before)  -- by unusual_status
       AND ROW (e.source_id, e.id)  -- by source
         > ROW ((SELECT s.id FROM paidonce.sources AS s WHERE s.name = :source), :after)  -- by source
       AND ROW (e.source_id, e.id)  -- by source
         < ROW ((SELECT s.id FROM paidonce.sources AS s WHERE s.name = :source), :before)  -- by source
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
INSERT INTO paidonce.replays (id, filter, is_dry_run, rate, actor)
VALUES (:id, :filter, :is_dry_run, :rate, :actor);

-- name: replays
-- One, or a page of them, newest first.
SELECT id, status, filter, is_dry_run AS dry_run, rate, actor, cursor, skipped, total, done, counts, applied,
       sample, error, version, created_at, started_at, paused_at, finished_at,
       extract(epoch FROM next_batch_at - clock_timestamp())::float8 AS wait_s
  FROM paidonce.replays
 WHERE (:replay_id::uuid IS NULL OR id = :replay_id)
   AND (:before::uuid IS NULL OR id < :before)
 ORDER BY id DESC
 LIMIT :limit;

-- name: active
-- Replays that a worker has to run, oldest first.
SELECT id FROM paidonce.replays WHERE status IN ('PENDING', 'RUNNING') ORDER BY id LIMIT :limit;

-- name: begin
-- A process starts or continues it. A dry run starts over: its memory was in the other process.
UPDATE paidonce.replays
   SET status = 'RUNNING', started_at = coalesce(started_at, now()), starts = starts + 1,
       version = version + 1,
       cursor = CASE WHEN is_dry_run THEN NULL ELSE cursor END,
       done = CASE WHEN is_dry_run THEN 0 ELSE done END,
       counts = CASE WHEN is_dry_run THEN '{}' ELSE counts END,
       applied = CASE WHEN is_dry_run THEN '{}' ELSE applied END,
       sample = CASE WHEN is_dry_run THEN '[]' ELSE sample END
 WHERE id = :replay_id AND status IN ('PENDING', 'RUNNING')
RETURNING starts;

-- name: uncount_start
UPDATE paidonce.replays SET starts = starts - 1 WHERE id = :replay_id AND starts > 0;

-- name: set_total
UPDATE paidonce.replays SET total = :total WHERE id = :replay_id;

-- name: advance
-- In the transaction that processes the events. Returns no row if the replay was paused or canceled
-- meanwhile, or another process was first: then the transaction must roll back. The next batch waits for
-- the rate, and for the lookups at the gateways.
UPDATE paidonce.replays
   SET cursor = :cursor, skipped = :skipped, done = done + :done, counts = :counts,
       applied = :applied, sample = :sample, version = version + 1, starts = 0,
       next_batch_at = greatest(next_batch_at, now()) + make_interval(
           secs => greatest(:done::float8 / rate, :lookup_s::float8)),
       total = CASE WHEN :is_finished THEN done + :done ELSE total END,
       status = CASE WHEN :is_finished THEN 'DONE' ELSE status END,
       finished_at = CASE WHEN :is_finished THEN clock_timestamp() END
 WHERE id = :replay_id AND status = 'RUNNING' AND version = :version
RETURNING version;

-- name: fail
UPDATE paidonce.replays
   SET status = 'FAILED', finished_at = clock_timestamp(), error = :error
 WHERE id = :replay_id AND status IN ('PENDING', 'RUNNING')
RETURNING id;

-- name: pause
UPDATE paidonce.replays
   SET status = 'PAUSED', paused_at = now()
 WHERE id = :replay_id AND status IN ('PENDING', 'RUNNING')
RETURNING id;

-- name: resume
UPDATE paidonce.replays
   SET status = CASE WHEN started_at IS NULL THEN 'PENDING' ELSE 'RUNNING' END, paused_at = NULL
 WHERE id = :replay_id AND status = 'PAUSED'
RETURNING id;

-- name: cancel
UPDATE paidonce.replays
   SET status = 'CANCELED', paused_at = NULL, finished_at = clock_timestamp()
 WHERE id = :replay_id AND status IN ('PENDING', 'RUNNING', 'PAUSED')
RETURNING id;

-- name: delay
-- Sets when queued events, which are locked, are due: this long from now.
UPDATE paidonce.event_queue AS d
   SET run_at = now() + make_interval(secs => p.delay_s)
  FROM unnest(:event_id::uuid[], :delay_s::float8[]) AS p (event_id, delay_s)
 WHERE d.event_id = p.event_id;

-- name: discard
-- Only events that are dead letters and not locked. Their payments do not change.
WITH chosen AS (
    SELECT id FROM paidonce.webhook_events
     WHERE id = ANY (:event_id::uuid[])
       AND id BETWEEN :first_id AND :last_id
       AND status = 'DEAD_LETTER'
     ORDER BY id
       FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE paidonce.webhook_events AS e
   SET status = 'FAILED_FINAL', error_message = :message, processed_at = clock_timestamp(),
       transaction_id = pg_current_xact_id()
 WHERE e.id = ANY (ARRAY(SELECT id FROM chosen))
   AND e.id BETWEEN :first_id AND :last_id
RETURNING e.id, e.error_code, e.order_reference;
