"""What `settle` is given and what it gives back."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Final

from paidonce.domain.events import (
    EventId,
    EventStatus,
    Ignored,
    Outcome,
    PaymentEvent,
    PaymentId,
    SourceId,
    UserId,
)
from paidonce.domain.masking import Masker
from paidonce.domain.orders import Kind
from paidonce.domain.payments import Payment
from paidonce.domain.plans import PlanBook
from paidonce.domain.state import Decision
from paidonce.domain.tally import TallyKey
from paidonce.engine.handlers import NO_HANDLERS, Handlers, Held
from paidonce.engine.retry import RetryPolicy
from paidonce.errors import ConflictError, RefusedError
from paidonce.providers.contract import Delivery, Identity, Provider, Thin, key_digest
from paidonce.store.due import Lane
from paidonce.store.notices import Telling
from paidonce.store.rows import KeyName

DEFAULT_ASK_RATE: Final = 10.0
MAX_MESSAGE: Final = 500
"""How much of a refusal's own words is kept."""


@dataclass(frozen=True, slots=True)
class Source:
    """A configured instance of a provider."""

    id: SourceId
    name: str
    provider: Provider
    link_by_email: bool
    ask_rate: float = DEFAULT_ASK_RATE  # how many calls a second its gateway may get
    has_handlers: bool = False  # of the user's own: its events are settled where those are called
    is_calling_back: bool = False  # its events are what the payment service's gateway tells


@dataclass(frozen=True, slots=True)
class Rules:
    """What settling depends on besides the events and the database."""

    plans: PlanBook
    sources: Mapping[SourceId, Source]
    retry: RetryPolicy
    kept: frozenset[Kind] = frozenset()  # what a refund does not take back
    handlers: Handlers = NO_HANDLERS
    masker: Masker = field(default_factory=Masker)
    told_to: Telling = field(default_factory=dict)  # empty: nobody is to be told of anything


@dataclass(frozen=True, slots=True)
class Request:
    """Where a delivery came from and when, as far as the log and the evidence want to know."""

    id: str
    remote_address: str | None
    started_s: float  # of the monotonic clock
    is_test: bool = False  # made by us, to try something


@dataclass(frozen=True, slots=True, eq=False)
class Incoming:
    """A verified delivery that has just arrived."""

    event_id: EventId
    source: Source
    request: Request
    delivery: Delivery
    identity: Identity
    key: KeyName
    event: PaymentEvent | Ignored | Thin
    preset: Outcome | None = None  # decided before settling: stored for later, or poisoned
    is_delivery: bool = True  # else an event of a delivery that is counted already

    @property
    def lane(self) -> Lane:
        """Where it waits, if it has to."""
        if isinstance(self.event, Thin):
            return Lane.ASK
        return Lane.HANDLE if self.source.has_handlers else Lane.SETTLE


@dataclass(frozen=True, slots=True, eq=False)
class Refused:
    """A delivery that is kept as evidence. It claims no key.

    One that is authentic, but came too late to be believed alone, may tell of money: then it has an
    event. The money is recorded, and not applied.
    """

    event_id: EventId
    source: Source
    request: Request
    delivery: Delivery
    refusal: RefusedError
    signature_valid: bool
    identity: Identity | None = None
    event: PaymentEvent | None = None

    @property
    def key(self) -> KeyName | None:
        """The key that its event would have claimed in time."""
        if self.identity is None:
            return None
        return self.source.id, key_digest(self.identity.key)


@dataclass(frozen=True, slots=True, eq=False)
class Waiting:
    """An event that was stored earlier and is due again."""

    event_id: EventId
    source: Source
    request: Request
    received_at: datetime
    identity: Identity
    event: PaymentEvent | Ignored | Thin
    attempts: int
    faults: int  # how many of these failed for a fault of ours
    waits_on: bytes | None
    lane: Lane
    status: EventStatus  # before it is settled now, and why
    error_code: str | None
    signature_method: str
    preset: Outcome | None = None
    held: Held | None = None  # why its handlers do not let it have an effect now


@dataclass(frozen=True, slots=True, eq=False)
class Revisit:
    """A payment to look at again without an event: what it may wait for is there now."""

    payment_id: PaymentId
    link: "Link | None" = None
    held: Held | None = None


@dataclass(frozen=True, slots=True)
class Link:
    """What a person says of a payment that is not applied."""

    user_id: UserId | None = None
    order: str | None = None
    is_accepted: bool = False
    is_for_refund: bool = False


def linked_as(payment: Payment, link: Link) -> Payment:
    """The payment as a person says it is to be taken. Raises ConflictError."""
    names_another = link.user_id not in (None, payment.user_id) or link.order not in (
        None,
        payment.order,
    )
    if payment.applied_at is not None and (names_another or link.is_for_refund):
        whose = f"order {payment.order}" if payment.order else f"user {payment.user_id}"
        raise ConflictError(f"payment {payment.id} was applied to {whose} already")
    if link.order is not None or link.user_id is not None:
        payment = replace(payment, is_linked=True, is_contested=False)
    if payment.applied_at is None and link.order is not None:
        payment = replace(payment, order=link.order, user_id=None)
    elif payment.applied_at is None and link.user_id is not None:
        payment = replace(payment, order=None, user_id=link.user_id)
    return replace(
        payment,
        facts=replace(payment.facts, is_stale=payment.facts.is_stale and not link.is_accepted),
        is_contested=payment.is_contested and not link.is_accepted,
        is_accepted=payment.is_accepted or link.is_accepted,
        is_for_refund=link.is_for_refund or (payment.is_for_refund and not link.is_accepted),
    )


Item = Incoming | Refused | Waiting | Revisit


def tally_key(item: Incoming | Refused | Waiting) -> TallyKey:
    """Under what the statistics count it. Times of arrival are in UTC."""
    if isinstance(item, Waiting):
        return item.received_at.date(), item.source.id, item.signature_method
    method = item.source.provider.signature_method(item.delivery)
    return item.delivery.received_at.date(), item.source.id, method


class Result(StrEnum):
    """What became of an item, in the words of the log."""

    PROCESSED = "processed"
    IGNORED = "ignored"
    DUPLICATE = "duplicate"
    CONFLICT = "conflict"
    UNLINKED = "unlinked"
    ACCEPTED = "accepted"  # stored, to be settled later
    FAILED_RETRYABLE = "failed_retryable"
    FAILED_FINAL = "failed_final"
    DEAD_LETTER = "dead_letter"
    BUSY = "busy"  # a row it needs is locked: nothing was written, it has to come again
    NOT_STORED = "not_stored"  # nothing was written, and whoever sent it has to send it again


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one item."""

    item: Item
    result: Result
    event_id: EventId | None  # of a duplicate: the first one's
    outcome: Outcome | None = None
    decision: Decision | None = None


@dataclass(frozen=True, slots=True)
class Settled:
    """What became of a batch, and the database's time at which it was decided."""

    now: datetime
    verdicts: list[Verdict]
    schedules: bool = False  # whether something is in the queue now that was not there before

    def and_then(self, later: "Settled") -> "Settled":
        """Both, one after the other."""
        schedules = self.schedules or later.schedules
        return Settled(later.now, self.verdicts + later.verdicts, schedules)
