-- Reconciliations: runs, comparison, findings.

-- name: add
INSERT INTO reconciliations (id, source_id, status, since, until, repairs, is_scheduled, actor)
VALUES (:id, :source_id, 'PENDING', :since, :until, :repairs, false, :actor);

-- name: add_scheduled
-- Adds the next run if it is due. After a failure it is due sooner.
INSERT INTO reconciliations (id, source_id, status, since, until, repairs, is_scheduled, actor)
SELECT :id, :source_id, 'PENDING', now() - :delay::interval - :window::interval,
       now() - :delay::interval, true, true, 'timer'
 WHERE NOT EXISTS (
     SELECT 1 FROM reconciliations AS r
      WHERE r.source_id = :source_id
        AND r.is_scheduled
        AND r.created_at BETWEEN now() - :every::interval AND now()
        AND (r.status <> 'FAILED' OR r.created_at > now() - :retry_after::interval))
ON CONFLICT DO NOTHING;

-- name: sources_with_work
SELECT DISTINCT source_id FROM reconciliations WHERE finished_at IS NULL;

-- name: begin
-- The oldest that is not finished: it is pending, or its process has ended.
UPDATE reconciliations
   SET status = 'RUNNING', starts = starts + 1, started_at = coalesce(started_at, now())
 WHERE id = (SELECT id FROM reconciliations
              WHERE source_id = :source_id AND finished_at IS NULL ORDER BY id LIMIT 1)
RETURNING id, since, until, repairs, actor, starts, now() AS now;

-- name: release
UPDATE reconciliations SET status = 'PENDING', starts = starts - 1
 WHERE id = :id AND status = 'RUNNING';

-- name: uncount_starts
UPDATE reconciliations SET starts = starts - 1
 WHERE id = ANY (:id::uuid[]) AND finished_at IS NULL AND starts > 0;

-- name: save_progress
UPDATE reconciliations SET compared = :compared, agreed = :agreed WHERE id = :id;

-- name: finish
-- Findings are counted in their table, so that the counts are complete after a restart. Payments that
-- were repaired by this run are counted as repaired, not as agreed.
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
               count(*) FILTER (WHERE resolution IS NULL AND kind = 'missing_here') AS missing_here,
               count(*) FILTER (WHERE resolution IS NULL AND kind = 'missing_there') AS missing_there,
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

-- name: recorded_payments
-- What was refunded outside of the gateway is not in its statement.
SELECT i.kind, i.external_id, p.id, p.order_reference, p.currency, p.captured_minor,
       p.refunded_minor - coalesce((
           SELECT sum(r.amount_minor) FROM refunds AS r
            WHERE r.payment_id = p.id AND starts_with(r.refund_id, 'outside:'))::bigint, 0)
           AS refunded_minor,
       p.canceled_at, p.is_expired
  FROM unnest(:kind::text[], :external_id::text[]) AS w (kind, external_id)
  JOIN payment_ids AS i
    ON i.source_id = :source_id AND i.kind = w.kind AND i.external_id = w.external_id
  JOIN payments AS p ON p.id = i.payment_id;

-- name: create_statement_ids
CREATE TEMP TABLE statement_ids (
    kind text COLLATE "C", external_id text COLLATE "C", PRIMARY KEY (kind, external_id));

-- name: add_statement_ids
-- Returns those that were not in the statement before.
INSERT INTO statement_ids (kind, external_id)
SELECT DISTINCT kind, external_id
  FROM unnest(:kind::text[], :external_id::text[]) AS w (kind, external_id)
ON CONFLICT DO NOTHING
RETURNING kind, external_id;

-- name: payments_not_in_statement
-- A page of all payments in the order of their ids (creation), and the gateway's ids of those that
-- should be in the statement and are not. A payment may be paid long after it was created.
SELECT p.id,
       CASE WHEN p.source_id = :source_id AND p.captured_minor > 0 AND NOT p.is_test
                 AND p.paid_at >= :since AND p.paid_at < :until
                 AND NOT EXISTS (SELECT 1 FROM payment_ids AS i
                                   JOIN statement_ids AS n
                                     ON n.kind = i.kind AND n.external_id = i.external_id
                                  WHERE i.payment_id = p.id AND i.source_id = p.source_id)
            THEN ARRAY(SELECT ROW (i.kind, i.external_id) FROM payment_ids AS i
                        WHERE i.payment_id = p.id ORDER BY i.kind, i.external_id) END AS ids
  FROM payments AS p
 WHERE p.id > :after
 ORDER BY p.id
 LIMIT :limit;

-- name: save_finding
INSERT INTO reconciliation_findings AS f (
    source_id, id_kind, external_id, kind, payment_id, order_reference, reported_currency,
    reported_minor, reported_refunded_minor, recorded_currency, recorded_minor, recorded_refunded_minor, reason,
    repair_event_id, opened_by, seen_by, first_seen_at, last_seen_at)
VALUES (
    :source_id, :id_kind, :external_id, :kind, :payment_id, :order_reference, :reported_currency,
    :reported_minor, :reported_refunded_minor, :recorded_currency, :recorded_minor,
    :recorded_refunded_minor, :reason, :repair_event_id, :run_id, :run_id, now(), now())
ON CONFLICT (source_id, id_kind, external_id, kind) DO UPDATE
   SET payment_id = excluded.payment_id,
       order_reference = excluded.order_reference,
       reported_currency = excluded.reported_currency,
       reported_minor = excluded.reported_minor,
       reported_refunded_minor = excluded.reported_refunded_minor,
       recorded_currency = excluded.recorded_currency,
       recorded_minor = excluded.recorded_minor,
       recorded_refunded_minor = excluded.recorded_refunded_minor,
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
-- Resolves open findings of the payment, except one of this kind.
UPDATE reconciliation_findings
   SET resolved_at = now(), last_seen_at = now(), seen_by = :run_id,
       resolution = CASE WHEN repair_event_id IS NULL THEN 'gone' ELSE 'repaired' END
 WHERE source_id = :source_id
   AND id_kind = :id_kind
   AND external_id = :external_id
   AND resolved_at IS NULL
   AND kind IS DISTINCT FROM :kind::text;

-- name: open_findings_before
-- Open findings of earlier runs, or of an earlier start of this run.
SELECT id_kind, external_id,
       EXISTS (SELECT 1 FROM statement_ids AS n
                WHERE n.kind = id_kind AND n.external_id = f.external_id) AS is_in_statement
  FROM reconciliation_findings AS f
 WHERE source_id = :source_id AND resolved_at IS NULL AND last_seen_at < :before
 ORDER BY last_seen_at
 LIMIT :limit;

-- name: events
SELECT id, status, error_code FROM webhook_events
 WHERE id = ANY (:event_id::uuid[]) AND id BETWEEN :first_id AND :last_id;

-- name: reconciliations
SELECT r.*, s.name AS source, NOT r.repairs AS dry_run
  FROM reconciliations AS r
  JOIN sources AS s ON s.id = r.source_id
 WHERE (:before::uuid IS NULL OR r.id < :before)
   AND (:id::uuid IS NULL OR r.id = :id)
   AND (:source::text IS NULL OR s.name = :source)
 ORDER BY r.id DESC
 LIMIT :limit;

-- name: findings
-- Findings that this run opened, or was the last to see; open ones first.
SELECT f.*, f.external_id AS external_payment_id, f.order_reference AS "order",
       coalesce(f.reported_currency, f.recorded_currency) AS currency, f.opened_by = :run_id AS "new"
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
