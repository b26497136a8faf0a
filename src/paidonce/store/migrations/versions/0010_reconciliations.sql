-- A look at a gateway's own books, from the wish to its report.
CREATE TABLE reconciliations (
    id            uuid PRIMARY KEY,
    source_id     smallint NOT NULL,
    status        text COLLATE "C" NOT NULL,
    since         timestamptz NOT NULL,
    until         timestamptz NOT NULL,
    repairs       boolean NOT NULL,
    is_timed      boolean NOT NULL,
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
    CONSTRAINT reconciliations_status CHECK (status IN ('WAITING', 'RUNNING', 'DONE', 'FAILED')),
    CONSTRAINT reconciliations_times CHECK (
        (status IN ('DONE', 'FAILED')) = (finished_at IS NOT NULL)
        AND (status <> 'RUNNING' OR started_at IS NOT NULL)),
    CONSTRAINT reconciliations_failure_has_message CHECK (
        (status = 'FAILED') = (error_message IS NOT NULL)),
    CONSTRAINT reconciliations_window CHECK (since < until)
);

CREATE INDEX reconciliations_unfinished ON reconciliations (source_id, id)
    WHERE finished_at IS NULL;

-- However many processes have a timer, one of them makes the next.
CREATE UNIQUE INDEX reconciliations_timed ON reconciliations (source_id)
    WHERE is_timed AND finished_at IS NULL;

CREATE INDEX reconciliations_source ON reconciliations (source_id, created_at);

-- How a gateway and we do not agree on a payment. A row is opened by the reconciliation that sees
-- it first, and stays, resolved, when it is gone; opened again, it is new again.
CREATE TABLE reconciliation_findings (
    id                      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    source_id               smallint NOT NULL,
    id_kind                 text COLLATE "C" NOT NULL,
    external_id             text COLLATE "C" NOT NULL,
    kind                    text COLLATE "C" NOT NULL,
    payment_id              uuid,
    order_reference         text COLLATE "C",
    currency                text COLLATE "C",
    reported_minor          bigint,
    reported_refunded_minor bigint,
    known_currency          text COLLATE "C",
    known_minor             bigint,
    known_refunded_minor    bigint,
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

CREATE INDEX reconciliation_findings_open ON reconciliation_findings (source_id, last_seen_at)
    WHERE resolved_at IS NULL;

CREATE INDEX reconciliation_findings_opened ON reconciliation_findings (opened_by);

CREATE INDEX reconciliation_findings_seen ON reconciliation_findings (seen_by);
