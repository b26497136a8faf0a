-- Around the calls of a user's own handlers.

-- name: begin
-- From here on the transaction cannot be committed, and no statement in it takes for ever.
WITH running AS (INSERT INTO handling DEFAULT VALUES RETURNING id)
SELECT id, set_config('statement_timeout', :timeout_ms, true) FROM running;

-- name: end
-- From here on it can. No row if this is not the transaction in which the handlers were called.
DELETE FROM handling WHERE id = :id RETURNING id;

-- name: check_deferred
-- What would be refused at the commit is refused now, while it is known who wrote it.
SET CONSTRAINTS ALL IMMEDIATE;

-- name: defer_again
SET CONSTRAINTS ALL DEFERRED;
