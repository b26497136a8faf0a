-- Payments out of a wallet, which a gateway carries out. `ask_at` is when the gateway has to be told,
-- or asked, next; null when nothing is to be asked any more.
CREATE TABLE wallet_payments (
    payment_id     text COLLATE "C" PRIMARY KEY,
    wallet_id      uuid NOT NULL,
    source_id      smallint NOT NULL,
    amount_minor   bigint NOT NULL,
    currency       text COLLATE "C" NOT NULL,
    request_hash   bytea NOT NULL,
    status         text COLLATE "C" NOT NULL,
    transaction_id text COLLATE "C",
    failure        text COLLATE "C",
    review         text COLLATE "C",
    ask_at         timestamptz,
    asked          integer NOT NULL DEFAULT 0,
    version        bigint NOT NULL DEFAULT 1,
    created_at     timestamptz NOT NULL,
    updated_at     timestamptz NOT NULL,
    CONSTRAINT wallet_payments_amount CHECK (amount_minor > 0),
    CONSTRAINT wallet_payments_status CHECK (
        status IN ('INITIATED', 'PROCESSING', 'COMPLETED', 'FAILED')),
    CONSTRAINT wallet_payments_failure CHECK ((status = 'FAILED') = (failure IS NOT NULL)),
    CONSTRAINT wallet_payments_asked CHECK (ask_at IS NULL OR status = 'PROCESSING')
) WITH (fillfactor = 75);

CREATE UNIQUE INDEX wallet_payments_transaction ON wallet_payments (source_id, transaction_id)
    WHERE transaction_id IS NOT NULL;

CREATE INDEX wallet_payments_ask ON wallet_payments (ask_at) WHERE ask_at IS NOT NULL;

CREATE INDEX wallet_payments_review ON wallet_payments (payment_id) WHERE review IS NOT NULL;

-- What the gateway has told of its transactions, each word once: `pending` must not swallow the
-- `succeeded` that follows it. One that waits for its payment is tried again at `try_at`.
CREATE TABLE gateway_callbacks (
    id             uuid PRIMARY KEY,
    source_id      smallint NOT NULL,
    transaction_id text COLLATE "C" NOT NULL,
    says           text COLLATE "C" NOT NULL,
    amount_minor   bigint,
    currency       text COLLATE "C",
    event_id       uuid NOT NULL,
    status         text COLLATE "C" NOT NULL DEFAULT 'WAITING',
    payment_id     text COLLATE "C",
    attempts       integer NOT NULL DEFAULT 0,
    try_at         timestamptz,
    received_at    timestamptz NOT NULL,
    ended_at       timestamptz,
    UNIQUE (source_id, transaction_id, says),
    CONSTRAINT gateway_callbacks_says CHECK (says IN ('pending', 'succeeded', 'failed')),
    CONSTRAINT gateway_callbacks_paid CHECK ((amount_minor IS NULL) = (currency IS NULL)),
    CONSTRAINT gateway_callbacks_status CHECK (status IN ('WAITING', 'DONE', 'DEAD')),
    CONSTRAINT gateway_callbacks_ended CHECK ((status = 'WAITING') = (ended_at IS NULL)),
    CONSTRAINT gateway_callbacks_tried CHECK ((status = 'WAITING') = (try_at IS NOT NULL))
);

CREATE INDEX gateway_callbacks_try ON gateway_callbacks (try_at) WHERE try_at IS NOT NULL;

CREATE INDEX gateway_callbacks_dead ON gateway_callbacks (id) WHERE status = 'DEAD';

-- What is shown of a payment: the read model, made of events alone.
CREATE TABLE payment_views (
    payment_id   text COLLATE "C" PRIMARY KEY,
    status       text COLLATE "C" NOT NULL,
    amount_minor bigint NOT NULL,
    currency     text COLLATE "C" NOT NULL,
    version      bigint NOT NULL,
    updated_at   timestamptz NOT NULL,
    CONSTRAINT payment_views_status CHECK (
        status IN ('INITIATED', 'PROCESSING', 'COMPLETED', 'FAILED'))
) WITH (fillfactor = 75);

-- The log of one payment, from which what is shown of it can be made again.
CREATE INDEX outbox_of_wallet_payments ON outbox (aggregate_name, version)
    WHERE aggregate_type = 'wallet-payment';
