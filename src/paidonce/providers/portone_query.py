"""PortOne's query API, whichever version is asked: what it says of a payment. A part of `portone`.

PortOne's webhooks only say "look": what counts is what the API answers. It may be further on than
the webhook, never behind it, and it must not contradict it.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, assert_never

from paidonce.domain.email import is_email
from paidonce.domain.events import Code, ExternalId, Ignored, PaymentEvent, Says
from paidonce.domain.money import Money
from paidonce.errors import (
    ConfigurationError,
    GatewayMismatchError,
    GatewayUnreachableError,
    InvalidMoneyError,
    MalformedError,
)
from paidonce.providers.contract import Reply, Setup


class Status(StrEnum):
    """Where a payment stands."""

    READY = "READY"
    VIRTUAL_ACCOUNT_ISSUED = "VIRTUAL_ACCOUNT_ISSUED"
    PAY_PENDING = "PAY_PENDING"
    FAILED = "FAILED"
    PAID = "PAID"
    PARTIAL_CANCELLED = "PARTIAL_CANCELLED"
    CANCELLED = "CANCELLED"


@dataclass(frozen=True, slots=True)
class Notice:
    """What a webhook says, in the words of V2's events."""

    type: str  # one of `REACHED`
    payment_id: str
    order: str | None
    transaction_id: str | None = None
    cancellation_id: str | None = None
    store_id: str | None = None
    occurred_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Payment:
    """What the API says."""

    status: Status
    ids: tuple[ExternalId, ...]
    order: str
    amount: Money
    cancelled: Money  # in all, so far
    is_test: bool
    cancellations: Collection[str] = ()  # those that succeeded, by their ids
    transaction_id: str | None = None
    store_id: str | None = None
    disputes: tuple[bool, ...] = ()  # whether each is resolved
    email: str | None = None
    paid_at: datetime | None = None
    changed_at: datetime | None = None


READY: Final = "Transaction.Ready"
VIRTUAL_ACCOUNT_ISSUED: Final = "Transaction.VirtualAccountIssued"
PAY_PENDING: Final = "Transaction.PayPending"
FAILED: Final = "Transaction.Failed"
PAID: Final = "Transaction.Paid"
CANCEL_PENDING: Final = "Transaction.CancelPending"
PARTIAL_CANCELLED: Final = "Transaction.PartialCancelled"
CANCELLED: Final = "Transaction.Cancelled"
DISPUTE_CREATED: Final = "Transaction.DisputeCreated"
DISPUTE_RESOLVED: Final = "Transaction.DisputeResolved"

REACHED: Final[Mapping[str, Status]] = {
    READY: Status.READY,
    VIRTUAL_ACCOUNT_ISSUED: Status.VIRTUAL_ACCOUNT_ISSUED,
    PAY_PENDING: Status.PAY_PENDING,
    FAILED: Status.FAILED,
    PAID: Status.PAID,
    CANCEL_PENDING: Status.READY,  # only asked for: it says nothing of what was reached
    PARTIAL_CANCELLED: Status.PARTIAL_CANCELLED,
    CANCELLED: Status.CANCELLED,
    DISPUTE_CREATED: Status.PAID,
    DISPUTE_RESOLVED: Status.PAID,
}
"""How far the payment has come by the word of each event; others concern no payment."""

_STEPS: Final = {
    Status.READY: 0,
    Status.VIRTUAL_ACCOUNT_ISSUED: 1,
    Status.PAY_PENDING: 1,
    Status.FAILED: 2,
    Status.PAID: 3,
    Status.PARTIAL_CANCELLED: 4,
    Status.CANCELLED: 5,
}


def event_of(payment: Payment, notice: Notice) -> PaymentEvent:
    """What the API's word means for the payment."""
    says = _says(payment, notice)
    had_money = payment.status in _HAD_MONEY and says is not Says.VOIDED
    return PaymentEvent(
        says=says,
        ids=payment.ids,
        amount=payment.amount if had_money else None,
        refunded=payment.cancelled if says in (Says.REFUNDED, Says.CANCELED) else None,
        order=payment.order,
        email=payment.email,
        occurred_at=payment.changed_at or notice.occurred_at,
        paid_at=payment.paid_at if had_money else None,
    )


def is_behind(payment: Payment, notice: Notice) -> bool:
    """Whether the API has not caught up with the webhook yet.

    Raises GatewayMismatchError when it contradicts it.
    """
    needed, step = _STEPS[REACHED[notice.type]], _STEPS[payment.status]
    is_other_attempt = _is_other_attempt(payment, notice)
    is_about_money = needed >= _STEPS[Status.PAID]
    if is_about_money and payment.status is Status.FAILED and not is_other_attempt:
        # There are gateways that let a payment fail first, and find later that it was paid.
        raise GatewayMismatchError("it failed, and the event says otherwise", may_pass=True)
    if step < needed:
        # A new attempt may have begun since one failed; none begins after one that was paid.
        return is_about_money or not is_other_attempt
    if payment.status is Status.PARTIAL_CANCELLED:
        return _lacks_cancellation(payment, notice)
    return payment.status is Status.PAID and _lacks_dispute(payment, notice)


def check_same(name: str, said: str | None, found: str | None) -> None:
    """Raises GatewayMismatchError unless they agree. What the webhook does not name, agrees."""
    if said is not None and said != found:
        raise GatewayMismatchError(f"its {name} is another than the event's")


def of_test_channel(payment: Payment, accepts_test: bool) -> Ignored | None:
    """Why a payment of a test channel does not count, if it is one and they do not."""
    if accepts_test or not payment.is_test:
        return None
    return Ignored(Code.TEST_PAYMENT, "it was paid through a test channel")


def check_answer(reply: Reply, remedy: str) -> None:
    """Raises GatewayUnreachableError unless the API answered what it was asked."""
    if reply.status in (401, 403):
        raise GatewayUnreachableError(f"it lets nobody in with our key ({reply.status}): {remedy}")
    if reply.status != 200:
        raise GatewayUnreachableError(f"it answers {reply.status}")


def read_reply(read: Callable[[Mapping[str, Any]], Payment], found: Mapping[str, Any]) -> Payment:
    """The payment, as the reader finds it. Raises GatewayUnreachableError when it cannot."""
    try:
        return read(found)
    except (MalformedError, InvalidMoneyError) as error:
        raise GatewayUnreachableError(f"its reply cannot be read: {error}") from None


def api_url(setup: Setup, usual: str) -> str:
    """Where the API is. Raises ConfigurationError."""
    url = setup.needed_text("api_url", usual) if "api_url" in setup.options else usual
    if not url.startswith(("https://", "http://")):
        raise ConfigurationError(f"{setup.key}.api_url = {url!r}: write it as {usual!r}")
    return url.rstrip("/")


def needed_key(setup: Setup, option: str, example: str) -> str:
    """A key of the API, as a header can carry it. Raises ConfigurationError."""
    key = setup.needed_secret_text(option, example).strip()
    if not (key.isascii() and key.isprintable()):
        raise ConfigurationError(f"{setup.key}.{option} (hidden): holds what no key can")
    return key


def email_of(value: Any) -> str | None:
    """The buyer's address, if it is one."""
    given = value.strip() if isinstance(value, str) else ""
    return given if is_email(given) else None


_HAD_MONEY: Final = frozenset({Status.PAID, Status.PARTIAL_CANCELLED, Status.CANCELLED})


def _says(payment: Payment, notice: Notice) -> Says:
    match payment.status:
        case Status.READY | Status.VIRTUAL_ACCOUNT_ISSUED:
            return Says.PENDING
        case Status.PAY_PENDING:
            return Says.PROCESSING
        case Status.FAILED:
            return Says.FAILED
        case Status.PAID:
            return _says_of_paid(payment, notice)
        case Status.PARTIAL_CANCELLED:
            return Says.REFUNDED
        case Status.CANCELLED:
            # A virtual account can be given up before anybody has paid into it.
            was_paid = payment.paid_at is not None or payment.cancelled.amount_minor > 0
            return Says.CANCELED if was_paid else Says.VOIDED
        case _:
            assert_never(payment.status)


def _says_of_paid(payment: Payment, notice: Notice) -> Says:
    """A dispute is told by its own events only: others may come late, and bring the money."""
    if notice.type not in (DISPUTE_CREATED, DISPUTE_RESOLVED):
        return Says.PAID
    return Says.DISPUTE_WON if all(payment.disputes) else Says.DISPUTED


def _is_other_attempt(payment: Payment, notice: Notice) -> bool:
    said, found = notice.transaction_id, payment.transaction_id
    return said is not None and found is not None and said != found


def _lacks_cancellation(payment: Payment, notice: Notice) -> bool:
    """Whether the event is of a cancellation that the sum does not hold yet.

    Where the API names none, its status has to do.
    """
    named, known = notice.cancellation_id, payment.cancellations
    is_of_one = notice.type == PARTIAL_CANCELLED and named is not None
    return is_of_one and bool(known) and named not in known


def _lacks_dispute(payment: Payment, notice: Notice) -> bool:
    """Whether the event is of a dispute, or its end, that the API does not list yet."""
    if notice.type == DISPUTE_CREATED:
        return not payment.disputes
    return notice.type == DISPUTE_RESOLVED and not any(payment.disputes)
