"""Finds the message that makes a batch fail: smaller and smaller batches, until it fails alone.

`runtime.bisect` does not fit here: it goes on with the rest of a batch, while messages that follow
the failed one have to wait for it, to keep their order.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple
from uuid import UUID

from paidonce.bus.model import Message
from paidonce.runtime.service import Backoff

MAX_RERUNS: Final = 20
"""How many lost races in a row do not count as a failure."""
RERUN_PAUSE_S: Final = 0.05
MAX_FAILURES_KEPT: Final = 1_000
PAUSE_AFTER_FAILURE_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class Retries(Backoff):
    """How often a message that fails alone is tried, and after which delays."""

    attempts: int = 5


class MessageFailure(NamedTuple):
    """How often a message failed alone, the last error, and whether it is a dead letter now."""

    attempts: int
    error: str
    is_final: bool


class BatchBisection:
    """The failures of one consumer, and the size of its next batch."""

    def __init__(self, retries: Retries, max_batch: int) -> None:
        self._retries = retries
        self._max_batch = max_batch
        self._failures: dict[UUID, MessageFailure] = {}
        self._reruns = 0
        self.limit = max_batch
        """The size of the next batch."""

    def final_failure(self, message: Message) -> MessageFailure | None:
        """The failure that makes the message a dead letter; None while it may still succeed."""
        failure = self._failures.get(message.id)
        return failure if failure is not None and failure.is_final else None

    def succeeded(self, messages: Sequence[Message]) -> None:
        """These were consumed or became dead letters: the next batch may be larger."""
        for message in messages:
            self._failures.pop(message.id, None)
        self.limit = min(self.limit * 2, self._max_batch)
        self._reruns = 0

    def lost_race(self) -> float | None:
        """Count a lost race; returns the pause before a rerun, None after too many in a row."""
        self._reruns += 1
        if self._reruns <= MAX_RERUNS:
            return RERUN_PAUSE_S * random.random()
        self._reruns = 0
        return None

    def failed(self, messages: Sequence[Message], error: str, *, is_refused: bool = False) -> float:
        """None of these was consumed; returns the pause before the next try.

        A refused message is not tried again.
        """
        self._reruns = 0
        tried = [one for one in messages if self.final_failure(one) is None]
        if len(tried) == 1:
            return self._failed_alone(tried[0], error, is_refused)
        self.limit = max(len(messages) // 2, 1)
        return 0.0 if tried else PAUSE_AFTER_FAILURE_S

    def _failed_alone(self, message: Message, error: str, is_refused: bool) -> float:
        before = self._failures.pop(message.id, None)
        attempts = before.attempts + 1 if before else 1
        is_final = is_refused or attempts >= self._retries.attempts
        self._failures[message.id] = MessageFailure(attempts, error, is_final)
        while len(self._failures) > MAX_FAILURES_KEPT:
            del self._failures[next(iter(self._failures))]
        return 0.0 if is_final else self._retries.delay_s(attempts)
