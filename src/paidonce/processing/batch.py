"""The unit of work: decides the items of a batch in memory and collects the rows to be written."""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final, assert_never

import orjson

from paidonce.core.apply import ApplyContext, apply, fulfill_free
from paidonce.core.callbacks import NO_CALLBACK
from paidonce.core.decide import decide
from paidonce.core.email import email_key
from paidonce.core.events import (
    PROCESSED,
    Code,
    EventId,
    EventProblem,
    EventStatus,
    EventType,
    Ignored,
    Outcome,
    PaymentEvent,
    ReceivedEvent,
    UserId,
)
from paidonce.core.payments import Payment
from paidonce.core.problems import (
    blocked_on_email,
    blocked_on_handler,
    blocked_on_order,
    blocked_on_payment,
)
from paidonce.core.purpose import is_same_purpose, purpose_digest
from paidonce.core.state import Decision, GrantsLockedError, GrantsMissingError
from paidonce.core.tally import Tally
from paidonce.errors import NotFoundError
from paidonce.ids import new_id
from paidonce.processing import rows
from paidonce.processing.items import (
    MAX_MESSAGE,
    EventItem,
    FreeOrder,
    Incoming,
    Item,
    QueuedEvent,
    Reapply,
    Rejected,
    Result,
    ResultKind,
    Rules,
    apply_link,
    result_kind,
    tally_key,
)
from paidonce.processing.notification_rules import NotificationRules
from paidonce.processing.rows import StoredKey
from paidonce.processing.store import Changes, Loaded, blocked_on_digest
from paidonce.processing.waiting import AttemptCount, Waiting
from paidonce.providers.contract import FINGERPRINT_VERSION, LookupRequired
from paidonce.telemetry import logger

log = logger(__name__)

LOCKED_DELAY: Final = timedelta(milliseconds=50)
"""When a queued event is due again whose row was locked."""

LOOKUP_PENDING: Final = Outcome(
    EventStatus.FAILED_RETRYABLE, Code.PROVIDER_UNREACHABLE, "the gateway was not asked yet"
)

_SUCCESS: Final = (EventStatus.PROCESSED, EventStatus.IGNORED, EventStatus.VALIDATED)
"""These need no audit rows: their trail follows from the columns of the event."""


class Batch:
    """Decides items one by one. Each sees the decisions of those before it."""

    def __init__(self, rules: Rules, loaded: Loaded) -> None:
        self._rules = rules
        self._now = loaded.now
        self._state = loaded.state
        self._locked = loaded.locked
        self._stored_keys = loaded.keys
        self._keys = dict(loaded.keys)
        self._locked_keys: set[object] = set()
        self._changes = Changes()
        self._tally = Tally()
        self._notification_rules = (
            NotificationRules(rules, loaded.now, self._state.payments.loaded)
            if rules.routes
            else None
        )

    def process(self, item: Item) -> Result:
        """Decide one item, and collect what it writes. Raises GrantsMissingError."""
        try:
            result = self._process(item)
        except GrantsLockedError:
            result = self._leave_locked(item)
        if self._notification_rules is not None:
            self._changes.notifications += self._notification_rules.rows(result)
        return result

    def _process(self, item: Item) -> Result:
        match item:
            case Incoming():
                return self._process_incoming(item)
            case Rejected():
                return self._process_refused(item)
            case QueuedEvent():
                return self._process_queued(item)
            case Reapply():
                return self._process_reapply(item)
            case FreeOrder():
                return self._process_free_order(item)
            case _:
                assert_never(item)

    def _leave_locked(self, item: Item) -> Result:
        """Another transaction has locked a row that the item needs: it is processed later."""
        if isinstance(item, QueuedEvent):
            self._queue(self._now + LOCKED_DELAY, item, item.waiting, item.blocked_on)
            return Result(item, ResultKind.LOCKED, item.event_id)
        if isinstance(item, Incoming):
            self._locked_keys.add(item.key)
        return Result(item, ResultKind.LOCKED, None)

    def changes(self) -> Changes:
        """Every row to be written. Call it once, at the end."""
        changes = self._changes
        changes.add_difference(self._state)
        for gone, _ in changes.merged:
            changes.unblocked.append(blocked_on_digest(blocked_on_payment(gone)))
        changes.counts += self._tally.rows()
        return changes

    def _process_incoming(self, item: Incoming) -> Result:
        stored = self._keys.get(item.key)
        if stored is not None:
            return self._process_repeated(item, stored)
        is_locked = item.forced_outcome is None and self._is_locked(item)
        if is_locked or item.key in self._locked_keys:
            return self._leave_locked(item)
        decision = self._decide(item)
        count = AttemptCount(item.received_at).after(decision.outcome)
        outcome = self._final_outcome(decision.outcome, count)
        key = StoredKey(
            item.event_id, item.identity.fingerprint, FINGERPRINT_VERSION, _purpose(item)
        )
        self._keys[item.key] = key
        self._changes.keys.append((item.key, key))
        self._changes.events.append(rows.event_row(item, outcome, count.attempts, self._now))
        self._tally.add_event(tally_key(item), outcome.status, is_delivery=item.is_delivery)
        if outcome.status not in _SUCCESS:
            self._audit_attempt(item.event_id, outcome, count.attempts)
        if item.delivery.dropped:
            self._audit(item.event_id, "fields_dropped", fields=item.delivery.dropped)
        self._schedule(item, outcome, decision.blocked_on, count)
        return Result(item, result_kind(outcome), item.event_id, outcome, decision)

    def _process_repeated(self, item: Incoming, stored: StoredKey) -> Result:
        """A known key: a duplicate if the fingerprint is the same, otherwise a conflict."""
        same_version = stored.fingerprint_version == FINGERPRINT_VERSION
        is_same = stored.fingerprint == item.identity.fingerprint
        if not same_version or (is_same and is_same_purpose(stored.purpose, _purpose(item))):
            if item.key in self._stored_keys:
                self._changes.redelivered.append(stored.event_id)
            self._changes.duplicates.setdefault(stored.event_id, []).append(item.request.id)
            if item.is_delivery:
                self._tally.add_duplicate(tally_key(item))
            return Result(item, ResultKind.DUPLICATE, stored.event_id)
        message = f"contradicts event {stored.event_id}, which has the same key"
        outcome = Outcome(EventStatus.FAILED_FINAL, Code.PAYLOAD_CONFLICT, message)
        row = rows.event_row(item, outcome, 0, self._now, conflicts_with=stored.event_id)
        self._changes.events.append(row)
        self._tally.add_event(tally_key(item), outcome.status, is_delivery=item.is_delivery)
        self._audit(stored.event_id, "conflict_detected", False, evidence=str(item.event_id))
        return Result(item, ResultKind.CONFLICT, item.event_id, outcome)

    def _process_refused(self, item: Rejected) -> Result:
        if self._is_locked(item):
            return self._leave_locked(item)
        decision = self._decide_refused(item)
        message = str(item.refusal)[:MAX_MESSAGE]
        outcome = Outcome(EventStatus.FAILED_FINAL, Code(item.refusal.code), message)
        adds_money = decision is not None and decision.payment is not None
        evidence = item if adds_money else replace(item, identity=None, event=None)
        self._changes.events.append(rows.event_row(evidence, outcome, 0, self._now))
        if item.signature_valid:
            self._tally.add_event(tally_key(item), outcome.status)
        else:
            self._tally.add_rejected(tally_key(item))
        return Result(item, ResultKind.FAILED_FINAL, item.event_id, outcome, decision)

    def _process_queued(self, item: QueuedEvent) -> Result:
        if item.forced_outcome is None and self._is_locked(item):
            return self._leave_locked(item)
        decision = self._decide(item)
        before = AttemptCount(
            item.received_at, item.attempts, item.waiting.faults, item.waiting.handler_failures
        )
        is_extra = item.waiting.is_extra(decision.outcome, self._now)
        count = before if is_extra else before.after(decision.outcome)
        outcome = decision.outcome if is_extra else self._final_outcome(decision.outcome, count)
        if item.was_processed and outcome.status is EventStatus.IGNORED:
            outcome = PROCESSED  # its facts are in the payment, whatever else is known by now
        row = rows.event_update_row(item.event_id, outcome, count.attempts, self._now)
        self._changes.event_updates.append(row)
        self._tally.move(tally_key(item), item.status, outcome.status)
        if count.attempts > 1 or outcome.status not in _SUCCESS:
            self._audit_attempt(item.event_id, outcome, count.attempts)
        self._schedule(item, outcome, decision.blocked_on, count, is_extra)
        return Result(item, result_kind(outcome), item.event_id, outcome, decision)

    def _process_reapply(self, item: Reapply) -> Result:
        if item.payment_id in self._locked.payments:
            return self._leave_locked(item)
        payment = self._state.payments.get(item.payment_id)
        if payment is None and item.link is None:  # it was merged into another one
            return Result(item, ResultKind.IGNORED, None)
        if payment is None:
            raise NotFoundError(f"there is no payment {item.payment_id}")
        linked = payment
        if item.link is not None:
            linked = apply_link(self._state, payment, item.link, self._now)
        if self._is_payment_locked(linked) or self._is_payment_locked(payment):
            return self._leave_locked(item)
        source = self._rules.sources.get(payment.source_id)
        link_by_email = source.link_by_email if source else False
        blocked_by = item.blocked.problem if item.blocked else None
        context = ApplyContext(None, link_by_email, blocked_by)
        decision = apply(self._state, payment, linked, context, self._now)
        self._save(decision)
        return Result(item, result_kind(decision.outcome), None, decision.outcome, decision)

    def _process_free_order(self, item: FreeOrder) -> Result:
        """Raises ConflictError if it cannot be fulfilled."""
        order = self._state.orders.get(item.reference)
        if order is None or order.user_id in self._locked.users:
            return self._leave_locked(item)
        decision = fulfill_free(self._state, order, self._now)
        self._save(decision)
        return Result(item, ResultKind.PROCESSED, None, decision.outcome, decision)

    def _is_locked(self, item: EventItem) -> bool:
        """Whether another transaction has locked a row that the event needs."""
        event, locked = item.event, self._locked
        if not locked or not isinstance(event, PaymentEvent) or item.source.is_payout_source:
            return False
        loaded_ids = self._state.payment_ids.loaded
        if any(loaded_ids.get((item.source.id, one)) in locked.payments for one in event.ids):
            return True
        payments = self._state.find_payments(item.source.id, event.ids)
        is_locked = self._is_payment_locked
        return is_locked(None, event.order, event.email) or any(map(is_locked, payments))

    def _is_payment_locked(
        self, payment: Payment | None, reference: str | None = None, email: str | None = None
    ) -> bool:
        """Whether the order or the user of the payment, or of an event about it, is locked."""
        locked, loaded_orders = self._locked, self._state.orders.loaded
        if not locked:
            return False
        named = {reference, payment.order if payment else None}
        references = {one for one in named if one is not None}
        if not locked.orders.isdisjoint(references):
            return True
        orders = [loaded_orders[one] for one in references if one in loaded_orders]
        addresses = {email, payment.email if payment else None, *(one.email for one in orders)}
        emails = {email_key(one) for one in addresses if one is not None}
        users: set[UserId | None] = {self._state.users.get(one) for one in emails}
        users |= {payment.user_id if payment else None, *(one.user_id for one in orders)}
        names = {*map(blocked_on_email, emails), *map(blocked_on_order, references)}
        return not locked.names.isdisjoint(names) or not locked.users.isdisjoint(users - {None})

    def _decide(self, item: Incoming | QueuedEvent) -> Decision:
        if item.forced_outcome is not None:
            return Decision(item.forced_outcome)
        if isinstance(item.event, LookupRequired):
            return Decision(LOOKUP_PENDING)
        if item.source.is_payout_source and isinstance(item.event, PaymentEvent):
            return Decision(self._pass_to_payouts(item, item.event))
        blocked = item.blocked if isinstance(item, QueuedEvent) else None
        return self._decide_event(item, item.event, blocked.problem if blocked else None)

    def _pass_to_payouts(self, item: Incoming | QueuedEvent, event: PaymentEvent) -> Outcome:
        """Write a callback for the payout service. The event makes no payment here."""
        row = rows.callback_row(item, event)
        if row is not None:
            self._changes.callbacks.append(row)
        return NO_CALLBACK if row is None else PROCESSED

    def _decide_refused(self, item: Rejected) -> Decision | None:
        """Record the capture of an expired delivery, or the payment of an unreadable one.

        None when it reports none, or its event came in time as well.
        """
        if item.source.is_payout_source or item.event is None or item.key in self._keys:
            return None
        is_expired = item.event.event_type is not EventType.UNREADABLE
        return self._decide_event(item, item.event, is_expired=is_expired)

    def _decide_event(
        self,
        item: EventItem,
        event: PaymentEvent | Ignored,
        blocked_by: EventProblem | None = None,
        is_expired: bool = False,
    ) -> Decision:
        """Decide, and save the decision. An exception fails this event only."""
        source = item.source
        received = ReceivedEvent(
            source.id,
            event,
            item.received_at,
            source.link_by_email,
            blocked_by,
            item.request.is_test,
            is_expired,
        )
        try:
            decision = decide(self._state, received, self._now)
        except (GrantsMissingError, GrantsLockedError):
            raise
        except Exception:
            log.exception("decide_failed", webhook_event_id=str(item.event_id))
            fault = "deciding failed; the log has the details"
            return Decision(Outcome(EventStatus.FAILED_RETRYABLE, Code.INTERNAL, fault))
        self._save(decision)
        return decision

    def _save(self, decision: Decision) -> None:
        self._state.save(decision)
        for movement in decision.movements:
            self._changes.entries += rows.entry_rows(new_id(), movement, self._now)
        counts = self._changes.message_counts
        for effect in decision.effects:
            payment = effect.payment
            counts[payment.id] += 1
            source = self._rules.sources.get(payment.source_id)
            message = rows.message_row(
                effect,
                decision.order,
                source.name if source else None,
                payment.version + counts[payment.id],
                self._now,
            )
            self._changes.messages.append(message)
        if decision.has_applied:
            self._unblock_siblings(decision)
        elif decision.has_linked and decision.payment is not None:
            name = blocked_on_payment(decision.payment)
            self._changes.unblocked.append(blocked_on_digest(name))

    def _unblock_siblings(self, decision: Decision) -> None:
        """Other events of this payment may be blocked on what was found in another way now."""
        before, after = decision.payment_before, decision.payment
        if before is None or after is None:
            return
        names = [blocked_on_payment(after)]
        if after.email is not None:
            names.append(blocked_on_email(email_key(after.email)))
        self._changes.unblocked += map(blocked_on_digest, names)

    def _schedule(
        self,
        item: Incoming | QueuedEvent,
        outcome: Outcome,
        blocked_on: str | None,
        count: AttemptCount,
        is_extra: bool = False,
    ) -> None:
        if outcome.status is EventStatus.VALIDATED:
            delay = item.delay if isinstance(item, Incoming) else timedelta(0)
            self._queue(self._now + delay, item, item.waiting, None)
        elif outcome.status is EventStatus.FAILED_RETRYABLE and outcome.code is not None:
            blocked = item.blocked if isinstance(item, QueuedEvent) else None
            run_at = item.waiting.next_attempt(
                self._rules.retry, outcome.code, count, self._now, is_extra
            )
            if blocked is not None and blocked.after is not None:
                run_at = self._now + blocked.after
            elif blocked is not None and blocked.failed is not None:
                blocked_on = blocked_on_handler(blocked.failed)
            digest = blocked_on_digest(blocked_on) if blocked_on else None
            self._queue(run_at, item, item.waiting.after(count), digest)
            self._audit(item.event_id, "retry_scheduled", run_at=run_at.isoformat())

    def _queue(
        self,
        run_at: datetime,
        item: Incoming | QueuedEvent,
        waiting: Waiting,
        blocked_on: bytes | None,
    ) -> None:
        place = (item.queue_name, item.source.id)
        self._changes.queued.append(
            rows.queued_row(run_at, item.event_id, blocked_on, place, waiting)
        )

    def _final_outcome(self, outcome: Outcome, count: AttemptCount) -> Outcome:
        """The outcome, or a dead letter when there is no further attempt."""
        if outcome.status is not EventStatus.FAILED_RETRYABLE or outcome.code is None:
            return outcome
        failures, age = count.failures(outcome.code), self._now - count.received_at
        if self._rules.retry.should_retry(outcome.code, failures, age):
            return outcome
        return Outcome(EventStatus.DEAD_LETTER, outcome.code, outcome.message)

    def _audit_attempt(self, event_id: EventId, outcome: Outcome, attempts: int) -> None:
        failed = outcome.status not in _SUCCESS
        action = "processing_attempt_failed" if failed else "processing_succeeded"
        self._audit(event_id, "processing_attempt_started", attempt=attempts)
        self._audit(event_id, action, not failed, attempt=attempts, error_code=outcome.code)

    def _audit(
        self, event_id: EventId, action: str, success: bool = True, **details: object
    ) -> None:
        text = orjson.dumps(details).decode()
        self._changes.audit.append((self._now, event_id, None, action, success, text))


def _purpose(item: Incoming) -> bytes | None:
    """What the event is for, as far as its sender signed it."""
    event = item.event
    if not isinstance(event, PaymentEvent):
        return None
    return purpose_digest(event, item.source.provider.unsigned_fields())
