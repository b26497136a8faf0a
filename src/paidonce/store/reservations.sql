-- name: lock_wallets
-- The wallets of these reservations, and these wallets, locked in the order of their ids. A
-- reservation never moves to another wallet, so it may be looked up before the lock.
SELECT w.id, w.owner, w.currency, w.balance_minor, w.reserved_minor, w.receivable_minor, w.version
  FROM wallets AS w
 WHERE w.id = ANY (ARRAY(
         SELECT unnest(:wallet_id::uuid[])
         UNION
         SELECT r.wallet_id FROM reservations AS r WHERE r.payment_id = ANY (:payment_id::text[])))
 ORDER BY w.id
   FOR NO KEY UPDATE;

-- name: reservations
-- A statement of its own: it has to see what was committed while the locks were waited for.
SELECT ARRAY(SELECT ROW (r.payment_id, r.wallet_id, r.request_hash, r.amount_minor,
                         r.committed_minor, r.status, r.expires_at, r.created_at, r.ended_at)
               FROM reservations AS r
              WHERE r.payment_id = ANY (:payment_id::text[])) AS reservations,
       clock_timestamp() AS now;

-- name: look
-- The same without locks, at one instant. What is written later checks what was seen here.
SELECT ARRAY(SELECT ROW (w.id, w.owner, w.currency, w.balance_minor, w.reserved_minor,
                         w.receivable_minor, w.version)
               FROM wallets AS w
              WHERE w.id = ANY (ARRAY(
                      SELECT unnest(:wallet_id::uuid[])
                      UNION
                      SELECT r.wallet_id
                        FROM reservations AS r
                       WHERE r.payment_id = ANY (:payment_id::text[])))) AS wallets,
       ARRAY(SELECT ROW (r.payment_id, r.wallet_id, r.request_hash, r.amount_minor,
                         r.committed_minor, r.status, r.expires_at, r.created_at, r.ended_at)
               FROM reservations AS r
              WHERE r.payment_id = ANY (:payment_id::text[])) AS reservations,
       clock_timestamp() AS now;

-- name: write
-- Everything that a batch changes, each row once. Fewer rows written than sent means that somebody
-- was first: the statement fails, and the caller runs the batch again.
WITH changed AS (
    UPDATE wallets AS w
       SET balance_minor = c.balance_minor, reserved_minor = c.reserved_minor,
           version = w.version + 1, updated_at = now()
      FROM unnest(:wallets::written_held_wallet[]) AS c
     WHERE w.id = c.id
       AND w.version = c.version
    RETURNING 1
),
made AS (
    INSERT INTO reservations (payment_id, wallet_id, request_hash, amount_minor, committed_minor,
                              status, expires_at, created_at, ended_at)
    SELECT * FROM unnest(:made::written_reservation[])
    ON CONFLICT DO NOTHING
    RETURNING 1
),
ended AS (
    UPDATE reservations AS r
       SET status = c.status, committed_minor = c.committed_minor, expires_at = c.expires_at,
           ended_at = c.ended_at
      FROM unnest(:ended::written_ending[]) AS c
     WHERE r.payment_id = c.payment_id
       AND r.status = c.seen
    RETURNING 1
),
explained AS (
    INSERT INTO ledger_entries (movement_id, reservation, account, currency, amount_minor, at)
    SELECT * FROM unnest(:entries::written_entry_2[])
    RETURNING 1
),
audited AS (
    INSERT INTO audit_log (actor, action, success, details)
    SELECT actor, action, true, details::jsonb
      FROM unnest(:actor::text[], :action::text[], :details::text[]) AS a (actor, action, details)
    RETURNING 1
)
SELECT require_written(
    (SELECT count(*) FROM changed) + (SELECT count(*) FROM made) + (SELECT count(*) FROM ended)
        + (SELECT count(*) FROM explained) + (SELECT count(*) FROM audited), :expected);

-- name: reservation
SELECT ROW (r.payment_id, r.wallet_id, r.request_hash, r.amount_minor, r.committed_minor, r.status,
            r.expires_at, r.created_at, r.ended_at) AS reservation, w.currency
  FROM reservations AS r
  JOIN wallets AS w ON w.id = r.wallet_id
 WHERE r.payment_id = :payment_id;

-- name: expiring
-- Those whose time has been over for longest. By the time at which the transaction began: that one
-- can be looked up in the index.
SELECT payment_id
  FROM reservations
 WHERE status = 'RESERVED' AND expires_at IS NOT NULL AND expires_at <= now()
 ORDER BY expires_at
 LIMIT :limit;
