-- name: wallet_at
-- What the entries until then say. What is owed stands in them below zero. That the account is a
-- wallet's is said twice, for the index that has the amounts.
SELECT w.id, w.owner, w.currency, w.created_at,
       (SELECT coalesce(sum(e.amount_minor), 0)::bigint
          FROM ledger_entries AS e
         WHERE e.account = 'wallet:' || w.id AND starts_with(e.account, 'wallet:')
           AND e.at <= :at) AS balance_minor,
       (SELECT -coalesce(sum(e.amount_minor), 0)::bigint
          FROM ledger_entries AS e
         WHERE e.account = 'receivable:' || w.id AND e.at <= :at) AS receivable_minor
  FROM wallets AS w
 WHERE w.id = :id;

-- name: entries
-- The newest of these accounts' entries below an id. Each account is read by itself, in the order of
-- its index, and no further than needed.
SELECT e.id, e.movement_id, e.account, e.amount_minor, e.currency, e.payment_id, e.reservation, e.at
  FROM unnest(:accounts::text[]) AS wanted (account)
 CROSS JOIN LATERAL (
     SELECT *
       FROM ledger_entries AS e
      WHERE e.account = wanted.account AND e.id < :before
      ORDER BY e.account DESC, e.id DESC
      LIMIT :limit) AS e
 ORDER BY e.id DESC
 LIMIT :limit;

-- name: wallets_explained
-- A page of wallets beside what explains them, all of it at one instant.
SELECT w.id, w.currency, w.balance_minor, w.receivable_minor, w.reserved_minor,
       (SELECT coalesce(sum(e.amount_minor), 0)::bigint
          FROM ledger_entries AS e
         WHERE e.account = 'wallet:' || w.id
           AND starts_with(e.account, 'wallet:')) AS balance_explained,
       (SELECT -coalesce(sum(e.amount_minor), 0)::bigint
          FROM ledger_entries AS e
         WHERE e.account = 'receivable:' || w.id) AS receivable_explained,
       (SELECT coalesce(sum(r.amount_minor), 0)::bigint
          FROM reservations AS r
         WHERE r.wallet_id = w.id AND r.status = 'RESERVED') AS reserved_explained
  FROM (SELECT *
          FROM wallets
         WHERE id > :after
         ORDER BY id
         LIMIT :limit) AS w
 ORDER BY w.id;

-- name: unbalanced
-- Of a page of entries, the movements that do not sum to zero within it: those that it cuts, and
-- those that are wrong.
WITH page AS (
    SELECT id, movement_id, currency, amount_minor
      FROM ledger_entries
     WHERE id > :after
     ORDER BY id
     LIMIT :limit
)
SELECT ARRAY(SELECT ROW (movement_id, currency, sum(amount_minor)::bigint, min(id))
               FROM page
              GROUP BY movement_id, currency
             HAVING sum(amount_minor) <> 0) AS movements,
       (SELECT max(id) FROM page) AS last_id;

-- name: movement
-- All of a movement. Its entries are written by one statement, so their ids are near each other.
SELECT coalesce(sum(amount_minor), 0)::bigint AS minor
  FROM ledger_entries
 WHERE id BETWEEN :first_id AND :last_id
   AND movement_id = :movement_id
   AND currency = :currency;

-- name: size
-- How many wallets there are, as far as the statistics know, and how far the ledger goes.
SELECT (SELECT greatest(reltuples, 0)::bigint FROM pg_class WHERE oid = 'wallets'::regclass)
           AS wallets,
       (SELECT coalesce(max(id), 0) FROM ledger_entries) AS entries;
