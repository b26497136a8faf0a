"""Connections, and what each failure of the database means."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final
from urllib.parse import urlsplit

import asyncpg

from paidonce.errors import DatabaseAwayError, DatabaseUnfitError
from paidonce.store.queries import Connection

OLDEST_VERSION: Final = 15
MAX_CLOCK_SKEW_S: Final = 5.0
CONNECT_TIMEOUT_S: Final = 5.0
CLOSE_TIMEOUT_S: Final = 1.0
COMMAND_TIMEOUT_S: Final = 30.0
POOL_SIZE: Final = 8
MAX_CAUSES: Final = 10

_NO_RIGHT: Final = asyncpg.InsufficientPrivilegeError

_SESSION: Final = {
    "application_name": "paidonce",
    # Operators' questions have many optional filters: one plan for all of them fits none.
    "plan_cache_mode": "force_custom_plan",
    "default_transaction_isolation": "read committed",
    "synchronous_commit": "on",
    "timezone": "UTC",
    # A wait for another transaction's key is short or it is trouble; the batch is run again.
    "lock_timeout": "2s",
    "idle_in_transaction_session_timeout": "30s",
    # A machine that is gone without a word holds its locks for a minute, not for hours.
    "tcp_keepalives_idle": "30",
    "tcp_keepalives_interval": "10",
    "tcp_keepalives_count": "3",
}
# Whoever settles at once must not be held up by a row that somebody else holds for long.
_IMPATIENT: Final = {"lock_timeout": "100ms"}
# A plan made while the tables were empty scans them, and is kept when they are not empty any more.
# The hot statements find every row by an index, whatever the statistics say.
_PINNED_PLANS: Final = {
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "jit": "off",
}


class Trouble(Enum):
    """What a failure of the database means for the batch that met it."""

    RERUN = auto()  # somebody was first, or a deadlock: the same again will do
    AWAY = auto()  # the database cannot be reached: nobody can be answered
    POISON = auto()  # one event of the batch holds what the database refuses


_RERUN_CODES: Final = ("40001", "40P01", "0A000", "55P03")
_AWAY_CLASSES: Final = ("08", "53", "57")


def trouble(error: BaseException) -> Trouble | None:
    """Sort a failure: the one place where transient and permanent are told apart."""
    if isinstance(error, asyncpg.PostgresError):
        code = error.sqlstate or ""
        if code in _RERUN_CODES:
            return Trouble.RERUN
        return Trouble.AWAY if code[:2] in _AWAY_CLASSES else Trouble.POISON
    # asyncpg refuses an argument that does not fit its type before the server sees it.
    if isinstance(error, ValueError | OverflowError):
        return Trouble.POISON
    away = (OSError, TimeoutError, asyncpg.InterfaceError, asyncpg.InternalClientError)
    return Trouble.AWAY if isinstance(error, (*away, DatabaseAwayError)) else None


def is_away(error: BaseException, connection: Connection | None) -> bool:
    """Whether something failed because the database is away, and not by itself.

    What else is called while the connection is in use may fail in the same words.
    """
    if trouble(error) is not Trouble.AWAY:
        return False
    is_said = isinstance(error, asyncpg.PostgresError | DatabaseAwayError)
    return is_said or connection is None or connection.is_closed()


def is_lock_timeout(error: BaseException) -> bool:
    """Whether a row was held by somebody else for longer than this session waits."""
    return isinstance(error, asyncpg.LockNotAvailableError)


@dataclass(slots=True)
class Database:
    """Where the database is, and a small pool for all that is not the hot path."""

    url: str
    pool: "asyncpg.Pool[asyncpg.Record]"

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """A connection of the pool. Raises DatabaseAwayError when there is none to be had."""
        try:
            connection = await self.pool.acquire(timeout=CONNECT_TIMEOUT_S)
        except Exception as error:
            raise away(error) from error
        try:
            yield connection  # type: ignore[misc]  # a proxy with the connection's interface
        except Exception as error:
            if trouble(error) is Trouble.AWAY:
                raise away(error) from error
            raise
        finally:
            await self._give_back(connection)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        """A connection in a transaction, committed at the end unless an exception leaves it."""
        async with self.connection() as connection, connection.transaction():
            yield connection

    @asynccontextmanager
    async def transaction_apart(self) -> AsyncIterator[Connection]:
        """The same on a connection of its own, for what may take long: the pool is for others."""
        connection = await self.dedicated()
        try:
            async with connection.transaction():
                yield connection
        except Exception as error:
            if trouble(error) is Trouble.AWAY:
                raise away(error) from error
            raise
        finally:
            connection.terminate()

    async def dedicated(self, max_silence_s: float = 0.0) -> Connection:
        """A connection of one's own with pinned plans, for a flusher or a worker.

        The database closes one that has said nothing for as long as that, unless it is 0.
        """
        silence = {"idle_session_timeout": f"{max_silence_s:.0f}s"}
        try:
            return await asyncpg.connect(
                self.url,
                timeout=CONNECT_TIMEOUT_S,
                command_timeout=COMMAND_TIMEOUT_S,
                max_cached_statement_lifetime=0,
                max_cacheable_statement_size=0,
                server_settings={**_SESSION, **_IMPATIENT, **_PINNED_PLANS, **silence},
            )
        except Exception as error:
            raise away(error) from error

    async def _give_back(self, connection: Any) -> None:
        """One that is lost at that very moment has done what it was for: the pool forgets it."""
        try:
            await self.pool.release(connection)
        except Exception as error:
            if trouble(error) is not Trouble.AWAY:
                raise

    async def close(self) -> None:
        """Close the pool, by force if it does not close by itself."""
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self.pool.close()
        except TimeoutError:
            self.pool.terminate()


async def open_database(url: str) -> Database:
    """Connect, and refuse a database that cannot be used.

    Raises DatabaseAwayError, or DatabaseUnfitError with the remedy.
    """
    try:
        pool = await asyncpg.create_pool(
            url,
            min_size=1,
            max_size=POOL_SIZE,
            timeout=CONNECT_TIMEOUT_S,
            command_timeout=COMMAND_TIMEOUT_S,
            server_settings=_SESSION,
        )
    except Exception as error:
        raise away(error) from error
    database = Database(url, pool)
    try:
        async with database.connection() as connection:
            await _check_fitness(connection)
    except BaseException:
        pool.terminate()
        raise
    return database


@asynccontextmanager
async def looking_at(url: str) -> AsyncIterator[Connection]:
    """A connection that can change nothing, to whatever is there. Raises DatabaseAwayError."""
    settings = {**_SESSION, "default_transaction_read_only": "on"}
    try:
        connection: Connection = await asyncpg.connect(
            url,
            timeout=CONNECT_TIMEOUT_S,
            command_timeout=COMMAND_TIMEOUT_S,
            server_settings=settings,
        )
    except Exception as error:
        raise away(error) from error
    try:
        yield connection
    finally:
        await connection.close(timeout=CONNECT_TIMEOUT_S)


def away(error: BaseException) -> DatabaseAwayError:
    """The error that stands for a database that cannot be reached."""
    if isinstance(error, DatabaseAwayError):
        return error
    remedy = _remedy(error)
    return DatabaseAwayError(
        f"the database cannot be reached: {type(error).__name__}: {error}"
        + (f"; {remedy}" if remedy else "")
    )


def place_of(url: str) -> str:
    """Where a URL leads, and nothing of who may go there."""
    parts = urlsplit(url)
    return f"{parts.scheme}://…@{parts.hostname or ''}:{parts.port or 5432}{parts.path}"


@asynccontextmanager
async def rights_told(url: str) -> AsyncIterator[None]:
    """Raise DatabaseUnfitError with the remedy where the body lacks a right."""
    try:
        yield
    except Exception as error:
        refusal = next((one for one in _causes(error) if isinstance(one, _NO_RIGHT)), None)
        if refusal is None:
            raise
        role = urlsplit(url).username or "the role"
        raise DatabaseUnfitError(
            f"database.url = {place_of(url)}: {role} may not do what is needed: {refusal}; connect "
            f"as the owner of the tables, or GRANT CREATE, USAGE ON SCHEMA public TO {role}"
        ) from error


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error, and what caused it: SQLAlchemy wraps those of the driver."""
    cause: BaseException | None = error
    for _ in range(MAX_CAUSES):
        if cause is None:
            return
        yield cause
        cause = cause.__cause__


def _remedy(error: BaseException) -> str:
    """What to do about a database that does not let us in. Empty where the error says it all."""
    match error:
        case asyncpg.InvalidPasswordError() | asyncpg.InvalidAuthorizationSpecificationError():
            return "mend the user or the password in database.url, or let the user in (pg_hba.conf)"
        case asyncpg.InvalidCatalogNameError():
            return "make that database (createdb), or mend its name in database.url"
        case asyncpg.TooManyConnectionsError():
            return "raise max_connections, or run fewer processes"
        case socket.gaierror():
            return "mend the host in database.url"
        case ConnectionRefusedError() | TimeoutError():
            return "start PostgreSQL there, or mend host and port in database.url"
        case _:
            return ""


async def _check_fitness(connection: Connection) -> None:
    version = connection.get_server_version()
    if version.major < OLDEST_VERSION:
        raise DatabaseUnfitError(
            f"database.url leads to PostgreSQL {version.major}; "
            f"Paidonce needs {OLDEST_VERSION} or newer"
        )
    skew_s = await connection.fetchval(
        "SELECT extract(epoch FROM clock_timestamp() - to_timestamp($1::float8))::float8",
        time.time(),
    )
    if abs(skew_s) > MAX_CLOCK_SKEW_S:
        raise DatabaseUnfitError(
            f"the database's clock is {skew_s:+.1f} s off this machine's; "
            f"more than {MAX_CLOCK_SKEW_S:.0f} s would misplace events: set both by NTP"
        )
