-- name: add
-- A channel stores up to :max_pending rows of each kind and source; more are counted on one of them,
-- which is one that nobody has locked, so that nothing waits. If all are locked, a row is added.
WITH given AS (
    SELECT g.*, row_number() OVER (PARTITION BY channel, kind, source ORDER BY number) AS place
      FROM unnest(
          :channel::text[], :at::timestamptz[], :kind::text[], :source::text[], :event_id::uuid[],
          :payment_id::uuid[], :details::jsonb[], :not_before::timestamptz[]) WITH ORDINALITY
          AS g (channel, at, kind, source, event_id, payment_id, details, not_before, number)
),
groups AS (
    SELECT g.channel, g.kind, g.source, g.number,
           greatest(g.number + kept.number - :max_pending::bigint, 0) AS surplus
      FROM (SELECT channel, kind, source, count(*) AS number FROM given GROUP BY 1, 2, 3) AS g,
           LATERAL (SELECT count(*) AS number
                      FROM (SELECT 1 FROM paidonce.notifications AS n
                             WHERE n.message_id IS NULL AND n.channel = g.channel
                               AND n.kind = g.kind AND n.source = g.source
                             LIMIT :max_pending) AS found) AS kept
),
slots AS (
    SELECT g.channel, g.kind, g.source, g.surplus, slot.id
      FROM groups AS g,
           LATERAL (SELECT n.id FROM paidonce.notifications AS n
                     WHERE n.message_id IS NULL AND n.channel = g.channel
                       AND n.kind = g.kind AND n.source = g.source
                     ORDER BY n.id
                     LIMIT 1
                       FOR UPDATE SKIP LOCKED) AS slot
     WHERE g.surplus > 0
),
counted AS (
    UPDATE paidonce.notifications AS n SET suppressed = n.suppressed + s.surplus FROM slots AS s WHERE n.id = s.id
)
INSERT INTO paidonce.notifications (channel, at, kind, source, event_id, payment_id, details, not_before)
SELECT channel, given.at, kind, source, given.event_id, given.payment_id, given.details,
       given.not_before
  FROM given
  JOIN groups USING (channel, kind, source)
  LEFT JOIN slots USING (channel, kind, source)
 WHERE given.place <= groups.number - coalesce(slots.surplus, 0)
 ORDER BY given.number;

-- name: is_message_due
SELECT EXISTS (SELECT 1 FROM paidonce.notifications
                WHERE channel = :channel AND message_id IS NULL
                  AND (not_before IS NULL OR not_before <= now()))
       AND NOT EXISTS (SELECT 1 FROM paidonce.notification_messages
                        WHERE channel = :channel AND status = 'PENDING')
       AND coalesce(
           (SELECT at <= now() - :every_s::float8 * interval '1 second'
              FROM paidonce.notification_messages
             WHERE channel = :channel AND at <= now()
             ORDER BY at DESC
             LIMIT 1), true) AS is_due;

-- name: delete_resolved
-- Delayed notifications whose payment no longer needs review. A row with counted others stays.
DELETE FROM paidonce.notifications AS n
 WHERE n.channel = :channel AND n.message_id IS NULL AND n.not_before <= now()
   AND n.suppressed = 0
   AND NOT EXISTS (SELECT 1 FROM paidonce.payments AS p
                    WHERE p.id = n.payment_id AND p.review = n.details ->> 'code');

-- name: assign
-- A row that is locked, because others are counted on it, is sent with the next message.
UPDATE paidonce.notifications AS n
   SET message_id = :message_id
 WHERE n.id = ANY (ARRAY(
     SELECT u.id FROM paidonce.notifications AS u
      WHERE u.channel = :channel AND u.message_id IS NULL
        AND (u.not_before IS NULL OR u.not_before <= now())
      ORDER BY u.id
      LIMIT :limit
        FOR UPDATE SKIP LOCKED))
RETURNING n.id, n.kind, n.source, n.at, n.event_id, n.payment_id, n.details, n.suppressed;

-- name: add_message
INSERT INTO paidonce.notification_messages (id, channel, at, content, next_attempt_at)
VALUES (:id, :channel, now(), :content, now());

-- name: begin_attempt
-- By `at`, which the database sets: ids depend on the clocks of several processes.
UPDATE paidonce.notification_messages AS m
   SET attempts = m.attempts + 1,
       next_attempt_at = now() + interval '1 second'
           * (:delays_s::float8[])[least(m.attempts + 1, cardinality(:delays_s))]
 WHERE m.id = (SELECT id FROM paidonce.notification_messages
                WHERE channel = :channel AND status = 'PENDING'
                ORDER BY at
                LIMIT 1)
   AND m.status = 'PENDING' AND m.next_attempt_at <= now()
RETURNING m.id, m.at, m.content, m.attempts,
          extract(epoch FROM now() - m.at)::float8 AS age_s;

-- name: end_attempt
UPDATE paidonce.notification_messages
   SET status = :status, error = :error,
       ended_at = CASE WHEN :status::text <> 'PENDING' THEN now() END
 WHERE id = :id;

-- name: release
-- For the next message, unless they are too old.
UPDATE paidonce.notifications
   SET message_id = NULL
 WHERE message_id = :message_id AND at > now() - :max_age_s::float8 * interval '1 second';

-- name: count_pending
-- In no message yet, or in one that is not sent yet.
SELECT wanted.channel, waiting.number + unsent.number AS number,
       coalesce(extract(epoch FROM now() - least(waiting.oldest, unsent.at)), 0)::float8 AS oldest_s
  FROM unnest(:channels::text[]) AS wanted (channel)
 CROSS JOIN LATERAL (
     SELECT coalesce(sum(1 + n.suppressed), 0)::bigint AS number, min(n.at) AS oldest
       FROM paidonce.notifications AS n
      WHERE n.channel = wanted.channel AND n.message_id IS NULL
        AND (n.not_before IS NULL OR n.not_before <= now())) AS waiting
 CROSS JOIN LATERAL (
     SELECT coalesce(sum((m.content ->> 'total')::bigint), 0)::bigint AS number, min(m.at) AS at
       FROM paidonce.notification_messages AS m
      WHERE m.channel = wanted.channel AND m.status = 'PENDING') AS unsent;
