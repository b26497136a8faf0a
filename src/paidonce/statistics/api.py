"""HTTP route of the statistics."""

from typing import Annotated

from fastapi import FastAPI, Query

from paidonce.api.requests import Reader
from paidonce.core.input import Text
from paidonce.statistics.model import Statistics
from paidonce.statistics.service import DEFAULT_DAYS, MAX_DAYS, StatisticsService

Days = Annotated[int, Query(ge=1, le=MAX_DAYS)]


def add_to(api: FastAPI, statistics: StatisticsService) -> None:
    @api.get("/api/v1/stats", tags=["statistics"])
    async def get_statistics(
        actor: Reader, days: Days = DEFAULT_DAYS, source: Text | None = None
    ) -> Statistics:
        """Deliveries of the last days, today included, and their results."""
        return await statistics.report(days=days, source=source)
