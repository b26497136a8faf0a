-- Around the calls of a user's own handlers.

-- name: begin
-- From here on the transaction cannot be committed, and no statement in it takes for ever. For the
-- rest of it, the session is an ordinary one again: what suits our own statements (short waits for
-- locks, plans by index only) would not suit a user's.
WITH running AS (INSERT INTO handling DEFAULT VALUES RETURNING id)
SELECT id,
       set_config('statement_timeout', :timeout_ms, true),
       set_config('lock_timeout', :timeout_ms, true),
       set_config('idle_in_transaction_session_timeout', '5min', true),
       set_config('plan_cache_mode', 'auto', true),
       set_config('enable_seqscan', 'on', true),
       set_config('enable_hashjoin', 'on', true),
       set_config('enable_mergejoin', 'on', true)
  FROM running;

-- name: end
-- From here on it can. No row if this is not the transaction in which the handlers were called.
DELETE FROM handling WHERE id = :id RETURNING id;

-- name: check_deferred
-- What would be refused at the commit is refused now, while it is known who wrote it.
SET CONSTRAINTS ALL IMMEDIATE;

-- name: defer_again
SET CONSTRAINTS ALL DEFERRED;
