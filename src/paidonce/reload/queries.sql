-- Reloads of the settings.

-- name: join
-- Held by the session of each process that takes part, under the number of its group.
SELECT pg_advisory_lock_shared(hashtext('paidonce.reload'), :group::integer);

-- name: close_forgotten
-- Whoever asked has died before the decision.
UPDATE paidonce.reloads SET status = 'REFUSED', reason = 'nobody decided in time', decided_at = clock_timestamp()
 WHERE status = 'ASKED' AND asked_at < clock_timestamp() - make_interval(secs => :forgotten_s::float8);

-- name: ask
-- One at a time. No row: another one is under way.
INSERT INTO paidonce.reloads (id, actor, process_group)
VALUES (:id, :actor, :group)
ON CONFLICT (status) WHERE status = 'ASKED' DO NOTHING
RETURNING id;

-- name: open_reload
-- The one that this process has to answer.
SELECT id FROM paidonce.reloads AS r
 WHERE status = 'ASKED'
   AND (process_group IS NULL OR process_group = :group)
   AND NOT EXISTS (SELECT 1 FROM paidonce.reload_answers AS a
                    WHERE a.reload_id = r.id AND a.backend = pg_backend_pid());

-- name: answer
INSERT INTO paidonce.reload_answers
       (reload_id, backend, process, process_group, is_accepted, reason, changed, needs_restart, digest)
SELECT id, pg_backend_pid(), :process, :group, :is_accepted, :reason, :changed::text[],
       :needs_restart::text[], :digest
  FROM paidonce.reloads
 WHERE id = :id AND status = 'ASKED'
ON CONFLICT DO NOTHING;

-- name: missing
-- How many processes that run have not answered.
SELECT count(*)
  FROM pg_locks AS l
 WHERE l.locktype = 'advisory' AND l.objsubid = 2 AND l.granted
   AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
   AND l.classid = (hashtext('paidonce.reload')::bigint & 4294967295)::oid
   AND (:group::bigint IS NULL OR l.objid = :group::bigint::oid)
   AND NOT EXISTS (SELECT 1 FROM paidonce.reload_answers AS a
                    WHERE a.reload_id = :id AND a.backend = l.pid);

-- name: decide
UPDATE paidonce.reloads SET status = :status, reason = :reason, decided_at = clock_timestamp()
 WHERE id = :id AND status = 'ASKED'
RETURNING id;

-- name: status
SELECT status, reason FROM paidonce.reloads WHERE id = :id;

-- name: answers
SELECT process, process_group, is_accepted, reason, changed, needs_restart, digest,
       taken_at IS NOT NULL AS is_taken
  FROM paidonce.reload_answers
 WHERE reload_id = :id
 ORDER BY process;

-- name: taken
UPDATE paidonce.reload_answers SET taken_at = clock_timestamp()
 WHERE reload_id = :id AND process = :process;

-- name: missed
-- Whether a reload was taken while this process was starting, or had lost its connection.
SELECT EXISTS (SELECT 1 FROM paidonce.reloads
                WHERE status = 'TAKEN'
                  AND (process_group IS NULL OR process_group = :group)
                  AND decided_at > clock_timestamp() - make_interval(secs => :age_s::float8)) AS is_missed;

-- name: delete_old
WITH old AS (
    DELETE FROM paidonce.reloads WHERE asked_at < clock_timestamp() - make_interval(days => :days::integer)
    RETURNING id
)
DELETE FROM paidonce.reload_answers WHERE reload_id IN (SELECT id FROM old);

-- name: hurry
-- Events that waited for their source to be configured again are due now.
UPDATE paidonce.event_queue AS d SET run_at = clock_timestamp()
  FROM paidonce.webhook_events AS e
 WHERE e.id = d.event_id
   AND e.source_id IN (SELECT id FROM paidonce.sources WHERE name = ANY (:names::text[]))
   AND d.run_at > clock_timestamp();
