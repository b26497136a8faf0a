-- Orders, wallets and what was taken back. Added columns are empty or false for what is there
-- already, so that no table is written anew.
ALTER TABLE payments
    ADD COLUMN applied_minor  bigint,
    ADD COLUMN dispute_won_at timestamptz,
    ADD COLUMN is_linked      boolean NOT NULL DEFAULT false,
    ADD COLUMN is_contested   boolean NOT NULL DEFAULT false,
    ADD COLUMN is_accepted    boolean NOT NULL DEFAULT false,
    ADD COLUMN is_for_refund  boolean NOT NULL DEFAULT false,
    ADD COLUMN transaction_id xid8;

COMMENT ON COLUMN payments.applied_minor IS 'null: all that was captured';

-- Not validated: looking at every row would hold up whoever writes. New rows are checked.
ALTER TABLE payments ADD CONSTRAINT payments_reversed_was_applied CHECK (
    reversed_minor <= CASE WHEN applied_at IS NULL THEN 0
                           ELSE coalesce(applied_minor, captured_minor) END) NOT VALID;

-- One per owner and currency. It never goes negative: what a refund cannot take back is owed.
CREATE TABLE wallets (
    id               uuid PRIMARY KEY,
    owner            text COLLATE "C" NOT NULL,
    currency         text COLLATE "C" NOT NULL,
    balance_minor    bigint NOT NULL DEFAULT 0,
    reserved_minor   bigint NOT NULL DEFAULT 0,
    receivable_minor bigint NOT NULL DEFAULT 0,
    version          bigint NOT NULL DEFAULT 1,
    created_at       timestamptz NOT NULL DEFAULT now(),
    updated_at       timestamptz NOT NULL DEFAULT now(),
    UNIQUE (owner, currency),
    CONSTRAINT wallets_never_negative CHECK (
        reserved_minor >= 0 AND balance_minor >= reserved_minor AND receivable_minor >= 0),
    CONSTRAINT wallets_version CHECK (version > 0)
) WITH (fillfactor = 75);

-- What explains the balances: each movement is a set of entries that sums to zero. Rows are added,
-- never changed.
CREATE TABLE ledger_entries (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    movement_id  uuid NOT NULL,
    payment_id   uuid,
    account      text COLLATE "C" NOT NULL,
    currency     text COLLATE "C" NOT NULL,
    amount_minor bigint NOT NULL CHECK (amount_minor <> 0),
    at           timestamptz NOT NULL
);

CREATE INDEX ledger_entries_account ON ledger_entries (account, id);

CREATE INDEX ledger_entries_payment ON ledger_entries (payment_id) WHERE payment_id IS NOT NULL;

CREATE FUNCTION require_balanced() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM written GROUP BY movement_id, currency HAVING sum(amount_minor) <> 0)
    THEN
        RAISE EXCEPTION 'the entries of a movement do not sum to zero'
            USING ERRCODE = 'check_violation';
    END IF;
    RETURN NULL;
END $$;

CREATE TRIGGER ledger_entries_balance AFTER INSERT ON ledger_entries
    REFERENCING NEW TABLE AS written FOR EACH STATEMENT EXECUTE FUNCTION require_balanced();

ALTER TABLE orders
    ADD COLUMN email_key      text COLLATE "C",
    ADD COLUMN wallet_id      uuid REFERENCES wallets,
    ADD COLUMN closed_at      timestamptz,
    ADD COLUMN fulfilled_at   timestamptz,
    ADD COLUMN reversed_at    timestamptz,
    ADD COLUMN transaction_id xid8,
    DROP CONSTRAINT orders_paid_is_paid,
    ADD CONSTRAINT orders_paid_at_some_time CHECK (status <> 'PAID' OR paid_at IS NOT NULL),
    ADD CONSTRAINT orders_name_whom CHECK (
        CASE kind WHEN 'subscription' THEN user_id IS NOT NULL OR email_key IS NOT NULL
                  WHEN 'wallet' THEN wallet_id IS NOT NULL
                  ELSE true END),
    ADD CONSTRAINT orders_closed_is_not_paid CHECK (closed_at IS NULL OR status <> 'PAID'),
    ADD CONSTRAINT orders_counts_when_paid CHECK (
        (status = 'PAID') = (applied_payment_id IS NOT NULL)),
    ADD CONSTRAINT orders_reversed_was_fulfilled CHECK (
        reversed_at IS NULL OR fulfilled_at IS NOT NULL);

-- The orders that wait for their user.
CREATE INDEX orders_email ON orders (email_key) WHERE user_id IS NULL AND email_key IS NOT NULL;

-- Which transaction wrote it: payment, order and event of one effect name the same one.
ALTER TABLE webhook_events ADD COLUMN transaction_id xid8;

ALTER TABLE webhook_events ALTER COLUMN transaction_id SET DEFAULT pg_current_xact_id();

ALTER TABLE payments ALTER COLUMN transaction_id SET DEFAULT pg_current_xact_id();

ALTER TABLE orders ALTER COLUMN transaction_id SET DEFAULT pg_current_xact_id();

CREATE TYPE written_payment_2 AS (
    id uuid, source_id smallint, order_reference text, email text, email_key text, user_id uuid,
    plan_id text, currency text, captured_minor bigint, refund_total_minor bigint,
    refunded_minor bigint, paid_at timestamptz, failed_at timestamptz, voided_at timestamptz,
    canceled_at timestamptz, refunded_at timestamptz, processing_at timestamptz,
    disputed_at timestamptz, dispute_won_at timestamptz, applied_at timestamptz,
    applied_minor bigint, reversed_minor bigint, subscription_id uuid, period_start timestamptz,
    period_end timestamptz, is_linked boolean, is_contested boolean, is_accepted boolean,
    is_for_refund boolean, review text, version bigint, next_version bigint
);

CREATE TYPE written_order AS (
    id uuid, status text, applied_payment_id uuid, paid_at timestamptz, canceled_at timestamptz,
    refunded_at timestamptz, fulfilled_at timestamptz, reversed_at timestamptz, version bigint
);

CREATE TYPE written_wallet AS (
    id uuid, balance_minor bigint, receivable_minor bigint, version bigint
);

CREATE TYPE written_entry AS (
    movement_id uuid, payment_id uuid, account text, currency text, amount_minor bigint,
    at timestamptz
);
