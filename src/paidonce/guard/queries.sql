-- name: last_ban
-- Locked.
SELECT times, until > now() AND lifted_at IS NULL AS is_banned,
       until > now() - make_interval(days => :remembered_days::integer) AS is_remembered, until
  FROM paidonce.bans
 WHERE address = :address
   FOR UPDATE;

-- name: ban
-- Not a verified sender, even if another process recorded it.
INSERT INTO paidonce.bans AS b (address, reason, score, times, until)
SELECT :address::text, :reason::text, :score::real, :times::integer,
       now() + make_interval(secs => :length_s::float8)
 WHERE NOT EXISTS (SELECT 1 FROM paidonce.verified_senders
                    WHERE address = :address
                      AND verified_at > now() - make_interval(days => :verified_days::integer))
ON CONFLICT (address) DO UPDATE
   SET reason = excluded.reason, score = excluded.score, times = excluded.times, banned_at = excluded.banned_at,
       until = excluded.until, lifted_at = NULL, changed_at = excluded.changed_at
RETURNING until;

-- name: lift
UPDATE paidonce.bans SET lifted_at = now(), changed_at = now(), times = 0
 WHERE address = :address AND until > now() AND lifted_at IS NULL
RETURNING address;

-- name: changes
-- Bans, and those lifted within the last minute.
SELECT address, until, lifted_at, changed_at
  FROM paidonce.bans
 WHERE changed_at > :since
   AND (until > now() AND lifted_at IS NULL OR lifted_at > now() - interval '1 minute')
 ORDER BY changed_at DESC
 LIMIT :limit;

-- name: list
SELECT address, reason, score, times, banned_at, until
  FROM paidonce.bans
 WHERE until > now() AND lifted_at IS NULL AND (:after::text IS NULL OR address > :after)
 ORDER BY address
 LIMIT :limit;

-- name: count
SELECT count(*) AS number FROM paidonce.bans WHERE until > now() AND lifted_at IS NULL;

-- name: add_verified_senders
INSERT INTO paidonce.verified_senders (address)
SELECT unnest(:addresses::text[])
ON CONFLICT (address) DO UPDATE SET verified_at = excluded.verified_at;

-- name: verified_senders
SELECT address, verified_at
  FROM paidonce.verified_senders
 WHERE verified_at > :since
 ORDER BY verified_at DESC
 LIMIT :limit;
