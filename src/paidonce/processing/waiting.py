"""What the queue keeps of an event from one attempt to the next."""

import random
from dataclasses import dataclass, replace
from datetime import datetime
from enum import IntEnum
from typing import Final

from paidonce.core.events import Code, EventStatus, Outcome, Reason
from paidonce.core.retry import SLOW_RETRY_CODES, RetryPolicy

MAX_ATTEMPTS: Final = 32_767
"""More attempts are not counted."""


class Lane(IntEnum):
    """Whose turn it is to be looked up: a lower lane goes first.

    A payment or an order that exists here makes a delivery known; a sender is proven if the gateway
    confirmed news from it before. Signed deliveries need neither.
    """

    FIRST = 0  # signed, or known and from a proven sender
    KNOWN = 1
    PROVEN = 2
    STRANGER = 3


UNPROVEN: Final = frozenset({Lane.KNOWN, Lane.STRANGER})
"""Anybody may have sent these: they never take all places at a gateway."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """What the queue keeps of an event, besides when and where it waits."""

    faults: int = 0  # how many of the attempts were failures of ours
    handler_failures: int = 0
    lane: Lane = Lane.FIRST
    sender: str | None = None  # of an unsigned delivery
    subject: bytes | None = None  # digest of the payment or order that it is known by
    scheduled_at: datetime | None = None  # when the next attempt counts
    redelivered_at: datetime | None = None  # when a redelivery last made it due

    def is_extra(self, outcome: Outcome, now: datetime) -> bool:
        """Whether a failed attempt does not count: a redelivery or an operator caused it."""
        is_early = self.scheduled_at is not None and self.scheduled_at > now
        return is_early and outcome.status is EventStatus.FAILED_RETRYABLE

    def next_attempt(
        self,
        policy: RetryPolicy,
        code: Reason,
        count: "AttemptCount",
        now: datetime,
        is_extra: bool,
    ) -> datetime:
        """When a failed event is tried again; after an extra attempt, no later than before."""
        failures = max(count.failures(code), 1)
        run_at = now + policy.delay(code, failures, 1.0 if is_extra else random.random())
        return min(run_at, self.scheduled_at) if is_extra and self.scheduled_at else run_at

    def after(self, count: "AttemptCount") -> "Waiting":
        """The same after an attempt: the next one counts."""
        return replace(
            self,
            faults=count.faults,
            handler_failures=count.handler_failures,
            scheduled_at=None,
        )


NOT_WAITING: Final = Waiting()


@dataclass(frozen=True, slots=True)
class AttemptCount:
    """How often an event was tried, and how often we or a handler failed."""

    received_at: datetime
    attempts: int = 0
    faults: int = 0
    handler_failures: int = 0

    def after(self, outcome: Outcome) -> "AttemptCount":
        """The count after an attempt with this outcome. Storing an event for later is none."""
        if outcome.status is EventStatus.VALIDATED:
            return self
        is_retryable = outcome.status is EventStatus.FAILED_RETRYABLE
        is_of_handler = is_retryable and outcome.code is Code.HANDLER_FAILED
        is_fault = is_retryable and not is_of_handler and outcome.code not in SLOW_RETRY_CODES
        return AttemptCount(
            self.received_at,
            min(self.attempts + 1, MAX_ATTEMPTS),
            min(self.faults + is_fault, MAX_ATTEMPTS),
            min(self.handler_failures + is_of_handler, MAX_ATTEMPTS),
        )

    def failures(self, code: Reason) -> int:
        """How many attempts count for the retry schedule of this code."""
        if code is Code.HANDLER_FAILED:
            return self.handler_failures
        if code in SLOW_RETRY_CODES:
            return self.attempts - self.faults - self.handler_failures
        return self.faults
