"""What operators can ask about the audit log."""

from paidonce.audit import store
from paidonce.audit.model import AuditQuery, AuditView, audit_view
from paidonce.db.paging import Page
from paidonce.db.pool import Database


class AuditService:
    """Searches the audit log."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def search(self, query: AuditQuery) -> Page[AuditView]:
        """Entries, newest first."""
        async with self._database.connection() as connection:
            return (await store.search(connection, query)).map(audit_view)
