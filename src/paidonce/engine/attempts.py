"""How often an event was tried, and what an attempt came to in the words of the log."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from paidonce.domain.events import Code, EventStatus, Outcome, Reason
from paidonce.engine.items import Result
from paidonce.engine.retry import WAITS_FOR_OTHERS

MAX_ATTEMPTS: Final = 32_767
"""More are not counted: each redelivery of an event that waits is one."""


@dataclass(frozen=True, slots=True)
class Tried:
    """How often an event was tried: in all, and in vain for a fault of ours."""

    received_at: datetime
    attempts: int = 0
    faults: int = 0

    def again(self, outcome: Outcome) -> "Tried":
        """The count after an attempt with this outcome; being stored for later is none."""
        if outcome.status is EventStatus.VALIDATED:
            return self
        is_fault = outcome.status is EventStatus.FAILED_RETRYABLE and not _waits(outcome)
        attempts = min(self.attempts + 1, MAX_ATTEMPTS)
        return Tried(self.received_at, attempts, min(self.faults + is_fault, MAX_ATTEMPTS))

    def times(self, code: Reason) -> int:
        """How many of the attempts ended like the last one, which had this code."""
        return self.attempts - self.faults if code in WAITS_FOR_OTHERS else self.faults


def result_of(outcome: Outcome) -> Result:
    """What an attempt with this outcome came to."""
    is_away = outcome.code is Code.PROVIDER_UNREACHABLE
    if outcome.status is EventStatus.FAILED_RETRYABLE and _waits(outcome) and not is_away:
        return Result.UNLINKED
    return _RESULTS[outcome.status]


_RESULTS: Final = {
    EventStatus.PROCESSED: Result.PROCESSED,
    EventStatus.IGNORED: Result.IGNORED,
    EventStatus.FAILED_FINAL: Result.FAILED_FINAL,
    EventStatus.FAILED_RETRYABLE: Result.FAILED_RETRYABLE,
    EventStatus.DEAD_LETTER: Result.DEAD_LETTER,
    EventStatus.RECEIVED: Result.ACCEPTED,
    EventStatus.VALIDATED: Result.ACCEPTED,
}


def _waits(outcome: Outcome) -> bool:
    return outcome.code in WAITS_FOR_OTHERS
