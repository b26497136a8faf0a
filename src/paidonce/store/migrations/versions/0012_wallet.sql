-- Money that is set aside for a payment until it is taken or let go. What could not be set aside is
-- remembered too: whoever asks again gets the same answer. A row changes only while its wallet's row
-- is locked.
CREATE TABLE reservations (
    payment_id      text COLLATE "C" PRIMARY KEY,
    wallet_id       uuid NOT NULL REFERENCES wallets,
    request_hash    bytea NOT NULL,
    amount_minor    bigint NOT NULL,
    committed_minor bigint NOT NULL DEFAULT 0,
    status          text COLLATE "C" NOT NULL,
    expires_at      timestamptz,
    created_at      timestamptz NOT NULL,
    ended_at        timestamptz,
    CONSTRAINT reservations_amount CHECK (amount_minor > 0),
    CONSTRAINT reservations_status CHECK (
        status IN ('RESERVED', 'COMMITTED', 'RELEASED', 'EXPIRED', 'REJECTED')),
    CONSTRAINT reservations_committed CHECK (
        CASE status WHEN 'COMMITTED' THEN committed_minor BETWEEN 1 AND amount_minor
                    ELSE committed_minor = 0 END),
    CONSTRAINT reservations_ended CHECK ((status = 'RESERVED') = (ended_at IS NULL))
) WITH (fillfactor = 80);

CREATE INDEX reservations_open ON reservations (wallet_id) WHERE status = 'RESERVED';

CREATE INDEX reservations_expiring ON reservations (expires_at)
    WHERE status = 'RESERVED' AND expires_at IS NOT NULL;

ALTER TABLE ledger_entries ADD COLUMN reservation text COLLATE "C";

-- What was in a wallet at a time is added up from this alone, also of one with a million entries.
CREATE INDEX ledger_entries_past ON ledger_entries (account, at) INCLUDE (amount_minor)
    WHERE starts_with(account, 'wallet:');

-- Entries are added, never changed. Only of which payment they are may be mended, when two turn out
-- to be one.
CREATE FUNCTION refuse_changed_entries() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'entries of the ledger are never changed' USING ERRCODE = '23514';
END
$$;

CREATE TRIGGER ledger_entries_stay
    BEFORE UPDATE OF id, movement_id, account, currency, amount_minor, at, reservation OR DELETE
    ON ledger_entries
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_changed_entries();

CREATE TRIGGER ledger_entries_are_kept
    BEFORE TRUNCATE ON ledger_entries
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_changed_entries();

-- What a batch of commands writes, a type for each table.
CREATE TYPE written_held_wallet AS (
    id uuid, balance_minor bigint, reserved_minor bigint, version bigint
);

CREATE TYPE written_reservation AS (
    payment_id text, wallet_id uuid, request_hash bytea, amount_minor bigint,
    committed_minor bigint, status text, expires_at timestamptz, created_at timestamptz,
    ended_at timestamptz
);

CREATE TYPE written_ending AS (
    payment_id text, seen text, status text, committed_minor bigint, expires_at timestamptz,
    ended_at timestamptz
);

CREATE TYPE written_entry_2 AS (
    movement_id uuid, reservation text, account text, currency text, amount_minor bigint,
    at timestamptz
);
