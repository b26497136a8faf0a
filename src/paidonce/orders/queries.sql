-- name: order_id
SELECT id FROM paidonce.orders WHERE reference = :reference;

-- name: orders
-- Newest first; ids are in the order of creation. See events/queries.sql for how it is read.
SELECT o.id, o.reference, o.kind, o.status, o.amount_minor, o.currency, o.user_id, o.email,
       o.plan_id, o.wallet_id, o.applied_payment_id, o.paid_at, o.canceled_at, o.refunded_at,
       o.closed_at, o.fulfilled_at, o.reversed_at, o.expires_at, o.created_at, o.updated_at,
       o.transaction_id::text AS transaction_id,
       CASE WHEN o.sources IS NOT NULL
            THEN ARRAY(SELECT s.name FROM paidonce.sources AS s WHERE s.id = ANY (o.sources) ORDER BY s.name)
            END AS sources,
       o.matches, o.position
  FROM (
    SELECT looked_at.*, row_number() OVER () AS position,
           true
           AND email_key = :email  -- email
           AND status = :status  -- status
           AND kind = :kind  -- kind
           AS matches
      FROM (
        SELECT o.*
          FROM paidonce.orders AS o
         WHERE o.id >= :first_id AND o.id <= :last_id
           AND o.user_id IS NOT NULL  -- by user_id
           AND ROW (o.user_id, o.id) >= ROW (:user_id, :first_id)  -- by user_id
           AND ROW (o.user_id, o.id) <= ROW (:user_id, :last_id)  -- by user_id
           AND o.email_key IS NOT NULL  -- by email
           AND ROW (o.email_key, o.id) >= ROW (:email, :first_id)  -- by email
           AND ROW (o.email_key, o.id) <= ROW (:email, :last_id)  -- by email
         ORDER BY
               o.user_id DESC,  -- by user_id
               o.email_key DESC,  -- by email
               o.id DESC
         LIMIT :budget) AS looked_at) AS o
 WHERE o.matches OR o.position = :budget
 LIMIT :limit;
