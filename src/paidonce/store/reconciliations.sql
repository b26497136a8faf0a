-- Reconciliations, what they compare, and what they find.

-- name: add
INSERT INTO reconciliations (id, source_id, status, since, until, repairs, is_timed, actor)
VALUES (:id, :source_id, 'WAITING', :since, :until, :repairs, false, :actor);

-- name: add_timed
-- The next one, if it is time for it: after a failure that is soon.
INSERT INTO reconciliations (id, source_id, status, since, until, repairs, is_timed, actor)
SELECT :id, :source_id, 'WAITING', now() - :settling::interval - :window::interval,
       now() - :settling::interval, true, true, 'timer'
 WHERE NOT EXISTS (
     SELECT 1 FROM reconciliations AS r
      WHERE r.source_id = :source_id
        AND r.is_timed
        AND r.created_at > now() - :every::interval
        AND (r.status <> 'FAILED' OR r.created_at > now() - :soon::interval))
ON CONFLICT DO NOTHING;

-- name: sources_with_work
SELECT DISTINCT source_id FROM reconciliations WHERE finished_at IS NULL;

-- name: try_lock
-- Whoever holds it works on the source's reconciliations. A session that ends lets go.
SELECT pg_try_advisory_lock(716120347, :source_id::integer) AS is_ours;

-- name: unlock
SELECT pg_advisory_unlock(716120347, :source_id::integer);

-- name: begin
-- The oldest that is not finished: it waits, or whoever worked on it has ended.
UPDATE reconciliations
   SET status = 'RUNNING', starts = starts + 1, started_at = coalesce(started_at, now())
 WHERE id = (SELECT id FROM reconciliations
              WHERE source_id = :source_id AND finished_at IS NULL ORDER BY id LIMIT 1)
RETURNING id, since, until, repairs, actor, starts, now() AS now;

-- name: put_back
UPDATE reconciliations SET status = 'WAITING', starts = starts - 1
 WHERE id = :id AND status = 'RUNNING';

-- name: give_back_starts
UPDATE reconciliations SET starts = starts - 1
 WHERE id = ANY (:id::uuid[]) AND finished_at IS NULL AND starts > 0;

-- name: progress
UPDATE reconciliations SET compared = :compared, agreed = :agreed WHERE id = :id;

-- name: finish
-- What was found is counted from the findings, so that it is all of it after a restart as well. What
-- an earlier start has repaired and this one did not see is no part of what agrees.
UPDATE reconciliations AS r
   SET status = :status, error_message = :error_message, finished_at = now(),
       compared = :compared, agreed = greatest(:agreed_or_repaired - f.repaired, 0),
       unreadable = :unreadable,
       repaired = f.repaired, behind = f.behind, differs = f.differs,
       missing_here = f.missing_here, missing_there = f.missing_there,
       new_findings = f.new_findings, sums = :sums, unapplied = u.unapplied
  FROM (SELECT count(*) FILTER (WHERE resolution = 'repaired') AS repaired,
               count(*) FILTER (WHERE resolution IS NULL AND kind = 'behind') AS behind,
               count(*) FILTER (WHERE resolution IS NULL AND kind = 'differs') AS differs,
               count(*) FILTER (WHERE resolution IS NULL AND kind = 'missing_here')
                   AS missing_here,
               count(*) FILTER (WHERE resolution IS NULL AND kind = 'missing_there')
                   AS missing_there,
               count(*) FILTER (WHERE opened_by = :id) AS new_findings
          FROM reconciliation_findings WHERE seen_by = :id) AS f,
       (SELECT coalesce(jsonb_agg(by_currency), '[]') AS unapplied
          FROM (SELECT currency, count(*) AS number,
                       sum(captured_minor - refunded_minor)::bigint AS sum_minor,
                       min(created_at) AS oldest_at
                  FROM payments
                 WHERE source_id = :source_id AND applied_at IS NULL AND canceled_at IS NULL
                   AND captured_minor > refunded_minor AND NOT is_test
                 GROUP BY currency) AS by_currency) AS u
 WHERE r.id = :id;

-- name: payments_of
-- What is known here of the payments with these ids.
SELECT i.kind, i.external_id, p.id, p.order_reference, p.currency, p.captured_minor,
       p.refunded_minor, p.canceled_at, p.is_stale
  FROM unnest(:kind::text[], :external_id::text[]) AS w (kind, external_id)
  JOIN payment_ids AS i
    ON i.source_id = :source_id AND i.kind = w.kind AND i.external_id = w.external_id
  JOIN payments AS p ON p.id = i.payment_id;

-- name: make_named
CREATE TEMP TABLE IF NOT EXISTS named (
    kind text COLLATE "C", external_id text COLLATE "C", PRIMARY KEY (kind, external_id));

-- name: empty_named
TRUNCATE named;

-- name: name
-- Those that the statement had not named before.
INSERT INTO named (kind, external_id)
SELECT DISTINCT kind, external_id
  FROM unnest(:kind::text[], :external_id::text[]) AS w (kind, external_id)
ON CONFLICT DO NOTHING
RETURNING kind, external_id;

-- name: walk
-- A page of all payments by their ids, and which of them the statement should have named. Ids are
-- in the order of creation; a payment may be paid long after it was first heard of.
SELECT p.id,
       p.source_id = :source_id AND p.captured_minor > 0 AND NOT p.is_test
           AND p.paid_at >= :since AND p.paid_at < :until
           AND NOT EXISTS (SELECT 1 FROM payment_ids AS i
                             JOIN named AS n ON n.kind = i.kind AND n.external_id = i.external_id
                            WHERE i.payment_id = p.id AND i.source_id = p.source_id) AS is_unnamed
  FROM payments AS p
 WHERE p.id > :after
 ORDER BY p.id
 LIMIT :limit;

-- name: ids_of
SELECT payment_id, kind, external_id FROM payment_ids
 WHERE payment_id = ANY (:payment_id::uuid[]) ORDER BY payment_id, kind, external_id;

-- name: keep
INSERT INTO reconciliation_findings AS f (
    source_id, id_kind, external_id, kind, payment_id, order_reference, currency, reported_minor,
    reported_refunded_minor, known_currency, known_minor, known_refunded_minor, reason,
    repair_event_id, opened_by, seen_by, first_seen_at, last_seen_at)
VALUES (
    :source_id, :id_kind, :external_id, :kind, :payment_id, :order_reference, :currency,
    :reported_minor, :reported_refunded_minor, :known_currency, :known_minor,
    :known_refunded_minor, :reason, :repair_event_id, :run_id, :run_id, now(), now())
ON CONFLICT (source_id, id_kind, external_id, kind) DO UPDATE
   SET payment_id = excluded.payment_id,
       order_reference = excluded.order_reference,
       currency = excluded.currency,
       reported_minor = excluded.reported_minor,
       reported_refunded_minor = excluded.reported_refunded_minor,
       known_currency = excluded.known_currency,
       known_minor = excluded.known_minor,
       known_refunded_minor = excluded.known_refunded_minor,
       reason = excluded.reason,
       repair_event_id = excluded.repair_event_id,
       opened_by = CASE WHEN f.resolved_at IS NULL THEN f.opened_by ELSE excluded.opened_by END,
       first_seen_at = CASE WHEN f.resolved_at IS NULL THEN f.first_seen_at
                            ELSE excluded.first_seen_at END,
       seen_by = excluded.seen_by,
       last_seen_at = excluded.last_seen_at,
       resolved_at = NULL,
       resolution = NULL;

-- name: resolve
-- What was found of a payment and is not so any more.
UPDATE reconciliation_findings
   SET resolved_at = now(), last_seen_at = now(), seen_by = :run_id,
       resolution = CASE WHEN repair_event_id IS NULL THEN 'gone' ELSE 'repaired' END
 WHERE source_id = :source_id
   AND id_kind = :id_kind
   AND external_id = :external_id
   AND resolved_at IS NULL
   AND kind IS DISTINCT FROM :kind::text;

-- name: open_before
-- What earlier reconciliations, or an earlier start of this one, have left open.
SELECT id_kind, external_id,
       EXISTS (SELECT 1 FROM named AS n
                WHERE n.kind = id_kind AND n.external_id = f.external_id) AS is_named
  FROM reconciliation_findings AS f
 WHERE source_id = :source_id AND resolved_at IS NULL AND last_seen_at < :before
 ORDER BY last_seen_at
 LIMIT :limit;

-- name: events
SELECT id, status, error_code FROM webhook_events
 WHERE id = ANY (:event_id::uuid[]) AND id BETWEEN :first_id AND :last_id;

-- name: list
SELECT r.*, s.name AS source
  FROM reconciliations AS r
  JOIN sources AS s ON s.id = r.source_id
 WHERE (:before::uuid IS NULL OR r.id < :before)
   AND (:id::uuid IS NULL OR r.id = :id)
   AND (:source::text IS NULL OR s.name = :source)
 ORDER BY r.id DESC
 LIMIT :limit;

-- name: findings
-- What a reconciliation has found first, and what it was the last one to see; what is open first.
SELECT f.*, f.opened_by = :run_id AS is_new
  FROM reconciliation_findings AS f
 WHERE f.opened_by = :run_id OR f.seen_by = :run_id
 ORDER BY f.resolved_at IS NOT NULL, f.kind, f.id
 LIMIT :limit;

-- name: open_findings
SELECT s.name AS source, f.kind, count(*) AS number
  FROM reconciliation_findings AS f
  JOIN sources AS s ON s.id = f.source_id
 WHERE f.resolved_at IS NULL
 GROUP BY s.name, f.kind;

-- name: last_done
SELECT s.name AS source, extract(epoch FROM now() - max(r.finished_at))::float8 AS age_s
  FROM reconciliations AS r
  JOIN sources AS s ON s.id = r.source_id
 WHERE r.status = 'DONE'
 GROUP BY s.name;
