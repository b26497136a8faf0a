"""Which results of a batch cause notifications (OBS-5).

An event causes one when it becomes a dead letter or fails for good, a payment when it gets a new
reason for review: once each, however often the event comes again. An event that fails for the
reason for which its payment needs review causes none of its own. Money that waits for its user, its
order or a link is told after a time, if it still waits.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from paidonce.core.events import Code, Outcome, PaymentEvent, PaymentId, Reason
from paidonce.core.money import Money, format_minor
from paidonce.core.notifications import (
    WAITING,
    NotificationKind,
    kind_of_outcome,
    kind_of_reason,
)
from paidonce.core.payments import Payment
from paidonce.core.state import Decision
from paidonce.db.queries import WrittenRow
from paidonce.notifications.model import Notification, clean
from paidonce.processing import items

PAYMENT_DELAY: Final = timedelta(days=1)
"""How long a refund may be ahead of its payment before a notification is sent."""


class NotificationRules:
    """Builds the notifications of one batch."""

    def __init__(
        self, rules: items.Rules, now: datetime, loaded: Mapping[PaymentId, Payment]
    ) -> None:
        self._rules = rules
        self._now = now
        self._loaded = loaded
        self._reviews: dict[PaymentId, Reason | None] = {}
        self._disputed: set[PaymentId] = set()

    def rows(self, result: items.Result) -> list[WrittenRow]:
        """The rows to be written; none for an event that succeeded."""
        if result.kind is items.ResultKind.LOCKED or _is_plain_success(result):
            return []
        routes = self._rules.routes
        return [row for one in self._notifications(result) for row in one.rows(routes)]

    def _notifications(self, result: items.Result) -> Iterator[Notification]:
        decision = result.decision
        if decision is not None and decision.payment is not None:
            yield from self._of_payments(result, decision, decision.payment)
        kind = self._kind_of_event(result)
        if kind is not None:
            yield self._of_event(result, kind)

    def _of_payments(
        self, result: items.Result, decision: Decision, payment: Payment
    ) -> Iterator[Notification]:
        for one in (payment, *decision.others):
            review = self._new_review(one)
            kind = kind_of_reason(review) if review is not None else None
            if kind is not None and review is not None:
                yield self._of_review(result, one, kind, review)
        if payment.facts.is_disputed and not self._was_disputed(payment):
            yield self._of_dispute(result.item, payment)
        owed_minor = _owed_minor(decision)
        if owed_minor > 0:
            yield self._of_receivable(result.item, payment, owed_minor)

    def _new_review(self, payment: Payment) -> Reason | None:
        """The reason for review, if it is new."""
        if payment.id in self._reviews:
            before = self._reviews[payment.id]
        else:
            loaded = self._loaded.get(payment.id)
            before = loaded.review if loaded else None
        self._reviews[payment.id] = payment.review
        is_known = payment.review == before or {payment.review, before} <= WAITING
        return None if is_known else payment.review

    def _was_disputed(self, payment: Payment) -> bool:
        """Whether the dispute is known already: each is notified once."""
        loaded = self._loaded.get(payment.id)
        was_disputed = payment.id in self._disputed or (
            loaded is not None and loaded.facts.is_disputed
        )
        self._disputed.add(payment.id)
        return was_disputed

    def _kind_of_event(self, result: items.Result) -> NotificationKind | None:
        item, outcome = result.item, result.outcome
        if outcome is None or isinstance(item, items.Reapply | items.FreeOrder):
            return None
        if isinstance(item, items.Rejected) and not item.signature_valid:
            return None
        if isinstance(item, items.QueuedEvent) and _is_unchanged(item, outcome):
            return None
        kind = kind_of_outcome(outcome)
        if kind is NotificationKind.PROVIDER_MISMATCH and not item.source.provider.is_signed:
            return None  # anybody can send one
        payment = result.decision.payment if result.decision else None
        review = payment.review if payment else None
        is_excess = review is Code.EXCESS and outcome.code is Code.AMOUNT_MISMATCH
        is_reviewed = review == outcome.code or is_excess
        return None if is_reviewed and kind is not NotificationKind.DEAD_LETTER else kind

    def _of_event(self, result: items.Result, kind: NotificationKind) -> Notification:
        item, outcome = result.item, result.outcome
        assert not isinstance(item, items.Reapply | items.FreeOrder)
        assert outcome is not None
        payment = result.decision.payment if result.decision else None
        details = {"code": outcome.code, "message": outcome.message} | _details(item, payment)
        return self._notification(kind, item.source.name, item, payment, details)

    def _of_review(
        self, result: items.Result, payment: Payment, kind: NotificationKind, review: Reason
    ) -> Notification:
        item, outcome = result.item, result.outcome
        message = outcome.message if outcome and outcome.code == review else None
        details = {"code": review, "message": message} | _details(item, payment)
        found = self._notification(kind, self._source_name(payment), item, payment, details)
        match kind:
            case NotificationKind.PAYMENT_MISSING:
                return replace(found, not_before=self._now + PAYMENT_DELAY)
            case NotificationKind.UNAPPLIED:
                return replace(found, not_before=self._now + self._rules.unapplied_after)
            case _:
                return found

    def _of_dispute(self, item: items.Item, payment: Payment) -> Notification:
        details = _details(item, payment) | {"answer_by": payment.facts.dispute_answer_by}
        kind = NotificationKind.DISPUTE
        return self._notification(kind, self._source_name(payment), item, payment, details)

    def _of_receivable(self, item: items.Item, payment: Payment, owed_minor: int) -> Notification:
        currency = payment.facts.currency
        assert currency is not None
        details = _details(item, payment) | _money(Money(owed_minor, currency))
        kind = NotificationKind.RECEIVABLE
        return self._notification(kind, self._source_name(payment), item, payment, details)

    def _notification(
        self,
        kind: NotificationKind,
        source: str,
        item: items.Item,
        payment: Payment | None,
        details: Mapping[str, object],
    ) -> Notification:
        return Notification(
            kind=kind,
            at=self._now,
            source=source,
            event_id=None if isinstance(item, items.Reapply | items.FreeOrder) else item.event_id,
            payment_id=payment.id if payment else None,
            details=clean(details),
        )

    def _source_name(self, payment: Payment) -> str:
        source = self._rules.sources.get(payment.source_id)
        return source.name if source else ""


def _is_plain_success(result: items.Result) -> bool:
    """Whether nothing can cause a notification, as for nearly every event."""
    decision = result.decision
    if decision is None or result.kind is not items.ResultKind.PROCESSED:
        return False
    payment = decision.payment
    is_unusual = payment is not None and (
        payment.review is not None or payment.facts.disputed_at is not None
    )
    return not (is_unusual or decision.others or decision.movements)


def _is_unchanged(item: items.QueuedEvent, outcome: Outcome) -> bool:
    """Whether the event was processed again with the same outcome: it was notified then."""
    return (item.status, item.error_code) == (outcome.status, outcome.code)


def _details(item: items.Item, payment: Payment | None) -> dict[str, object]:
    """What an operator needs to find it: the id at the gateway, the order, the amount, the user."""
    identity = None if isinstance(item, items.Reapply | items.FreeOrder) else item.identity
    event = None if isinstance(item, items.Reapply | items.FreeOrder) else item.event
    paid = event.amount if isinstance(event, PaymentEvent) else None
    email = event.email if isinstance(event, PaymentEvent) else None
    order = identity.order if identity else None
    external_id = identity.payment_id if identity else None
    if payment is not None:
        paid = paid or payment.facts.captured
        email, order = payment.email or email, payment.order or order
        external_id = external_id or (payment.ids[0].value if payment.ids else None)
    return {"payment": external_id, "order": order, "email": email, **_money(paid)}


def _money(paid: Money | None) -> dict[str, object]:
    if paid is None:
        return {}
    return {"amount": format_minor(paid.amount_minor, paid.currency), "currency": paid.currency}


def _owed_minor(decision: Decision) -> int:
    """What wallets could not cover of the reversed amounts."""
    entries = (entry for movement in decision.movements for entry in movement.entries)
    return -sum(one.amount_minor for one in entries if one.account.startswith("receivable:"))
