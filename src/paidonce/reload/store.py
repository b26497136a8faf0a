"""What a reload changes in the database."""

from collections.abc import Sequence
from typing import Final

from paidonce.db.pool import Database
from paidonce.db.queries import load_queries

QUERIES: Final = load_queries(__file__)


async def hurry(database: Database, sources: Sequence[str]) -> None:
    """Make the events of these sources due, which waited until somebody knows their source."""
    async with database.connection() as connection:
        await QUERIES["hurry"].run(connection, names=list(sources))
