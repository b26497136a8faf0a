"""What the statistics count: deliveries by day, source and signature method, and their ends."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date
from typing import Final

from paidonce.domain.events import EventStatus, SourceId

TallyKey = tuple[date, SourceId, str]
"""The UTC day of arrival, the source and the signature method of a delivery."""

TallyRow = tuple[date, SourceId, str, int, int, int, int, int]
"""A key and the five numbers below, in their order."""

_RECEIVED: Final = 0
_DUPLICATES: Final = 1
_WAITING: Final = 2
_SUCCEEDED: Final = 3
_FAILED: Final = 4

_COUNTED_AS: Final = {
    EventStatus.RECEIVED: _WAITING,
    EventStatus.VALIDATED: _WAITING,
    EventStatus.FAILED_RETRYABLE: _WAITING,
    EventStatus.PROCESSED: _SUCCEEDED,
    EventStatus.IGNORED: _SUCCEEDED,
    EventStatus.FAILED_FINAL: _FAILED,
    EventStatus.DEAD_LETTER: _FAILED,
}
"""Conflicts and refused deliveries are FAILED_FINAL too."""


@dataclass(slots=True)
class Tally:
    """How some deliveries change the counts. What ends after it has waited counts as one less."""

    _numbers: dict[TallyKey, list[int]] = field(default_factory=dict)

    def received(self, key: TallyKey, status: EventStatus, *, is_delivery: bool = True) -> None:
        """A delivery that is an event now, or a further event of one that was counted."""
        numbers = self._of(key)
        numbers[_RECEIVED] += is_delivery
        numbers[_COUNTED_AS[status]] += 1

    def repeated(self, key: TallyKey) -> None:
        """A delivery of an event that is there already."""
        numbers = self._of(key)
        numbers[_RECEIVED] += 1
        numbers[_DUPLICATES] += 1

    def moved(self, key: TallyKey, before: EventStatus, after: EventStatus) -> None:
        """An event that was counted before has another status now."""
        lost, won = _COUNTED_AS[before], _COUNTED_AS[after]
        if lost != won:
            numbers = self._of(key)
            numbers[lost] -= 1
            numbers[won] += 1

    def add(self, other: "Tally") -> None:
        """Count what the other one has counted."""
        for key, numbers in other._numbers.items():
            mine = self._of(key)
            for position, number in enumerate(numbers):
                mine[position] += number

    def rows(self) -> list[TallyRow]:
        """A row for each key of which anything has changed."""
        return list(self._rows())

    def _rows(self) -> Iterator[TallyRow]:
        for key, numbers in self._numbers.items():
            if any(numbers):
                received, duplicates, waiting, succeeded, failed = numbers
                yield (*key, received, duplicates, waiting, succeeded, failed)

    def _of(self, key: TallyKey) -> list[int]:
        numbers = self._numbers.get(key)
        if numbers is None:
            numbers = self._numbers[key] = [0, 0, 0, 0, 0]
        return numbers
