-- Notices: what people are told of. A row for each channel that wants it, written in the transaction
-- that made it true, so that each channel is told in its own time.
CREATE TABLE notices (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    channel    text COLLATE "C" NOT NULL,
    at         timestamptz NOT NULL,
    kind       text COLLATE "C" NOT NULL,
    source     text COLLATE "C" NOT NULL DEFAULT '',
    event_id   uuid,
    payment_id uuid,
    details    jsonb NOT NULL DEFAULT '{}',
    not_before timestamptz,
    more       bigint NOT NULL DEFAULT 0,
    message_id uuid,
    CONSTRAINT notices_more CHECK (more >= 0)
) WITH (fillfactor = 80);

COMMENT ON COLUMN notices.not_before IS 'told then, if the payment still has this code for review';

COMMENT ON COLUMN notices.more IS 'how many others of its kind and source were only counted';

-- What no message holds yet, by channel, and how much of each kind that is.
CREATE INDEX notices_untold ON notices (channel, kind, source, id) WHERE message_id IS NULL;

-- What a message holds, for when nobody takes it.
CREATE INDEX notices_message ON notices (message_id) WHERE message_id IS NOT NULL;

-- What a channel is sent. It keeps its id and its words until somebody has taken it.
CREATE TABLE notice_messages (
    id       uuid PRIMARY KEY,
    channel  text COLLATE "C" NOT NULL,
    at       timestamptz NOT NULL,
    content  jsonb NOT NULL,
    status   text COLLATE "C" NOT NULL DEFAULT 'WAITING',
    attempts smallint NOT NULL DEFAULT 0,
    run_at   timestamptz NOT NULL,
    ended_at timestamptz,
    error    text,
    CONSTRAINT notice_messages_status CHECK (status IN ('WAITING', 'SENT', 'GIVEN_UP')),
    CONSTRAINT notice_messages_ends CHECK ((status = 'WAITING') = (ended_at IS NULL)),
    CONSTRAINT notice_messages_attempts CHECK (attempts >= 0)
);

-- The last messages of a channel, and the one that nobody has taken yet.
CREATE INDEX notice_messages_channel ON notice_messages (channel, at);

CREATE INDEX notice_messages_status ON notice_messages (channel, status);
