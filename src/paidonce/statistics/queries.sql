-- name: fold
-- Some of the deltas become part of the counts, and are gone. A count may be below zero for a
-- moment, when what it takes back is still a delta: a reader adds up both.
WITH taken AS (
    DELETE FROM paidonce.event_count_deltas
     WHERE ctid = ANY (ARRAY(
         SELECT ctid FROM paidonce.event_count_deltas LIMIT :limit FOR UPDATE SKIP LOCKED))
    RETURNING day, source_id, signature_method, received, duplicates, waiting, succeeded, failed,
              rejected
),
folded AS (
    INSERT INTO paidonce.event_counts AS c (
        day, source_id, signature_method, received, duplicates, waiting, succeeded, failed, rejected)
    SELECT day, source_id, signature_method, sum(received), sum(duplicates), sum(waiting),
           sum(succeeded), sum(failed), sum(rejected)
      FROM taken
     GROUP BY day, source_id, signature_method
     ORDER BY day, source_id, signature_method
    ON CONFLICT (day, source_id, signature_method) DO UPDATE
       SET received = c.received + excluded.received,
           duplicates = c.duplicates + excluded.duplicates,
           waiting = c.waiting + excluded.waiting,
           succeeded = c.succeeded + excluded.succeeded,
           failed = c.failed + excluded.failed,
           rejected = c.rejected + excluded.rejected
)
SELECT count(*) AS number FROM taken;

-- name: add
-- What was counted beside a batch.
INSERT INTO paidonce.event_count_deltas (
    day, source_id, signature_method, received, duplicates, waiting, succeeded, failed, rejected)
SELECT * FROM unnest(:counts::paidonce.written_event_count[]);

-- name: report
-- What was folded and what was not, in one snapshot; the total first, and each way to group it.
SELECT c.day, s.name AS source, c.signature_method,
       coalesce(sum(c.received), 0)::bigint AS received,
       coalesce(sum(c.duplicates), 0)::bigint AS duplicates,
       coalesce(sum(c.waiting), 0)::bigint AS waiting,
       coalesce(sum(c.succeeded), 0)::bigint AS succeeded,
       coalesce(sum(c.failed), 0)::bigint AS failed,
       coalesce(sum(c.rejected), 0)::bigint AS rejected,
       coalesce(sum(c.succeeded)::float8 / nullif(sum(c.succeeded + c.failed), 0), 1) AS success_rate
  FROM (TABLE paidonce.event_counts UNION ALL TABLE paidonce.event_count_deltas) AS c
  JOIN paidonce.sources AS s ON s.id = c.source_id
 WHERE c.day BETWEEN :first_day AND :last_day AND (:source::text IS NULL OR s.name = :source)
 GROUP BY GROUPING SETS ((), (c.day), (s.name), (c.signature_method))
 ORDER BY grouping(c.day, s.name, c.signature_method) DESC, c.day, s.name, c.signature_method;
