"""Whether deliveries can be committed now: by what the last ones met, or by a commit of our own.

An answer is kept for KEPT_S, so requests for it cost nothing.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import Final

import asyncpg

from paidonce.clock import CLOCK
from paidonce.db.pool import (
    Database,
    OwnConnection,
    Trouble,
    is_lock_timeout,
    is_partition_missing,
    trouble,
)
from paidonce.db.queries import Connection, in_schema, load_queries
from paidonce.db.schema import add_missing_partitions, partition_name
from paidonce.errors import DatabaseUnavailableError
from paidonce.inbox.group import Group
from paidonce.telemetry import logger

log = logger(__name__)

QUERIES: Final = load_queries(__file__)

KEPT_S: Final = 1.0
PROBE_TIMEOUT_S: Final = 2.5
LOCK_TIMEOUT: Final = "1s"
STUCK_S: Final = 3.0
"""A delivery that waits for this long is stuck."""
FAILED_S: Final = 3.0
"""How long a full disk that a delivery met is believed in."""
KEY_CHECK_S: Final = 10.0
MAX_CAUSES: Final = 5


class UnreadyReason(StrEnum):
    """Why deliveries cannot be committed: the code of the answer."""

    DATABASE_UNAVAILABLE = "DATABASE_UNAVAILABLE"
    DATABASE_READ_ONLY = "DATABASE_READ_ONLY"
    DATABASE_REFUSES = "DATABASE_REFUSES"
    DISK_FULL = "DISK_FULL"
    TABLE_LOCKED = "TABLE_LOCKED"
    NO_PARTITION = "NO_PARTITION"
    NOT_COMMITTING = "NOT_COMMITTING"
    BOOTSTRAP_KEY_MISSING = "BOOTSTRAP_KEY_MISSING"


DETAILS: Final = {
    UnreadyReason.DATABASE_UNAVAILABLE: "The database does not answer.",
    UnreadyReason.DATABASE_READ_ONLY: "The database can only be read.",
    UnreadyReason.DATABASE_REFUSES: (
        "The database refuses what deliveries write; the log has the details."
    ),
    UnreadyReason.DISK_FULL: "The disk of the database is full.",
    UnreadyReason.TABLE_LOCKED: "Another session locks a table that deliveries write.",
    UnreadyReason.NO_PARTITION: "The table of events has no partition for this month.",
    UnreadyReason.NOT_COMMITTING: "Deliveries wait and are not committed.",
    UnreadyReason.BOOTSTRAP_KEY_MISSING: "The key of PAIDONCE_BOOTSTRAP_KEY is not valid yet.",
}


def reason_of(error: BaseException) -> UnreadyReason:
    """What an error of the database means for deliveries."""
    cause = _cause(error)
    if isinstance(cause, asyncpg.DiskFullError):
        return UnreadyReason.DISK_FULL
    if isinstance(cause, asyncpg.ReadOnlySQLTransactionError):
        return UnreadyReason.DATABASE_READ_ONLY
    if is_lock_timeout(cause):
        return UnreadyReason.TABLE_LOCKED
    if is_partition_missing(cause):
        return UnreadyReason.NO_PARTITION
    is_away = isinstance(error, TimeoutError) or trouble(error) is Trouble.AWAY
    return UnreadyReason.DATABASE_UNAVAILABLE if is_away else UnreadyReason.DATABASE_REFUSES


def _cause(error: BaseException) -> BaseException:
    """The error of the driver behind our own."""
    for _ in range(MAX_CAUSES):
        if not isinstance(error, DatabaseUnavailableError) or error.__cause__ is None:
            break
        error = error.__cause__
    return error


class Readiness:
    """Answers whether deliveries can be committed. One for each process."""

    def __init__(
        self,
        database: Database,
        group: Group | None = None,
        accept_key: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        self._database = database
        self._group = group
        self._accept_key = accept_key
        self._key_due_s = 0.0
        self._connection = OwnConnection(self._connect)
        self._found: UnreadyReason | None = None
        self._found_s = -KEPT_S
        self._asking: asyncio.Task[None] | None = None

    async def reason(self) -> UnreadyReason | None:
        """Why deliveries cannot be committed; None if they can. Never raises."""
        if time.monotonic() >= self._found_s + KEPT_S:
            if self._asking is None or self._asking.done():
                self._asking = asyncio.create_task(self._ask())
            await asyncio.shield(self._asking)
        return self._found

    async def close(self) -> None:
        """Close the connection."""
        if self._asking is not None:
            self._asking.cancel()
        self._connection.close()

    async def _ask(self) -> None:
        before = self._found
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                found = await self._key_reason() or await self._commit_reason()
        except Exception as error:
            self._connection.close()
            found = reason_of(error)
            if found is not before:
                log.warning("not_ready", reason=found, exc_info=error)
        self._found, self._found_s = found, time.monotonic()
        if before is not None and found is None:
            log.info("ready_again")

    async def _key_reason(self) -> UnreadyReason | None:
        """Make the bootstrap key valid, again if somebody has deleted it."""
        if self._accept_key is None or time.monotonic() < self._key_due_s:
            return None
        try:
            await self._accept_key()
        except Exception as error:
            if trouble(error) is Trouble.AWAY:
                raise
            log.error("bootstrap_key_missing", exc_info=error)
            return UnreadyReason.BOOTSTRAP_KEY_MISSING
        self._key_due_s = time.monotonic() + KEY_CHECK_S
        return None

    async def _commit_reason(self) -> UnreadyReason | None:
        """What deliveries meet. A commit of theirs a moment ago is the best proof."""
        group = self._group
        if group is not None:
            if not group.is_running or group.oldest_s > STUCK_S:
                return UnreadyReason.NOT_COMMITTING
            if group.stored_ago_s < KEPT_S:
                return None
            error = group.failure_within(FAILED_S)
            if error is not None and reason_of(error) is UnreadyReason.DISK_FULL:
                return UnreadyReason.DISK_FULL
        return await self._probe(await self._connection.get())

    async def _probe(self, connection: Connection) -> UnreadyReason | None:
        """Commit what a delivery would, except its rows."""
        if await QUERIES["is_read_only"].value(connection):
            return UnreadyReason.DATABASE_READ_ONLY
        month = partition_name(CLOCK.now())
        if not await QUERIES["has_partition"].value(connection, name=month):
            try:
                await add_missing_partitions(self._database)
            except DatabaseUnavailableError as error:
                log.error("partition_missing", name=month, detail=str(error))
                found = reason_of(error)
                return (
                    UnreadyReason.NO_PARTITION
                    if found is UnreadyReason.DATABASE_UNAVAILABLE
                    else found
                )
        async with connection.transaction():
            await QUERIES["lock_as_a_delivery"].run(connection)
            lock = f"LOCK TABLE paidonce.{month} IN ROW EXCLUSIVE MODE"
            await connection.execute(in_schema(lock, connection.schema))
            await QUERIES["fill_probe"].run(connection)
            await QUERIES["log_probe"].row(connection)
        return None

    async def _connect(self) -> Connection:
        connection = await self._database.dedicated()
        try:
            await connection.execute(f"SET lock_timeout = '{LOCK_TIMEOUT}'")
            await QUERIES["make_probe"].run(connection)
            await QUERIES["make_probe_large"].run(connection)
        except BaseException:
            connection.terminate()
            raise
        return connection
