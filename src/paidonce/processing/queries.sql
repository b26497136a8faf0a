-- name: load
-- Every row that a batch touches, in one round trip. In a transaction, orders, payments,
-- subscriptions and wallets are locked, each in the order of their ids. A row that another
-- transaction has locked is skipped, not waited for; its events are processed later. Without a
-- transaction, the lines marked `locks` are left out, and `write` checks the versions seen here.
-- A row that changed between the snapshot and the lock counts as locked, too: what was read with
-- it, such as its refunds or the other payments of its order, may be older than the row. An order
-- is loaded with its payments that captured money, first those that still have it: one of them may
-- take the place of another.
WITH known_keys AS (
    SELECT k.source_id, k.digest, k.event_id, k.fingerprint, k.fingerprint_version, k.purpose
      FROM unnest(:key_source_id::smallint[], :key_digest::bytea[]) AS wanted (source_id, digest)
      JOIN paidonce.event_keys AS k USING (source_id, digest)
),
named AS (
    SELECT i.source_id, i.kind, i.external_id, i.payment_id
      FROM unnest(:id_source_id::smallint[], :id_kind::text[], :id_value::text[])
           AS wanted (source_id, kind, external_id)
      JOIN paidonce.payment_ids AS i USING (source_id, kind, external_id)
),
named_payments AS (
    SELECT payment_id FROM named UNION SELECT unnest(:payment_id::uuid[])
),
wanted_orders AS (
    SELECT o.id, o.reference, o.wallet_id, o.applied_payment_id, o.version
      FROM paidonce.orders AS o
     WHERE o.reference = ANY (ARRAY(
         SELECT unnest(:reference::text[])
         UNION
         SELECT order_reference FROM paidonce.payments
          WHERE id IN (SELECT payment_id FROM named_payments)))
),
order_rows AS (
    SELECT o.* FROM paidonce.orders AS o WHERE o.id IN (SELECT id FROM wanted_orders)
     ORDER BY o.id
       FOR NO KEY UPDATE SKIP LOCKED  -- locks
),
wanted_payments AS (
    SELECT payment_id FROM named_payments
    UNION
    SELECT paid.id
      FROM wanted_orders AS o,
           LATERAL (SELECT p.id
                      FROM paidonce.payments AS p
                     WHERE p.order_reference = o.reference AND p.captured_minor > 0
                     ORDER BY p.id = o.applied_payment_id DESC,
                              p.refunded_minor >= p.captured_minor OR p.canceled_at IS NOT NULL,
                              p.paid_at, p.id
                     LIMIT :max_of_order) AS paid
),
payment_rows AS (
    SELECT p.* FROM paidonce.payments AS p WHERE p.id IN (SELECT payment_id FROM wanted_payments)
     ORDER BY p.id
       FOR NO KEY UPDATE SKIP LOCKED  -- locks
),
found_users AS (
    SELECT u.email_key, u.user_id
      FROM paidonce.user_emails AS u
     WHERE u.email_key = ANY (ARRAY(
         SELECT unnest(:email_key::text[])
         UNION
         SELECT email_key FROM payment_rows WHERE applied_at IS NULL
         UNION
         SELECT email_key FROM order_rows WHERE user_id IS NULL AND kind = 'subscription'))
),
wanted_subscriptions AS (
    SELECT s.id, s.user_id
      FROM paidonce.subscriptions AS s
     WHERE s.user_id IN (
         SELECT user_id FROM found_users
         UNION SELECT user_id FROM payment_rows
         UNION SELECT user_id FROM order_rows
         UNION SELECT unnest(:user_id::uuid[]))
),
subscription_rows AS (
    SELECT s.id, s.user_id, s.product, s.status, s.current_period_end, s.anchor_day, s.version
      FROM paidonce.subscriptions AS s
     WHERE s.id IN (SELECT id FROM wanted_subscriptions)
     ORDER BY s.id
       FOR NO KEY UPDATE SKIP LOCKED  -- locks
),
locked_payments AS (
    SELECT p.id, p.order_reference
      FROM paidonce.payments AS p
     WHERE p.id IN (SELECT payment_id FROM wanted_payments)
       AND (p.id, p.version) NOT IN (SELECT id, version FROM payment_rows)
),
wallet_rows AS (
    SELECT w.id, w.owner, w.currency, w.balance_minor, w.reserved_minor, w.receivable_minor,
           w.version
      FROM paidonce.wallets AS w
     WHERE w.id IN (SELECT wallet_id FROM order_rows)
     ORDER BY w.id
       FOR NO KEY UPDATE SKIP LOCKED  -- locks
)
SELECT ARRAY(SELECT k FROM known_keys AS k) AS keys,
       ARRAY(SELECT ROW (id, source_id, payment_columns, version) FROM payment_rows) AS payments,
       ARRAY(SELECT n FROM named AS n) AS payment_ids,
       ARRAY(SELECT ROW (o.id, o.reference, o.kind, o.amount_minor, o.currency, o.user_id,
                         o.email, o.plan_id, o.wallet_id, o.sources, o.status,
                         o.applied_payment_id, o.paid_at, o.canceled_at, o.refunded_at,
                         o.closed_at, o.fulfilled_at, o.reversed_at, o.expires_at,
                         o.version)
               FROM order_rows AS o) AS orders,
       ARRAY(SELECT w FROM wallet_rows AS w) AS wallets,
       ARRAY(SELECT ROW (r.payment_id, r.refund_id, r.amount_minor)
               FROM paidonce.refunds AS r
              WHERE r.payment_id IN (SELECT id FROM payment_rows)) AS refunds,
       ARRAY(SELECT u FROM found_users AS u) AS users,
       ARRAY(SELECT s FROM subscription_rows AS s) AS subscriptions,
       ARRAY(SELECT id FROM locked_payments) AS locked_payments,
       ARRAY(SELECT w.user_id FROM wanted_subscriptions AS w
              WHERE w.id NOT IN (SELECT id FROM subscription_rows)) AS locked_users,
       ARRAY(SELECT w.reference FROM wanted_orders AS w
              WHERE (w.id, w.version) NOT IN (SELECT id, version FROM order_rows)
                 OR (w.wallet_id IS NOT NULL
                     AND w.wallet_id NOT IN (SELECT id FROM wallet_rows))
             UNION
             SELECT order_reference FROM locked_payments WHERE order_reference IS NOT NULL)
           AS locked_orders,
       clock_timestamp() AS now;

-- name: grants
-- The payments that granted periods of a subscription. There is no index for them: they are those of
-- one user.
SELECT p.id
  FROM paidonce.subscriptions AS s
  JOIN paidonce.payments AS p ON p.user_id = s.user_id
 WHERE s.id = :subscription_id AND p.subscription_id = s.id
 ORDER BY p.created_at DESC
 LIMIT :max_grants;

-- name: free_grants
-- Free orders of the user. The plan says whether it was for this subscription.
SELECT o.id, o.plan_id, o.fulfilled_at
  FROM paidonce.subscriptions AS s
  JOIN paidonce.orders AS o ON o.user_id = s.user_id
 WHERE s.id = :subscription_id AND o.kind = 'subscription' AND o.amount_minor = 0
   AND o.fulfilled_at IS NOT NULL AND o.reversed_at IS NULL
 ORDER BY o.id DESC
 LIMIT :max_grants;

-- name: write
-- Every row that a batch changes, in one round trip. Fewer rows written than sent means that another
-- transaction was first: the statement fails, and the caller runs the batch again.
WITH claimed_keys AS (
    INSERT INTO paidonce.event_keys (
        source_id, digest, event_id, fingerprint, fingerprint_version, purpose)
    SELECT * FROM unnest(:keys::paidonce.written_event_key[])
    ON CONFLICT DO NOTHING
    RETURNING 1
),
new_ids AS (
    INSERT INTO paidonce.payment_ids (source_id, kind, external_id, payment_id)
    SELECT * FROM unnest(:ids::paidonce.written_payment_id[])
    ON CONFLICT DO NOTHING
    RETURNING 1
),
new_payments AS (
    INSERT INTO paidonce.payments (id, source_id, payment_columns, version)
    SELECT id, source_id, payment_columns, next_version
      FROM unnest(:new_payments::paidonce.written_payment[])
    RETURNING 1
),
changed_payments AS (
    UPDATE paidonce.payments AS p
       SET new_payment_values, version = c.next_version, updated_at = now(),
           transaction_id = pg_current_xact_id()
      FROM unnest(:payments::paidonce.written_payment[]) AS c
     WHERE p.id = c.id AND p.version = c.version
       AND (p.applied_at IS NULL OR p.applied_at = c.applied_at)
    RETURNING 1
),
new_subscriptions AS (
    INSERT INTO paidonce.subscriptions (
        id, user_id, product, status, current_period_end, anchor_day, version)
    SELECT * FROM unnest(:new_subscriptions::paidonce.written_subscription[])
    ON CONFLICT DO NOTHING
    RETURNING 1
),
changed_subscriptions AS (
    UPDATE paidonce.subscriptions AS s
       SET status = c.status, current_period_end = c.current_period_end,
           anchor_day = c.anchor_day, version = s.version + 1, updated_at = now()
      FROM unnest(:subscriptions::paidonce.written_subscription[]) AS c
     WHERE s.id = c.id AND s.version = c.version
    RETURNING 1
),
changed_orders AS (
    UPDATE paidonce.orders AS o
       SET status = c.status, applied_payment_id = c.applied_payment_id, paid_at = c.paid_at,
           canceled_at = c.canceled_at, refunded_at = c.refunded_at,
           fulfilled_at = c.fulfilled_at, reversed_at = c.reversed_at, version = o.version + 1,
           updated_at = now(), transaction_id = pg_current_xact_id()
      FROM unnest(:orders::paidonce.written_order[]) AS c
     WHERE o.id = c.id AND o.version = c.version
    RETURNING 1
),
new_events AS (
    INSERT INTO paidonce.webhook_events (
        id, source_id, status, key, type, external_event_id, external_payment_id,
        order_reference, signature_valid, signature_method, is_test, error_code, error_message,
        conflicts_with, attempts, received_at, processed_at, occurred_at, remote_address,
        request_id, headers, raw_body)
    SELECT * FROM unnest(:events::paidonce.written_event[])
    RETURNING 1
),
new_messages AS (
    INSERT INTO paidonce.outbox (aggregate_type, aggregate_id, type, version, payload, occurred_at)
    SELECT * FROM unnest(:messages::paidonce.written_message[])
    RETURNING 1
),
new_queued AS (
    INSERT INTO paidonce.event_queue (
        run_at, event_id, attempt, handler_attempt, blocked_on, queue_name, source_id, lane, sender,
        subject, scheduled_at, redelivered_at)
    SELECT * FROM unnest(:queued::paidonce.written_queued_event[])
    RETURNING 1
),
new_counts AS (
    INSERT INTO paidonce.event_count_deltas (
        day, source_id, signature_method, received, duplicates, waiting, succeeded, failed, rejected)
    SELECT * FROM unnest(:counts::paidonce.written_event_count[])
    RETURNING 1
)
SELECT paidonce.require_written(
    (SELECT count(*) FROM claimed_keys) + (SELECT count(*) FROM new_ids)
    + (SELECT count(*) FROM new_payments) + (SELECT count(*) FROM changed_payments)
    + (SELECT count(*) FROM new_subscriptions) + (SELECT count(*) FROM changed_subscriptions)
    + (SELECT count(*) FROM changed_orders) + (SELECT count(*) FROM new_events)
    + (SELECT count(*) FROM new_messages) + (SELECT count(*) FROM new_queued)
    + (SELECT count(*) FROM new_counts), :expected);

-- name: write_refunds
INSERT INTO paidonce.refunds (source_id, refund_id, payment_id, amount_minor)
SELECT * FROM unnest(
    :source_id::smallint[], :refund_id::text[], :payment_id::uuid[], :amount_minor::bigint[])
ON CONFLICT (source_id, refund_id)
DO UPDATE SET amount_minor = greatest(refunds.amount_minor, excluded.amount_minor)
        WHERE refunds.payment_id = excluded.payment_id;

-- name: lock_owners
-- Users that payments name for the first time, without another row of the user that is checked. A merge
-- of users locks and deletes the user; so either it sees the payments, or this statement fails.
SELECT paidonce.require_written(
    (SELECT count(*) FROM (SELECT 1 FROM paidonce.users WHERE id = ANY (:user_id::uuid[])
                            ORDER BY id FOR KEY SHARE) AS found), :expected);

-- name: merge_payments
-- Payments that are merged into another one: their ids and refunds move there, and they are deleted.
WITH moved AS (
    SELECT *
      FROM unnest(:id::uuid[], :version::bigint[], :merged_into::uuid[])
           AS given (id, version, merged_into)
),
gone AS (
    DELETE FROM paidonce.payments AS p
     USING moved AS m
     WHERE p.id = m.id AND p.version = m.version
       AND (p.applied_at IS NULL OR p.reversed_minor >= p.applied_minor)
    RETURNING p.id
),
moved_ids AS (
    UPDATE paidonce.payment_ids SET payment_id = m.merged_into FROM moved AS m WHERE payment_id = m.id
),
moved_refunds AS (
    UPDATE paidonce.refunds SET payment_id = m.merged_into FROM moved AS m WHERE payment_id = m.id
),
moved_entries AS (
    UPDATE paidonce.ledger_entries SET payment_id = m.merged_into FROM moved AS m WHERE payment_id = m.id
),
moved_trail AS (
    UPDATE paidonce.audit_log SET payment_id = m.merged_into FROM moved AS m WHERE payment_id = m.id
)
SELECT paidonce.require_written((SELECT count(*) FROM gone), :expected);

-- name: write_wallets
WITH changed AS (
    UPDATE paidonce.wallets AS w
       SET balance_minor = c.balance_minor, receivable_minor = c.receivable_minor,
           version = w.version + 1, updated_at = now()
      FROM unnest(:wallets::paidonce.written_wallet[]) AS c
     WHERE w.id = c.id AND w.version = c.version
    RETURNING 1
),
explained AS (
    INSERT INTO paidonce.ledger_entries (movement_id, payment_id, account, currency, amount_minor, at)
    SELECT * FROM unnest(:entries::paidonce.written_payment_entry[])
    RETURNING 1
)
SELECT paidonce.require_written(
    (SELECT count(*) FROM changed) + (SELECT count(*) FROM explained), :expected);

-- name: update_events
UPDATE paidonce.webhook_events AS e
   SET status = c.status, error_code = c.error_code, error_message = c.error_message,
       attempts = c.attempts, processed_at = c.processed_at,
       was_processed = e.was_processed OR e.status = 'PROCESSED' OR NULL,
       transaction_id = pg_current_xact_id()
  FROM unnest(
    :id::uuid[], :status::text[], :error_code::text[], :error_message::text[],
    :attempts::smallint[], :processed_at::timestamptz[])
    AS c (id, status, error_code, error_message, attempts, processed_at)
 WHERE e.id = c.id
   AND e.id BETWEEN :first_id AND :last_id;

-- name: requeue_redelivered
-- A redelivery makes a queued event due now, unless it is already, a redelivery did a moment ago, or it
-- was tried very often: each attempt leaves a trail, and a captured delivery can be sent again for ever.
INSERT INTO paidonce.event_queue (
    run_at, event_id, queue_name, source_id, lane, sender, subject, scheduled_at, redelivered_at)
SELECT :now, e.id, coalesce(d.queue_name, 0), e.source_id, coalesce(d.lane, 0), d.sender, d.subject,
       d.scheduled_at, :now
  FROM paidonce.webhook_events AS e,
       LATERAL (SELECT max(q.queue_name) AS queue_name, max(q.lane) AS lane, max(q.sender) AS sender,
                       (array_agg(q.subject))[1] AS subject,
                       min(q.run_at) AS run_at, max(q.redelivered_at) AS redelivered_at,
                       min(coalesce(q.scheduled_at, q.run_at)) AS scheduled_at
                  FROM paidonce.event_queue AS q
                 WHERE q.event_id = e.id) AS d
 WHERE e.id = ANY (:event_id::uuid[])
   AND e.id BETWEEN :first_id AND :last_id
   AND e.status IN ('VALIDATED', 'FAILED_RETRYABLE')
   AND e.attempts < :max_attempts::smallint
   AND (d.run_at > :now) IS NOT FALSE
   AND (d.redelivered_at > :now::timestamptz - make_interval(secs => :pause_s::float8)) IS NOT TRUE;

-- name: try_lock_names_shared
-- Returns the names that could be locked. A transaction that creates a user or an order holds the
-- lock of its name exclusively; nobody is waited for.
SELECT name
  FROM unnest(:name::text[]) AS wanted (name)
 WHERE pg_try_advisory_xact_lock_shared(hashtextextended('paidonce.' || name, 0));

-- name: lock_name
-- Taken before a user or an order is created: waits for transactions that are about to queue an
-- event blocked on it.
SELECT pg_advisory_xact_lock(hashtextextended('paidonce.' || :name, 0));

-- name: requeue_unblocked
-- Events that were blocked on something that exists now are due now.
INSERT INTO paidonce.event_queue (run_at, event_id, queue_name, source_id, lane, sender, subject)
SELECT DISTINCT :now::timestamptz, d.event_id, d.queue_name, d.source_id, d.lane, d.sender, d.subject
  FROM paidonce.event_queue AS d
 WHERE d.blocked_on = ANY (:blocked_on::bytea[]);

-- name: write_audit
INSERT INTO paidonce.audit_log (at, event_id, payment_id, action, success, details)
SELECT * FROM unnest(
    :at::timestamptz[], :event_id::uuid[], :payment_id::uuid[], :action::text[],
    :success::boolean[], :details::jsonb[]);

-- name: count_duplicates
-- One row for each event, however often it is delivered again. In the order of the events, so that two
-- batches cannot deadlock.
INSERT INTO paidonce.audit_log AS a (at, event_id, action, success, details)
SELECT :now::timestamptz, d.event_id, 'event_deduped', true,
       jsonb_build_object('count', d.number, 'first', :now::timestamptz, 'last', :now::timestamptz,
                          'request_id', d.request_id)
  FROM unnest(:event_id::uuid[], :number::bigint[], :request_id::text[])
       AS d (event_id, number, request_id)
 ORDER BY d.event_id
ON CONFLICT (event_id) WHERE action = 'event_deduped' DO UPDATE
   SET details = excluded.details || jsonb_build_object(
           'count', (a.details ->> 'count')::bigint + (excluded.details ->> 'count')::bigint,
           'first', a.details -> 'first');

-- name: record_nonces
-- In the order of the digests, so that two transactions cannot deadlock. Waits for a transaction that
-- is recording the same nonce.
INSERT INTO paidonce.nonces (source_id, digest, fingerprint, fingerprint_version)
SELECT n.source_id, n.digest, n.fingerprint, :fingerprint_version
  FROM unnest(:source_id::smallint[], :digest::bytea[], :fingerprint::bytea[])
       AS n (source_id, digest, fingerprint)
 ORDER BY n.source_id, n.digest
ON CONFLICT DO NOTHING;

-- name: recorded_nonces
-- Fingerprints of other versions cannot be compared.
SELECT n.source_id, n.digest, n.fingerprint
  FROM unnest(:source_id::smallint[], :digest::bytea[]) AS wanted (source_id, digest)
  JOIN paidonce.nonces AS n USING (source_id, digest)
 WHERE n.fingerprint_version = :fingerprint_version;

-- name: begin_hooks
-- From here on the transaction cannot be committed, and statements have a timeout. The settings that
-- suit our own statements (short lock timeouts, index scans only) are reset for the hooks.
WITH running AS (INSERT INTO paidonce.running_hooks DEFAULT VALUES RETURNING id)
SELECT id,
       set_config('statement_timeout', :timeout_ms, true),
       set_config('lock_timeout', :timeout_ms, true),
       set_config('idle_in_transaction_session_timeout', '5min', true),
       set_config('plan_cache_mode', 'auto', true),
       set_config('enable_seqscan', 'on', true),
       set_config('enable_hashjoin', 'on', true),
       set_config('enable_mergejoin', 'on', true)
  FROM running;

-- name: end_hooks
-- From here on the transaction can be committed. No row: this is not the transaction of the hooks.
-- Returns which of the handlers, all of which have just worked, are known to fail.
WITH ended AS (DELETE FROM paidonce.running_hooks WHERE id = :id RETURNING id)
SELECT ARRAY(SELECT f.handler FROM paidonce.failing_handlers AS f
              WHERE f.handler = ANY (:handlers::text[])
                AND (f.released_at >= f.failed_at) IS NOT TRUE) AS failing
  FROM ended;

-- name: check_deferred
-- A violated constraint has to fail here, where it is known that a hook caused it.
SET CONSTRAINTS ALL IMMEDIATE;

-- name: defer_again
SET CONSTRAINTS ALL DEFERRED;

-- name: write_callbacks
-- Stores each status of a transaction once, and publishes only new ones. The id of the message is that
-- of the callback, a UUIDv7 with the time of writing.
WITH new AS (
    INSERT INTO paidonce.gateway_callbacks (
        id, source_id, transaction_id, gateway_status, amount_minor, currency, event_id,
        next_attempt_at, received_at)
    SELECT id, source_id, transaction_id, gateway_status, amount_minor, currency, event_id,
           clock_timestamp() + :first_delay_s::float8 * interval '1 second', received_at
      FROM unnest(
          :id::uuid[], :source_id::smallint[], :transaction_id::text[], :gateway_status::text[],
          :event_id::uuid[], :received_at::timestamptz[], :amount_minor::bigint[],
          :currency::text[])
          AS given (id, source_id, transaction_id, gateway_status, event_id, received_at, amount_minor,
                    currency)
     ORDER BY source_id, transaction_id, gateway_status
    ON CONFLICT (source_id, transaction_id, gateway_status) DO NOTHING
    RETURNING id, source_id, transaction_id, gateway_status, received_at
)
INSERT INTO paidonce.outbox (id, aggregate_type, aggregate_id, type, version, payload, occurred_at)
SELECT new.id, 'gateway-callback', new.id, 'ProviderCallbackReceived', 1,
       jsonb_build_object(
           'callback_id', new.id, 'source', s.name, 'transaction_id', new.transaction_id,
           'gateway_status', new.gateway_status),
       new.received_at
  FROM new
  JOIN paidonce.sources AS s ON s.id = new.source_id
 ORDER BY new.id;
