"""One call of `settle` in memory: what was loaded, what is decided, what is to be written."""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final, assert_never

import orjson
from uuid_utils.compat import uuid7

from paidonce.domain.applying import (
    Terms,
    apply,
    waits_for_email,
    waits_for_payment,
)
from paidonce.domain.decide import Arrived, decide
from paidonce.domain.email import email_key
from paidonce.domain.events import (
    PROCESSED,
    Code,
    EventId,
    EventStatus,
    Outcome,
    PaymentEvent,
    PaymentId,
    Reason,
    SubscriptionId,
    WalletId,
)
from paidonce.domain.orders import Order
from paidonce.domain.payments import Payment
from paidonce.domain.state import Applied, Decision, State
from paidonce.domain.subscriptions import Subscription
from paidonce.domain.tally import Tally
from paidonce.domain.wallet_payments import NOT_HEARD
from paidonce.domain.wallets import Wallet
from paidonce.engine.attempts import Tried, result_of
from paidonce.engine.busy import Busy
from paidonce.engine.items import (
    MAX_MESSAGE,
    Incoming,
    Item,
    Refused,
    Result,
    Revisit,
    Rules,
    Verdict,
    Waiting,
    linked_as,
    tally_key,
)
from paidonce.engine.names import waiting_digest
from paidonce.engine.noticing import Noticed
from paidonce.engine.rows import (
    applied_message,
    callback_row,
    event_row,
    finished_row,
    reversed_message,
)
from paidonce.errors import NotFoundError
from paidonce.providers.contract import FINGERPRINT_VERSION, Thin
from paidonce.store.rows import KeyName, KnownKey, entry_rows
from paidonce.store.settlement import Changes, Loaded
from paidonce.telemetry import logger

log = logger(__name__)

BUSY_DELAY: Final = timedelta(milliseconds=50)
"""After how long an event whose row was locked is due again."""

NOT_ASKED: Final = Outcome(
    EventStatus.FAILED_RETRYABLE, Code.PROVIDER_UNREACHABLE, "the gateway was not asked yet"
)

_HAPPY: Final = (EventStatus.PROCESSED, EventStatus.IGNORED, EventStatus.VALIDATED)
"""The statuses whose trail can be read off the event's own columns."""


class Batch:
    """The working set of one call: what was loaded, what was decided, what is to be written."""

    def __init__(self, rules: Rules, loaded: Loaded) -> None:
        self._rules = rules
        self._loaded = loaded
        self._now: datetime = loaded.now
        self._state = State(rules.plans, uuid7, rules.kept)
        loaded.fill(self._state)
        self._busy = Busy(loaded, self._state)
        self._first_of_key: dict[KeyName, KnownKey] = dict(loaded.keys)
        self._busy_keys: set[KeyName] = set()
        self._changes = Changes()
        self._tally = Tally()
        self._payments: dict[PaymentId, Payment] = {}
        self._subscriptions: dict[SubscriptionId, Subscription] = {}
        self._orders: dict[str, Order] = {}
        self._wallets: dict[WalletId, Wallet] = {}
        self._noticed = Noticed(rules, loaded) if rules.told_to else None

    def judge(self, item: Item) -> Verdict:
        """What becomes of one item; what it changes is remembered for the ones that follow."""
        verdict = self._judged(item)
        if self._noticed is not None:
            self._changes.notices += self._noticed.rows(verdict)
        return verdict

    def _judged(self, item: Item) -> Verdict:
        match item:
            case Incoming():
                return self._judge_incoming(item)
            case Refused():
                return self._judge_refused(item)
            case Waiting():
                return self._judge_waiting(item)
            case Revisit():
                return self._judge_revisit(item)
            case _:
                assert_never(item)

    def all_changes(self) -> Changes:
        """Every row to be written, each once."""
        changes, loaded = self._changes, self._loaded
        for payment in self._payments.values():
            if loaded.payments.get(payment.id) != payment:
                changes.payments.append(payment)
                self._touch_order(payment.order)
            for one in payment.ids:
                if (payment.source_id, one) not in loaded.names:
                    changes.ids.append((payment.source_id, one, payment.id))
        for reference, order in self._orders.items():
            if loaded.orders[reference] != order:
                self._touch_order(reference)
        changes.subscriptions += self._subscriptions.values()
        changes.wallets += self._wallets.values()
        changes.counts += self._tally.rows()
        return changes

    def _touch_order(self, reference: str | None) -> None:
        """Write the order, changed or not: whoever decides by it has to see its payments change."""
        order = None if reference is None else self._state.orders.get(reference)
        if order is not None and order not in self._changes.orders:
            self._changes.orders.append(order)

    def _judge_incoming(self, item: Incoming) -> Verdict:
        name = item.key
        known = self._first_of_key.get(name)
        if known is not None:
            return self._judge_repeated(item, known)
        if name in self._busy_keys or (item.preset is None and self._busy.has_event(item)):
            self._busy_keys.add(name)
            return Verdict(item, Result.BUSY, None)
        decision = self._decide(item)
        tried = Tried(item.delivery.received_at).again(decision.outcome)
        outcome = self._given_up(decision.outcome, tried)
        key = KnownKey(item.event_id, item.identity.fingerprint, FINGERPRINT_VERSION)
        self._first_of_key[name] = key
        self._changes.keys.append((name, key))
        self._changes.events.append(event_row(item, outcome, tried.attempts, self._now))
        self._tally.received(tally_key(item), outcome.status, is_delivery=item.is_delivery)
        if outcome.status not in _HAPPY:
            self._audit_attempt(item.event_id, outcome, tried.attempts)
        self._schedule(item, outcome, decision.awaits, tried)
        return Verdict(item, result_of(outcome), item.event_id, outcome, decision)

    def _judge_repeated(self, item: Incoming, known: KnownKey) -> Verdict:
        """Same key: the same meaning is a duplicate, another one contradicts the first."""
        same_version = known.fingerprint_version == FINGERPRINT_VERSION
        if not same_version or known.fingerprint == item.identity.fingerprint:
            if item.key in self._loaded.keys:
                self._changes.redelivered.append(known.event_id)
            self._audit(known.event_id, "event_deduped", request_id=item.request.id)
            if item.is_delivery:
                self._tally.repeated(tally_key(item))
            return Verdict(item, Result.DUPLICATE, known.event_id)
        message = f"contradicts event {known.event_id}, which has the same key"
        outcome = Outcome(EventStatus.FAILED_FINAL, Code.PAYLOAD_CONFLICT, message)
        row = event_row(item, outcome, 0, self._now, conflicts_with=known.event_id)
        self._changes.events.append(row)
        self._tally.received(tally_key(item), outcome.status, is_delivery=item.is_delivery)
        self._audit(known.event_id, "conflict_detected", False, evidence=str(item.event_id))
        return Verdict(item, Result.CONFLICT, item.event_id, outcome)

    def _judge_refused(self, item: Refused) -> Verdict:
        if self._busy.has_event(item):
            return Verdict(item, Result.BUSY, None)
        decision = self._decide_stale(item)
        message = str(item.refusal)[:MAX_MESSAGE]
        outcome = Outcome(EventStatus.FAILED_FINAL, Code(item.refusal.code), message)
        adds_money = decision is not None and decision.payment is not None
        kept = item if adds_money else replace(item, identity=None, event=None)
        self._changes.events.append(event_row(kept, outcome, 0, self._now))
        self._tally.received(tally_key(item), outcome.status)
        return Verdict(item, Result.FAILED_FINAL, item.event_id, outcome, decision)

    def _judge_waiting(self, item: Waiting) -> Verdict:
        if item.preset is None and self._busy.has_event(item):
            soon = self._now + BUSY_DELAY
            self._queue(soon, item, item.faults, item.waits_on)
            return Verdict(item, Result.BUSY, item.event_id)
        decision = self._decide(item)
        tried = Tried(item.received_at, item.attempts, item.faults).again(decision.outcome)
        outcome = self._given_up(decision.outcome, tried)
        row = finished_row(item.event_id, outcome, tried.attempts, self._now)
        self._changes.finished.append(row)
        self._tally.moved(tally_key(item), item.status, outcome.status)
        if tried.attempts > 1 or outcome.status not in _HAPPY:
            self._audit_attempt(item.event_id, outcome, tried.attempts)
        self._schedule(item, outcome, decision.awaits, tried)
        return Verdict(item, result_of(outcome), item.event_id, outcome, decision)

    def _judge_revisit(self, item: Revisit) -> Verdict:
        if item.payment_id in self._loaded.busy_payments:
            return Verdict(item, Result.BUSY, None)
        payment = self._payments.get(item.payment_id) or self._loaded.payments.get(item.payment_id)
        if payment is None and item.link is None:  # it has become one with another
            return Verdict(item, Result.IGNORED, None)
        if payment is None:
            raise NotFoundError(f"there is no payment {item.payment_id}")
        linked = payment if item.link is None else linked_as(payment, item.link)
        if self._busy.has(linked) or self._busy.has(payment):
            return Verdict(item, Result.BUSY, None)
        source = self._rules.sources.get(payment.source_id)
        by_email = source.link_by_email if source else False
        terms = Terms(linked.facts.captured, by_email, item.held.problem if item.held else None)
        decision = apply(self._state, payment, linked, terms, self._now)
        self._remember(decision)
        return Verdict(item, result_of(decision.outcome), None, decision.outcome, decision)

    def _decide(self, item: Incoming | Waiting) -> Decision:
        """What the event does."""
        if item.preset is not None:
            return Decision(item.preset)
        if isinstance(item.event, Thin):
            return Decision(NOT_ASKED)
        if item.source.is_calling_back and isinstance(item.event, PaymentEvent):
            return Decision(self._pass_on(item, item.event))
        received_at = item.delivery.received_at if isinstance(item, Incoming) else item.received_at
        held = item.held.problem if isinstance(item, Waiting) and item.held else None
        by_email = item.source.link_by_email
        is_test = item.request.is_test
        arrived = Arrived(item.source.id, item.event, received_at, by_email, held, is_test)
        return self._hear(item.event_id, arrived)

    def _pass_on(self, item: Incoming | Waiting, event: PaymentEvent) -> Outcome:
        """Let the payment service hear it: it is of a payment out of a wallet, and makes none."""
        row = callback_row(item, event)
        if row is not None:
            self._changes.callbacks.append(row)
        return NOT_HEARD if row is None else PROCESSED

    def _decide_stale(self, item: Refused) -> Decision | None:
        """What a delivery that came too late leaves behind: money that is known, and not applied.

        Nothing, when it tells of none, or its event came in time as well.
        """
        is_passed_on = item.source.is_calling_back
        if is_passed_on or item.event is None or item.key in self._first_of_key:
            return None
        arrived = Arrived(
            item.source.id,
            item.event,
            item.delivery.received_at,
            item.source.link_by_email,
            is_test=item.request.is_test,
            is_stale=True,
        )
        return self._hear(item.event_id, arrived)

    def _hear(self, event_id: EventId, arrived: Arrived) -> Decision:
        """What is decided. A fault of ours is that event's failure and nobody else's."""
        try:
            decision = decide(self._state, arrived, self._now)
        except Exception:
            log.exception("decide_failed", webhook_event_id=str(event_id))
            fault = "deciding failed; the log has the details"
            return Decision(Outcome(EventStatus.FAILED_RETRYABLE, Code.INTERNAL, fault))
        self._remember(decision)
        return decision

    def _remember(self, decision: Decision) -> None:
        self._state.remember(decision)
        if decision.payment is None:
            return
        for gone in decision.absorbed:
            self._absorb(gone, decision.payment)
        for changed in (decision.payment, *decision.others):
            self._payments[changed.id] = changed
        if decision.subscription is not None:
            self._subscriptions[decision.subscription.id] = decision.subscription
        if decision.order is not None:
            self._remember_order(decision, decision.order)
        for done in decision.done:
            source = self._rules.sources.get(done.payment.source_id)
            name = source.name if source else None
            self._changes.told[done.payment.id] += 1
            version = done.payment.version + self._changes.told[done.payment.id]
            if isinstance(done, Applied):
                message = applied_message(done.payment, decision.order, name, version, self._now)
            else:
                message = reversed_message(done, decision.order, name, version, self._now)
            self._changes.messages.append(message)
        if decision.applies:
            self._wake_siblings(decision)

    def _remember_order(self, decision: Decision, order: Order) -> None:
        self._orders[order.reference] = order
        if decision.wallet is not None:
            self._wallets[decision.wallet.id] = decision.wallet
        for movement in decision.movements:
            self._changes.entries += entry_rows(uuid7(), movement, self._now)

    def _absorb(self, gone: Payment, heir: Payment) -> None:
        """What waits for the payment that is no more has to look again."""
        self._payments.pop(gone.id, None)
        absorbed = self._changes.absorbed
        absorbed[:] = [(one, heir.id if to == gone.id else to) for one, to in absorbed]
        if not gone.is_new:
            absorbed.append((self._loaded.payments[gone.id], heir.id))
            self._changes.wakes.append(waiting_digest(waits_for_payment(gone)))

    def _wake_siblings(self, decision: Decision) -> None:
        """Events of this payment may wait for what has now been found by other means."""
        before, after = decision.payment_before, decision.payment
        if before is None or after is None:
            return
        names = [waits_for_payment(after)]
        if after.email is not None:
            names.append(waits_for_email(email_key(after.email)))
        self._changes.wakes += map(waiting_digest, names)

    def _schedule(
        self, item: Incoming | Waiting, outcome: Outcome, awaits: str | None, tried: Tried
    ) -> None:
        if outcome.status is EventStatus.VALIDATED:
            self._queue(self._now, item, tried.faults, None)
        elif outcome.status is EventStatus.FAILED_RETRYABLE and outcome.code is not None:
            run_at = self._now + self._delay(item, outcome.code, tried)
            self._queue(run_at, item, tried.faults, waiting_digest(awaits) if awaits else None)
            self._audit(item.event_id, "retry_scheduled", run_at=run_at.isoformat())

    def _delay(self, item: Incoming | Waiting, code: Reason, tried: Tried) -> timedelta:
        asked = item.held.after if isinstance(item, Waiting) and item.held else None
        return self._rules.retry.delay(code, tried.times(code)) if asked is None else asked

    def _queue(
        self, run_at: datetime, item: Incoming | Waiting, faults: int, waits_on: bytes | None
    ) -> None:
        row = (run_at, item.event_id, faults, waits_on, item.lane, item.source.id)
        self._changes.due.append(row)

    def _given_up(self, outcome: Outcome, tried: Tried) -> Outcome:
        """The outcome, or a dead letter when it is not worth another attempt."""
        if outcome.status is not EventStatus.FAILED_RETRYABLE or outcome.code is None:
            return outcome
        times, age = tried.times(outcome.code), self._now - tried.received_at
        if self._rules.retry.goes_on(outcome.code, times, age):
            return outcome
        return Outcome(EventStatus.DEAD_LETTER, outcome.code, outcome.message)

    def _audit_attempt(self, event_id: EventId, outcome: Outcome, attempts: int) -> None:
        failed = outcome.status not in _HAPPY
        action = "processing_attempt_failed" if failed else "processing_succeeded"
        self._audit(event_id, "processing_attempt_started", attempt=attempts)
        self._audit(event_id, action, not failed, attempt=attempts, error_code=outcome.code)

    def _audit(
        self, event_id: EventId, action: str, success: bool = True, **details: object
    ) -> None:
        said = orjson.dumps(details).decode()
        self._changes.audit.append((self._now, event_id, None, action, success, said))
