-- name: create_wallet
INSERT INTO wallets (id, owner, currency)
VALUES (:id, :owner, :currency)
ON CONFLICT (owner, currency) DO NOTHING
RETURNING id, owner, currency, balance_minor, reserved_minor, receivable_minor, created_at;

-- name: wallet_of
SELECT id, owner, currency, balance_minor, reserved_minor, receivable_minor, created_at
  FROM wallets
 WHERE owner = :owner AND currency = :currency;

-- name: wallets_of
SELECT id, owner, currency, balance_minor, reserved_minor, receivable_minor, created_at
  FROM wallets
 WHERE owner = :owner
 ORDER BY currency
 LIMIT :limit;

-- name: wallet
SELECT id, owner, currency, balance_minor, reserved_minor, receivable_minor, created_at
  FROM wallets
 WHERE id = :id;
