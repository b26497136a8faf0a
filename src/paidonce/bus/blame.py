"""Finds the message at fault when a batch fails: by halves, and then by trying that one alone.

It knows nothing of a bus or a database: it is told what came of each batch, and says how many
messages to take next, and after which pause.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from paidonce.bus.messages import Message

MAX_RERUNS: Final = 20
"""How often in a row a lost race is run again before it counts as a failure."""
RERUN_PAUSE_S: Final = 0.05
MAX_FAILURES_KNOWN: Final = 1_000
PAUSE_AFTER_FAILURE_S: Final = 0.5
_JITTER: Final = 0.2


@dataclass(frozen=True, slots=True)
class Retries:
    """How often a message that fails alone is tried, and after which pauses."""

    attempts: int = 5
    initial_s: float = 1.0
    factor: float = 2.0
    max_s: float = 60.0

    def pause_s(self, times: int) -> float:
        """How long to wait after it has failed this many times."""
        pause_s = min(self.initial_s * self.factor ** (times - 1), self.max_s)
        return pause_s * (1 + _JITTER * random.random())


@dataclass(frozen=True, slots=True)
class Failure:
    """How often a message failed alone, at last with which error, and whether that is enough."""

    attempts: int
    error: str
    is_final: bool


class Blame:
    """What is known of the failures of one consumer."""

    def __init__(self, retries: Retries, max_batch: int) -> None:
        self._retries = retries
        self._max_batch = max_batch
        self._failures: dict[UUID, Failure] = {}
        self._reruns = 0
        self.limit = max_batch
        """How many messages to take next."""

    def final(self, message: Message) -> Failure | None:
        """Why the message is to be buried; nothing if there is hope for it."""
        failure = self._failures.get(message.id)
        return failure if failure is not None and failure.is_final else None

    def succeeded(self, messages: Sequence[Message]) -> None:
        """All of these were taken or buried: take more the next time."""
        for message in messages:
            self._failures.pop(message.id, None)
        self.limit = min(self.limit * 2, self._max_batch)
        self._reruns = 0

    def lost_race(self) -> float | None:
        """Somebody else was first: the pause before the same again, unless that was too often."""
        self._reruns += 1
        if self._reruns <= MAX_RERUNS:
            return RERUN_PAUSE_S * random.random()
        self._reruns = 0
        return None

    def failed(self, messages: Sequence[Message], error: str, *, is_refused: bool = False) -> float:
        """None of these was taken; returns the pause before the next try.

        One that is refused is not tried again.
        """
        self._reruns = 0
        hopeful = [one for one in messages if self.final(one) is None]
        if len(hopeful) == 1:
            return self._failed_alone(hopeful[0], error, is_refused)
        self.limit = max(len(messages) // 2, 1)
        return 0.0 if hopeful else PAUSE_AFTER_FAILURE_S

    def _failed_alone(self, message: Message, error: str, is_refused: bool) -> float:
        before = self._failures.pop(message.id, None)
        attempts = before.attempts + 1 if before else 1
        is_final = is_refused or attempts >= self._retries.attempts
        self._failures[message.id] = Failure(attempts, error, is_final)
        while len(self._failures) > MAX_FAILURES_KNOWN:
            del self._failures[next(iter(self._failures))]
        return 0.0 if is_final else self._retries.pause_s(attempts)
