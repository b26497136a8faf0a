-- name: record_entries
-- The default time is that of writing: after all that the same transaction did before.
INSERT INTO paidonce.audit_log (
    at, event_id, payment_id, order_reference, user_id, actor, action, reason, success, details)
SELECT coalesce(at, clock_timestamp()), event_id, payment_id, "order", user_id, actor, action,
       reason, success, details
  FROM jsonb_to_recordset(:entries) AS entry (
       at timestamptz, event_id uuid, payment_id uuid, "order" text, user_id uuid, actor text,
       action text, reason text, success boolean, details jsonb);

-- name: audit
-- Newest first, by time and id. It is built like the search for events.
SELECT a.id, a.at, a.actor, a.action, a.reason, a.success, a.payment_id,
       a.order_reference AS "order", a.user_id, a.event_id, a.details, a.matches, a.position
  FROM (
    SELECT looked_at.*, row_number() OVER () AS position,
           true
           AND event_id = :event  -- event
           AND payment_id = :payment  -- payment
           AND order_reference = :order  -- order
           AND user_id = :user  -- user
           AND action = :unusual_action  -- unusual_action
           AND action = :action  -- action
           AND actor = :operator  -- operator
           AND actor = :actor  -- actor
           AS matches
      FROM (
        SELECT a.*
          FROM paidonce.audit_log AS a
         WHERE ROW (a.at, a.id) >= ROW (:first_at::timestamptz, :first_id::bigint)
           AND ROW (a.at, a.id) <= ROW (:last_at::timestamptz, :last_id::bigint)
           AND a.event_id IS NOT NULL  -- by event
           AND ROW (a.event_id, a.at, a.id) >= ROW (:event, :first_at, :first_id)  -- by event
           AND ROW (a.event_id, a.at, a.id) <= ROW (:event, :last_at, :last_id)  -- by event
           AND a.payment_id IS NOT NULL  -- by payment
           AND ROW (a.payment_id, a.at, a.id) >= ROW (:payment, :first_at, :first_id)  -- by payment
           AND ROW (a.payment_id, a.at, a.id) <= ROW (:payment, :last_at, :last_id)  -- by payment
           AND a.order_reference IS NOT NULL  -- by order
           AND ROW (a.order_reference, a.at, a.id) >= ROW (:order, :first_at, :first_id)  -- by order
           AND ROW (a.order_reference, a.at, a.id) <= ROW (:order, :last_at, :last_id)  -- by order
           AND a.user_id IS NOT NULL  -- by user
           AND ROW (a.user_id, a.at, a.id) >= ROW (:user, :first_at, :first_id)  -- by user
           AND ROW (a.user_id, a.at, a.id) <= ROW (:user, :last_at, :last_id)  -- by user
           AND a.action NOT IN (  -- by unusual_action
               'event_deduped', 'retry_scheduled', 'processing_attempt_started',  -- by unusual_action
               'processing_attempt_failed', 'processing_succeeded',  -- by unusual_action
               'wallet_reserved', 'wallet_committed', 'wallet_released',  -- by unusual_action
               'wallet_expired')  -- by unusual_action
           AND ROW (a.action, a.at, a.id)  -- by unusual_action
            >= ROW (:unusual_action, :first_at, :first_id)  -- by unusual_action
           AND ROW (a.action, a.at, a.id)  -- by unusual_action
            <= ROW (:unusual_action, :last_at, :last_id)  -- by unusual_action
           AND a.actor <> 'paidonce'  -- by operator
           AND ROW (a.actor, a.at, a.id) >= ROW (:operator, :first_at, :first_id)  -- by operator
           AND ROW (a.actor, a.at, a.id) <= ROW (:operator, :last_at, :last_id)  -- by operator
         ORDER BY
               a.event_id DESC,  -- by event
               a.payment_id DESC,  -- by payment
               a.order_reference DESC,  -- by order
               a.user_id DESC,  -- by user
               a.action DESC,  -- by unusual_action
               a.actor DESC,  -- by operator
               a.at DESC, a.id DESC
         LIMIT :budget) AS looked_at) AS a
 WHERE a.matches OR a.position = :budget
 LIMIT :limit;
