"""Opens the database: starts it if it is the embedded one, and migrates its schema."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from paidonce.db.embedded.server import SUPERVISE_INTERVAL_S, EmbeddedPostgres
from paidonce.db.pool import Database, explain_missing_privileges, open_database, redact_url
from paidonce.db.schema import database_time, ensure_partitions, migrate
from paidonce.errors import ConfigurationError, DatabaseUnavailableError
from paidonce.runtime.service import Service, Supervisor
from paidonce.settings import Settings
from paidonce.telemetry import logger

log = logger(__name__)


@asynccontextmanager
async def open_migrated_database(settings: Settings) -> AsyncIterator[Database]:
    """The database, started if it is the embedded one, with its schema up to date.

    Raises ConfigurationError when it cannot be reached.
    """
    if not settings.database.is_embedded:
        async with _migrated(settings.database.url) as database:
            yield database
        return
    embedded = EmbeddedPostgres(settings.database.data_dir)
    url = await embedded.start()
    try:
        async with Supervisor(EmbeddedSupervisor(embedded)).running(), _migrated(url) as database:
            yield database
    finally:
        await embedded.stop()


@asynccontextmanager
async def _migrated(url: str) -> AsyncIterator[Database]:
    try:
        database = await open_database(url)
    except DatabaseUnavailableError as error:
        raise ConfigurationError(f"database.url = {redact_url(url)}: {error}") from None
    try:
        async with explain_missing_privileges(url):
            revision = await migrate(database)
            if revision is not None:
                log.info("migrated", revision=revision)
            async with database.connection() as connection:
                await ensure_partitions(connection, await database_time(connection))
        yield database
    finally:
        await database.close()


class EmbeddedSupervisor(Service):
    """Restarts the embedded server when it has ended."""

    def __init__(self, embedded: EmbeddedPostgres) -> None:
        super().__init__("embedded database")
        self._embedded = embedded

    async def run(self) -> None:
        """Watch until asked to finish. Raises EmbeddedDatabaseError if it cannot be started."""
        while not self.is_finishing:
            await self._embedded.supervise_once()
            await self.pause(SUPERVISE_INTERVAL_S)
