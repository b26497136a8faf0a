-- name: create_wallet
INSERT INTO paidonce.wallets (id, owner, currency)
VALUES (:id, :owner, :currency)
ON CONFLICT (owner, currency) DO NOTHING
RETURNING id, owner, currency, balance_minor, reserved_minor, receivable_minor, created_at;

-- name: owner_user
-- The user with this id, or the one that it was merged into. Locked, so that no merge misses a wallet
-- that is created for the user.
SELECT u.id::text
  FROM paidonce.users AS u
 WHERE u.id = coalesce((SELECT m.merged_into FROM paidonce.merged_users AS m WHERE m.id = :id), :id)
   FOR KEY SHARE;

-- name: find_wallets
-- Without wallets that were merged into others, whose ids lead to those.
SELECT id, owner, currency, balance_minor, reserved_minor, receivable_minor, created_at
  FROM paidonce.wallets
 WHERE merged_into IS NULL
   AND id = coalesce((SELECT w.merged_into FROM paidonce.wallets AS w WHERE w.id = :id), :id) -- id
   AND owner = :owner -- owner
   AND currency = :currency -- currency
 ORDER BY currency
 LIMIT :limit;

-- name: lock_wallets
-- Locks these wallets and the wallets of these reservations, in the order of their ids. A reservation
-- never moves to another wallet, so it may be looked up before the lock. `load` then sees what was
-- committed while this statement waited.
SELECT w.id
  FROM paidonce.wallets AS w
 WHERE w.id = ANY (ARRAY(
         SELECT unnest(:wallet_id::uuid[])
         UNION
         SELECT r.wallet_id FROM paidonce.reservations AS r WHERE r.payment_id = ANY (:payment_id::text[])))
 ORDER BY w.id
   FOR NO KEY UPDATE;

-- name: load
-- The same wallets, and the reservations, in one snapshot. Without locks, `write` checks that nothing
-- has changed since.
SELECT ARRAY(SELECT ROW (w.id, w.owner, w.currency, w.balance_minor, w.reserved_minor,
                         w.receivable_minor, w.version)
               FROM paidonce.wallets AS w
              WHERE w.id = ANY (ARRAY(
                      SELECT unnest(:wallet_id::uuid[])
                      UNION
                      SELECT r.wallet_id
                        FROM paidonce.reservations AS r
                       WHERE r.payment_id = ANY (:payment_id::text[])))) AS wallets,
       ARRAY(SELECT ROW (r.payment_id, r.wallet_id, r.request_hash, r.amount_minor,
                         r.committed_minor, r.status, r.expires_at, r.created_at, r.ended_at)
               FROM paidonce.reservations AS r
              WHERE r.payment_id = ANY (:payment_id::text[])) AS reservations,
       clock_timestamp() AS now;

-- name: write
-- Writes each changed row of a batch once. Fewer written rows mean that another transaction was
-- first: the statement fails, and the caller runs the batch again.
WITH wallets_changed AS (
    UPDATE paidonce.wallets AS w
       SET balance_minor = c.balance_minor, reserved_minor = c.reserved_minor,
           version = w.version + 1, updated_at = now()
      FROM unnest(:wallets::paidonce.written_reserved_wallet[]) AS c
     WHERE w.id = c.id
       AND w.version = c.version
    RETURNING 1
),
new AS (
    INSERT INTO paidonce.reservations (payment_id, wallet_id, request_hash, amount_minor, committed_minor,
                              status, expires_at, created_at, ended_at)
    SELECT * FROM unnest(:new::paidonce.written_reservation[])
    ON CONFLICT DO NOTHING
    RETURNING 1
),
reservations_changed AS (
    UPDATE paidonce.reservations AS r
       SET status = c.status, committed_minor = c.committed_minor, expires_at = c.expires_at,
           ended_at = c.ended_at
      FROM unnest(:changed::paidonce.written_reservation_change[]) AS c
     WHERE r.payment_id = c.payment_id
       AND r.status = c.seen
    RETURNING 1
),
entries AS (
    INSERT INTO paidonce.ledger_entries (movement_id, reservation, account, currency, amount_minor, at)
    SELECT * FROM unnest(:entries::paidonce.written_reservation_entry[])
    RETURNING 1
),
audit AS (
    INSERT INTO paidonce.audit_log (actor, action, success, details)
    SELECT actor, action, true, details::jsonb
      FROM unnest(:actor::text[], :action::text[], :details::text[]) AS a (actor, action, details)
    RETURNING 1
)
SELECT paidonce.require_written(
    (SELECT count(*) FROM wallets_changed) + (SELECT count(*) FROM new)
        + (SELECT count(*) FROM reservations_changed) + (SELECT count(*) FROM entries)
        + (SELECT count(*) FROM audit), :expected);

-- name: expired_reservations
-- Compared with now() and not with clock_timestamp(), which cannot use the index.
SELECT payment_id
  FROM paidonce.reservations
 WHERE status = 'RESERVED' AND expires_at IS NOT NULL AND expires_at <= now()
 ORDER BY expires_at
 LIMIT :limit;

-- name: wallet_at
-- The sums of the entries until then; a receivable is negative there. The condition starts_with()
-- repeats the first one for the partial index that includes the amounts.
SELECT w.id, w.owner, w.currency, w.created_at,
       (SELECT coalesce(sum(e.amount_minor), 0)::bigint
          FROM paidonce.ledger_entries AS e
         WHERE e.account = 'wallet:' || w.id AND starts_with(e.account, 'wallet:')
           AND e.at <= :at) AS balance_minor,
       (SELECT -coalesce(sum(e.amount_minor), 0)::bigint
          FROM paidonce.ledger_entries AS e
         WHERE e.account = 'receivable:' || w.id AND e.at <= :at) AS receivable_minor
  FROM paidonce.wallets AS w
 WHERE w.id = :id;

-- name: entries
-- The newest entries of these accounts below an id. Each account is read separately, in index order,
-- no further than needed.
SELECT e.id, e.movement_id, e.account, e.amount_minor, e.currency, e.payment_id AS payment,
       e.reservation, e.at
  FROM unnest(:accounts::text[]) AS wanted (account)
 CROSS JOIN LATERAL (
     SELECT *
       FROM paidonce.ledger_entries AS e
      WHERE e.account = wanted.account AND e.id < :before
      ORDER BY e.account DESC, e.id DESC
      LIMIT :limit) AS e
 ORDER BY e.id DESC
 LIMIT :limit;

-- name: wallet_sums
-- A page of wallets with the sums of their entries and reservations, in one snapshot.
SELECT w.id, w.currency, w.balance_minor, w.receivable_minor, w.reserved_minor,
       (SELECT coalesce(sum(e.amount_minor), 0)::bigint
          FROM paidonce.ledger_entries AS e
         WHERE e.account = 'wallet:' || w.id
           AND starts_with(e.account, 'wallet:')) AS balance_expected,
       (SELECT -coalesce(sum(e.amount_minor), 0)::bigint
          FROM paidonce.ledger_entries AS e
         WHERE e.account = 'receivable:' || w.id) AS receivable_expected,
       (SELECT coalesce(sum(r.amount_minor), 0)::bigint
          FROM paidonce.reservations AS r
         WHERE r.wallet_id = w.id AND r.status = 'RESERVED') AS reserved_expected
  FROM (SELECT *
          FROM paidonce.wallets
         WHERE id > :after
         ORDER BY id
         LIMIT :limit) AS w
 ORDER BY w.id;

-- name: unbalanced_movements
-- Movements with an entry on this page that do not sum to zero. A page may cut a movement. One
-- statement writes all entries of a movement, so their ids are near each other.
SELECT page.last_id,
       ARRAY(SELECT ROW (movement_id, currency, sum(amount_minor)::bigint)
               FROM paidonce.ledger_entries
              WHERE id BETWEEN :after - :distance::bigint AND page.last_id + :distance
              GROUP BY movement_id, currency
             HAVING sum(amount_minor) <> 0
                AND bool_or(id > :after AND id <= page.last_id)) AS movements
  FROM (SELECT max(id) AS last_id
          FROM (SELECT id FROM paidonce.ledger_entries WHERE id > :after ORDER BY id LIMIT :limit) AS ids)
       AS page;

-- name: ledger_size
SELECT (SELECT greatest(reltuples, 0)::bigint FROM pg_class WHERE oid = 'paidonce.wallets'::regclass)
           AS wallets,
       (SELECT coalesce(max(id), 0) FROM paidonce.ledger_entries) AS entries;
