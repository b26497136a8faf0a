-- What others have named has a name: payments of the services, transactions of gateways. What we
-- have named keeps its id, which is smaller, and written with each event that is settled.
ALTER TABLE outbox
    ADD COLUMN aggregate_name text COLLATE "C",
    ALTER COLUMN aggregate_id DROP NOT NULL;

-- Those that are there have an id. The index below is made by reading all of them once.
ALTER TABLE outbox ADD CONSTRAINT outbox_key
    CHECK ((aggregate_id IS NULL) = (aggregate_name IS NOT NULL)) NOT VALID;

CREATE TYPE written_named_message AS (
    id uuid, aggregate_type text, aggregate_name text, type text, version bigint, payload jsonb,
    occurred_at timestamptz
);

-- Where a published message stands in the order in which all were published. The relay alone gives
-- positions, so that a position is never seen before a smaller one.
CREATE SEQUENCE outbox_positions;

CREATE UNIQUE INDEX outbox_published ON outbox (aggregate_type, pos) WHERE pos IS NOT NULL;

-- How far each group of consumers has come in each topic. A group that reads elsewhere than in
-- PostgreSQL has a `lag`: what its consumers last said of it.
CREATE TABLE bus_cursors (
    consumer   text COLLATE "C" NOT NULL,
    about      text COLLATE "C" NOT NULL,
    pos        bigint NOT NULL DEFAULT 0,
    lag        bigint,
    seen_at    timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (consumer, about),
    CONSTRAINT bus_cursors_pos CHECK (pos >= 0),
    CONSTRAINT bus_cursors_lag CHECK (lag >= 0)
) WITH (fillfactor = 50);

-- What each consumer has taken, written in the transaction of the effect. It outlives the topic.
CREATE TABLE processed_events (
    consumer     text COLLATE "C" NOT NULL,
    event_id     uuid NOT NULL,
    processed_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (consumer, event_id)
);

CREATE INDEX processed_events_age ON processed_events (processed_at);

-- Messages that a consumer could not take, for a person to look at. One that a person wants to be
-- given to its consumer again has `retried_at`; one that was taken after all has `taken_at`, one that
-- nobody wants any more has `discarded_at`.
CREATE TABLE bus_dead_letters (
    id             bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    consumer       text COLLATE "C" NOT NULL,
    event_id       uuid NOT NULL,
    topic          text COLLATE "C" NOT NULL,
    key            text COLLATE "C" NOT NULL,
    type           text COLLATE "C" NOT NULL,
    version        bigint NOT NULL,
    time           timestamptz NOT NULL,
    body           bytea NOT NULL,
    error          text NOT NULL,
    attempts       integer NOT NULL,
    died_at        timestamptz NOT NULL DEFAULT now(),
    retried_at     timestamptz,
    taken_at       timestamptz,
    discarded_at   timestamptz,
    discarded_by   text,
    discard_reason text,
    UNIQUE (consumer, event_id),
    CONSTRAINT bus_dead_letters_attempts CHECK (attempts > 0),
    CONSTRAINT bus_dead_letters_taken CHECK (taken_at IS NULL OR retried_at IS NOT NULL),
    CONSTRAINT bus_dead_letters_discarded CHECK (
        num_nonnulls(discarded_at, discarded_by, discard_reason) IN (0, 3)),
    CONSTRAINT bus_dead_letters_one_end CHECK (
        discarded_at IS NULL OR (retried_at IS NULL AND taken_at IS NULL))
);

CREATE INDEX bus_dead_letters_open ON bus_dead_letters (consumer, id)
    WHERE taken_at IS NULL AND discarded_at IS NULL;

CREATE INDEX bus_dead_letters_open_of_all ON bus_dead_letters (id)
    WHERE taken_at IS NULL AND discarded_at IS NULL;

CREATE INDEX bus_dead_letters_retried ON bus_dead_letters (consumer, retried_at, id)
    WHERE retried_at IS NOT NULL AND taken_at IS NULL;
