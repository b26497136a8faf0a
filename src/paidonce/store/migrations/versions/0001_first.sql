-- The first schema. Statements are separated by an empty line.

-- Sources -----------------------------------------------------------------------------------

-- A configured instance of a provider. Rows refer to it by two bytes.
CREATE TABLE sources (
    id         smallint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name       text COLLATE "C" NOT NULL UNIQUE,
    provider   text COLLATE "C" NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT sources_name CHECK (name ~ '^[a-z][a-z0-9_]*$' AND name <> 'health')
);

-- Inbox -------------------------------------------------------------------------------------

-- One row per event that was ever accepted: the one place where "seen before" is decided.
-- Narrow, unpartitioned and kept for good, while payloads come and go. The digest (BLAKE2b, 16
-- bytes, of the key) keeps the index small and has room for a key of any length.
CREATE TABLE event_keys (
    source_id           smallint NOT NULL,
    digest              bytea NOT NULL,
    event_id            uuid NOT NULL,
    fingerprint         bytea NOT NULL,
    fingerprint_version smallint NOT NULL,
    PRIMARY KEY (source_id, digest),
    CONSTRAINT event_keys_sizes
        CHECK (octet_length(digest) = 16 AND octet_length(fingerprint) = 16)
);

-- Every delivery worth keeping: raw bytes and what became of them. Partitioned by month through
-- its UUIDv7 id; there is no default partition, because rows in it would block attaching others.
CREATE TABLE webhook_events (
    id                  uuid NOT NULL PRIMARY KEY,
    source_id           smallint NOT NULL,
    status              text COLLATE "C" NOT NULL,
    key                 text COLLATE "C",
    type                text COLLATE "C",
    external_event_id   text COLLATE "C",
    external_payment_id text COLLATE "C",
    order_reference     text COLLATE "C",
    signature_valid     boolean NOT NULL,
    signature_method    text COLLATE "C" NOT NULL,
    is_test             boolean NOT NULL,
    error_code          text COLLATE "C",
    error_message       text,
    conflicts_with      uuid,
    attempts            smallint NOT NULL,
    received_at         timestamptz NOT NULL,
    processed_at        timestamptz,
    occurred_at         timestamptz,
    remote_address      text COLLATE "C",
    request_id          text COLLATE "C" NOT NULL,
    headers             jsonb NOT NULL,
    raw_body            bytea NOT NULL,
    CONSTRAINT webhook_events_status CHECK (status IN (
        'RECEIVED', 'VALIDATED', 'PROCESSED', 'IGNORED',
        'FAILED_RETRYABLE', 'FAILED_FINAL', 'DEAD_LETTER')),
    CONSTRAINT webhook_events_final_is_processed CHECK (
        (status IN ('PROCESSED', 'IGNORED', 'FAILED_FINAL', 'DEAD_LETTER'))
        = (processed_at IS NOT NULL)),
    CONSTRAINT webhook_events_failure_has_code CHECK (
        CASE WHEN status IN ('FAILED_RETRYABLE', 'FAILED_FINAL', 'DEAD_LETTER')
             THEN error_code IS NOT NULL
             WHEN status = 'PROCESSED' THEN error_code IS NULL
             ELSE true END),
    CONSTRAINT webhook_events_forged_is_final CHECK (signature_valid OR status = 'FAILED_FINAL'),
    CONSTRAINT webhook_events_conflict CHECK (
        (conflicts_with IS NOT NULL) = (error_code IS NOT DISTINCT FROM 'PAYLOAD_CONFLICT')),
    CONSTRAINT webhook_events_attempts CHECK (attempts >= 0)
) PARTITION BY RANGE (id);

CREATE INDEX webhook_events_payment ON webhook_events (external_payment_id)
    WHERE external_payment_id IS NOT NULL;

CREATE INDEX webhook_events_order ON webhook_events (order_reference)
    WHERE order_reference IS NOT NULL;

-- Ids are in the order of arrival, so this serves "by status and time". Processed events, nearly
-- all of them, are left out: the primary key finds those.
CREATE INDEX webhook_events_unusual ON webhook_events (status, id) WHERE status <> 'PROCESSED';

-- Only what waits. An event that is applied on arrival never enters it.
CREATE TABLE due (
    id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    run_at   timestamptz NOT NULL,
    event_id uuid NOT NULL,
    attempt  smallint NOT NULL DEFAULT 0,
    starts   smallint NOT NULL DEFAULT 0,
    waits_on bytea
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.01);

CREATE INDEX due_run_at ON due (run_at, id);

CREATE INDEX due_event ON due (event_id);

CREATE INDEX due_waits_on ON due (waits_on) WHERE waits_on IS NOT NULL;

-- What happened beyond the happy path, which is read off the event's own columns, and what
-- operators did.
CREATE TABLE audit_log (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at         timestamptz NOT NULL DEFAULT now(),
    event_id   uuid,
    payment_id uuid,
    actor      text NOT NULL DEFAULT 'paidonce',
    action     text COLLATE "C" NOT NULL,
    success    boolean NOT NULL,
    details    jsonb NOT NULL DEFAULT '{}'
);

CREATE INDEX audit_log_event ON audit_log (event_id) WHERE event_id IS NOT NULL;

CREATE INDEX audit_log_payment ON audit_log (payment_id) WHERE payment_id IS NOT NULL;

-- People and what they buy ------------------------------------------------------------------

CREATE TABLE users (
    id         uuid PRIMARY KEY,
    email      text NOT NULL,
    email_key  text COLLATE "C" NOT NULL UNIQUE,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now()
);

-- Every version of every plan that was ever configured: the price that counts is the one that was
-- valid when it was paid.
CREATE TABLE plan_versions (
    plan_id     text COLLATE "C" NOT NULL,
    valid_from  timestamptz NOT NULL DEFAULT now(),
    price_minor bigint NOT NULL CHECK (price_minor > 0),
    currency    text COLLATE "C" NOT NULL,
    product     text COLLATE "C" NOT NULL,
    days        integer NOT NULL CHECK (days >= 0),
    months      integer NOT NULL CHECK (months >= 0),
    is_default  boolean NOT NULL,
    PRIMARY KEY (plan_id, valid_from),
    CONSTRAINT plan_versions_lasts CHECK (days + months > 0)
);

-- No index on what an extension changes, so that the update stays within its page.
CREATE TABLE subscriptions (
    id                 uuid PRIMARY KEY,
    user_id            uuid NOT NULL REFERENCES users,
    product            text COLLATE "C" NOT NULL,
    status             text COLLATE "C" NOT NULL,
    current_period_end timestamptz,
    version            bigint NOT NULL,
    created_at         timestamptz NOT NULL DEFAULT now(),
    updated_at         timestamptz NOT NULL DEFAULT now(),
    UNIQUE (user_id, product),
    CONSTRAINT subscriptions_status CHECK (status IN ('INACTIVE', 'ACTIVE', 'CANCELED')),
    CONSTRAINT subscriptions_active_ends CHECK (
        status <> 'ACTIVE' OR current_period_end IS NOT NULL),
    CONSTRAINT subscriptions_version CHECK (version > 0)
) WITH (fillfactor = 75);

CREATE TABLE orders (
    id                 uuid PRIMARY KEY,
    reference          text COLLATE "C" NOT NULL UNIQUE,
    kind               text COLLATE "C" NOT NULL,
    status             text COLLATE "C" NOT NULL,
    amount_minor       bigint NOT NULL CHECK (amount_minor > 0),
    currency           text COLLATE "C" NOT NULL,
    user_id            uuid REFERENCES users,
    email              text,
    plan_id            text COLLATE "C",
    sources            smallint[],
    applied_payment_id uuid,
    request_hash       bytea NOT NULL,
    paid_at            timestamptz,
    canceled_at        timestamptz,
    refunded_at        timestamptz,
    version            bigint NOT NULL,
    is_test            boolean NOT NULL DEFAULT false,
    created_at         timestamptz NOT NULL DEFAULT now(),
    updated_at         timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT orders_kind CHECK (kind IN ('order', 'subscription', 'booking', 'wallet')),
    CONSTRAINT orders_status CHECK (status IN ('PENDING', 'PAID', 'CANCELED', 'REFUNDED')),
    CONSTRAINT orders_paid_is_paid CHECK (
        status <> 'PAID' OR (paid_at IS NOT NULL AND applied_payment_id IS NOT NULL)),
    CONSTRAINT orders_version CHECK (version > 0)
) WITH (fillfactor = 75);

-- Payments ----------------------------------------------------------------------------------

-- Facts that only grow; the status is computed from them and cannot be set. Its rule is written a
-- second time in domain/payments.py, and a test holds the two together.
CREATE TABLE payments (
    id                 uuid PRIMARY KEY,
    source_id          smallint NOT NULL,
    order_reference    text COLLATE "C",
    user_id            uuid,
    email              text,
    email_key          text COLLATE "C",
    plan_id            text COLLATE "C",
    currency           text COLLATE "C",
    captured_minor     bigint NOT NULL,
    refund_total_minor bigint NOT NULL,
    refunded_minor     bigint NOT NULL,
    reversed_minor     bigint NOT NULL DEFAULT 0,
    paid_at            timestamptz,
    failed_at          timestamptz,
    voided_at          timestamptz,
    canceled_at        timestamptz,
    refunded_at        timestamptz,
    processing_at      timestamptz,
    disputed_at        timestamptz,
    status             text COLLATE "C" NOT NULL GENERATED ALWAYS AS (
        CASE WHEN captured_minor = 0 THEN
            CASE WHEN voided_at IS NOT NULL THEN 'CANCELED'
                 WHEN failed_at IS NOT NULL THEN 'FAILED'
                 WHEN processing_at IS NOT NULL THEN 'PROCESSING'
                 ELSE 'PENDING' END
        WHEN refunded_minor >= captured_minor THEN 'REFUNDED'
        WHEN canceled_at IS NOT NULL THEN 'CANCELED'
        WHEN refunded_minor > 0 THEN 'PARTIALLY_REFUNDED'
        ELSE 'SUCCEEDED' END) STORED,
    applied_at         timestamptz,
    subscription_id    uuid,
    period_start       timestamptz,
    period_end         timestamptz,
    review             text COLLATE "C",
    is_test            boolean NOT NULL DEFAULT false,
    version            bigint NOT NULL,
    created_at         timestamptz NOT NULL DEFAULT now(),
    updated_at         timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT payments_amounts CHECK (
        captured_minor >= 0 AND refund_total_minor >= 0 AND refunded_minor >= refund_total_minor
        AND reversed_minor >= 0),
    CONSTRAINT payments_money_has_currency CHECK (captured_minor = 0 OR currency IS NOT NULL),
    CONSTRAINT payments_applied_was_captured CHECK (applied_at IS NULL OR captured_minor > 0),
    CONSTRAINT payments_period CHECK (
        (subscription_id IS NULL) = (period_start IS NULL)
        AND (period_start IS NULL) = (period_end IS NULL)
        AND (subscription_id IS NULL OR applied_at IS NOT NULL)),
    CONSTRAINT payments_version CHECK (version > 0)
) WITH (fillfactor = 75);

-- A user's history.
CREATE INDEX payments_user ON payments (user_id, created_at) WHERE user_id IS NOT NULL;

-- Money that was received and not applied.
CREATE INDEX payments_unapplied ON payments (created_at) WHERE applied_at IS NULL;

CREATE INDEX payments_email ON payments (email_key) WHERE email_key IS NOT NULL;

-- Successful payments, nearly all of them, are found by their ids.
CREATE INDEX payments_unusual ON payments (status, id) WHERE status <> 'SUCCEEDED';

CREATE INDEX payments_review ON payments (review, created_at) WHERE review IS NOT NULL;

CREATE INDEX payments_order ON payments (order_reference) WHERE order_reference IS NOT NULL;

-- The ids by which gateways know a payment; each leads to one payment only.
CREATE TABLE payment_ids (
    source_id   smallint NOT NULL,
    kind        text COLLATE "C" NOT NULL,
    external_id text COLLATE "C" NOT NULL,
    payment_id  uuid NOT NULL,
    PRIMARY KEY (source_id, kind, external_id)
);

CREATE INDEX payment_ids_payment ON payment_ids (payment_id);

-- Distinct refunds, for gateways that name each one.
CREATE TABLE refunds (
    source_id    smallint NOT NULL,
    refund_id    text COLLATE "C" NOT NULL,
    payment_id   uuid NOT NULL,
    amount_minor bigint NOT NULL CHECK (amount_minor >= 0),
    created_at   timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (source_id, refund_id)
);

CREATE INDEX refunds_payment ON refunds (payment_id);

-- What leaves the system, written in the transaction that made it true. `pos` is given by the
-- relay; what is left to publish is what has no `published_at`.
CREATE TABLE outbox (
    seq            bigint GENERATED ALWAYS AS IDENTITY (CACHE 1) PRIMARY KEY,
    id             uuid NOT NULL DEFAULT gen_random_uuid(),
    aggregate_type text COLLATE "C" NOT NULL,
    aggregate_id   uuid NOT NULL,
    type           text COLLATE "C" NOT NULL,
    version        bigint NOT NULL,
    payload        jsonb NOT NULL,
    headers        jsonb NOT NULL DEFAULT '{}',
    pos            bigint,
    occurred_at    timestamptz NOT NULL,
    published_at   timestamptz
);

CREATE INDEX outbox_unpublished ON outbox (seq) WHERE published_at IS NULL;

-- Rows as the program sends them, many in one parameter: an array of these costs half of what an
-- array per column costs. They are never changed, only replaced by others with another name, so that
-- a program can be running while its successor's schema is put in place.
CREATE TYPE written_key AS (
    source_id smallint, digest bytea, event_id uuid, fingerprint bytea,
    fingerprint_version smallint
);

CREATE TYPE written_payment_id AS (
    source_id smallint, kind text, external_id text, payment_id uuid
);

CREATE TYPE written_payment AS (
    id uuid, source_id smallint, email text, email_key text, user_id uuid, plan_id text,
    currency text, captured_minor bigint, refund_total_minor bigint, refunded_minor bigint,
    paid_at timestamptz, failed_at timestamptz, voided_at timestamptz, canceled_at timestamptz,
    refunded_at timestamptz, processing_at timestamptz, applied_at timestamptz,
    subscription_id uuid, period_start timestamptz, period_end timestamptz, review text,
    version bigint
);

CREATE TYPE written_subscription AS (
    id uuid, user_id uuid, product text, status text, current_period_end timestamptz,
    version bigint
);

CREATE TYPE written_event AS (
    id uuid, source_id smallint, status text, key text, type text, external_event_id text,
    external_payment_id text, order_reference text, signature_valid boolean,
    signature_method text, is_test boolean, error_code text, error_message text,
    conflicts_with uuid, attempts smallint, received_at timestamptz, processed_at timestamptz,
    occurred_at timestamptz, remote_address text, request_id text, headers jsonb, raw_body bytea
);

CREATE TYPE written_message AS (
    aggregate_type text, aggregate_id uuid, type text, version bigint, payload jsonb,
    occurred_at timestamptz
);

-- A statement that wrote fewer rows than it was given met one that was first: it undoes itself, and
-- whoever sent it runs again on what the other left.
CREATE FUNCTION require_written(written bigint, expected bigint) RETURNS bigint
LANGUAGE plpgsql AS $$
BEGIN
    IF written <> expected THEN
        RAISE EXCEPTION 'another transaction was first' USING ERRCODE = 'serialization_failure';
    END IF;
    RETURN written;
END $$;

-- Operators ---------------------------------------------------------------------------------

CREATE TABLE api_keys (
    id           uuid PRIMARY KEY,
    name         text NOT NULL,
    hint         text NOT NULL,
    hash         bytea NOT NULL UNIQUE,
    scope        text COLLATE "C" NOT NULL,
    created_at   timestamptz NOT NULL DEFAULT now(),
    last_used_at timestamptz,
    revoked_at   timestamptz,
    CONSTRAINT api_keys_scope CHECK (scope IN ('read', 'operate', 'admin')),
    CONSTRAINT api_keys_hash CHECK (octet_length(hash) = 32)
);
