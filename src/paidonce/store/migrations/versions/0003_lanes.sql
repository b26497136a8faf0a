-- Who takes a row of the queue: 0 settles, 1 asks the gateway first, 2 calls handlers of the user's
-- own. What waits in one lane costs the claims of another nothing.
ALTER TABLE due
    ADD COLUMN lane smallint NOT NULL DEFAULT 0,
    ADD COLUMN source_id smallint,
    ADD CONSTRAINT due_lane_known CHECK (lane IN (0, 1, 2)),
    ADD CONSTRAINT due_asked_has_source CHECK (lane <> 1 OR source_id IS NOT NULL);

-- Still without the id: see 0002.
CREATE INDEX due_lane ON due (lane, run_at) WHERE lane <> 1;

DROP INDEX due_run_at;

-- Each gateway is asked by itself, so that what waits for a slow one stands in nobody's way. It is
-- the only index of that lane: another one would be taken for a source of which little waits, which
-- means reading past all that waits for others.
CREATE INDEX due_of_source ON due (source_id, run_at) WHERE lane = 1;

CREATE TYPE written_due_2 AS (
    run_at timestamptz, event_id uuid, attempt smallint, waits_on bytea, lane smallint,
    source_id smallint
);

-- What verified deliveries were allowed to use once. The fingerprint is of the event's key and
-- meaning: whoever uses the nonce again for the same is a duplicate, for anything else a replay.
CREATE TABLE nonces (
    source_id           smallint NOT NULL,
    digest              bytea NOT NULL,
    fingerprint         bytea NOT NULL,
    fingerprint_version smallint NOT NULL,
    seen_at             timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (source_id, digest),
    CONSTRAINT nonces_sizes
        CHECK (octet_length(digest) = 16 AND octet_length(fingerprint) = 16)
);
