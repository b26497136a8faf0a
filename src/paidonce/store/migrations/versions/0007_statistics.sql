-- Statistics, and indexes for searching events.

-- What was received on each UTC day, and what became of it. Folded from the table below.
CREATE TABLE event_counts (
    day              date NOT NULL,
    source_id        smallint NOT NULL,
    signature_method text COLLATE "C" NOT NULL,
    received         bigint NOT NULL,
    duplicates       bigint NOT NULL,
    waiting          bigint NOT NULL,
    succeeded        bigint NOT NULL,
    failed           bigint NOT NULL,
    PRIMARY KEY (day, source_id, signature_method)
);

-- How a batch changes the counts: a row for each day, source and method in it, written with the
-- batch. A counter that every batch updates would be a row that all of them wait for. Numbers are
-- signed: what waited and has ended is one less that waits. There is no index: the rows are few and
-- soon gone, and everybody who reads them reads all of them.
CREATE TABLE event_count_deltas (
    day              date NOT NULL,
    source_id        smallint NOT NULL,
    signature_method text COLLATE "C" NOT NULL,
    received         integer NOT NULL,
    duplicates       integer NOT NULL,
    waiting          integer NOT NULL,
    succeeded        integer NOT NULL,
    failed           integer NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);

CREATE TYPE written_event_count AS (
    day date, source_id smallint, signature_method text, received integer, duplicates integer,
    waiting integer, succeeded integer, failed integer
);

-- What leads a search has the id after it: the newest of them are at one end of the index, however
-- many there are.
CREATE INDEX webhook_events_of_payment ON webhook_events (external_payment_id, id)
    WHERE external_payment_id IS NOT NULL;

DROP INDEX webhook_events_payment;

CREATE INDEX webhook_events_of_order ON webhook_events (order_reference, id)
    WHERE order_reference IS NOT NULL;

DROP INDEX webhook_events_order;

CREATE INDEX webhook_events_error ON webhook_events (error_code, id) WHERE error_code IS NOT NULL;

CREATE INDEX webhook_events_source ON webhook_events (source_id, id);

CREATE INDEX webhook_events_test ON webhook_events (id) WHERE is_test;

CREATE INDEX payments_of_email ON payments (email_key, id) WHERE email_key IS NOT NULL;

DROP INDEX payments_email;

CREATE INDEX payments_of_order ON payments (order_reference, id) WHERE order_reference IS NOT NULL;

DROP INDEX payments_order;

CREATE INDEX payments_to_review ON payments (review, id) WHERE review IS NOT NULL;

DROP INDEX payments_review;

-- Money that was received and not applied, and nothing else: payments that failed are not applied
-- either, and there is no end to those.
CREATE INDEX payments_owed ON payments (id)
    WHERE applied_at IS NULL AND captured_minor > refunded_minor AND canceled_at IS NULL;

DROP INDEX payments_unapplied;

-- An order's owner, whether or not he is known already.
CREATE INDEX orders_of_user ON orders (user_id, id) WHERE user_id IS NOT NULL;

CREATE INDEX orders_of_email ON orders (email_key, id) WHERE email_key IS NOT NULL;
