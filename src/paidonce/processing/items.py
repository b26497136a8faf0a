"""The input and the output of `process`."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import IntEnum, StrEnum
from typing import Any, Final

from paidonce.core import events
from paidonce.core.accept import AcceptRequest, accept
from paidonce.core.facts import settle_foreign_refunds
from paidonce.core.masking import Masker
from paidonce.core.operator_refunds import OperatorRefund, record_refund
from paidonce.core.orders import Kind
from paidonce.core.payments import Payment
from paidonce.core.plans import PlanBook
from paidonce.core.retry import SLOW_RETRY_CODES, RetryPolicy
from paidonce.core.state import Decision, State
from paidonce.core.tally import TallyKey
from paidonce.errors import ConflictError, RejectedError
from paidonce.hooks.registry import NO_HANDLERS, Blocked, Handlers
from paidonce.notifications.model import Routes
from paidonce.processing.waiting import NOT_WAITING, Waiting
from paidonce.providers.contract import Delivery, Identity, LookupRequired, Provider, key_digest

DEFAULT_LOOKUP_RATE: Final = 10.0
MAX_MESSAGE: Final = 500
"""The longest error message that is stored."""

EventKey = tuple[events.SourceId, bytes]
"""A source and the digest of the key of an event."""


class QueueName(IntEnum):
    """The queue in which an event waits."""

    PROCESS = 0
    LOOKUP = 1  # its meaning has to be looked up at the gateway first
    HOOKS = 2  # it has handlers of the user's own


@dataclass(frozen=True, slots=True)
class Source:
    """A configured instance of a provider."""

    id: events.SourceId
    name: str
    provider: Provider
    link_by_email: bool
    lookup_rate: float = DEFAULT_LOOKUP_RATE  # calls to its gateway per second
    has_handlers: bool = False  # its events are processed in the queue for hooks
    is_payout_source: bool = False  # its events are callbacks about payouts
    is_restricted: bool = False  # only listed addresses deliver to it

    @property
    def labels(self) -> tuple[str, str]:
        """Its labels in metrics: provider and name."""
        return self.provider.name, self.name

    @property
    def queue_name(self) -> QueueName:
        """The queue for events that need no lookup."""
        return QueueName.HOOKS if self.has_handlers else QueueName.PROCESS


@dataclass(frozen=True, slots=True)
class Rules:
    """Everything that processing depends on besides the events and the database."""

    plans: PlanBook
    sources: Mapping[events.SourceId, Source]
    retry: RetryPolicy
    kept_on_refund: frozenset[Kind] = frozenset()  # what a refund does not reverse
    takes_back_used: bool = False  # a refund takes back the used part of a period, too
    handlers: Handlers = NO_HANDLERS
    masker: Masker = field(default_factory=Masker)
    routes: Routes = field(default_factory=dict)  # empty: no notifications
    unapplied_after: timedelta = timedelta(minutes=15)  # people are told of money that waits


@dataclass(frozen=True, slots=True)
class Request:
    """The HTTP request of a delivery, for the log and the evidence."""

    id: str
    remote_address: str | None
    started_s: float  # monotonic clock
    is_test: bool = False  # a test webhook


@dataclass(frozen=True, slots=True, eq=False)
class Incoming:
    """A verified delivery that just arrived."""

    event_id: events.EventId
    source: Source
    request: Request
    delivery: Delivery
    identity: Identity
    key: EventKey
    event: events.PaymentEvent | events.Ignored | LookupRequired
    forced_outcome: events.Outcome | None = None  # the event is stored with it, and has no effect
    is_delivery: bool = True  # False: a further event of a delivery that is counted already
    waiting: Waiting = NOT_WAITING  # if it cannot be processed now
    delay: timedelta = timedelta(0)  # before a deferred one is due

    @property
    def received_at(self) -> datetime:
        return self.delivery.received_at

    @property
    def queue_name(self) -> QueueName:
        """The queue for it, if it cannot be processed now."""
        if isinstance(self.event, LookupRequired):
            return QueueName.LOOKUP
        return self.source.queue_name


@dataclass(frozen=True, slots=True, eq=False)
class Rejected:
    """A refused delivery that is stored as evidence. It claims no key.

    An authentic delivery with an expired timestamp may report a capture, and an unreadable one a
    payment: then it has an event. What it reports is recorded for review, and not applied.
    """

    event_id: events.EventId
    source: Source
    request: Request
    delivery: Delivery
    refusal: RejectedError
    signature_valid: bool
    identity: Identity | None = None
    event: events.PaymentEvent | None = None

    @property
    def received_at(self) -> datetime:
        return self.delivery.received_at

    @property
    def key(self) -> EventKey | None:
        """The key that its event would have claimed in time."""
        if self.identity is None:
            return None
        return self.source.id, key_digest(self.identity.key)


@dataclass(frozen=True, slots=True, eq=False)
class QueuedEvent:
    """A stored event that was claimed from the queue."""

    event_id: events.EventId
    source: Source
    request: Request
    received_at: datetime
    identity: Identity
    event: events.PaymentEvent | events.Ignored | LookupRequired
    attempts: int
    blocked_on: bytes | None
    queue_name: QueueName
    status: events.EventStatus  # before this attempt
    error_code: str | None
    signature_method: str
    forced_outcome: events.Outcome | None = None
    blocked: Blocked | None = None  # why its handlers prevent its effect now
    was_processed: bool = False  # it is PROCESSED, or was
    waiting: Waiting = NOT_WAITING

    @property
    def has_failed(self) -> bool:
        """Whether an earlier attempt failed or was blocked."""
        if self.status is events.EventStatus.VALIDATED:
            return self.attempts > 0 and not self.was_processed
        return self.status not in (events.EventStatus.PROCESSED, events.EventStatus.IGNORED)


@dataclass(frozen=True, slots=True, eq=False)
class Reapply:
    """A stored payment to apply without an event: what it was blocked on may exist now."""

    payment_id: events.PaymentId
    link: "Link | None" = None
    blocked: Blocked | None = None


@dataclass(frozen=True, slots=True)
class Link:
    """An operator's instruction about a payment."""

    user_id: events.UserId | None = None
    order: str | None = None
    accept: AcceptRequest | None = None
    is_for_refund: bool | None = None  # True marks it for refund, False removes the mark
    refund: OperatorRefund | None = None

    @property
    def is_once(self) -> bool:
        """Whether a repeat, which changes nothing, is no action of its own."""
        return self.refund is not None or self.accept is not None


def apply_link(state: State, payment: Payment, link: Link, now: datetime) -> Payment:
    """The payment after the instruction. Raises ConflictError, UnprocessableRequestError."""
    if link.accept is not None:
        return accept(state, payment, link.accept, now)
    if link.refund is not None:
        return record_refund(payment, link.refund)
    names_another = link.user_id not in (None, payment.user_id) or link.order not in (
        None,
        payment.order,
    )
    if payment.applied_at is not None and (names_another or link.is_for_refund):
        target = f"order {payment.order}" if payment.order else f"user {payment.user_id}"
        raise ConflictError(f"payment {payment.id} was applied to {target} already")
    if link.is_for_refund is not None:
        return replace(payment, is_for_refund=link.is_for_refund)
    facts = settle_foreign_refunds(payment.facts)
    linked = replace(payment, facts=facts, is_linked=True, is_contested=False)
    if payment.applied_at is not None:
        return linked
    kept = None if names_another else payment.acceptance  # it was for what it was linked to before
    if link.order is not None:
        return replace(linked, order=link.order, user_id=None, acceptance=kept)
    return replace(linked, order=None, user_id=link.user_id, acceptance=kept)


@dataclass(frozen=True, slots=True, eq=False)
class FreeOrder:
    """A new order for which nothing is to be paid, to be fulfilled."""

    reference: str


EventItem = Incoming | Rejected | QueuedEvent
Item = EventItem | Reapply | FreeOrder


def tally_key(item: EventItem) -> TallyKey:
    """The key under which the statistics count the item. Times of arrival are in UTC."""
    if isinstance(item, QueuedEvent):
        method = item.signature_method
    else:
        method = item.source.provider.signature_method(item.delivery)
    return item.received_at.date(), item.source.id, method


class ResultKind(StrEnum):
    """The result of an item, as in the log."""

    PROCESSED = "processed"
    IGNORED = "ignored"
    DUPLICATE = "duplicate"
    CONFLICT = "conflict"
    UNLINKED = "unlinked"
    ACCEPTED = "accepted"  # stored, to be processed later
    FAILED_RETRYABLE = "failed_retryable"
    FAILED_FINAL = "failed_final"
    DEAD_LETTER = "dead_letter"
    LOCKED = "locked"  # another transaction has locked a row: nothing was written, try again
    NOT_STORED = "not_stored"  # nothing was written: the sender has to send it again


def result_kind(outcome: events.Outcome) -> ResultKind:
    """The result of an attempt with this outcome."""
    is_unreachable = outcome.code is events.Code.PROVIDER_UNREACHABLE
    is_retryable = outcome.status is events.EventStatus.FAILED_RETRYABLE
    if is_retryable and outcome.code in SLOW_RETRY_CODES and not is_unreachable:
        return ResultKind.UNLINKED
    return _RESULT_KINDS[outcome.status]


_RESULT_KINDS: Final = {
    events.EventStatus.PROCESSED: ResultKind.PROCESSED,
    events.EventStatus.IGNORED: ResultKind.IGNORED,
    events.EventStatus.FAILED_FINAL: ResultKind.FAILED_FINAL,
    events.EventStatus.FAILED_RETRYABLE: ResultKind.FAILED_RETRYABLE,
    events.EventStatus.DEAD_LETTER: ResultKind.DEAD_LETTER,
    events.EventStatus.VALIDATED: ResultKind.ACCEPTED,
}


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one item."""

    item: Item
    kind: ResultKind
    event_id: events.EventId | None  # of a duplicate: the id of the first event
    outcome: events.Outcome | None = None
    decision: Decision | None = None

    @property
    def named(self) -> dict[str, Any]:
        """What the audit log names: the payment, and its order and user after the item."""
        payment = self.decision.payment if self.decision else None
        if self.decision is None or payment is None:
            return {}
        user_id = payment.user_id
        if user_id is None and self.decision.order is not None:
            user_id = self.decision.order.user_id
        return {"payment_id": payment.id, "order": payment.order, "user_id": user_id}


@dataclass(frozen=True, slots=True)
class BatchResult:
    """The results of a batch, and the database time of the decisions."""

    now: datetime
    results: list[Result]
    schedules: bool = False  # whether the batch added events to the queue

    def and_then(self, later: "BatchResult") -> "BatchResult":
        schedules = self.schedules or later.schedules
        return BatchResult(later.now, self.results + later.results, schedules)
