"""Users of the model: their ids and addresses, and what operators did with their subscriptions.

Each thing that is known here was an answer. Answers may be recorded in any order.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass
class People:
    """USR-1 USR-2 USR-4 FUL-9"""

    ids: dict[str, set[str]] = field(default_factory=dict)
    """By address, all users that were created with it: later ones have larger ids."""
    merged: dict[str, str] = field(default_factory=dict)
    """Which user remains, by the id of the other."""
    erased: set[str] = field(default_factory=set)
    canceled: dict[str, str] = field(default_factory=dict)
    """Whose subscription is canceled, and when it ends: now, period_end, or either of them."""
    in_time: set[str] = field(default_factory=set)
    """The payments that were applied when a subscription had just been canceled."""

    def add(self, email: str, user_id: str) -> None:
        self.ids.setdefault(email, set()).add(user_id)

    def remaining(self, user_id: str) -> str:
        return self._line(user_id)[-1]

    def newest(self, email: str) -> str | None:
        """The user who was last created with this address, maybe merged or erased since."""
        return max(self.ids.get(email, ()), default=None)

    def owner(self, email: str) -> str | None:
        """Whom the address leads to."""
        newest = self.newest(email)
        line = self._line(newest) if newest else []
        return None if self.erased & {*line} or not line else line[-1]

    def __contains__(self, email: object) -> bool:
        return isinstance(email, str) and self.owner(email) is not None

    def owners(self, email: str) -> set[str]:
        """All who may have what was for this address."""
        return {self.remaining(one) for one in self.ids.get(email, ())}

    def all(self) -> Iterator[str]:
        """Everybody who was not merged into somebody else."""
        yield from {self.remaining(one) for each in self.ids.values() for one in each}

    def is_late(self, user_id: str, payment: str) -> bool:
        """Whether the payment came after the subscription had been canceled."""
        return user_id in self.canceled and payment not in self.in_time

    def _line(self, user_id: str) -> list[str]:
        """The user, and those it was merged into, one after the other."""
        found = [user_id]
        while found[-1] in self.merged:
            found.append(self.merged[found[-1]])
        return found
