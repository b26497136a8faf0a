"""Callbacks: webhook events of the gateway that carries out payments out of a wallet (SVC-1)."""

from enum import StrEnum
from typing import Final, assert_never

from paidonce.core.events import Code, EventStatus, EventType, Outcome

CALLBACK_DELAYS_S: Final = (
    1.0, 2.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3_600.0, 10_800.0, 21_600.0, 43_200.0,
)  # fmt: skip
"""When a callback without a payment is tried first, and after each attempt.

The last delay is repeated; with the default number of attempts that is more than three days.
"""


class GatewayStatus(StrEnum):
    """The status of a transaction at the gateway."""

    PENDING = "pending"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


NO_CALLBACK: Final = Outcome(
    EventStatus.FAILED_FINAL,
    Code.NON_SUCCESS_STATUS,
    "refunds and disputes of payments out of a wallet are handled by a person",
)
"""The outcome of an event that is no callback of a payment."""


def gateway_status_of(event_type: EventType) -> GatewayStatus | None:
    """The status that a webhook event reports; None if it reports something else."""
    match event_type:
        case EventType.PAID:
            return GatewayStatus.SUCCEEDED
        case EventType.FAILED | EventType.VOIDED:
            return GatewayStatus.FAILED
        case EventType.PENDING | EventType.PROCESSING:
            return GatewayStatus.PENDING
        case EventType.CANCELED | EventType.REFUNDED | EventType.DISPUTED | EventType.DISPUTE_WON:
            return None  # the money was returned, or may be
        case EventType.UNREADABLE:
            return None
        case _:
            assert_never(event_type)
