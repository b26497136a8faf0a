"""Payments as operators see them, and how they are searched."""

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Final
from uuid import UUID

import orjson
from pydantic import Field, StringConstraints
from typing_extensions import TypedDict

from paidonce.audit.model import TrailItem
from paidonce.core.facts import PaymentStatus
from paidonce.core.input import Reason, Text, Time
from paidonce.core.money import format_minor
from paidonce.core.operator_refunds import MAX_REFUND_ID
from paidonce.db.paging import ListQuery
from paidonce.db.queries import Row, from_row

_MAIN_KINDS: Final = ("payment", "charge", "transaction", "order", "session", "checkout", "invoice")
"""Which kind of id stands for a payment, best first. An event lists its ids in this order, too."""


class PaymentQuery(ListQuery):
    """Which payments."""

    source: Text | None = Field(None, description="From this source.")
    status: PaymentStatus | None = Field(None, description="With this status.")
    applied: bool | None = Field(
        None,
        description="Applied, or not applied: money that was received and had no effect.",
        json_schema_extra={"option": "--applied/--not-applied"},
    )
    disputed: bool | None = Field(
        None,
        description="With a dispute that was not won, or without one.",
        json_schema_extra={"option": "--disputed/--not-disputed"},
    )
    email: Text | None = Field(None, description="Paid under this e-mail address.")
    order: Text | None = Field(None, description="For the order with this reference.")
    external_payment_id: Text | None = Field(
        None, description="That a gateway knows by this id, of any kind."
    )
    review: Text | None = Field(
        None, description="That need a review for this reason, such as `AMOUNT_MISMATCH`."
    )


class RefundRequest(Reason):
    """A refund that was made elsewhere, in the currency of the payment.

    `refund_id` makes it count once, and is your own or the gateway's. If the gateway reports the
    refund as well, it counts once. With `outside_gateway` (cash, a bank transfer) it is added to
    what the gateway reports.
    """

    refund_id: Annotated[Text, StringConstraints(min_length=1, max_length=MAX_REFUND_ID)] = Field(
        description="The id of the refund: it counts once."
    )
    amount: Text = Field(description="The amount, in the currency of the payment.")
    occurred_at: Time | None = Field(None, description="When it was made; now if not given.")
    outside_gateway: bool = Field(
        False,
        description="The gateway does not know of it, as cash.",
        json_schema_extra={"option": "--outside-gateway"},
    )


@dataclass(frozen=True, slots=True)
class ExternalIdView:
    kind: str
    id: str


AcceptedView = TypedDict(  # a class could not have the field `for`
    "AcceptedView",
    {"by": str, "at": datetime, "reason": str, "amount": str, "for": str | None},
)
"""Who accepted the payment, when and why: which captured sum, for which order or plan."""


@dataclass(frozen=True, slots=True)
class PaymentView:
    """A payment.

    `external_payment_id` is the gateway's id of kind `payment`; without one, its best other id,
    such as that of a charge. `review` is the reason why a person should look at it, or null.
    `unapplied_s` is the age of money that was received and is not applied, or null. `excess` is
    money of an applied payment above what was applied, as far as it was not refunded. `disputed_at`
    is the time of a dispute that was not won, and `dispute_answer_by` the deadline for an answer,
    if the gateway sends one.
    """

    id: UUID
    source: str
    external_payment_id: str | None
    ids: list[ExternalIdView]
    order: str | None
    user_id: UUID | None
    email: str | None
    plan_id: str | None
    status: PaymentStatus
    amount: str
    captured: str
    refunded: str
    reversed: str
    excess: str
    currency: str | None
    paid_at: datetime | None
    failed_at: datetime | None
    canceled_at: datetime | None
    refunded_at: datetime | None
    disputed_at: datetime | None
    dispute_answer_by: datetime | None
    applied_at: datetime | None
    subscription_id: UUID | None
    review: str | None
    accepted: AcceptedView | None
    unapplied_s: int | None
    transaction_id: str | None
    created_at: datetime
    test: bool


@dataclass(frozen=True, slots=True)
class PaymentDetail(PaymentView):
    """A payment with its trail: what operators did with it, the oldest first."""

    trail: list[TrailItem]


def payment_view(row: Row) -> PaymentView:
    """From a row of the search."""
    return from_row(PaymentView, row, **_changed(row))


def payment_detail(row: Row, trail: list[TrailItem]) -> PaymentDetail:
    """From a row of the search, and the trail of the payment."""
    return from_row(PaymentDetail, row, **_changed(row), trail=trail)


def _changed(row: Row) -> dict[str, Any]:
    """The fields that are not as in the row."""
    ids = [ExternalIdView(kind, external_id) for kind, external_id in row["ids"]]
    captured = format_amount(row["captured_minor"], row["currency"])
    return {
        "external_payment_id": _main_id(ids),
        "ids": ids,
        "status": PaymentStatus(row["status"]),
        "amount": captured,
        "captured": captured,
        "refunded": format_amount(row["refunded_minor"], row["currency"]),
        "reversed": format_amount(row["reversed_minor"], row["currency"]),
        "excess": format_amount(row["excess_minor"], row["currency"]),
        "accepted": _accepted_view(row["acceptance"]) if row["acceptance"] else None,
    }


def _main_id(ids: list[ExternalIdView]) -> str | None:
    """The id that stands for the payment. There is none only if it has no ids at all."""
    ranks = {kind: rank for rank, kind in enumerate(_MAIN_KINDS)}
    main = min(ids, key=lambda one: ranks.get(one.kind, len(ranks)), default=None)
    return main.id if main else None


def _accepted_view(acceptance: str) -> AcceptedView:
    cells = orjson.loads(acceptance)
    return {
        "by": cells["by"],
        "at": datetime.fromisoformat(cells["at"]),
        "reason": cells["reason"],
        "amount": format_minor(cells["amount_minor"], cells["currency"]),
        "for": cells["for"],
    }


def format_amount(amount_minor: int, currency: str | None) -> str:
    """The amount as a decimal; in minor units while the currency is not known."""
    return format_minor(amount_minor, currency) if currency else str(amount_minor)
