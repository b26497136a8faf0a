"""New events as they arrive, for whoever wants to watch."""

from collections import OrderedDict
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

from paidonce.operations.events import EventVerbs
from paidonce.views import EventView

LOOK_BACK: Final = timedelta(seconds=10)
"""Ids are made on arrival and seen at the commit, so that an older one may turn up later."""
PAGE: Final = 500
MAX_PAGES: Final = 20
MAX_REMEMBERED: Final = 50_000


class Following:
    """Asks again and again; each event is told once, the oldest first."""

    def __init__(self, verbs: EventVerbs, **filters: Any) -> None:
        self._verbs = verbs
        self._filters = filters
        self._began_at = datetime.now(UTC)
        self._told: OrderedDict[UUID, None] = OrderedDict()

    async def look(self) -> list[EventView]:
        """What has arrived since the last look. Of a flood, the newest PAGE * MAX_PAGES."""
        since = max(self._began_at, datetime.now(UTC) - LOOK_BACK)
        new: list[EventView] = []
        cursor: UUID | None = None
        for _ in range(MAX_PAGES):
            found = await self._verbs.events(
                limit=PAGE, since=since, cursor=cursor, **self._filters
            )
            new += [one for one in found.items if one.id not in self._told]
            cursor = found.next_cursor
            if cursor is None:
                break
        for one in reversed(new):
            self._told[one.id] = None
        while len(self._told) > MAX_REMEMBERED:
            self._told.popitem(last=False)
        return new[::-1]
