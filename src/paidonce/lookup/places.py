"""Which due lookups may start: how many places each gateway has, and who takes them."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from paidonce.core.events import EventId, SourceId
from paidonce.processing.waiting import UNPROVEN, Lane


@dataclass(frozen=True, slots=True)
class Found:
    """A due lookup."""

    source_id: SourceId
    event_id: EventId
    lane: Lane


class Places:
    """The lookups that run, and the places that are left.

    At each gateway, half of the places are for what anybody may have sent, and one of these is
    theirs alone: so neither strangers nor the others ever wait without end.
    """

    def __init__(self, max_of_source: int) -> None:
        self.max_of_source = max_of_source
        self._max_unproven = max(max_of_source // 2, 1)
        self._running: dict[EventId, Found] = {}

    @property
    def running(self) -> list[EventId]:
        return list(self._running)

    @property
    def sources(self) -> set[SourceId]:
        return {one.source_id for one in self._running.values()}

    def count(self, source_id: SourceId) -> int:
        """How many lookups of this source run."""
        return sum(one.source_id == source_id for one in self._running.values())

    def take(self, found: Found) -> None:
        self._running[found.event_id] = found

    def free(self, event_id: EventId) -> None:
        del self._running[event_id]

    def choose(self, due: Iterable[Found], room: Mapping[SourceId, int]) -> list[Found]:
        """The lookups to start, of those in the order of their turns."""
        due = list({one.event_id: one for one in reversed(list(due))}.values())[::-1]
        left = Counter(room)
        unproven = Counter(one.source_id for one in self._running.values() if one.lane in UNPROVEN)
        chosen: list[Found] = []
        for one in self._reserved(due, left, unproven) + due:
            is_unproven = one.lane in UNPROVEN
            is_over = is_unproven and unproven[one.source_id] >= self._max_unproven
            if left[one.source_id] <= 0 or is_over or one in chosen:
                continue
            left[one.source_id] -= 1
            unproven[one.source_id] += is_unproven
            chosen.append(one)
        return chosen

    def _reserved(
        self, due: list[Found], left: Mapping[SourceId, int], unproven: Mapping[SourceId, int]
    ) -> list[Found]:
        """The first stranger of each source where none runs and there are several places."""
        if self.max_of_source == 1:
            return []
        firsts: dict[SourceId, Found] = {}
        for one in due:
            if one.lane in UNPROVEN and not unproven[one.source_id]:
                firsts.setdefault(one.source_id, one)
        # The only place after a failure is not one of several.
        return [
            one
            for one in firsts.values()
            if left[one.source_id] > 1 or (left[one.source_id] and self.count(one.source_id))
        ]
