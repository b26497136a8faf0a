"""What operators can ask about notifications."""

from paidonce.db.pool import Database
from paidonce.notifications import store
from paidonce.notifications.model import PendingCount, Routes


class NotificationService:
    """Notifications that are not sent yet."""

    def __init__(self, database: Database, routes: Routes) -> None:
        self._database = database
        self._channels = sorted({name for names in routes.values() for name in names})

    async def pending(self) -> list[PendingCount]:
        """The number of pending notifications of each channel, and the age of the oldest."""
        if not self._channels:
            return []
        async with self._database.connection() as connection:
            return await store.count_pending(connection, self._channels)
