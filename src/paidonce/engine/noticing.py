"""What people are told of, from what became of a batch (OBS-5).

An event is told of when it becomes a dead letter or fails for good, a payment when it newly has a
reason for which somebody should look: once each, however often either comes again. An event that
fails for the very reason for which its payment is looked at is not told of beside it.
"""

from collections.abc import Iterator
from datetime import timedelta
from typing import Final

from paidonce.domain.events import Outcome, PaymentEvent, PaymentId, Reason
from paidonce.domain.money import Money, format_minor
from paidonce.domain.notices import NoticeKind, kind_of_outcome, kind_of_reason
from paidonce.domain.payments import Payment
from paidonce.domain.state import Decision
from paidonce.engine.items import Incoming, Item, Refused, Result, Revisit, Rules, Verdict, Waiting
from paidonce.store.notices import Notice, clean
from paidonce.store.rows import Row
from paidonce.store.settlement import Loaded

PAYMENT_DELAY: Final = timedelta(days=1)
"""How long a refund may be ahead of its payment before anybody is told."""


class Noticed:
    """What one batch lets people know."""

    def __init__(self, rules: Rules, loaded: Loaded) -> None:
        self._rules = rules
        self._now = loaded.now
        self._loaded = loaded.payments
        self._reviews: dict[PaymentId, Reason | None] = {}

    def rows(self, verdict: Verdict) -> list[Row]:
        """The rows to be written; none of an event that went as it should."""
        if verdict.result is Result.BUSY or _is_usual(verdict):
            return []
        told_to = self._rules.told_to
        return [row for notice in self._notices(verdict) for row in notice.rows(told_to)]

    def _notices(self, verdict: Verdict) -> Iterator[Notice]:
        decision = verdict.decision
        if decision is not None and decision.payment is not None:
            yield from self._of_payments(verdict, decision, decision.payment)
        kind = self._kind_of_event(verdict)
        if kind is not None:
            yield self._of_event(verdict, kind)

    def _of_payments(
        self, verdict: Verdict, decision: Decision, payment: Payment
    ) -> Iterator[Notice]:
        for one in (payment, *decision.others):
            review = self._new_review(one)
            kind = kind_of_reason(review) if review is not None else None
            if kind is not None and review is not None:
                yield self._of_review(verdict, one, kind, review)
        owed_minor = _owed_minor(decision)
        if owed_minor > 0:
            yield self._of_receivable(verdict.item, payment, owed_minor)

    def _new_review(self, payment: Payment) -> Reason | None:
        """Why a person should look at the payment, unless that was known before."""
        if payment.id in self._reviews:
            before = self._reviews[payment.id]
        else:
            known = self._loaded.get(payment.id)
            before = known.review if known else None
        self._reviews[payment.id] = payment.review
        return payment.review if payment.review != before else None

    def _kind_of_event(self, verdict: Verdict) -> NoticeKind | None:
        item, outcome = verdict.item, verdict.outcome
        if outcome is None or not isinstance(item, Incoming | Refused | Waiting):
            return None
        if isinstance(item, Refused) and not item.signature_valid:
            return None
        if isinstance(item, Waiting) and _is_as_before(item, outcome):
            return None
        kind = kind_of_outcome(outcome)
        if kind is NoticeKind.PROVIDER_MISMATCH and not item.source.provider.is_signed:
            return None  # anybody can invent one
        payment = verdict.decision.payment if verdict.decision else None
        is_known = payment is not None and payment.review == outcome.code
        return None if is_known and kind is not NoticeKind.DEAD_LETTER else kind

    def _of_event(self, verdict: Verdict, kind: NoticeKind) -> Notice:
        item, outcome = verdict.item, verdict.outcome
        assert isinstance(item, Incoming | Refused | Waiting)
        assert outcome is not None
        payment = verdict.decision.payment if verdict.decision else None
        said = {"code": outcome.code, "message": outcome.message} | _said(item, payment)
        return Notice(
            kind=kind,
            at=self._now,
            source=item.source.name,
            event_id=item.event_id,
            payment_id=payment.id if payment else None,
            details=clean(said),
        )

    def _of_review(
        self, verdict: Verdict, payment: Payment, kind: NoticeKind, review: Reason
    ) -> Notice:
        item, outcome = verdict.item, verdict.outcome
        message = outcome.message if outcome and outcome.code == review else None
        is_later = kind is NoticeKind.PAYMENT_MISSING
        return Notice(
            kind=kind,
            at=self._now,
            source=self._name_of(payment),
            event_id=None if isinstance(item, Revisit) else item.event_id,
            payment_id=payment.id,
            details=clean({"code": review, "message": message} | _said(item, payment)),
            not_before=self._now + PAYMENT_DELAY if is_later else None,
        )

    def _of_receivable(self, item: Item, payment: Payment, owed_minor: int) -> Notice:
        currency = payment.facts.currency
        assert currency is not None
        owed = {"amount": format_minor(owed_minor, currency), "currency": currency}
        return Notice(
            kind=NoticeKind.RECEIVABLE,
            at=self._now,
            source=self._name_of(payment),
            event_id=item.event_id if isinstance(item, Incoming | Waiting) else None,
            payment_id=payment.id,
            details=clean(_said(item, payment) | owed),
        )

    def _name_of(self, payment: Payment) -> str:
        source = self._rules.sources.get(payment.source_id)
        return source.name if source else ""


def _is_usual(verdict: Verdict) -> bool:
    """Whether there is nothing to tell, as of nearly every event."""
    decision = verdict.decision
    if decision is None or verdict.result is not Result.PROCESSED:
        return False
    payment = decision.payment
    has_review = payment is not None and payment.review is not None
    return not (has_review or decision.others or decision.movements)


def _is_as_before(item: Waiting, outcome: Outcome) -> bool:
    """Whether the event was processed again, and ended as it did: that was told then."""
    return (item.status, item.error_code) == (outcome.status, outcome.code)


def _said(item: Item, payment: Payment | None) -> dict[str, object]:
    """What a person needs to find it: the gateway's id, the order, the sum, whose it is."""
    identity = None if isinstance(item, Revisit) else item.identity
    event = None if isinstance(item, Revisit) else item.event
    paid = event.amount if isinstance(event, PaymentEvent) else None
    email = event.email if isinstance(event, PaymentEvent) else None
    order = identity.order if identity else None
    name = identity.payment_id if identity else None
    if payment is not None:
        paid = paid or payment.facts.captured
        email, order = payment.email or email, payment.order or order
        name = name or (payment.ids[0].value if payment.ids else None)
    return {"payment": name, "order": order, "email": email, **_money(paid)}


def _money(paid: Money | None) -> dict[str, object]:
    if paid is None:
        return {}
    return {"amount": format_minor(paid.amount_minor, paid.currency), "currency": paid.currency}


def _owed_minor(decision: Decision) -> int:
    """What wallets could not cover of what was taken back."""
    entries = (entry for movement in decision.movements for entry in movement.entries)
    return -sum(one.amount_minor for one in entries if one.account.startswith("receivable:"))
