-- A key may be any text: payments of the services are named by whoever starts them. Rows that were
-- written by an older program still fit. The table is rewritten; it holds days of messages, not years.
ALTER TABLE outbox ALTER COLUMN aggregate_id TYPE text COLLATE "C" USING aggregate_id::text;

CREATE TYPE written_message_2 AS (
    id uuid, aggregate_type text, aggregate_id text, type text, version bigint, payload jsonb,
    occurred_at timestamptz
);

-- Where a published message stands in the order in which all were published. The relay alone gives
-- positions, so that a position is never seen before a smaller one.
CREATE SEQUENCE outbox_positions;

CREATE UNIQUE INDEX outbox_published ON outbox (pos) WHERE pos IS NOT NULL;

-- How far each consumer has come, where the bus is PostgreSQL.
CREATE TABLE bus_cursors (
    consumer   text COLLATE "C" PRIMARY KEY,
    pos        bigint NOT NULL DEFAULT 0,
    updated_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT bus_cursors_pos CHECK (pos >= 0)
);

-- What each consumer has taken, written in the transaction of the effect. It outlives the topic.
CREATE TABLE processed_events (
    consumer     text COLLATE "C" NOT NULL,
    event_id     uuid NOT NULL,
    processed_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (consumer, event_id)
);

CREATE INDEX processed_events_age ON processed_events (processed_at);

-- Messages that a consumer could not take, for a person to look at.
CREATE TABLE bus_dead_letters (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    consumer    text COLLATE "C" NOT NULL,
    event_id    uuid NOT NULL,
    topic       text COLLATE "C" NOT NULL,
    key         text COLLATE "C" NOT NULL,
    type        text COLLATE "C" NOT NULL,
    headers     jsonb NOT NULL,
    body        bytea NOT NULL,
    error       text NOT NULL,
    attempts    integer NOT NULL,
    died_at     timestamptz NOT NULL DEFAULT now(),
    retried_at  timestamptz,
    UNIQUE (consumer, event_id)
);
