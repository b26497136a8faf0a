"""Counts for the statistics: deliveries and results by day, source and signature method."""

from dataclasses import dataclass, field
from datetime import date
from typing import Final

from paidonce.core.events import EventStatus, SourceId

TallyKey = tuple[date, SourceId, str]
"""The UTC day of arrival, the source and the signature method of a delivery."""

TallyRow = tuple[object, ...]
"""A key, and the six counts below in their order."""

_RECEIVED, _DUPLICATES, _WAITING, _SUCCEEDED, _FAILED, _REJECTED = range(6)

_COUNTED_AS: Final = {
    EventStatus.VALIDATED: _WAITING,
    EventStatus.FAILED_RETRYABLE: _WAITING,
    EventStatus.PROCESSED: _SUCCEEDED,
    EventStatus.IGNORED: _SUCCEEDED,
    EventStatus.FAILED_FINAL: _FAILED,
    EventStatus.DEAD_LETTER: _FAILED,
}
"""Conflicts and authentic deliveries that are refused are FAILED_FINAL, too."""


@dataclass(slots=True)
class Tally:
    """How a batch changes the counts. A count of waiting events can decrease."""

    _numbers: dict[TallyKey, list[int]] = field(default_factory=dict)

    def add_event(self, key: TallyKey, status: EventStatus, *, is_delivery: bool = True) -> None:
        """Count an event, and its delivery unless that was counted with another event."""
        numbers = self._of(key)
        numbers[_RECEIVED] += is_delivery
        numbers[_COUNTED_AS[status]] += 1

    def add_duplicate(self, key: TallyKey) -> None:
        """Count a delivery of a known event."""
        numbers = self._of(key)
        numbers[_RECEIVED] += 1
        numbers[_DUPLICATES] += 1

    def add_rejected(self, key: TallyKey) -> None:
        """Count a delivery that failed verification: it is neither a success nor a failure."""
        numbers = self._of(key)
        numbers[_RECEIVED] += 1
        numbers[_REJECTED] += 1

    def move(self, key: TallyKey, before: EventStatus, after: EventStatus) -> None:
        old, new = _COUNTED_AS[before], _COUNTED_AS[after]
        if old != new:
            numbers = self._of(key)
            numbers[old] -= 1
            numbers[new] += 1

    def add(self, other: "Tally") -> None:
        for key, numbers in other._numbers.items():
            mine = self._of(key)
            for position, number in enumerate(numbers):
                mine[position] += number

    def rows(self) -> list[TallyRow]:
        """A row for each key with a change."""
        return [(*key, *numbers) for key, numbers in self._numbers.items() if any(numbers)]

    def _of(self, key: TallyKey) -> list[int]:
        numbers = self._numbers.get(key)
        if numbers is None:
            numbers = self._numbers[key] = [0, 0, 0, 0, 0, 0]
        return numbers
