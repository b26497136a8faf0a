-- name: add_sources
-- A common source, one that has sent nothing for months, and one that never has.
INSERT INTO paidonce.sources (name, provider) VALUES ('common', 'tilda'), ('rare', 'tilda'),
                                            ('silent', 'tilda')
ON CONFLICT DO NOTHING;

-- name: add_history
-- Events :first to :last of :total, the oldest first, spread over :span until now, each with a
-- payment, an order and an entry of the audit log. The distribution is difficult for a search: the oldest third was refused and
-- nothing since; the rare source has only the very oldest; a third of all events shares one payment,
-- one order, one user and one address.
WITH new AS MATERIALIZED (
    SELECT n, now() - age AS at, uuidv7(-age) AS id, n < :total::bigint / 3 AS is_old,
           (SELECT s.id FROM paidonce.sources AS s
             WHERE s.name = CASE WHEN n < 10 THEN 'rare' ELSE 'common' END) AS source_id
      FROM generate_series(:first::bigint, :last::bigint - 1) AS counted (n)
     CROSS JOIN LATERAL (SELECT :span::interval * (1 - n::float8 / :total)) AS past (age)
     ORDER BY n
),
judged AS (
    SELECT new.*, CASE WHEN is_old THEN 'FAILED_FINAL'
                       WHEN n % 1000 = 7 THEN 'DEAD_LETTER'
                       WHEN n % 1000 = 8 THEN 'FAILED_RETRYABLE'
                       WHEN n % 5 = 0 THEN 'IGNORED'
                       ELSE 'PROCESSED' END AS status
      FROM new
),
events AS (
    INSERT INTO paidonce.webhook_events (
        id, source_id, status, key, type, external_event_id, external_payment_id,
        order_reference, signature_valid, signature_method, is_test, error_code, error_message,
        attempts, received_at, processed_at, remote_address, request_id, headers, raw_body)
    SELECT id, source_id, status, 'k-' || n, 'paid', 'e-' || n,
           CASE WHEN n % 3 = 0 THEN 'p-hot' ELSE 'p-' || n END,
           CASE WHEN n % 3 = 1 THEN 'o-hot' ELSE 'o-' || n END,
           NOT is_old, 'hmac-sha256', n % 1000 = 9,
           CASE status WHEN 'FAILED_FINAL' THEN 'INVALID_SIGNATURE'
                       WHEN 'DEAD_LETTER' THEN 'HANDLER_FAILED'
                       WHEN 'FAILED_RETRYABLE' THEN 'USER_MISSING'
                       WHEN 'IGNORED' THEN 'OUT_OF_ORDER' END,
           NULL, 1, at, CASE WHEN status <> 'FAILED_RETRYABLE' THEN at END, '127.0.0.1',
           'fill-' || n, '{"content-type": "application/json"}',
           convert_to(repeat(md5(n::text), 20), 'UTF8')
      FROM judged
),
paid AS (
    INSERT INTO paidonce.payments (
        id, source_id, order_reference, email, email_key, currency, captured_minor,
        refund_total_minor, refunded_minor, failed_at, applied_at, review, version, created_at)
    SELECT id, source_id, CASE WHEN n % 3 = 1 THEN 'o-hot' ELSE 'o-' || n END, email, email, 'RUB',
           CASE WHEN is_old THEN 0 ELSE 99000 END, 0, 0, CASE WHEN is_old THEN at END,
           CASE WHEN NOT is_old AND n % 1000 <> 8 THEN at END,
           CASE WHEN n % 1000 = 8 THEN 'USER_MISSING' END, 1, at
      FROM judged
     CROSS JOIN LATERAL (
         SELECT CASE WHEN n % 3 = 0 THEN 'hot@example.com' ELSE n || '@example.com' END)
         AS who (email)
),
ids AS (
    INSERT INTO paidonce.payment_ids (source_id, kind, external_id, payment_id)
    SELECT source_id, 'payment', 'p-' || n, id FROM judged
),
audited AS (
    INSERT INTO paidonce.audit_log (
        at, event_id, payment_id, order_reference, user_id, actor, action, reason, success)
    SELECT at, id, CASE WHEN n % 3 = 0 THEN lpad('7', 32, '0')::uuid ELSE id END,
           CASE WHEN n % 3 = 1 THEN 'o-hot' ELSE 'o-' || n END,
           CASE WHEN n % 3 = 2 THEN lpad('7', 32, '0')::uuid ELSE id END,
           CASE WHEN n < 10 THEN 'rare' WHEN is_old THEN 'paidonce' ELSE 'common' END,
           CASE WHEN n < 10 THEN 'payment_accepted' WHEN n % 2 = 0 THEN 'event_deduped'
                ELSE 'payment_linked' END, NULL, true
      FROM judged
)
INSERT INTO paidonce.orders (id, reference, kind, status, amount_minor, currency, email, email_key,
                    request_hash, version, created_at)
SELECT id, 'o-' || n, CASE WHEN is_old THEN 'booking' ELSE 'order' END, 'PENDING', 99000, 'RUB',
       email, email, '', 1, at
  FROM judged
 CROSS JOIN LATERAL (
     SELECT CASE WHEN n % 3 = 0 THEN 'hot@example.com' ELSE n || '@example.com' END) AS who (email);

-- name: add_counts
-- The statistics of a year, and deltas that are not folded yet.
WITH counts AS (
    INSERT INTO paidonce.event_counts
    SELECT current_date - back, s.id, method, 1000, 10, 1, 900, 79, 10
      FROM generate_series(0, 365) AS back, sources AS s,
           unnest(ARRAY['hmac-sha256', 'api-key']) AS method
    ON CONFLICT DO NOTHING
)
INSERT INTO paidonce.event_count_deltas
SELECT current_date, s.id, 'hmac-sha256', 64, 1, 0, 60, 2, 1
  FROM generate_series(1, :deltas::bigint) AS n, sources AS s
 WHERE s.name = 'common';
