"""Statistics."""

from typing import Annotated

from fastapi import FastAPI, Query

from paidonce.operations.statistics import DEFAULT_DAYS, MAX_DAYS
from paidonce.views import Statistics
from paidonce.web.api.shapes import Text
from paidonce.web.auth import Reader, Verbs

Days = Annotated[int, Query(ge=1, le=MAX_DAYS)]


def add_to(api: FastAPI) -> None:
    """Add this call."""

    @api.get("/api/v1/stats", tags=["statistics"])
    async def get_statistics(
        verbs: Verbs, actor: Reader, days: Days = DEFAULT_DAYS, source: Text | None = None
    ) -> Statistics:
        """What was received in the last days, today included, and what became of it."""
        return await verbs.statistics(days=days, source=source)
