-- Who was banned, who is known, and keys that are hashed with a pepper.

-- One row for each address (of IPv6: for each /64) that was banned within the last days. A ban that
-- was lifted or has ended stays for a while: other processes have to hear of it, and the next ban of
-- the address is longer.
CREATE TABLE bans (
    address    text COLLATE "C" PRIMARY KEY,
    reason     text COLLATE "C" NOT NULL,
    score      real NOT NULL,
    times      integer NOT NULL,
    banned_at  timestamptz NOT NULL DEFAULT now(),
    until      timestamptz NOT NULL,
    lifted_at  timestamptz,
    changed_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT bans_address CHECK (length(address) BETWEEN 1 AND 100),
    CONSTRAINT bans_times CHECK (times >= 0),
    CONSTRAINT bans_until CHECK (until > banned_at),
    CONSTRAINT bans_lifted CHECK (lifted_at IS NULL OR lifted_at >= banned_at)
);

CREATE INDEX bans_changed ON bans (changed_at);

-- Addresses from which verified deliveries came, and when the last that was noted, at most once a day.
CREATE TABLE known_addresses (
    address     text COLLATE "C" PRIMARY KEY,
    verified_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT known_addresses_address CHECK (length(address) BETWEEN 1 AND 100)
);

CREATE INDEX known_addresses_verified ON known_addresses (verified_at);

ALTER TABLE api_keys ADD COLUMN hashed_by text COLLATE "C" NOT NULL DEFAULT 'sha256';

ALTER TABLE api_keys ADD CONSTRAINT api_keys_hashed_by CHECK (hashed_by IN ('sha256', 'hmac-sha256'));
