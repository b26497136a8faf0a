-- name: add_key
INSERT INTO api_keys (id, name, hint, hash, scope)
VALUES (:id, :name, :hint, :hash, :scope)
ON CONFLICT (hash) DO NOTHING;

-- name: find_key
SELECT id, name, scope, last_used_at FROM api_keys WHERE hash = :hash AND revoked_at IS NULL;

-- name: touch_key
UPDATE api_keys SET last_used_at = now() WHERE id = :id;

-- name: list_keys
SELECT id, name, hint, scope, created_at, last_used_at, revoked_at
  FROM api_keys
 ORDER BY created_at
 LIMIT 1000;

-- name: revoke_key
UPDATE api_keys SET revoked_at = now() WHERE id = :id AND revoked_at IS NULL RETURNING id;

-- name: has_keys
SELECT EXISTS (SELECT 1 FROM api_keys) AS any_key;
