-- name: months
-- Every month of events, whether a detach of it was begun and not ended, and whether it has a mark.
SELECT child.relname AS name, inhdetachpending AS is_pending,
       coalesce(obj_description(child.oid, 'pg_class') = ANY (:marks::text[]), false) AS is_marked
  FROM pg_inherits
  JOIN pg_class AS child ON child.oid = inhrelid
 WHERE inhparent = 'webhook_events'::regclass
 ORDER BY child.relname;

-- name: something_waits
-- Whether an event of this month is not final, needs a person, or is due.
SELECT EXISTS (
    SELECT 1 FROM webhook_events
     WHERE status <> 'PROCESSED'
       AND status IN ('RECEIVED', 'VALIDATED', 'FAILED_RETRYABLE', 'DEAD_LETTER')
       AND id >= :first_id AND id < :end_id)
    OR (SELECT event_id FROM due
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

-- name: detached
-- What was detached in order to go. A table that an operator keeps has no such mark.
SELECT relname AS name
  FROM pg_class
 WHERE relkind = 'r' AND NOT relispartition
   AND relname LIKE 'webhook\_events\_%'
   AND pg_table_is_visible(oid)
   AND obj_description(oid, 'pg_class') = ANY (:marks::text[])
 ORDER BY relname;
