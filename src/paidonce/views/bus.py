"""How far the bus is behind, and what could not be taken from it."""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID


@dataclass(frozen=True, slots=True)
class GroupView:
    """A group of consumers in one topic. It has come for messages at `seen_at` last.

    That is `absent_s` seconds ago.
    """

    consumer: str
    about: str
    lag: int
    seen_at: datetime
    absent_s: float


@dataclass(frozen=True, slots=True)
class BusView:
    """What is not published yet, and what of the rest each group has not taken.

    Numbers are counted up to 100,000.
    """

    unpublished: int
    oldest_unpublished_s: float
    groups: list[GroupView]
    dead_letters: dict[str, int]

    def absences(self) -> dict[str, float]:
        """For how long each group was not seen in any of its topics: it may have left one."""
        found: dict[str, float] = {}
        for one in self.groups:
            found[one.consumer] = min(one.absent_s, found.get(one.consumer, one.absent_s))
        return found


@dataclass(frozen=True, slots=True)
class DeadMessageView:
    """A message that a group could not take. With `retried_at` the group is to get it again.

    With `discarded_at` nobody wants it any more: who said so, and why.
    """

    id: int
    consumer: str
    event_id: UUID
    topic: str
    key: str
    type: str
    error: str
    attempts: int
    died_at: datetime
    retried_at: datetime | None
    discarded_at: datetime | None
    discarded_by: str | None
    discard_reason: str | None


@dataclass(frozen=True, slots=True)
class DeadMessagesView:
    """How many dead letters were retried or discarded, or would be, and whether more match."""

    number: int
    more: bool
    dry_run: bool
