"""A dictionary that cannot grow without end."""

from collections import OrderedDict
from typing import Final, TypeVar

K = TypeVar("K")
V = TypeVar("V")

MAX_ENTRIES: Final = 100_000


class Bounded(OrderedDict[K, V]):
    """Forgets what was put the longest ago when it is full. To read costs what it always costs."""

    def __init__(self, limit: int = MAX_ENTRIES) -> None:
        super().__init__()
        self._limit = limit

    def put(self, key: K, value: V) -> None:
        """Remember it as the newest."""
        self[key] = value
        self.move_to_end(key)
        if len(self) > self._limit:
            self.popitem(last=False)
