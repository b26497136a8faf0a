"""The database, opened: started if it is the embedded one, and with its schema up to date."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from typing import Any, Final

from paidonce.configured import refuse_wrong
from paidonce.errors import ConfigurationError, DatabaseAwayError, EmbeddedDatabaseError
from paidonce.settings import Settings
from paidonce.store.db import Database, open_database, place_of, rights_told
from paidonce.store.embedded import EmbeddedPostgres
from paidonce.store.schema import ensure_partitions, migrate
from paidonce.telemetry import logger

log = logger(__name__)

SUPERVISE_PAUSE_S: Final = 1.0


@asynccontextmanager
async def opened_database(settings: Settings) -> AsyncIterator[Database]:
    """The database, started if it is the embedded one, with its schema up to date."""
    refuse_wrong(settings)
    if not settings.database.is_embedded:
        async with _migrated(settings.database.url) as database:
            yield database
        return
    embedded = EmbeddedPostgres(settings.database.data_dir)
    url = await embedded.start()
    try:
        async with in_background(_supervise(embedded)), _migrated(url) as database:
            yield database
    finally:
        await embedded.stop()


@asynccontextmanager
async def _migrated(url: str) -> AsyncIterator[Database]:
    try:
        database = await open_database(url)
    except DatabaseAwayError as error:
        raise ConfigurationError(f"database.url = {place_of(url)}: {error}") from None
    try:
        async with rights_told(url):
            revision = await migrate(database)
            if revision is not None:
                log.info("migrated", revision=revision)
            async with database.connection() as connection:
                await ensure_partitions(connection, datetime.now(UTC))
        yield database
    finally:
        await database.close()


async def _supervise(embedded: EmbeddedPostgres) -> None:
    """Keep the embedded server running, also after an attempt to start it again has failed."""
    while True:
        try:
            await embedded.supervise()
        except EmbeddedDatabaseError as error:
            log.error("embedded_database_failed", error=str(error))
        await asyncio.sleep(SUPERVISE_PAUSE_S)


@asynccontextmanager
async def in_background(work: Coroutine[Any, Any, Any]) -> AsyncIterator[None]:
    """Run the work beside the body, and end it with the body."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
