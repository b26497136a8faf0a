-- name: add
-- In the transaction of what they tell, while its row is locked: so for each key the order of `seq`
-- is the order of commits.
INSERT INTO outbox (id, aggregate_type, aggregate_id, type, version, payload, occurred_at)
SELECT id, aggregate_type, aggregate_id, type, version, payload, occurred_at
  FROM unnest(:messages::written_message_2[]) WITH ORDINALITY AS m
 ORDER BY m.ordinality;
