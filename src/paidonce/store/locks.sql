-- name: try_lock
-- Two numbers: another space than that of the locks with one. It ends with its session at the latest.
SELECT pg_try_advisory_lock(716120345, hashtext(:name)) AS is_ours;

-- name: unlock
SELECT pg_advisory_unlock(716120345, hashtext(:name));
