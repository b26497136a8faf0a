-- name: pending_order
-- The order that waits for exactly this payment, from this source.
SELECT id
  FROM paidonce.orders
 WHERE reference = :reference
   AND status = 'PENDING'
   AND amount_minor = :amount_minor
   AND currency = :currency
   AND (sources IS NULL OR :source_id::smallint = ANY (sources));

-- name: take_evidence_room
-- Takes :wanted bytes of the day's room; no row if that is more than is left.
INSERT INTO paidonce.evidence_rooms AS r (room, day, taken)
VALUES (:room, (now() AT TIME ZONE 'UTC')::date, :wanted)
ON CONFLICT (room) DO UPDATE
   SET taken = CASE WHEN r.day = excluded.day THEN r.taken ELSE 0 END + excluded.taken,
       is_told = r.is_told AND r.day = excluded.day,
       day = excluded.day
 WHERE r.day <> excluded.day OR r.taken + excluded.taken <= :max_bytes::bigint
RETURNING r.taken;

-- name: tell_evidence_room_full
-- A row for the first that tells it on this day.
INSERT INTO paidonce.evidence_rooms AS r (room, day, taken, is_told)
VALUES (:room, (now() AT TIME ZONE 'UTC')::date, 0, true)
ON CONFLICT (room) DO UPDATE
   SET taken = CASE WHEN r.day = excluded.day THEN r.taken ELSE 0 END, is_told = true,
       day = excluded.day
 WHERE r.day <> excluded.day OR NOT r.is_told
RETURNING r.room;
