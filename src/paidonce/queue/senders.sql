-- What is known about senders of unsigned deliveries, and about what they name.

-- name: standing
WITH named AS (
    SELECT CASE
               WHEN EXISTS (SELECT 1 FROM paidonce.payment_ids
                             WHERE source_id = :source_id AND kind = 'payment'
                               AND external_id = :payment_id::text)
               THEN :payment_subject::bytea
               WHEN EXISTS (SELECT 1 FROM paidonce.orders WHERE reference = :order::text)
               THEN :order_subject::bytea
           END AS subject
)
SELECT n.subject,
       (SELECT count(*) FROM (SELECT 1 FROM paidonce.event_queue AS d
                               WHERE d.queue_name = 1 AND d.sender = :sender
                                 AND d.source_id = :source_id
                               LIMIT :max_of_sender) AS found) AS of_sender,
       (SELECT count(*) FROM (SELECT 1 FROM paidonce.event_queue AS d
                               WHERE d.queue_name = 1 AND d.subject = n.subject
                               LIMIT :max_of_subject) AS found) AS of_subject,
       (SELECT count(*) FROM (SELECT 1 FROM paidonce.event_queue AS d
                               WHERE d.queue_name = 1 AND d.subject = n.subject AND d.lane <= 1
                               LIMIT :max_of_subject) AS found) AS known_of_subject,
       (SELECT count(*) FROM (SELECT 1 FROM paidonce.event_queue AS d
                               WHERE d.queue_name = 1 AND d.subject = n.subject AND d.lane = 0
                               LIMIT :max_of_subject) AS found) AS first_of_subject,
       coalesce(s.right_at > now() - make_interval(days => :proven_days::integer), false) AS was_right,
       coalesce(s.wrong, 0) AS wrong
  FROM named AS n
  LEFT JOIN paidonce.lookup_senders AS s ON s.source_id = :source_id AND s.sender = :sender;

-- name: record_answer
INSERT INTO paidonce.lookup_senders AS s (source_id, sender, right_at, wrong)
VALUES (:source_id, :sender, CASE WHEN NOT :is_wrong::boolean THEN now() END,
        CASE WHEN :is_wrong THEN 1 ELSE 0 END)
ON CONFLICT (source_id, sender) DO UPDATE
   SET right_at = coalesce(excluded.right_at, s.right_at),
       wrong = CASE WHEN excluded.wrong = 0 THEN 0 ELSE least(s.wrong + 1, 1000000) END,
       seen_at = now();
