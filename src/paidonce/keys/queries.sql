-- name: add_key
INSERT INTO api_keys (id, name, hint, hash, hash_method, scope)
VALUES (:id, :name, :hint, :hash, :hash_method, :scope)
ON CONFLICT (hash) DO NOTHING
RETURNING id;

-- name: find_keys
SELECT id, name, scope, hash, hash_method, last_used_at, revoked_at
  FROM api_keys
 WHERE hash = ANY (:hashes::bytea[]);

-- name: touch_key
UPDATE api_keys SET last_used_at = now() WHERE id = :id;

-- name: list_keys
SELECT id, name, hint, scope, created_at, last_used_at, revoked_at
  FROM api_keys
 WHERE :after::uuid IS NULL OR id > :after
 ORDER BY id
 LIMIT :limit;

-- name: revoke_key
UPDATE api_keys SET revoked_at = now() WHERE id = :id AND revoked_at IS NULL RETURNING id;

-- name: has_keys
SELECT EXISTS (SELECT 1 FROM api_keys) AS any_key;
