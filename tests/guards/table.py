"""Each guard, how a copy of the package loses it, and the test that cannot do without it.

Where two guards cover each other, the test looks at the statement alone, or at an instant at which
only one of them is there; the comment says which.
"""

from dataclasses import dataclass
from typing import Final

_APPLYING: Final = "domain/applying.py"
_ASKING: Final = "engine/asking.py"
_CALLS: Final = "engine/gateway_calls.py"
_DUE: Final = "store/due.sql"
_GROUP: Final = "engine/group.py"
_HANDLING: Final = "engine/handling.py"
_INTAKE: Final = "engine/intake.py"
_LANES: Final = "store/migrations/versions/0003_lanes.sql"
_REVERSING: Final = "domain/reversing.py"
_SCHEMA: Final = "store/migrations/versions/0001_first.sql"
_SETTLEMENT: Final = "store/settlement.sql"
_WRITING: Final = "store/settlement.py"

_HANDLERS: Final = "tests/store/test_handlers.py::test_"
_RACES: Final = "tests/store/test_races.py::test_"
_ORDER_RACES: Final = "tests/store/test_order_races.py::test_"
_LIVES: Final = "tests/unit/test_lives.py::test_"
_RIVALS: Final = "tests/unit/test_rivals.py::test_"
_SETTLE: Final = "tests/store/test_settle.py::test_"
_WORKER: Final = "tests/store/test_worker.py::test_"
_ANSWERS: Final = "tests/flow/test_answers.py::test_"
_ALIPAY: Final = "tests/providers/test_alipay.py::test_"
_ASKED: Final = "tests/store/test_asking.py::test_"
_DOOR: Final = "tests/store/test_thin_intake.py::test_"
_MARKS: Final = "tests/unit/test_marks.py::test_"
_NONCES: Final = "tests/store/test_nonces.py::test_"


@dataclass(frozen=True, slots=True)
class Guard:
    """A few characters of the package that something depends on."""

    name: str
    requirement: str
    file: str  # within the package
    old: str  # stands there exactly once
    new: str
    test: str  # goes red without it
    is_kin: bool = False  # others of its kind are in the table: taken away in the long run only


GUARDS: Final = (
    # What was seen before.
    Guard(
        # The ids of a payment are unique too, so the two must not share a payment.
        "the unique key of events",
        "INB-1",
        _SCHEMA,
        "    PRIMARY KEY (source_id, digest),\n",
        "",
        f"{_RACES}the_second_of_one_key_is_seen_though_it_names_another_payment",
    ),
    Guard(
        # A user's subscription is unique too, so the payment must not have a user.
        "the unique ids of payments",
        "PAY-1",
        _SCHEMA,
        "    payment_id  uuid NOT NULL,\n    PRIMARY KEY (source_id, kind, external_id)\n",
        "    payment_id  uuid NOT NULL\n",
        f"{_RACES}a_new_payment_that_nobody_owns_is_made_once",
        is_kin=True,
    ),
    Guard(
        "one subscription of a user and product",
        "FUL-1",
        _SCHEMA,
        "    UNIQUE (user_id, product),\n",
        "",
        f"{_RACES}a_new_subscription_is_made_once_and_extended_twice",
        is_kin=True,
    ),
    Guard(
        "the count of the rows written",
        "PAY-3",
        _SCHEMA,
        "IF written <> expected THEN",
        "IF false THEN",
        f"{_RACES}the_second_of_one_key_is_a_duplicate",
    ),
    Guard(
        "meaning beside the key",
        "INB-2",
        "engine/batch.py",
        "known.fingerprint == item.identity.fingerprint",
        "True",
        f"{_SETTLE}a_conflict_inside_a_batch_is_kept_as_evidence",
        is_kin=True,
    ),
    # Once, whoever else is at it.
    Guard(
        "the lock of payments",
        "PAY-3",
        _SETTLEMENT,
        "     ORDER BY p.id\n       FOR NO KEY UPDATE SKIP LOCKED  -- locks\n",
        "     ORDER BY p.id\n",
        f"{_SETTLE}a_locked_row_keeps_only_its_own_events_busy[payments]",
    ),
    Guard(
        "the lock of subscriptions",
        "PAY-3",
        _SETTLEMENT,
        "     ORDER BY s.id\n       FOR NO KEY UPDATE SKIP LOCKED  -- locks\n",
        "     ORDER BY s.id\n",
        f"{_SETTLE}a_locked_row_keeps_only_its_own_events_busy[subscriptions]",
        is_kin=True,
    ),
    Guard(
        "the version of payments",
        "PAY-3",
        _SETTLEMENT,
        "       AND p.version = c.version\n",
        "",
        f"{_SETTLE}a_payment_that_changed_since_it_was_read_is_not_overwritten",
    ),
    Guard(
        "the version of subscriptions",
        "PAY-3",
        _SETTLEMENT,
        "       AND s.version = c.version\n",
        "",
        f"{_SETTLE}a_subscription_that_changed_since_it_was_read_is_not_overwritten",
        is_kin=True,
    ),
    Guard(
        # Whoever applies a payment changes its version: the statement is tried with the right one.
        "applied_at in the statement",
        "PAY-3",
        _SETTLEMENT,
        "       AND (p.applied_at IS NULL OR p.applied_at = c.applied_at)\n",
        "",
        f"{_SETTLE}a_payment_that_was_applied_is_not_applied_again",
    ),
    Guard(
        # The statement cannot help within a batch, where all events of a payment become one row.
        "applied_at in the decision",
        "PAY-3",
        _APPLYING,
        "    if payment.applied_at is not None:\n        decision = with_reversal(state, Decision(",
        "    if False:\n        decision = with_reversal(state, Decision(",
        f"{_SETTLE}siblings_inside_a_batch_are_applied_once",
    ),
    Guard(
        "money that is still there",
        "PAY-3",
        _APPLYING,
        "return terms.paid is not None and not payment.facts.is_returned",
        "return terms.paid is not None",
        f"{_SETTLE}a_refund_before_its_payment_is_kept_and_takes_part",
        is_kin=True,
    ),
    Guard(
        "the largest sum of a refund",
        "PAY-2",
        _SETTLEMENT,
        "greatest(refunds.amount_minor, excluded.amount_minor)",
        "excluded.amount_minor",
        f"{_SETTLE}a_refund_is_never_written_smaller_than_it_is",
        is_kin=True,
    ),
    # Deadlocks are run again, so without the order nothing would be wrong, only slow.
    Guard(
        "the order of keys",
        "REC-3",
        _WRITING,
        "sorted(key_row(*key) for key in changes.keys)",
        "list(key_row(*key) for key in changes.keys)",
        f"{_RACES}batches_write_in_one_order_so_that_they_cannot_deadlock[keys]",
        is_kin=True,
    ),
    Guard(
        "the order of ids",
        "REC-3",
        _WRITING,
        "sorted(id_row(*one) for one in changes.ids)",
        "list(id_row(*one) for one in changes.ids)",
        f"{_RACES}batches_write_in_one_order_so_that_they_cannot_deadlock[ids]",
        is_kin=True,
    ),
    # A payment and its user.
    Guard(
        "the lock of who found no user",
        "PAY-5",
        _SETTLEMENT,
        "WHERE pg_try_advisory_xact_lock_shared(hashtextextended(name, 0))",
        "WHERE hashtextextended(name, 0) IS NOT NULL",
        f"{_RACES}a_user_sees_the_payment_that_is_just_being_settled",
    ),
    Guard(
        "the lock of who creates a user",
        "PAY-5",
        _SETTLEMENT,
        "SELECT pg_advisory_xact_lock(hashtextextended(:name, 0))",
        "SELECT hashtextextended(:name, 0)",
        f"{_RACES}a_payment_sees_the_user_that_is_just_being_created",
    ),
    Guard(
        "the second look under the lock",
        "PAY-5",
        "engine/settle.py",
        "        loaded = await settlement.load(connection, wanted)\n        loaded = replace(",
        "        loaded = replace(",
        f"{_RACES}a_payment_sees_the_user_that_was_created_before_it_had_the_lock",
    ),
    # Several payments, one order.
    Guard(
        "the lock of orders",
        "PAY-3",
        _SETTLEMENT,
        "     ORDER BY o.id\n       FOR NO KEY UPDATE SKIP LOCKED  -- locks\n",
        "     ORDER BY o.id\n",
        f"{_ORDER_RACES}a_locked_row_keeps_only_its_own_events_busy[orders]",
    ),
    Guard(
        "the lock of wallets",
        "PAY-3",
        _SETTLEMENT,
        "     ORDER BY w.id\n       FOR NO KEY UPDATE SKIP LOCKED  -- locks\n",
        "     ORDER BY w.id\n",
        f"{_ORDER_RACES}a_locked_row_keeps_only_its_own_events_busy[wallets]",
        is_kin=True,
    ),
    Guard(
        "the version of orders",
        "PAY-3",
        _SETTLEMENT,
        "       AND o.version = c.version\n",
        "",
        f"{_ORDER_RACES}a_row_that_changed_since_it_was_read_is_not_overwritten[orders]",
        is_kin=True,
    ),
    Guard(
        "the version of wallets",
        "PAY-3",
        _SETTLEMENT,
        "       AND w.version = c.version\n",
        "",
        f"{_ORDER_RACES}a_row_that_changed_since_it_was_read_is_not_overwritten[wallets]",
        is_kin=True,
    ),
    Guard(
        "the touch of an order whose payment changes",
        "PAY-7",
        "engine/batch.py",
        "                self._touch_order(payment.order)\n",
        "",
        f"{_ORDER_RACES}who_looked_before_the_other_wrote_sees_what_he_wrote",
    ),
    Guard(
        "that an order which changed before it was locked is busy",
        "PAY-7",
        _SETTLEMENT,
        "WHERE (w.id, w.version) NOT IN (SELECT id, version FROM locked_orders)",
        "WHERE w.id NOT IN (SELECT id FROM locked_orders)",
        f"{_ORDER_RACES}who_looked_before_the_other_wrote_sees_what_he_wrote"
        "[a refund after another payment-under locks]",
    ),
    Guard(
        "all payments of an order beside the one that is heard of",
        "PAY-7",
        _SETTLEMENT,
        "WHERE p.order_reference = o.reference AND p.captured_minor > 0\n",
        "WHERE false\n",
        f"{_ORDER_RACES}who_looked_before_the_other_wrote_sees_what_he_wrote"
        "[a refund after another payment-without locks]",
        is_kin=True,
    ),
    Guard(
        "applied_at in the decision on an order",
        "PAY-3",
        _APPLYING,
        "    if payment.applied_at is not None:\n        after = with_reversal(",
        "    if False:\n        after = with_reversal(",
        f"{_ORDER_RACES}siblings_of_one_payment_in_one_batch_pay_an_order_once",
        is_kin=True,
    ),
    Guard(
        "one payment for an order",
        "PAY-7",
        _APPLYING,
        "    if order.applied_payment_id is not None:\n        return Problem(",
        "    if False:\n        return Problem(",
        f"{_RIVALS}the_second_payment_is_neither_lost_nor_tried_for_ever",
        is_kin=True,
    ),
    Guard(
        "no payment for a closed order",
        "FUL-3",
        _APPLYING,
        "    if order.closed_at is not None:\n        return Problem(",
        "    if False:\n        return Problem(",
        f"{_ORDER_RACES}whatever_the_interleaving_nothing_is_lost_or_given_twice"
        "[closing and paying]",
        is_kin=True,
    ),
    Guard(
        "closing only what is not paid",
        "FUL-3",
        "store/orders.sql",
        " WHERE reference = :reference AND status <> 'PAID'\n",
        " WHERE reference = :reference\n",
        f"{_ORDER_RACES}who_closes_an_order_waits_for_who_pays_it",
        is_kin=True,
    ),
    Guard(
        "the payment that takes another's place",
        "PAY-7",
        _REVERSING,
        "    if successors:\n",
        "    if False:\n",
        f"{_RIVALS}when_the_one_that_counts_is_refunded_the_other_takes_its_place",
        is_kin=True,
    ),
    Guard(
        "the watermark of what was taken back",
        "FUL-4",
        _REVERSING,
        "_to_reverse_minor(payment, kind) - payment.reversed_minor",
        "_to_reverse_minor(payment, kind)",
        f"{_LIVES}every_order_of_up_to_six_events_ends_alike[wallet]",
    ),
    Guard(
        "the order's times after its payment was applied",
        "FUL-3",
        _APPLYING,
        "        after = _with_status(state, after)\n",
        "",
        f"{_LIVES}every_order_of_up_to_six_events_ends_alike[booking]",
        is_kin=True,
    ),
    Guard(
        "that a wallet never goes negative",
        "FUL-4",
        "domain/wallets.py",
        "    covered = min(wallet.available_minor, amount_minor)\n",
        "    covered = amount_minor\n",
        f"{_LIVES}what_a_wallet_cannot_cover_is_owed_and_covered_by_the_next_credit",
        is_kin=True,
    ),
    # Acknowledged is stored.
    Guard(
        "the answer after the commit",
        "REC-2",
        _GROUP,
        "        settled = await settler.settle([entry.item for entry in batch])\n",
        "        for entry in batch:\n"
        "            verdict = Verdict(entry.item, Result.PROCESSED, entry.item.event_id)\n"
        "            entry.answer.set_result(verdict)\n"
        "        settled = await settler.settle([entry.item for entry in batch])\n",
        "tests/store/test_group.py::test_nobody_is_answered_while_the_transaction_is_open",
    ),
    Guard(
        "the commit before the answer",
        "REC-2",
        "engine/transactions.py",
        "            async with self._connection.transaction():\n"
        "                return await settle(self._connection, items, self._rules)\n",
        "            transaction = self._connection.transaction()\n"
        "            await transaction.start()\n"
        "            settled = await settle(self._connection, items, self._rules)\n"
        "            commit = lambda: asyncio.ensure_future(transaction.commit())\n"
        "            asyncio.get_running_loop().call_later(0.5, commit)\n"
        "            return settled\n",
        "tests/store/test_group.py::test_what_was_answered_can_be_seen_by_everybody",
        is_kin=True,
    ),
    Guard(
        "the commit on the disk",
        "REC-2",
        "store/db.py",
        '    "synchronous_commit": "on",\n',
        "",
        "tests/store/test_connections.py"
        "::test_a_commit_waits_for_the_disk_whatever_the_database_says",
        is_kin=True,
    ),
    Guard(
        "the halving of a batch",
        "REC-6",
        "engine/transactions.py",
        '    log.warning("batch_halved", items=len(items), exc_info=error)\n',
        "    raise error\n",
        f"{_SETTLE}a_poisoned_event_is_stored_and_takes_nobody_with_it",
    ),
    # Forged is without effect.
    Guard(
        "the signature",
        "REC-1",
        "providers/signing.py",
        "found |= hmac.compare_digest(offered, one)",
        "found |= len(offered) == len(one)",
        "tests/providers/test_conformance.py"
        "::test_each_flipped_bit_of_the_signature_and_of_what_it_signs_is_refused",
    ),
    Guard(
        "the age of what is signed",
        "PRV-8",
        "providers/signing.py",
        "if tolerance_s is not None and abs(age_s) > tolerance_s:",
        "if False:",
        "tests/providers/test_conformance.py::test_a_stale_time_is_refused_and_told_apart",
        is_kin=True,
    ),
    Guard(
        "a question that is not known to be one",
        "PRV-3",
        "providers/portone.py",
        "if kind != CONFIRM and total not in said:",
        "if kind != CONFIRM:",
        "tests/providers/test_portone.py::test_a_question_is_never_approved_by_accident",
        is_kin=True,
    ),
    Guard(
        "the payment that was asked for",
        "PRV-3",
        "providers/portone_query.py",
        "if said is not None and said != found:",
        "if False:",
        "tests/providers/test_portone_v1.py"
        "::test_a_payment_that_is_not_the_one_asked_for_is_not_believed",
        is_kin=True,
    ),
    Guard(
        "a cancellation that the gateway has confirmed",
        "PRV-3",
        "providers/portone_query.py",
        "return is_about_money or not is_other_attempt",
        "return False",
        "tests/providers/test_portone_answers.py"
        "::test_the_api_may_be_further_on_but_neither_behind_nor_against_the_event",
        is_kin=True,
    ),
    Guard(
        "keys that a forged webhook cannot take",
        "SEC-5",
        "providers/portone_v1.py",
        ':{digest.hex()}"',
        '"',
        "tests/providers/test_portone_v1.py"
        "::test_what_is_not_the_same_takes_no_key_of_the_real_one",
        is_kin=True,
    ),
    Guard(
        "an id that nobody signed",
        "INB-1",
        "providers/generic.py",
        "if not self.is_all_signed:",
        "if False:",
        "tests/providers/test_generic.py::test_an_id_that_nobody_signed_is_never_a_key_alone",
        is_kin=True,
    ),
    Guard(
        "money without an intent or a charge",
        "PAY-3",
        "providers/stripe_events.py",
        'if not any(one.kind in ("payment", "charge") for one in ids):',
        "if False:",
        "tests/providers/test_stripe_events.py"
        "::test_what_names_neither_intent_nor_charge_brings_no_money_of_its_own",
        is_kin=True,
    ),
    Guard(
        "the key only after the signature",
        "SEC-5",
        _INTAKE,
        "            source.provider.verify(delivery)\n",
        "            try:\n"
        "                source.provider.verify(delivery)\n"
        "            except RefusedError as refusal:\n"
        "                from paidonce.domain.events import Code, EventStatus, Outcome\n"
        "                failed = EventStatus.FAILED_FINAL\n"
        "                outcome = Outcome(failed, Code.INVALID_SIGNATURE, str(refusal))\n"
        "                identity = source.provider.identify(delivery)\n"
        "                event = source.provider.translate(delivery)\n"
        "                key = (source.id, key_digest(identity.key))\n"
        "                await self._group.submit(Incoming(\n"
        "                    EventId(uuid7()), source, request, delivery, identity, key, event,\n"
        "                    outcome))\n"
        "                raise\n",
        "tests/store/test_intake.py::test_a_forged_delivery_claims_no_key",
    ),
    Guard(
        "the limit on evidence of an address",
        "SEC-5",
        _INTAKE,
        "if full or self._kept[address] >= MAX_EVIDENCE_PER_ADDRESS:",
        "if full:",
        "tests/store/test_intake.py::test_a_flood_of_forgeries_leaves_bounded_evidence",
        is_kin=True,
    ),
    Guard(
        "the limit on evidence of all",
        "SEC-5",
        _INTAKE,
        "full = self._kept.total() >= MAX_EVIDENCE\n",
        "full = False\n",
        "tests/unit/test_evidence.py::test_all_addresses_together_have_a_limit_too",
        is_kin=True,
    ),
    # What is sent is bounded.
    Guard(
        "the end of the queue",
        "SEC-8",
        _GROUP,
        "len(self._waiting) + len(self._in_hand) + len(self._pausing) >= self._max_waiting",
        "False",
        "tests/store/test_group.py::test_a_full_queue_refuses_what_comes_and_keeps_what_it_has",
    ),
    Guard(
        "the count of what is in hand",
        "SEC-8",
        _GROUP,
        "len(self._waiting) + len(self._in_hand) + len(self._pausing) >= self._max_waiting",
        "len(self._waiting) + len(self._pausing) >= self._max_waiting",
        "tests/store/test_group.py::test_what_is_in_hand_counts_as_waiting",
        is_kin=True,
    ),
    Guard(
        "the size of a body that is announced",
        "SEC-8",
        "web/edge.py",
        "if len(length) > 18 or int(length) > self.max_body_bytes else None",
        "if len(length) > 18 else None",
        f"{_ANSWERS}a_body_of_the_greatest_size_is_accepted_and_one_byte_more_is_not",
        is_kin=True,
    ),
    Guard(
        "the size of a body that is streamed",
        "SEC-8",
        "web/connection.py",
        "if len(self._body) > self.edge.max_body_bytes:",
        "if False:",
        f"{_ANSWERS}a_body_of_the_greatest_size_is_accepted_and_one_byte_more_is_not",
        is_kin=True,
    ),
    Guard(
        "the deadline of a request",
        "SEC-8",
        "web/connection.py",
        "if self._deadline_s is not None and now_s >= self._deadline_s:",
        "if False:",
        f"{_ANSWERS}a_body_that_is_sent_too_slowly_is_given_up",
    ),
    # What waits.
    Guard(
        "passing over the queue's rows that are held",
        "RET-4",
        _DUE,
        " LIMIT :limit\n   FOR UPDATE OF d SKIP LOCKED\n"
        "   FOR NO KEY UPDATE OF e SKIP LOCKED;\n\n-- name: take_waiting",
        " LIMIT :limit\n   FOR UPDATE OF d\n"
        "   FOR NO KEY UPDATE OF e SKIP LOCKED;\n\n-- name: take_waiting",
        f"{_WORKER}no_claim_waits_for_an_event_that_somebody_has_in_hand[due]",
        is_kin=True,
    ),
    Guard(
        "passing over due events that are held",
        "RET-4",
        _DUE,
        "   FOR NO KEY UPDATE OF e SKIP LOCKED;\n\n-- name: take_waiting",
        "   FOR NO KEY UPDATE OF e;\n\n-- name: take_waiting",
        f"{_WORKER}no_claim_waits_for_an_event_that_somebody_has_in_hand[due]",
        is_kin=True,
    ),
    Guard(
        "the lock of due events",
        "RET-4",
        _DUE,
        "\n   FOR NO KEY UPDATE OF e SKIP LOCKED;\n\n-- name: take_waiting",
        ";\n\n-- name: take_waiting",
        f"{_WORKER}no_claim_waits_for_an_event_that_somebody_has_in_hand[due]",
        is_kin=True,
    ),
    Guard(
        "passing over awaited rows that are held",
        "RET-4",
        _DUE,
        "   FOR UPDATE OF d SKIP LOCKED\n"
        "   FOR NO KEY UPDATE OF e SKIP LOCKED;\n\n-- name: mark_start",
        "   FOR UPDATE OF d\n   FOR NO KEY UPDATE OF e SKIP LOCKED;\n\n-- name: mark_start",
        f"{_WORKER}no_claim_waits_for_an_event_that_somebody_has_in_hand[waiting]",
        is_kin=True,
    ),
    Guard(
        "the lock of awaited events",
        "RET-4",
        _DUE,
        "\n   FOR NO KEY UPDATE OF e SKIP LOCKED;\n\n-- name: mark_start",
        ";\n\n-- name: mark_start",
        f"{_WORKER}no_claim_waits_for_an_event_that_somebody_has_in_hand[waiting]",
        is_kin=True,
    ),
    Guard(
        "passing over an event's other rows that are held",
        "RET-4",
        _DUE,
        "          WHERE event_id = ANY (:event_id::uuid[])\n            FOR UPDATE SKIP LOCKED",
        "          WHERE event_id = ANY (:event_id::uuid[])\n            FOR UPDATE",
        f"{_WORKER}a_row_of_the_queue_that_somebody_holds_is_left_to_him",
        is_kin=True,
    ),
    Guard(
        "taking from the queue what is settled",
        "RET-4",
        _DUE,
        "    DELETE FROM due\n     WHERE id = ANY",
        "    UPDATE due SET run_at = run_at\n     WHERE id = ANY",
        f"{_SETTLE}a_stored_event_is_settled_by_a_worker_once",
        is_kin=True,
    ),
    Guard(
        "the claim within the transaction that settles",
        "RET-4",
        "engine/worker.py",
        "        async with connection.transaction():\n"
        "            claim = await self._claims.take(connection, self._max_batch)\n",
        "        async with connection.transaction():\n"
        "            claim = await self._claims.take(connection, self._max_batch)\n"
        "        async with connection.transaction():\n",
        f"{_WORKER}what_a_worker_had_in_hand_when_it_ended_is_there_for_the_next_one",
    ),
    Guard(
        "leaving final events alone",
        "RET-4",
        _DUE,
        "   AND e.status IN ('RECEIVED', 'VALIDATED', 'FAILED_RETRYABLE')\n",
        "",
        f"{_WORKER}a_row_of_the_queue_whose_event_is_final_is_dropped",
        is_kin=True,
    ),
    Guard(
        "giving up",
        "RET-3",
        "engine/retry.py",
        "return times < self.attempts",
        "return True",
        "tests/unit/test_retry.py::test_the_number_of_attempts_is_a_setting",
        is_kin=True,
    ),
    Guard(
        "giving up what waits for others",
        "RET-3",
        "engine/retry.py",
        "age < SLOW_FOR",
        "True",
        "tests/unit/test_retry.py::test_what_waits_for_others_is_kept_for_72_hours_at_least",
        is_kin=True,
    ),
    Guard(
        "the count of faults",
        "RET-1",
        "engine/batch.py",
        "min(self.faults + is_fault, MAX_ATTEMPTS)",
        "self.faults",
        f"{_WORKER}a_fault_of_ours_is_tried_as_often_as_the_policy_says",
        is_kin=True,
    ),
    Guard(
        "waiting as no fault",
        "RET-1",
        "engine/batch.py",
        "is_fault = outcome.status is EventStatus.FAILED_RETRYABLE and not _waits(outcome)",
        "is_fault = outcome.status is EventStatus.FAILED_RETRYABLE",
        f"{_WORKER}having_waited_for_others_uses_up_no_attempt_at_faults",
        is_kin=True,
    ),
    Guard(
        "the count of starts",
        "RET-3",
        "engine/worker.py",
        "if starts > MAX_STARTS else None",
        "if False else None",
        f"{_WORKER}an_event_that_ends_the_process_each_time_becomes_a_dead_letter",
    ),
    Guard(
        "the commit of a start before it is tried",
        "RET-3",
        "store/due.py",
        'QUERIES["mark_start"].row(other, event_id=found[0])',
        'QUERIES["mark_start"].row(connection, event_id=found[0])',
        f"{_WORKER}an_event_that_ends_the_process_each_time_becomes_a_dead_letter",
        is_kin=True,
    ),
    Guard(
        "forgetting the start of what was survived",
        "RET-3",
        "engine/worker.py",
        "                await due.unmark(self._database, one.event_id)\n",
        "                pass\n",
        f"{_WORKER}a_failure_that_is_survived_does_not_make_an_event_deadly",
        is_kin=True,
    ),
    # What a gateway's own words could be bent to.
    Guard(
        "one reading of what Alipay signed",
        "PRV-4",
        "providers/alipay.py",
        "if _is_ambiguous(signed, pairs):",
        "if False:",
        f"{_ALIPAY}the_same_bytes_cut_into_other_parameters_are_refused",
    ),
    Guard(
        "the seller that Alipay names",
        "PRV-4",
        "providers/alipay.py",
        "given != wanted and (given or _kind(parameters) == TRADE)",
        "False",
        f"{_ALIPAY}what_is_meant_for_another_app_or_seller_is_refused",
        is_kin=True,
    ),
    Guard(
        "renewals at Creem as payments of their own",
        "PRV-5",
        "providers/creem_events.py",
        "_id(subscription) if is_first else None",
        "_id(subscription)",
        "tests/providers/test_creem.py::test_a_renewal_is_a_payment_of_its_own",
        is_kin=True,
    ),
    # What is asked of gateways.
    Guard(
        "the lane of a claim",
        "REC-4",
        _DUE,
        " WHERE d.lane = :lane AND d.lane <> 1\n   AND d.run_at BETWEEN",
        " WHERE (d.lane = :lane OR true)\n   AND d.run_at BETWEEN",
        f"{_ASKED}what_waits_for_a_gateway_is_not_the_settling_workers",
        is_kin=True,
    ),
    Guard(
        "the lane of what is woken",
        "REC-7",
        _SETTLEMENT,
        "coalesce((SELECT max(d.lane) FROM due AS d WHERE d.event_id = e.id), 0)",
        "0",
        f"{_ASKED}a_redelivery_makes_what_waits_due_at_once_in_its_lane",
        is_kin=True,
    ),
    Guard(
        "the way back from the wrong lane",
        "REC-4",
        "engine/claims.py",
        "        await due.put_back(connection, one, NO_DELAY, lane)\n",
        "        pass\n",
        f"{_ASKED}what_waits_for_a_gateway_is_not_the_settling_workers",
        is_kin=True,
    ),
    Guard(
        "one who asks",
        "RET-4",
        "store/asking.sql",
        " WHERE pg_try_advisory_lock(716120346, source_id);",
        " WHERE pg_try_advisory_lock_shared(716120346, source_id);",
        f"{_ASKED}two_askers_ask_once",
    ),
    Guard(
        "asking outside of transactions",
        "REC-4",
        _ASKING,
        "            answer = await self._answer(question)\n",
        "            async with self._connected() as connection, connection.transaction():\n"
        "                answer = await self._answer(question)\n",
        f"{_ASKED}nothing_is_held_while_a_gateway_is_asked",
    ),
    Guard(
        "the rate of calls",
        "RET-1",
        _CALLS,
        "        self._next_turn_s = turn_s + self._interval_s\n",
        "        self._next_turn_s = turn_s\n",
        f"{_ASKED}calls_keep_to_the_rate_of_their_source",
        is_kin=True,
    ),
    Guard(
        "the number of questions at once",
        "RET-1",
        _ASKING,
        "            if source_id in self._held and left[source_id] > 0:\n",
        "            if source_id in self._held:\n",
        f"{_ASKED}a_gateway_that_is_away_is_left_alone_for_a_while",
        is_kin=True,
    ),
    Guard(
        "the memory of a gateway that is away",
        "RET-1",
        _CALLS,
        "            self._away_until_s = time.monotonic() + self._away_s\n",
        "",
        f"{_ASKED}a_gateway_that_is_away_is_left_alone_for_a_while",
        is_kin=True,
    ),
    Guard(
        "the share of each gateway",
        "RET-1",
        _ASKING,
        "min(max(max_at_once // max(len(self._lines), 1), 1), MAX_OF_SOURCE)",
        "MAX_OF_SOURCE",
        f"{_ASKED}many_sources_share_what_may_be_asked_at_once",
        is_kin=True,
    ),
    Guard(
        "replies that are none",
        "RET-1",
        _CALLS,
        "if status == _TOO_MANY or status >= 500 or 300 <= status < 400:",
        "if False:",
        f"{_ASKED}a_gateway_that_cannot_say_is_asked_again_for_days[500]",
        is_kin=True,
    ),
    Guard(
        "the size of a reply",
        "SEC-8",
        _CALLS,
        "if len(body) > MAX_REPLY_BYTES:",
        "if False:",
        f"{_ASKED}a_gateway_that_cannot_say_is_asked_again_for_days[too large]",
        is_kin=True,
    ),
    Guard(
        "redirects that are not followed",
        "SEC-8",
        _CALLS,
        "allow_redirects=False,",
        "allow_redirects=True,",
        f"{_ASKED}a_gateway_that_cannot_say_is_asked_again_for_days[redirect]",
        is_kin=True,
    ),
    Guard(
        "no proxy of the environment",
        "SEC-8",
        _CALLS,
        "trust_env=False,",
        "trust_env=True,",
        f"{_ASKED}no_proxy_of_the_environment_is_used",
        is_kin=True,
    ),
    Guard(
        "the number of calls of a question",
        "RET-1",
        "engine/conversations.py",
        "        for _ in range(MAX_CALLS):\n",
        "        for _ in range(2 * MAX_CALLS):\n",
        f"{_ASKED}a_fault_in_asking_is_that_events_failure[no end of calls]",
        is_kin=True,
    ),
    Guard(
        "the end of asking at a stop",
        "RET-4",
        _ASKING,
        "        for task in self._conversing:\n            task.cancel()\n",
        "",
        f"{_ASKED}a_stopped_asker_leaves_what_it_asked_for_to_the_next_one",
        is_kin=True,
    ),
    Guard(
        "nothing that is begun after a stop",
        "RET-4",
        _ASKING,
        "        if self._stop_asked.is_set():\n            return 0\n",
        "",
        f"{_ASKED}an_asker_that_stops_begins_nothing",
        is_kin=True,
    ),
    Guard(
        "the rate of repeated looks",
        "INB-2",
        _INTAKE,
        'f"look:{item.identity.key}:{period}"',
        'f"look:{item.identity.key}:{period}:{uuid7()}"',
        f"{_DOOR}a_repeated_look_is_a_fresh_one_but_not_too_often[inline]",
        is_kin=True,
    ),
    Guard(
        "the own key of what is stale",
        "PRV-8",
        _INTAKE,
        'f"stale:{digest.hex()}"',
        "identity.key",
        f"{_DOOR}what_is_stale_stands_for_nothing_that_comes_in_time[inline]",
        is_kin=True,
    ),
    Guard(
        "the question that is not approved",
        "PRV-3",
        "engine/confirming.py",
        "        if not is_expected:\n",
        "        if False:\n",
        f"{_DOOR}a_payment_is_approved_if_an_order_waits_for_it[inline-no order]",
    ),
    Guard(
        "approval of what is pending only",
        "PRV-3",
        "store/confirmations.sql",
        "       AND status = 'PENDING'\n",
        "",
        f"{_DOOR}a_payment_is_approved_if_an_order_waits_for_it[inline-canceled]",
        is_kin=True,
    ),
    Guard(
        "approval of the right amount only",
        "PRV-3",
        "store/confirmations.sql",
        "amount_minor = :amount_minor\n",
        "amount_minor >= :amount_minor\n",
        f"{_DOOR}a_payment_is_approved_if_an_order_waits_for_it[inline-less]",
        is_kin=True,
    ),
    # Nonces.
    Guard(
        "the unique nonce",
        "SEC-3",
        _LANES,
        "    PRIMARY KEY (source_id, digest),\n",
        "",
        f"{_NONCES}of_two_transactions_one_uses_the_nonce",
        is_kin=True,
    ),
    Guard(
        "nonces in the transaction of their events",
        "SEC-3",
        "engine/settle.py",
        "    if has_nonces(items):\n        return None",
        "    if False:\n        return None",
        f"{_NONCES}a_nonce_with_another_meaning_is_a_replay",
        is_kin=True,
    ),
    Guard(
        "the meaning of a nonce",
        "SEC-3",
        "engine/nonces.py",
        "known.fingerprint != use.fingerprint",
        "True",
        f"{_NONCES}a_nonce_with_the_same_meaning_is_a_duplicate",
        is_kin=True,
    ),
    Guard(
        "the nonce of what is stale",
        "SEC-3",
        _INTAKE,
        "identity=replace(item.identity, key=key, nonce=None)",
        "identity=replace(item.identity, key=key)",
        f"{_DOOR}what_is_stale_stands_for_nothing_that_comes_in_time[inline]",
        is_kin=True,
    ),
    # Effects of the user's own.
    Guard(
        "the queue for what has handlers",
        "FUL-5",
        _INTAKE,
        "DEFERRED if is_handled or isinstance(event, Thin)",
        "DEFERRED if isinstance(event, Thin)",
        "tests/flow/test_handlers.py::test_a_delivery_is_accepted_and_handled_once",
        is_kin=True,
    ),
    Guard(
        "the lane of what has handlers",
        "FUL-5",
        "engine/claims.py",
        "_uncalled(waiting, rules) if lane is due.Lane.SETTLE else []",
        "[]",
        f"{_HANDLERS}events_in_the_lane_of_others_are_put_where_handlers_are_called",
        is_kin=True,
    ),
    Guard(
        "a handler's failure holds the payment",
        "FUL-5",
        _APPLYING,
        "price) or unlinked or terms.held\n",
        "price) or unlinked\n",
        f"{_HANDLERS}what_asks_for_a_retry_stays_out_and_is_called_again_then",
    ),
    Guard(
        "a handler's failure holds what a refund takes back",
        "FUL-5",
        _APPLYING,
        "if decision.done and terms.held is not None:",
        "if False:",
        f"{_HANDLERS}a_refund_is_remembered_and_its_handler_tried_again",
        is_kin=True,
    ),
    Guard(
        "nothing is kept of what its handler has not heard of",
        "FUL-5",
        _HANDLING,
        "if isinstance(item, Waiting) and not decision.done:",
        "if False:",
        f"{_HANDLERS}a_failed_attempt_is_told_once_and_money_after_it_too",
        is_kin=True,
    ),
    Guard(
        "the refusal of a handler's COMMIT",
        "FUL-5",
        "store/migrations/versions/0005_handlers.sql",
        "IF EXISTS (SELECT 1 FROM handling WHERE id = NEW.id) THEN",
        "IF false THEN",
        f"{_HANDLERS}whatever_a_handler_does_nothing_is_half_done[commit_and_swallow]",
    ),
    Guard(
        "what a handler wrote can be committed",
        "FUL-5",
        "store/handling.py",
        '        await QUERIES["check_deferred"].run(connection)\n',
        "",
        f"{_HANDLERS}whatever_a_handler_does_nothing_is_half_done[write_what_cannot_be_committed]",
        is_kin=True,
    ),
    Guard(
        # Whether there is a transaction at all can be told without asking the database.
        "the handler's transaction is the one it was called in",
        "FUL-5",
        _HANDLING,
        "    if not is_same:\n",
        "    if False:\n",
        f"{_HANDLERS}whatever_a_handler_does_nothing_is_half_done[roll_back_and_begin_again]",
        is_kin=True,
    ),
    Guard(
        "the time limit of handlers",
        "FUL-5",
        _HANDLING,
        "asyncio.wait({task}, timeout=timeout_s)",
        "asyncio.wait({task}, timeout=None)",
        f"{_HANDLERS}whatever_a_handler_does_nothing_is_half_done[sleep_in_python]",
        is_kin=True,
    ),
    Guard(
        "a handler that does not end is left behind",
        "FUL-5",
        _HANDLING,
        "asyncio.wait({task}, timeout=GRACE_S)",
        "asyncio.wait({task})",
        f"{_HANDLERS}a_handler_that_does_not_end_is_left_behind",
        is_kin=True,
    ),
    Guard(
        "a verb that is done again calls no handlers",
        "FUL-5",
        "engine/linking.py",
        "rules = without_calls(rules, broken.held)",
        "pass",
        f"{_HANDLERS}whatever_a_handler_does_a_user_is_created[commit]",
        is_kin=True,
    ),
    Guard(
        "a payment that was just held is left alone",
        "FUL-5",
        "engine/claims.py",
        "if not _was_held(item, settled):",
        "if True:",
        f"{_HANDLERS}whatever_a_handler_does_a_user_is_created[let_an_error_through]",
        is_kin=True,
    ),
    Guard(
        "a module that is imported twice",
        "FUL-5",
        "engine/handlers.py",
        "        _refuse_twin(name, handler)\n",
        "",
        "tests/unit/test_handlers.py::test_a_file_that_is_imported_under_two_names_is_refused",
        is_kin=True,
    ),
    # What a gateway's own words could be bent to.
    # What was made for a test, and what must not be seen.
    Guard(
        "no test webhooks in production",
        "OPS-6",
        "web/edge.py",
        "if TEST_HEADER in call.headers and not self._takes_tests:",
        "if False:",
        "tests/flow/test_sample_webhooks.py::test_production_refuses_test_webhooks",
    ),
    Guard(
        "a payment is a test only while all its events are",
        "OPS-6",
        "domain/decide.py",
        "is_test=payment.is_test and arrived.is_test,",
        "is_test=payment.is_test or arrived.is_test,",
        f"{_MARKS}a_payment_is_a_test_while_every_event_of_it_is_in_every_order",
    ),
    Guard(
        "production has no key that signs test webhooks",
        "OPS-6",
        "providers/alipay.py",
        "SampleKey() if setup.accepts_test else None",
        "SampleKey()",
        f"{_ALIPAY}only_the_process_that_made_a_test_webhook_believes_it",
        is_kin=True,
    ),
    Guard(
        "what arrived is for those who may operate",
        "OPS-2",
        "web/api/events.py",
        "may_see = actor.scope.includes(Scope.OPERATE)",
        "may_see = True",
        "tests/flow/test_evidence.py::test_who_may_only_read_does_not_see_it",
        is_kin=True,
    ),
    Guard(
        "no card numbers in the log",
        "SEC-7",
        "telemetry.py",
        "if mask is None or not mask.is_suspicious(sent):",
        "if True:",
        "tests/flow/test_evidence.py::test_what_does_not_belong_there_is_masked_in_the_log",
        is_kin=True,
    ),
)
