-- Payments that were made for a test say so, and so do those whose money is known only from
-- deliveries that came too late. The latter are never applied.
ALTER TABLE payments ADD COLUMN is_stale boolean NOT NULL DEFAULT false;

-- Not checked of the rows that are there: none of them is stale.
ALTER TABLE payments ADD CONSTRAINT payments_stale_is_not_applied CHECK (
    NOT is_stale OR applied_at IS NULL) NOT VALID;

CREATE TYPE written_payment_3 AS (
    id uuid, source_id smallint, order_reference text, email text, email_key text, user_id uuid,
    plan_id text, currency text, captured_minor bigint, refund_total_minor bigint,
    refunded_minor bigint, paid_at timestamptz, failed_at timestamptz, voided_at timestamptz,
    canceled_at timestamptz, refunded_at timestamptz, processing_at timestamptz,
    disputed_at timestamptz, dispute_won_at timestamptz, applied_at timestamptz,
    applied_minor bigint, reversed_minor bigint, subscription_id uuid, period_start timestamptz,
    period_end timestamptz, is_linked boolean, is_contested boolean, is_accepted boolean,
    is_for_refund boolean, is_test boolean, is_stale boolean, review text, version bigint, next_version bigint
);
