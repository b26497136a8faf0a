-- The schema of Paidonce, one section for each capability. Read it from top to bottom.
--
-- Conventions
--   * Money is a bigint of minor units (`_minor`) and an ISO 4217 currency. Times are timestamptz.
--   * Ids that Paidonce creates are UUIDv7, so their order is the order of creation. Ids that others
--     create are text with COLLATE "C", which compares bytes.
--   * `version` grows by one with each change of a row: optimistic locking.
--   * An index is named table_by_columns, or table_state when it holds only the rows in that state.
--   * `written_x` is a composite type: the rows of x that one statement writes. An array of rows as one
--     parameter costs half of what one array per column costs. A type is never changed after the first
--     release, only replaced under another name: the old program runs while the new schema is created.
--
-- Foreign keys
--   Tables that are written for every event or every wallet command have none: they cost 12 % of the
--   throughput. The statements that write those tables check versions and counts instead
--   (require_written). Nothing refers to webhook_events, because its partitions are detached and
--   dropped by age. Logs (audit_log, notifications) outlive what they name.
--
-- An empty line ends a statement.

-- Sources and plans -------------------------------------------------------------------------

-- A source is a configured instance of a provider. Other tables refer to it by two bytes. Rows are
-- never deleted.
CREATE TABLE paidonce.sources (
    id         smallint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name       text COLLATE "C" NOT NULL UNIQUE,
    provider   text COLLATE "C" NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT sources_name CHECK (name ~ '^[a-z][a-z0-9_]*$' AND name <> 'health')
);

-- Every version of every plan that was ever configured. The price of a payment is the one that was
-- valid when it was paid. A version ends when other terms replace it or the plan leaves the settings.
CREATE TABLE paidonce.plan_versions (
    plan_id     text COLLATE "C" NOT NULL,
    valid_from  timestamptz NOT NULL DEFAULT now(),
    price_minor bigint NOT NULL CHECK (price_minor >= 0),
    currency    text COLLATE "C" NOT NULL,
    product     text COLLATE "C" NOT NULL,
    days        integer NOT NULL CHECK (days >= 0),
    months      integer NOT NULL CHECK (months >= 0),
    is_default  boolean NOT NULL,
    valid_until timestamptz,
    PRIMARY KEY (plan_id, valid_from),
    CONSTRAINT plan_versions_duration CHECK (days + months > 0),
    CONSTRAINT plan_versions_valid CHECK (valid_until > valid_from)
);

CREATE UNIQUE INDEX plan_versions_on_sale ON paidonce.plan_versions (plan_id) WHERE valid_until IS NULL;

-- Events and keys ---------------------------------------------------------------------------

-- Deduplication: one row for each verified event that was ever accepted. Narrow, not partitioned and
-- kept when the payload is dropped. `digest` is BLAKE2b (16 bytes) of the event key, which may have any
-- length; `fingerprint` is a hash of the meaning (payment, amount, currency, status). `purpose` has four
-- bytes for each of order, plan and e-mail: a short digest, or zeros if the event does not name it.
CREATE TABLE paidonce.event_keys (
    source_id           smallint NOT NULL,
    digest              bytea NOT NULL CHECK (octet_length(digest) = 16),
    event_id            uuid NOT NULL,
    fingerprint         bytea NOT NULL CHECK (octet_length(fingerprint) = 16),
    fingerprint_version smallint NOT NULL,
    purpose             bytea CHECK (octet_length(purpose) = 12),
    PRIMARY KEY (source_id, digest)
);

CREATE TYPE paidonce.written_event_key AS (
    source_id smallint, digest bytea, event_id uuid, fingerprint bytea,
    fingerprint_version smallint, purpose bytea
);

-- Nonces of verified deliveries. A nonce that comes again with the same fingerprint (event key and
-- meaning) is a duplicate; with another one it is a replay attack.
CREATE TABLE paidonce.nonces (
    source_id           smallint NOT NULL,
    digest              bytea NOT NULL CHECK (octet_length(digest) = 16),
    fingerprint         bytea NOT NULL CHECK (octet_length(fingerprint) = 16),
    fingerprint_version smallint NOT NULL,
    seen_at             timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (source_id, digest)
);

-- Deliveries: the raw bytes, and the result of processing them. Rejected and conflicting deliveries
-- are rows too (evidence). Partitioned by month through the UUIDv7 id: db/schema.py creates the
-- partitions, maintenance/ removes them. There is no default partition: rows in it would block
-- attaching others.
CREATE TABLE paidonce.webhook_events (
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
    conflicts_with      uuid,  -- the first event with the same key
    attempts            smallint NOT NULL CHECK (attempts >= 0),
    received_at         timestamptz NOT NULL,
    processed_at        timestamptz,
    occurred_at         timestamptz,
    remote_address      text COLLATE "C",
    request_id          text COLLATE "C" NOT NULL,
    headers             jsonb NOT NULL,
    raw_body            bytea NOT NULL,
    -- True once an event that was PROCESSED is processed again: it never becomes IGNORED.
    was_processed       boolean,
    erased_at           timestamptz,  -- then headers and body are empty
    -- The transaction that wrote the row last. Event, payment and order of one effect have the same.
    transaction_id      xid8 DEFAULT pg_current_xact_id(),
    CONSTRAINT webhook_events_status CHECK (status IN (
        'VALIDATED', 'PROCESSED', 'IGNORED',
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
    CONSTRAINT webhook_events_erased_is_final CHECK (
        erased_at IS NULL OR (processed_at IS NOT NULL AND raw_body = ''))
) PARTITION BY RANGE (id);

-- Ids are in the order of arrival, so each index ends in the id and serves "the newest with this
-- value". Processed events, nearly all of them, are left out: the primary key finds those.
CREATE INDEX webhook_events_by_status ON paidonce.webhook_events (status, id) WHERE status <> 'PROCESSED';

CREATE INDEX webhook_events_by_payment ON paidonce.webhook_events (external_payment_id, id)
    WHERE external_payment_id IS NOT NULL;

CREATE INDEX webhook_events_by_order ON paidonce.webhook_events (order_reference, id)
    WHERE order_reference IS NOT NULL;

CREATE INDEX webhook_events_by_error ON paidonce.webhook_events (error_code, id)
    WHERE error_code IS NOT NULL;

CREATE INDEX webhook_events_by_source ON paidonce.webhook_events (source_id, id);

CREATE INDEX webhook_events_test ON paidonce.webhook_events (id) WHERE is_test;

CREATE TYPE paidonce.written_event AS (
    id uuid, source_id smallint, status text, key text, type text, external_event_id text,
    external_payment_id text, order_reference text, signature_valid boolean,
    signature_method text, is_test boolean, error_code text, error_message text,
    conflicts_with uuid, attempts smallint, received_at timestamptz, processed_at timestamptz,
    occurred_at timestamptz, remote_address text, request_id text, headers jsonb, raw_body bytea
);

-- Raises when a statement wrote fewer rows than it was given: another transaction was first. The
-- statement is undone, and the caller runs it again on the new state.
CREATE FUNCTION paidonce.require_written(written bigint, expected bigint) RETURNS bigint
LANGUAGE plpgsql AS $$
BEGIN
    IF written <> expected THEN
        RAISE EXCEPTION 'another transaction was first' USING ERRCODE = 'serialization_failure';
    END IF;
    RETURN written;
END $$;

-- Event queue -------------------------------------------------------------------------------

-- Events that still have to be processed. An event that is applied on arrival is never in it.
CREATE TABLE paidonce.event_queue (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    run_at     timestamptz NOT NULL,
    event_id   uuid NOT NULL,
    attempt    smallint NOT NULL DEFAULT 0,  -- failures for a fault of ours
    handler_attempt smallint NOT NULL DEFAULT 0,  -- failures of a handler
    blocked_on bytea,  -- digest of the user, order, payment or handler that the event waits for
    queue_name smallint NOT NULL DEFAULT 0,  -- 0 processing, 1 lookup at the gateway, 2 hooks
    source_id  smallint,
    -- Of a lookup for an unsigned delivery, see Lane in processing/waiting.py. The sender is an address, or
    -- the /64 of one; the subject is the digest of a payment or an order that exists here.
    lane       smallint NOT NULL DEFAULT 0,
    sender     text COLLATE "C",
    subject    bytea,
    -- Of an event that is due before its time: its time, and when a redelivery last made it due.
    scheduled_at   timestamptz,
    redelivered_at timestamptz,
    CONSTRAINT event_queue_queue_name CHECK (queue_name IN (0, 1, 2)),
    CONSTRAINT event_queue_lane CHECK (lane IN (0, 1, 2, 3)),
    CONSTRAINT event_queue_lookup_has_source CHECK (queue_name <> 1 OR source_id IS NOT NULL)
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.01);

CREATE INDEX event_queue_by_event ON paidonce.event_queue (event_id);

CREATE INDEX event_queue_blocked ON paidonce.event_queue (blocked_on) WHERE blocked_on IS NOT NULL;

-- Without the id: on a table without statistics, PostgreSQL would use such an index to find ids, and
-- read all of it.
CREATE INDEX event_queue_ready ON paidonce.event_queue (queue_name, run_at) WHERE queue_name <> 1;

-- Lookups are claimed per source and lane, so that a slow gateway delays no other, and strangers delay no
-- known payment. It is the only index of that queue that can serve a claim: PostgreSQL would use another
-- one for a source with few events, and read past all the others'.
CREATE INDEX event_queue_lookup ON paidonce.event_queue (source_id, lane, run_at) WHERE queue_name = 1;

-- What waits of one sender, and for one payment or order. Only unsigned deliveries have rows here.
CREATE INDEX event_queue_sender ON paidonce.event_queue (sender, source_id)
 WHERE queue_name = 1 AND sender IS NOT NULL;

CREATE INDEX event_queue_subject ON paidonce.event_queue (subject, lane)
 WHERE queue_name = 1 AND subject IS NOT NULL;

CREATE TYPE paidonce.written_queued_event AS (
    run_at timestamptz, event_id uuid, attempt smallint, handler_attempt smallint, blocked_on bytea,
    queue_name smallint, source_id smallint, lane smallint, sender text, subject bytea,
    scheduled_at timestamptz, redelivered_at timestamptz
);

-- What lookups have shown about the senders of unsigned deliveries. `wrong`: how many of their deliveries
-- the gateway has contradicted since it last confirmed news from them.
CREATE TABLE paidonce.lookup_senders (
    source_id smallint NOT NULL,
    sender    text COLLATE "C" NOT NULL CHECK (length(sender) BETWEEN 1 AND 100),
    right_at  timestamptz,
    wrong     integer NOT NULL DEFAULT 0 CHECK (wrong >= 0),
    seen_at   timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (source_id, sender)
);

CREATE INDEX lookup_senders_by_time ON paidonce.lookup_senders (seen_at);

-- Handlers that have failed. One works again if it was released after its last failure: events that
-- waited for it were made due then.
CREATE TABLE paidonce.failing_handlers (
    handler       text COLLATE "C" PRIMARY KEY CHECK (length(handler) BETWEEN 1 AND 500),
    failures      bigint NOT NULL DEFAULT 1,  -- without an hour between them
    failing_since timestamptz NOT NULL DEFAULT now(),
    failed_at     timestamptz NOT NULL DEFAULT now(),
    released_at   timestamptz,
    notified_at   timestamptz
);

-- Events that a process handles one by one, because a process before it ended while it had them. A
-- row that is still here when another process claims the event counts as one more crash.
CREATE TABLE paidonce.crash_guard (
    event_id uuid PRIMARY KEY,
    starts   smallint NOT NULL
);

-- While a hook of the user's own runs, its transaction has a row here, and a COMMIT by the hook fails:
-- it would keep half of the effect. No row is ever committed.
CREATE TABLE paidonce.running_hooks (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY);

CREATE FUNCTION paidonce.refuse_commit_in_hook() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM paidonce.running_hooks WHERE id = NEW.id) THEN
        RAISE EXCEPTION 'a handler must not commit the transaction that it was called in'
            USING ERRCODE = 'invalid_transaction_termination';
    END IF;
    RETURN NULL;
END $$;

CREATE CONSTRAINT TRIGGER running_hooks_refuse_commit AFTER INSERT ON paidonce.running_hooks
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION paidonce.refuse_commit_in_hook();

-- Payments ----------------------------------------------------------------------------------

-- A payment at a gateway: facts that only grow. The status is computed from them and cannot be set.
-- core/payments.py has the same rule; a test compares the two.
CREATE TABLE paidonce.payments (
    id                 uuid PRIMARY KEY,
    source_id          smallint NOT NULL,
    order_reference    text COLLATE "C",
    user_id            uuid,
    email              text,
    email_key          text COLLATE "C",
    plan_id            text COLLATE "C",
    currency           text COLLATE "C",
    captured_minor     bigint NOT NULL,
    refund_total_minor bigint NOT NULL,  -- the largest cumulative total that was reported
    refunded_minor     bigint NOT NULL,  -- that total, or the sum of distinct refunds if larger
    reversed_minor     bigint NOT NULL DEFAULT 0,  -- as much of the effect was undone
    paid_at            timestamptz,
    failed_at          timestamptz,
    voided_at          timestamptz,
    canceled_at        timestamptz,
    refunded_at        timestamptz,
    processing_at      timestamptz,
    disputed_at        timestamptz,
    dispute_won_at     timestamptz,
    dispute_answer_by  timestamptz,
    unreadable_at      timestamptz,  -- it was reported as paid in a delivery that cannot be read
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
    applied_minor      bigint,  -- null: all that was captured
    subscription_id    uuid,
    period_start       timestamptz,
    period_end         timestamptz,
    granted_at         timestamptz,  -- if the period was granted to an earlier payment: when
    review             text COLLATE "C",  -- the error code for which a person should look
    is_linked          boolean NOT NULL DEFAULT false,  -- by an operator
    is_contested       boolean NOT NULL DEFAULT false,  -- its events disagree on order or user
    is_for_refund      boolean NOT NULL DEFAULT false,  -- an operator wants it refunded: never applied
    is_test            boolean NOT NULL DEFAULT false,
    is_expired         boolean NOT NULL DEFAULT false,  -- only expired deliveries report its money
    other_captures     text[],  -- smaller sums that were reported as captured, such as '990 RUB'
    refund_times       jsonb,  -- when each refund, and each total of refunds, was reported first
    acceptance         jsonb,  -- by an operator: who, when, why, which sum, for which order or plan
    version            bigint NOT NULL CHECK (version > 0),
    created_at         timestamptz NOT NULL DEFAULT now(),
    updated_at         timestamptz NOT NULL DEFAULT now(),
    transaction_id     xid8 DEFAULT pg_current_xact_id(),
    CONSTRAINT payments_amounts CHECK (
        captured_minor >= 0 AND refund_total_minor >= 0 AND refunded_minor >= refund_total_minor
        AND reversed_minor >= 0),
    CONSTRAINT payments_unreadable_has_no_money CHECK (
        unreadable_at IS NULL OR captured_minor = 0),
    CONSTRAINT payments_money_has_currency CHECK (captured_minor = 0 OR currency IS NOT NULL),
    CONSTRAINT payments_applied_was_captured CHECK (applied_at IS NULL OR captured_minor > 0),
    CONSTRAINT payments_reversed_was_applied CHECK (
        reversed_minor <= CASE WHEN applied_at IS NULL THEN 0
                               ELSE coalesce(applied_minor, captured_minor) END),
    CONSTRAINT payments_expired_is_not_applied CHECK (NOT is_expired OR applied_at IS NULL),
    CONSTRAINT payments_period CHECK (
        (subscription_id IS NULL) = (period_start IS NULL)
        AND (period_start IS NULL) = (period_end IS NULL)
        AND (subscription_id IS NULL OR applied_at IS NOT NULL))
) WITH (fillfactor = 75);

CREATE INDEX payments_by_user ON paidonce.payments (user_id, created_at) WHERE user_id IS NOT NULL;

-- Successful payments, nearly all of them, are left out.
CREATE INDEX payments_by_status ON paidonce.payments (status, id) WHERE status <> 'SUCCEEDED';

CREATE INDEX payments_by_email ON paidonce.payments (email_key, id) WHERE email_key IS NOT NULL;

CREATE INDEX payments_by_order ON paidonce.payments (order_reference, id) WHERE order_reference IS NOT NULL;

CREATE INDEX payments_by_review ON paidonce.payments (review, id) WHERE review IS NOT NULL;

CREATE INDEX payments_disputed ON paidonce.payments (id)
    WHERE disputed_at IS NOT NULL AND (dispute_won_at IS NULL OR dispute_won_at < disputed_at);

-- Money that was received and not applied, also if nobody knows how much. Failed payments are not applied either, but are not here:
-- their number grows without limit.
CREATE INDEX payments_unapplied ON paidonce.payments (id)
    WHERE applied_at IS NULL
      AND (captured_minor > refunded_minor AND canceled_at IS NULL OR unreadable_at IS NOT NULL);

-- `version` is the version that was read, `next_version` the one to write.
CREATE TYPE paidonce.written_payment AS (
    id uuid, source_id smallint, order_reference text, email text, email_key text, user_id uuid,
    plan_id text, currency text, captured_minor bigint, refund_total_minor bigint,
    refunded_minor bigint, paid_at timestamptz, failed_at timestamptz, voided_at timestamptz,
    canceled_at timestamptz, refunded_at timestamptz, processing_at timestamptz,
    disputed_at timestamptz, dispute_won_at timestamptz, dispute_answer_by timestamptz,
    unreadable_at timestamptz, applied_at timestamptz, applied_minor bigint, reversed_minor bigint, subscription_id uuid, period_start timestamptz,
    period_end timestamptz, granted_at timestamptz, is_linked boolean, is_contested boolean,
    is_for_refund boolean, is_test boolean, is_expired boolean, other_captures text[],
    refund_times jsonb, acceptance jsonb, review text, version bigint, next_version bigint
);

-- The ids under which gateways know a payment. Each leads to one payment.
CREATE TABLE paidonce.payment_ids (
    source_id   smallint NOT NULL,
    kind        text COLLATE "C" NOT NULL,
    external_id text COLLATE "C" NOT NULL,
    payment_id  uuid NOT NULL,
    PRIMARY KEY (source_id, kind, external_id)
);

CREATE INDEX payment_ids_by_payment ON paidonce.payment_ids (payment_id);

CREATE TYPE paidonce.written_payment_id AS (
    source_id smallint, kind text, external_id text, payment_id uuid
);

-- Distinct refunds, of gateways that give each an id. No foreign key to payments: a merge of two
-- payments that runs at the same time has to end in a retry, not in a violated constraint.
CREATE TABLE paidonce.refunds (
    source_id    smallint NOT NULL,
    refund_id    text COLLATE "C" NOT NULL,
    payment_id   uuid NOT NULL,
    amount_minor bigint NOT NULL CHECK (amount_minor >= 0),
    created_at   timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (source_id, refund_id)
);

CREATE INDEX refunds_by_payment ON paidonce.refunds (payment_id);

-- Users and subscriptions -------------------------------------------------------------------

-- A user that was merged into another one has no row: a transaction that still names it fails at the
-- foreign key, and runs again.
CREATE TABLE paidonce.users (
    id         uuid PRIMARY KEY,
    email      text,  -- the current address; null: erased
    erased_at  timestamptz,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT users_erased_has_no_email CHECK ((email IS NULL) = (erased_at IS NOT NULL))
);

-- Each address leads to one user. A former address still does, until it is the current one of
-- somebody else.
CREATE TABLE paidonce.user_emails (
    email_key  text COLLATE "C" PRIMARY KEY,  -- normalised: NFC, lower case
    email      text NOT NULL,
    user_id    uuid NOT NULL REFERENCES paidonce.users,
    is_current boolean NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now()
);

CREATE INDEX user_emails_by_user ON paidonce.user_emails (user_id);

CREATE UNIQUE INDEX user_emails_current ON paidonce.user_emails (user_id) WHERE is_current;

-- The ids of users that were merged into others. Each leads to a user that exists: there are no chains.
CREATE TABLE paidonce.merged_users (
    id          uuid PRIMARY KEY,
    merged_into uuid NOT NULL REFERENCES paidonce.users,
    merged_at   timestamptz NOT NULL DEFAULT now()
);

CREATE INDEX merged_users_by_user ON paidonce.merged_users (merged_into);

-- No index on a column that an extension changes, so that the update stays within its page (HOT).
CREATE TABLE paidonce.subscriptions (
    id                 uuid PRIMARY KEY,
    user_id            uuid NOT NULL REFERENCES paidonce.users,
    product            text COLLATE "C" NOT NULL,
    status             text COLLATE "C" NOT NULL,
    current_period_end timestamptz,
    anchor_day         smallint CHECK (anchor_day BETWEEN 1 AND 31),  -- on which its months end
    canceled_at        timestamptz,  -- when an operator canceled it
    ended_at           timestamptz,  -- when an operator ended it before its period was over
    version            bigint NOT NULL CHECK (version > 0),
    created_at         timestamptz NOT NULL DEFAULT now(),
    updated_at         timestamptz NOT NULL DEFAULT now(),
    UNIQUE (user_id, product),
    CONSTRAINT subscriptions_status CHECK (status IN ('INACTIVE', 'ACTIVE', 'CANCELED')),
    CONSTRAINT subscriptions_active_has_end CHECK (
        status <> 'ACTIVE' OR current_period_end IS NOT NULL),
    CONSTRAINT subscriptions_canceled CHECK (
        (status = 'CANCELED') = (canceled_at IS NOT NULL)
        AND (ended_at IS NULL OR canceled_at IS NOT NULL))
) WITH (fillfactor = 75);

-- An extension changes the end, but rarely the status.
CREATE INDEX subscriptions_by_status ON paidonce.subscriptions (status, id);

CREATE TYPE paidonce.written_subscription AS (
    id uuid, user_id uuid, product text, status text, current_period_end timestamptz,
    anchor_day smallint, version bigint
);

-- Wallets and ledger ------------------------------------------------------------------------

-- One wallet per owner and currency. Its balance is never negative: what a refund cannot take back is
-- receivable.
CREATE TABLE paidonce.wallets (
    id               uuid PRIMARY KEY,
    owner            text COLLATE "C" NOT NULL,
    currency         text COLLATE "C" NOT NULL,
    balance_minor    bigint NOT NULL DEFAULT 0,
    reserved_minor   bigint NOT NULL DEFAULT 0,
    receivable_minor bigint NOT NULL DEFAULT 0,
    merged_into      uuid REFERENCES paidonce.wallets,  -- its money is there, with its owner's
    version          bigint NOT NULL DEFAULT 1 CHECK (version > 0),
    created_at       timestamptz NOT NULL DEFAULT now(),
    updated_at       timestamptz NOT NULL DEFAULT now(),
    UNIQUE (owner, currency),
    CONSTRAINT wallets_merged_is_empty CHECK (
        merged_into IS NULL OR (balance_minor = 0 AND receivable_minor = 0)),
    CONSTRAINT wallets_never_negative CHECK (
        reserved_minor >= 0 AND balance_minor >= reserved_minor AND receivable_minor >= 0)
) WITH (fillfactor = 75);

CREATE INDEX wallets_merged ON paidonce.wallets (merged_into) WHERE merged_into IS NOT NULL;

-- Written by the processing of payments, which changes no reservation.
CREATE TYPE paidonce.written_wallet AS (
    id uuid, balance_minor bigint, receivable_minor bigint, version bigint
);

-- Written by the commands on reservations, which change no receivable.
CREATE TYPE paidonce.written_reserved_wallet AS (
    id uuid, balance_minor bigint, reserved_minor bigint, version bigint
);

-- Double-entry bookkeeping of wallets. A movement is a set of entries that sums to zero.
CREATE TABLE paidonce.ledger_entries (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    movement_id  uuid NOT NULL,
    payment_id   uuid,  -- of table payments
    reservation  text COLLATE "C",  -- reservations.payment_id
    account      text COLLATE "C" NOT NULL,
    currency     text COLLATE "C" NOT NULL,
    amount_minor bigint NOT NULL CHECK (amount_minor <> 0),
    at           timestamptz NOT NULL
);

CREATE INDEX ledger_entries_by_account ON paidonce.ledger_entries (account, id);

CREATE INDEX ledger_entries_by_payment ON paidonce.ledger_entries (payment_id) WHERE payment_id IS NOT NULL;

-- The balance at a past time is summed from this index alone, for a million entries too.
CREATE INDEX ledger_entries_by_account_time ON paidonce.ledger_entries (account, at) INCLUDE (amount_minor)
    WHERE starts_with(account, 'wallet:');

CREATE FUNCTION paidonce.require_balanced() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM written GROUP BY movement_id, currency HAVING sum(amount_minor) <> 0)
    THEN
        RAISE EXCEPTION 'the entries of a movement do not sum to zero'
            USING ERRCODE = 'check_violation';
    END IF;
    RETURN NULL;
END $$;

CREATE TRIGGER ledger_entries_balanced AFTER INSERT ON paidonce.ledger_entries
    REFERENCING NEW TABLE AS written FOR EACH STATEMENT EXECUTE FUNCTION paidonce.require_balanced();

-- Entries are added, never changed or deleted. Only payment_id may change, when two payments are
-- merged.
CREATE FUNCTION paidonce.refuse_ledger_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'entries of the ledger are never changed' USING ERRCODE = '23514';
END $$;

CREATE TRIGGER ledger_entries_no_change
    BEFORE UPDATE OF id, movement_id, account, currency, amount_minor, at, reservation
        OR DELETE OR TRUNCATE ON paidonce.ledger_entries
    FOR EACH STATEMENT EXECUTE FUNCTION paidonce.refuse_ledger_change();

CREATE TYPE paidonce.written_payment_entry AS (
    movement_id uuid, payment_id uuid, account text, currency text, amount_minor bigint,
    at timestamptz
);

CREATE TYPE paidonce.written_reservation_entry AS (
    movement_id uuid, reservation text, account text, currency text, amount_minor bigint,
    at timestamptz
);

-- Orders ------------------------------------------------------------------------------------

-- What the merchant expects to be paid for. No foreign key to plan_versions, whose rows are versions
-- of a plan, nor to payments, which are written with every event.
CREATE TABLE paidonce.orders (
    id                 uuid PRIMARY KEY,
    reference          text COLLATE "C" NOT NULL UNIQUE,
    kind               text COLLATE "C" NOT NULL,
    status             text COLLATE "C" NOT NULL,
    amount_minor       bigint NOT NULL CHECK (amount_minor >= 0),  -- 0: free, paid when it is created
    currency           text COLLATE "C" NOT NULL,
    user_id            uuid REFERENCES paidonce.users,
    email              text,
    email_key          text COLLATE "C",
    plan_id            text COLLATE "C",
    wallet_id          uuid REFERENCES paidonce.wallets,
    sources            smallint[],  -- only payments of these sources pay it; null: any
    applied_payment_id uuid,
    request_hash       bytea NOT NULL,  -- of the request that created it, to detect another one
    paid_at            timestamptz,
    canceled_at        timestamptz,
    refunded_at        timestamptz,
    closed_at          timestamptz,  -- canceled by the merchant: takes no more payments
    fulfilled_at       timestamptz,
    reversed_at        timestamptz,
    expires_at         timestamptz,  -- what is paid later is kept, and not applied
    version            bigint NOT NULL CHECK (version > 0),
    is_test            boolean NOT NULL DEFAULT false,
    created_at         timestamptz NOT NULL DEFAULT now(),
    updated_at         timestamptz NOT NULL DEFAULT now(),
    transaction_id     xid8 DEFAULT pg_current_xact_id(),
    CONSTRAINT orders_kind CHECK (kind IN ('order', 'subscription', 'booking', 'wallet')),
    CONSTRAINT orders_status CHECK (status IN ('PENDING', 'PAID', 'CANCELED', 'REFUNDED')),
    CONSTRAINT orders_recipient CHECK (
        CASE kind WHEN 'subscription' THEN user_id IS NOT NULL OR email_key IS NOT NULL
                  WHEN 'wallet' THEN wallet_id IS NOT NULL
                  ELSE true END),
    CONSTRAINT orders_paid_has_time CHECK (status <> 'PAID' OR paid_at IS NOT NULL),
    CONSTRAINT orders_paid_has_payment CHECK (
        (status = 'PAID' AND amount_minor > 0) = (applied_payment_id IS NOT NULL)),
    CONSTRAINT orders_closed_is_not_paid CHECK (closed_at IS NULL OR status <> 'PAID'),
    CONSTRAINT orders_reversed_was_fulfilled CHECK (reversed_at IS NULL OR fulfilled_at IS NOT NULL)
) WITH (fillfactor = 75);

CREATE INDEX orders_by_user ON paidonce.orders (user_id, id) WHERE user_id IS NOT NULL;

CREATE INDEX orders_by_email ON paidonce.orders (email_key, id) WHERE email_key IS NOT NULL;

CREATE INDEX orders_by_wallet ON paidonce.orders (wallet_id) WHERE wallet_id IS NOT NULL;

CREATE TYPE paidonce.written_order AS (
    id uuid, status text, applied_payment_id uuid, paid_at timestamptz, canceled_at timestamptz,
    refunded_at timestamptz, fulfilled_at timestamptz, reversed_at timestamptz, version bigint
);

-- Reservations ------------------------------------------------------------------------------

-- Money of a wallet that is set aside for a payment out of it, until it is committed, released or
-- expired. A refused request is a row too (REJECTED): a repeat gets the same answer. A row changes
-- only while the row of its wallet is locked.
CREATE TABLE paidonce.reservations (
    payment_id      text COLLATE "C" PRIMARY KEY,
    wallet_id       uuid NOT NULL REFERENCES paidonce.wallets,
    request_hash    bytea NOT NULL,
    amount_minor    bigint NOT NULL CHECK (amount_minor > 0),
    committed_minor bigint NOT NULL DEFAULT 0,
    status          text COLLATE "C" NOT NULL,
    expires_at      timestamptz,
    created_at      timestamptz NOT NULL,
    ended_at        timestamptz,
    CONSTRAINT reservations_status CHECK (
        status IN ('RESERVED', 'COMMITTED', 'RELEASED', 'EXPIRED', 'REJECTED')),
    CONSTRAINT reservations_committed CHECK (
        CASE status WHEN 'COMMITTED' THEN committed_minor BETWEEN 1 AND amount_minor
                    ELSE committed_minor = 0 END),
    CONSTRAINT reservations_ended CHECK ((status = 'RESERVED') = (ended_at IS NULL))
) WITH (fillfactor = 80);

CREATE INDEX reservations_open ON paidonce.reservations (wallet_id) WHERE status = 'RESERVED';

CREATE INDEX reservations_expiring ON paidonce.reservations (expires_at)
    WHERE status = 'RESERVED' AND expires_at IS NOT NULL;

CREATE TYPE paidonce.written_reservation AS (
    payment_id text, wallet_id uuid, request_hash bytea, amount_minor bigint,
    committed_minor bigint, status text, expires_at timestamptz, created_at timestamptz,
    ended_at timestamptz
);

-- A change of a reservation. `seen` is the status that was read.
CREATE TYPE paidonce.written_reservation_change AS (
    payment_id text, seen text, status text, committed_minor bigint, expires_at timestamptz,
    ended_at timestamptz
);

-- Payouts -----------------------------------------------------------------------------------

-- Payments out of a wallet, executed by a gateway. No foreign key to wallets: a payment out of a
-- wallet that does not exist is recorded as FAILED.
CREATE TABLE paidonce.wallet_payments (
    payment_id      text COLLATE "C" PRIMARY KEY,
    wallet_id       uuid NOT NULL,
    source_id       smallint NOT NULL,
    amount_minor    bigint NOT NULL CHECK (amount_minor > 0),
    currency        text COLLATE "C" NOT NULL,
    request_hash    bytea NOT NULL,
    status          text COLLATE "C" NOT NULL,
    transaction_id  text COLLATE "C",  -- at the gateway
    failure         text COLLATE "C",
    review          text COLLATE "C",  -- why a person should look
    next_attempt_at timestamptz,  -- of the call to the gateway; null: no call is needed
    attempts        integer NOT NULL DEFAULT 0,
    version         bigint NOT NULL DEFAULT 1,
    created_at      timestamptz NOT NULL,
    updated_at      timestamptz NOT NULL,
    CONSTRAINT wallet_payments_status CHECK (
        status IN ('INITIATED', 'PROCESSING', 'COMPLETED', 'FAILED')),
    CONSTRAINT wallet_payments_failure CHECK ((status = 'FAILED') = (failure IS NOT NULL)),
    CONSTRAINT wallet_payments_next_attempt CHECK (next_attempt_at IS NULL OR status = 'PROCESSING')
) WITH (fillfactor = 75);

CREATE UNIQUE INDEX wallet_payments_by_transaction ON paidonce.wallet_payments (source_id, transaction_id)
    WHERE transaction_id IS NOT NULL;

CREATE INDEX wallet_payments_by_next_attempt ON paidonce.wallet_payments (next_attempt_at)
    WHERE next_attempt_at IS NOT NULL;

CREATE INDEX wallet_payments_review ON paidonce.wallet_payments (payment_id) WHERE review IS NOT NULL;

-- Callbacks of the gateway about its transactions. Each status of a transaction is a row of its own:
-- `pending` must not hide the `succeeded` that follows. A callback that came before its payment is
-- tried again at next_attempt_at.
CREATE TABLE paidonce.gateway_callbacks (
    id              uuid PRIMARY KEY,
    source_id       smallint NOT NULL,
    transaction_id  text COLLATE "C" NOT NULL,
    gateway_status  text COLLATE "C" NOT NULL,
    amount_minor    bigint,
    currency        text COLLATE "C",
    event_id        uuid NOT NULL,
    status          text COLLATE "C" NOT NULL DEFAULT 'PENDING',
    payment_id      text COLLATE "C",
    attempts        integer NOT NULL DEFAULT 0,
    next_attempt_at timestamptz,
    received_at     timestamptz NOT NULL,
    ended_at        timestamptz,
    UNIQUE (source_id, transaction_id, gateway_status),
    CONSTRAINT gateway_callbacks_gateway_status CHECK (
        gateway_status IN ('pending', 'succeeded', 'failed')),
    CONSTRAINT gateway_callbacks_amount_has_currency CHECK (
        (amount_minor IS NULL) = (currency IS NULL)),
    CONSTRAINT gateway_callbacks_status CHECK (status IN ('PENDING', 'DONE', 'DEAD_LETTER')),
    CONSTRAINT gateway_callbacks_ended CHECK ((status = 'PENDING') = (ended_at IS NULL)),
    CONSTRAINT gateway_callbacks_next_attempt CHECK (
        (status = 'PENDING') = (next_attempt_at IS NOT NULL))
);

CREATE INDEX gateway_callbacks_by_next_attempt ON paidonce.gateway_callbacks (next_attempt_at)
    WHERE next_attempt_at IS NOT NULL;

CREATE INDEX gateway_callbacks_dead_letters ON paidonce.gateway_callbacks (id) WHERE status = 'DEAD_LETTER';

-- The read model of wallet payments. It is built from outbox messages only, so it refers to nothing.
CREATE TABLE paidonce.payment_views (
    payment_id   text COLLATE "C" PRIMARY KEY,
    status       text COLLATE "C" NOT NULL,
    amount_minor bigint NOT NULL,
    currency     text COLLATE "C" NOT NULL,
    version      bigint NOT NULL,
    updated_at   timestamptz NOT NULL,
    CONSTRAINT payment_views_status CHECK (
        status IN ('INITIATED', 'PROCESSING', 'COMPLETED', 'FAILED'))
) WITH (fillfactor = 75);

-- Bus ---------------------------------------------------------------------------------------

-- Transactional outbox: messages, written in the transaction of the change that they report. The relay
-- publishes the rows without published_at. The key of a message is aggregate_id for things that
-- Paidonce named, aggregate_name for things that others named; the former is smaller and is written
-- with every event.
CREATE TABLE paidonce.outbox (
    seq            bigint GENERATED ALWAYS AS IDENTITY (CACHE 1) PRIMARY KEY,
    id             uuid NOT NULL DEFAULT gen_random_uuid(),
    aggregate_type text COLLATE "C" NOT NULL,
    aggregate_id   uuid,
    aggregate_name text COLLATE "C",
    type           text COLLATE "C" NOT NULL,
    version        bigint NOT NULL,
    payload        jsonb NOT NULL,
    headers        jsonb NOT NULL DEFAULT '{}',
    pos            bigint,  -- place in the order of publication
    occurred_at    timestamptz NOT NULL,
    published_at   timestamptz,
    CONSTRAINT outbox_key CHECK ((aggregate_id IS NULL) = (aggregate_name IS NOT NULL))
);

CREATE INDEX outbox_unpublished ON paidonce.outbox (seq) WHERE published_at IS NULL;

-- Only the relay draws from it, so a position never becomes visible before a smaller one.
CREATE SEQUENCE paidonce.outbox_positions;

CREATE UNIQUE INDEX outbox_published ON paidonce.outbox (aggregate_type, pos) WHERE pos IS NOT NULL;

-- The messages about one wallet payment, from which its view can be rebuilt.
CREATE INDEX outbox_by_wallet_payment ON paidonce.outbox (aggregate_name, version)
    WHERE aggregate_type = 'wallet-payment';

CREATE TYPE paidonce.written_message AS (
    aggregate_type text, aggregate_id uuid, type text, version bigint, payload jsonb,
    occurred_at timestamptz
);

CREATE TYPE paidonce.written_named_message AS (
    id uuid, aggregate_type text, aggregate_name text, type text, version bigint, payload jsonb,
    occurred_at timestamptz
);

-- The position of each consumer group in each topic (aggregate_type). A group that reads from Kafka
-- reports its `lag` here instead.
CREATE TABLE paidonce.bus_cursors (
    consumer       text COLLATE "C" NOT NULL,
    aggregate_type text COLLATE "C" NOT NULL,
    pos            bigint NOT NULL DEFAULT 0 CHECK (pos >= 0),
    lag            bigint CHECK (lag >= 0),
    seen_at        timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (consumer, aggregate_type)
) WITH (fillfactor = 50);

-- Deduplication of consumers: the messages that each has consumed, written in the transaction of the
-- effect. It outlives the messages.
CREATE TABLE paidonce.processed_events (
    consumer     text COLLATE "C" NOT NULL,
    event_id     uuid NOT NULL,
    processed_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (consumer, event_id)
);

CREATE INDEX processed_events_by_time ON paidonce.processed_events (processed_at);

-- Messages that a consumer could not process, for an operator. `retried_at`: the operator wants it
-- delivered again; `consumed_at`: it was consumed after all; `discarded_at`: nobody needs it.
CREATE TABLE paidonce.bus_dead_letters (
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
    attempts       integer NOT NULL CHECK (attempts > 0),
    failed_at      timestamptz NOT NULL DEFAULT now(),
    retried_at     timestamptz,
    consumed_at    timestamptz,
    discarded_at   timestamptz,
    discarded_by   text,
    discard_reason text,
    UNIQUE (consumer, event_id),
    CONSTRAINT bus_dead_letters_consumed CHECK (consumed_at IS NULL OR retried_at IS NOT NULL),
    CONSTRAINT bus_dead_letters_discarded CHECK (
        num_nonnulls(discarded_at, discarded_by, discard_reason) IN (0, 3)),
    CONSTRAINT bus_dead_letters_one_end CHECK (
        discarded_at IS NULL OR (retried_at IS NULL AND consumed_at IS NULL))
);

CREATE INDEX bus_dead_letters_open_by_consumer ON paidonce.bus_dead_letters (consumer, id)
    WHERE consumed_at IS NULL AND discarded_at IS NULL;

CREATE INDEX bus_dead_letters_open ON paidonce.bus_dead_letters (id)
    WHERE consumed_at IS NULL AND discarded_at IS NULL;

CREATE INDEX bus_dead_letters_retried ON paidonce.bus_dead_letters (consumer, retried_at, id)
    WHERE retried_at IS NOT NULL AND consumed_at IS NULL;

-- Notifications -----------------------------------------------------------------------------

-- One row for each channel that receives the notification, written in the transaction of the change
-- that it reports.
CREATE TABLE paidonce.notifications (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    channel    text COLLATE "C" NOT NULL,
    at         timestamptz NOT NULL,
    kind       text COLLATE "C" NOT NULL,
    source     text COLLATE "C" NOT NULL DEFAULT '',
    event_id   uuid,
    payment_id uuid,
    details    jsonb NOT NULL DEFAULT '{}',
    not_before timestamptz,  -- sent then, if the payment still needs review
    suppressed bigint NOT NULL DEFAULT 0,  -- others of its kind and source, only counted
    message_id uuid,  -- the message that contains it; null: pending
    CONSTRAINT notifications_suppressed CHECK (suppressed >= 0)
) WITH (fillfactor = 80);

CREATE INDEX notifications_pending ON paidonce.notifications (channel, kind, source, id)
    WHERE message_id IS NULL;

-- To send the notifications of a failed message again.
CREATE INDEX notifications_by_message ON paidonce.notifications (message_id) WHERE message_id IS NOT NULL;

-- A message to a channel: a digest of notifications. It keeps its id and content over all attempts.
CREATE TABLE paidonce.notification_messages (
    id              uuid PRIMARY KEY,
    channel         text COLLATE "C" NOT NULL,
    at              timestamptz NOT NULL,
    content         jsonb NOT NULL,
    status          text COLLATE "C" NOT NULL DEFAULT 'PENDING',
    attempts        smallint NOT NULL DEFAULT 0 CHECK (attempts >= 0),
    next_attempt_at timestamptz NOT NULL,
    ended_at        timestamptz,
    error           text,
    CONSTRAINT notification_messages_status CHECK (status IN ('PENDING', 'SENT', 'FAILED')),
    CONSTRAINT notification_messages_ended CHECK ((status = 'PENDING') = (ended_at IS NULL))
);

CREATE INDEX notification_messages_by_channel ON paidonce.notification_messages (channel, at);

CREATE INDEX notification_messages_by_status ON paidonce.notification_messages (channel, status);

-- Replays -----------------------------------------------------------------------------------

-- A replay processes all events that match a filter again. Its progress is committed with the effect
-- of each batch, so the process that continues after a crash repeats and omits nothing. When two
-- processes run one replay, `version` lets only one of them commit.
CREATE TABLE paidonce.replays (
    id            uuid PRIMARY KEY,
    status        text COLLATE "C" NOT NULL DEFAULT 'PENDING',
    filter        jsonb NOT NULL,
    is_dry_run    boolean NOT NULL,
    rate          integer NOT NULL CHECK (rate > 0),  -- events a second
    actor         text NOT NULL,
    cursor        uuid,  -- the last event that was processed
    skipped       uuid[] NOT NULL DEFAULT '{}',  -- locked by others: to be tried again
    total         bigint,  -- null: not counted yet, or too many to count
    done          bigint NOT NULL DEFAULT 0,
    counts        jsonb NOT NULL DEFAULT '{}',
    applied       jsonb NOT NULL DEFAULT '{}',
    sample        jsonb NOT NULL DEFAULT '[]',
    error         text,
    version       bigint NOT NULL DEFAULT 1,
    starts        smallint NOT NULL DEFAULT 0,  -- since the last progress
    next_batch_at timestamptz NOT NULL DEFAULT now(),
    created_at    timestamptz NOT NULL DEFAULT now(),
    started_at    timestamptz,
    paused_at     timestamptz,
    finished_at   timestamptz,
    CONSTRAINT replays_status CHECK (
        status IN ('PENDING', 'RUNNING', 'PAUSED', 'DONE', 'CANCELED', 'FAILED')),
    CONSTRAINT replays_final_is_finished CHECK (
        (status IN ('DONE', 'CANCELED', 'FAILED')) = (finished_at IS NOT NULL)),
    CONSTRAINT replays_running_is_started CHECK (
        CASE status WHEN 'PENDING' THEN started_at IS NULL
                    WHEN 'RUNNING' THEN started_at IS NOT NULL
                    WHEN 'DONE' THEN started_at IS NOT NULL
                    ELSE true END),
    CONSTRAINT replays_paused_has_time CHECK ((status = 'PAUSED') = (paused_at IS NOT NULL)),
    CONSTRAINT replays_failed_has_error CHECK ((status = 'FAILED') = (error IS NOT NULL)),
    CONSTRAINT replays_numbers CHECK (done >= 0 AND total >= 0 AND version > 0 AND starts >= 0),
    CONSTRAINT replays_done_has_no_skipped CHECK (status <> 'DONE' OR skipped = '{}')
);

CREATE INDEX replays_active ON paidonce.replays (id) WHERE status IN ('PENDING', 'RUNNING');

-- Reconciliation ----------------------------------------------------------------------------

-- A comparison of a gateway's statement with our payments.
CREATE TABLE paidonce.reconciliations (
    id            uuid PRIMARY KEY,
    source_id     smallint NOT NULL REFERENCES paidonce.sources,
    status        text COLLATE "C" NOT NULL,
    since         timestamptz NOT NULL,
    until         timestamptz NOT NULL,
    repairs       boolean NOT NULL,  -- whether differences are repaired
    is_scheduled  boolean NOT NULL,  -- by the timer; else by an operator
    actor         text NOT NULL,
    starts        smallint NOT NULL DEFAULT 0,
    compared      bigint NOT NULL DEFAULT 0,
    agreed        bigint NOT NULL DEFAULT 0,
    repaired      bigint NOT NULL DEFAULT 0,
    behind        bigint NOT NULL DEFAULT 0,
    differs       bigint NOT NULL DEFAULT 0,
    missing_here  bigint NOT NULL DEFAULT 0,
    missing_there bigint NOT NULL DEFAULT 0,
    unreadable    bigint NOT NULL DEFAULT 0,
    new_findings  bigint NOT NULL DEFAULT 0,
    sums          jsonb NOT NULL DEFAULT '{}',
    unapplied     jsonb NOT NULL DEFAULT '[]',
    error_message text,
    created_at    timestamptz NOT NULL DEFAULT now(),
    started_at    timestamptz,
    finished_at   timestamptz,
    CONSTRAINT reconciliations_status CHECK (status IN ('PENDING', 'RUNNING', 'DONE', 'FAILED')),
    CONSTRAINT reconciliations_times CHECK (
        (status IN ('DONE', 'FAILED')) = (finished_at IS NOT NULL)
        AND (status <> 'RUNNING' OR started_at IS NOT NULL)),
    CONSTRAINT reconciliations_failure_has_message CHECK (
        (status = 'FAILED') = (error_message IS NOT NULL)),
    CONSTRAINT reconciliations_window CHECK (since < until)
);

CREATE INDEX reconciliations_unfinished ON paidonce.reconciliations (source_id, id)
    WHERE finished_at IS NULL;

-- Every process has a timer; one of them creates the next reconciliation.
CREATE UNIQUE INDEX reconciliations_scheduled ON paidonce.reconciliations (source_id)
    WHERE is_scheduled AND finished_at IS NULL;

CREATE INDEX reconciliations_by_source ON paidonce.reconciliations (source_id, created_at);

-- A difference between the statement (reported) and our payment (recorded). The reconciliation that
-- sees it first opens it; a resolved one that appears again is new again. opened_by and seen_by are
-- reconciliations, without foreign keys: an open finding outlives them.
CREATE TABLE paidonce.reconciliation_findings (
    id                      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    source_id               smallint NOT NULL REFERENCES paidonce.sources,
    id_kind                 text COLLATE "C" NOT NULL,
    external_id             text COLLATE "C" NOT NULL,
    kind                    text COLLATE "C" NOT NULL,
    payment_id              uuid,
    order_reference         text COLLATE "C",
    reported_currency       text COLLATE "C",
    reported_minor          bigint,
    reported_refunded_minor bigint,
    recorded_currency       text COLLATE "C",
    recorded_minor          bigint,
    recorded_refunded_minor bigint,
    reason                  text NOT NULL,
    repair_event_id         uuid,
    opened_by               uuid NOT NULL,
    seen_by                 uuid NOT NULL,
    first_seen_at           timestamptz NOT NULL,
    last_seen_at            timestamptz NOT NULL,
    resolved_at             timestamptz,
    resolution              text COLLATE "C",
    UNIQUE (source_id, id_kind, external_id, kind),
    CONSTRAINT reconciliation_findings_kind CHECK (
        kind IN ('behind', 'differs', 'missing_here', 'missing_there')),
    CONSTRAINT reconciliation_findings_resolution CHECK (
        (resolved_at IS NULL) = (resolution IS NULL) AND resolution IN ('repaired', 'gone'))
);

CREATE INDEX reconciliation_findings_open ON paidonce.reconciliation_findings (source_id, last_seen_at)
    WHERE resolved_at IS NULL;

CREATE INDEX reconciliation_findings_by_opener ON paidonce.reconciliation_findings (opened_by);

CREATE INDEX reconciliation_findings_by_observer ON paidonce.reconciliation_findings (seen_by);

-- Guard -------------------------------------------------------------------------------------

-- Banned addresses (of IPv6: each /64). A ban that was lifted or has ended stays for some days: other
-- processes have to learn of it, and the next ban of the address is longer.
CREATE TABLE paidonce.bans (
    address    text COLLATE "C" PRIMARY KEY CHECK (length(address) BETWEEN 1 AND 100),
    reason     text COLLATE "C" NOT NULL,
    score      real NOT NULL,
    times      integer NOT NULL CHECK (times >= 0),  -- bans in a row
    banned_at  timestamptz NOT NULL DEFAULT now(),
    until      timestamptz NOT NULL,
    lifted_at  timestamptz,
    changed_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT bans_until CHECK (until > banned_at),
    CONSTRAINT bans_lifted CHECK (lifted_at IS NULL OR lifted_at >= banned_at)
);

CREATE INDEX bans_by_change ON paidonce.bans (changed_at);

-- Addresses that sent a verified delivery, and to which source; updated once a day at most. They are
-- never banned.
CREATE TABLE paidonce.verified_senders (
    address     text COLLATE "C" NOT NULL CHECK (length(address) BETWEEN 1 AND 100),
    source_id   smallint NOT NULL,
    verified_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (address, source_id)
);

CREATE INDEX verified_senders_by_time ON paidonce.verified_senders (verified_at);

-- How many bytes of evidence were stored on a day, by strangers and by verified senders. A process takes
-- a portion at a time.
CREATE TABLE paidonce.evidence_rooms (
    room    text COLLATE "C" PRIMARY KEY CHECK (room IN ('strangers', 'senders')),
    day     date NOT NULL,
    taken   bigint NOT NULL CHECK (taken >= 0),
    is_told boolean NOT NULL DEFAULT false  -- that it is full
);

-- Sources whose verified senders sent deliveries with wrong signatures, and nothing verified since.
CREATE TABLE paidonce.failing_sources (
    source_id smallint PRIMARY KEY,
    failures  integer NOT NULL CHECK (failures >= 0),  -- in a row
    address   text COLLATE "C" NOT NULL CHECK (length(address) BETWEEN 1 AND 100),  -- the last one
    first_at  timestamptz NOT NULL DEFAULT now(),
    told_at   timestamptz
);

-- Reloads of the settings. One at a time is ASKED; every process that takes part answers, and the row
-- decides for all of them.
CREATE TABLE paidonce.reloads (
    id            uuid PRIMARY KEY,
    actor         text COLLATE "C" NOT NULL,
    process_group integer,  -- null: all processes
    status        text COLLATE "C" NOT NULL DEFAULT 'ASKED',
    reason        text,  -- of a refusal
    asked_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    decided_at    timestamptz,
    CONSTRAINT reloads_status CHECK (status IN ('ASKED', 'TAKEN', 'REFUSED')),
    CONSTRAINT reloads_decided CHECK ((status = 'ASKED') = (decided_at IS NULL)),
    CONSTRAINT reloads_reason CHECK ((status = 'REFUSED') = (reason IS NOT NULL))
);

CREATE UNIQUE INDEX reloads_asked ON paidonce.reloads (status) WHERE status = 'ASKED';

-- `digest` tells whether processes of one group have read the same; its key is in their memory only.
CREATE TABLE paidonce.reload_answers (
    reload_id     uuid NOT NULL,
    backend       integer NOT NULL,  -- the session of the process
    process       text NOT NULL,
    process_group integer NOT NULL,
    is_accepted   boolean NOT NULL,
    reason        text,
    changed       text[] NOT NULL,
    needs_restart text[] NOT NULL,
    digest        bytea,
    taken_at      timestamptz,
    PRIMARY KEY (reload_id, backend),
    CONSTRAINT reload_answers_reason CHECK (is_accepted = (reason IS NULL)),
    CONSTRAINT reload_answers_digest CHECK (is_accepted = (digest IS NOT NULL))
);

-- The operators' API keys. `hint` is the beginning of the key, `hash` all that is stored of the rest.
CREATE TABLE paidonce.api_keys (
    id           uuid PRIMARY KEY,
    name         text NOT NULL,
    hint         text NOT NULL,
    hash         bytea NOT NULL UNIQUE CHECK (octet_length(hash) = 32),
    hash_method  text COLLATE "C" NOT NULL DEFAULT 'sha256',
    scope        text COLLATE "C" NOT NULL CHECK (scope IN ('read', 'operate', 'admin')),
    created_at   timestamptz NOT NULL DEFAULT now(),
    last_used_at timestamptz,
    revoked_at   timestamptz,
    CONSTRAINT api_keys_hash_method CHECK (hash_method IN ('sha256', 'hmac-sha256'))
);

-- Statistics --------------------------------------------------------------------------------

-- Deliveries of each UTC day and their results, aggregated from event_count_deltas. No foreign key to
-- sources: the deltas, which are written with every batch, have none.
CREATE TABLE paidonce.event_counts (
    day              date NOT NULL,
    source_id        smallint NOT NULL,
    signature_method text COLLATE "C" NOT NULL,
    received         bigint NOT NULL,
    duplicates       bigint NOT NULL,
    waiting          bigint NOT NULL,
    succeeded        bigint NOT NULL,
    failed           bigint NOT NULL,
    rejected         bigint NOT NULL,
    PRIMARY KEY (day, source_id, signature_method)
);

-- The changes of the counts by a batch, written with the batch; a shared counter would make batches
-- wait for each other. Numbers are signed: an event that waited and is done counts -1 as waiting. No
-- index: rows are few and soon aggregated, and every reader reads all of them.
CREATE TABLE paidonce.event_count_deltas (
    day              date NOT NULL,
    source_id        smallint NOT NULL,
    signature_method text COLLATE "C" NOT NULL,
    received         integer NOT NULL,
    duplicates       integer NOT NULL,
    waiting          integer NOT NULL,
    succeeded        integer NOT NULL,
    failed           integer NOT NULL,
    rejected         integer NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);

CREATE TYPE paidonce.written_event_count AS (
    day date, source_id smallint, signature_method text, received integer, duplicates integer,
    waiting integer, succeeded integer, failed integer, rejected integer
);

-- Audit -------------------------------------------------------------------------------------

-- Actions of operators, and steps of processing that the columns of the event do not show. A row
-- outlives what it names. Its place is (at, id): the list is ordered by time, and the sweep deletes by
-- time. There is no index on the id alone: nothing looks for one.
CREATE TABLE paidonce.audit_log (
    id              bigint GENERATED ALWAYS AS IDENTITY,
    at              timestamptz NOT NULL DEFAULT now(),
    event_id        uuid,
    payment_id      uuid,
    order_reference text COLLATE "C",
    user_id         uuid,
    actor           text COLLATE "C" NOT NULL DEFAULT 'paidonce',
    action          text COLLATE "C" NOT NULL,
    reason          text,  -- as the operator gave it
    success         boolean NOT NULL,
    details         jsonb NOT NULL DEFAULT '{}',
    PRIMARY KEY (at, id)
);

CREATE INDEX audit_log_by_event ON paidonce.audit_log (event_id, at, id) WHERE event_id IS NOT NULL;

CREATE INDEX audit_log_by_payment ON paidonce.audit_log (payment_id, at, id) WHERE payment_id IS NOT NULL;

CREATE INDEX audit_log_by_order ON paidonce.audit_log (order_reference, at, id)
    WHERE order_reference IS NOT NULL;

CREATE INDEX audit_log_by_user ON paidonce.audit_log (user_id, at, id) WHERE user_id IS NOT NULL;

CREATE INDEX audit_log_by_actor ON paidonce.audit_log (actor, at, id) WHERE actor <> 'paidonce';

-- The duplicates of an event are counted in one row. An INSERT of another row pays nothing for this index.
CREATE UNIQUE INDEX audit_log_duplicates ON paidonce.audit_log (event_id) WHERE action = 'event_deduped';

-- Without what is written for many events and for each wallet command.
CREATE INDEX audit_log_by_action ON paidonce.audit_log (action, at, id)
    WHERE action NOT IN ('event_deduped', 'retry_scheduled', 'processing_attempt_started',
                         'processing_attempt_failed', 'processing_succeeded', 'wallet_reserved',
                         'wallet_committed', 'wallet_released', 'wallet_expired');
