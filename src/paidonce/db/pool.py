"""Connections to PostgreSQL, and the classification of its errors."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final
from urllib.parse import urlsplit

import asyncpg

from paidonce.clock import MAX_SKEW_S
from paidonce.db.queries import Connection
from paidonce.errors import DatabaseUnavailableError, UnsupportedDatabaseError

OLDEST_VERSION: Final = 15
MAX_ROUND_TRIP_S: Final = 2.0
"""A clock that took longer to answer is not believed."""
CONNECT_TIMEOUT_S: Final = 5.0
CLOSE_TIMEOUT_S: Final = 1.0
COMMAND_TIMEOUT_S: Final = 30.0
POOL_SIZE: Final = 8
MAX_CAUSES: Final = 10

_NO_RIGHT: Final = asyncpg.InsufficientPrivilegeError

_SESSION: Final = {
    "application_name": "paidonce",
    # Operators' queries have many optional filters: no single plan fits all of them.
    "plan_cache_mode": "force_custom_plan",
    "default_transaction_isolation": "read committed",
    "synchronous_commit": "on",
    "timezone": "UTC",
    # A long wait for another transaction's key is an error; the batch runs again.
    "lock_timeout": "2s",
    "idle_in_transaction_session_timeout": "30s",
    # A machine that vanished keeps its locks for a minute, not for hours.
    "tcp_keepalives_idle": "30",
    "tcp_keepalives_interval": "10",
    "tcp_keepalives_count": "3",
}
_DEDICATED: Final = {
    # Processing on arrival must not wait for a row that another transaction locks for long.
    "lock_timeout": "100ms",
    # A plan that was made while the tables were empty scans them, and is kept when they have grown.
    # The hot statements find every row by an index, whatever the statistics say.
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "jit": "off",
}


class Trouble(Enum):
    """What an error of the database means for the batch."""

    RERUN = auto()  # a conflict or a deadlock: run the batch again
    AWAY = auto()  # the database cannot be reached
    POISON = auto()  # the database rejects a value of one event


_RERUN_CODES: Final = ("40001", "40P01", "0A000", "55P03", "23503")
"""The last one: what a row names existed when it was read, as a user that was merged since."""
_AWAY_CLASSES: Final = ("08", "53", "57")
_READ_ONLY: Final = "25006"
"""Also after a failover, until this server is promoted or the connection leads to another one."""


def trouble(error: BaseException) -> Trouble | None:
    """Classify an error. Only this function separates transient from permanent errors."""
    if isinstance(error, asyncpg.PostgresError):
        code = error.sqlstate or ""
        if code in _RERUN_CODES or is_partition_missing(error):
            return Trouble.RERUN
        is_away = code[:2] in _AWAY_CLASSES or code == _READ_ONLY
        return Trouble.AWAY if is_away else Trouble.POISON
    # asyncpg rejects an argument of the wrong type before the server sees it.
    if isinstance(error, ValueError | OverflowError):
        return Trouble.POISON
    away = (OSError, TimeoutError, asyncpg.InterfaceError, asyncpg.InternalClientError)
    return Trouble.AWAY if isinstance(error, (*away, DatabaseUnavailableError)) else None


def is_away(error: BaseException, connection: Connection | None) -> bool:
    """Whether an error comes from an unreachable database.

    Other code that runs while the connection is in use may raise the same types.
    """
    if trouble(error) is not Trouble.AWAY:
        return False
    is_certain = isinstance(error, asyncpg.PostgresError | DatabaseUnavailableError)
    return is_certain or connection is None or connection.is_closed()


def is_partition_missing(error: BaseException) -> bool:
    """Whether the month of a new event has no partition. A check of a row names its constraint."""
    is_check = isinstance(error, asyncpg.CheckViolationError) and error.constraint_name is None
    return is_check and getattr(error, "table_name", None) == "webhook_events"


def is_lock_timeout(error: BaseException) -> bool:
    """Whether a lock was held by another session for longer than lock_timeout."""
    return isinstance(error, asyncpg.LockNotAvailableError)


@dataclass(slots=True)
class Database:
    """The URL of the database, and a small pool for everything but the hot path."""

    url: str
    pool: "asyncpg.Pool[asyncpg.Record]"

    async def ping(self) -> None:
        """Raises DatabaseUnavailableError unless the database answers."""
        async with self.connection() as connection:
            await connection.fetchval("SELECT 1")

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """A connection of the pool. Raises DatabaseUnavailableError if there is none."""
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
    async def snapshot(self) -> AsyncIterator[Connection]:
        """A connection whose statements all see one moment; it can only read.

        For what is shown together and read by more than one statement: an order and its payments.
        """
        async with (
            self.connection() as connection,
            connection.transaction(isolation="repeatable_read", readonly=True),
        ):
            yield connection

    @asynccontextmanager
    async def transaction_apart(self) -> AsyncIterator[Connection]:
        """The same on a new connection, for long work that must not block the pool."""
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
        """A new connection with pinned plans, for a group commit or a worker.

        The database closes it after `max_silence_s` without a statement, unless that is 0.
        """
        settings = _DEDICATED | {"idle_session_timeout": f"{max_silence_s:.0f}s"}
        cached = {"max_cached_statement_lifetime": 0, "max_cacheable_statement_size": 0}
        return await _connect(self.url, settings, **cached)

    async def _give_back(self, connection: Any) -> None:
        """A connection that is lost at this moment has done its work: the pool forgets it."""
        try:
            await self.pool.release(connection)
        except Exception as error:
            if trouble(error) is not Trouble.AWAY:
                raise

    async def close(self) -> None:
        """Close the pool, by force after CLOSE_TIMEOUT_S."""
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self.pool.close()
        except TimeoutError:
            self.pool.terminate()


class OwnConnection:
    """The connection of one worker: opened when it is first needed, and again after it was lost."""

    def __init__(self, connect: Callable[[], Awaitable[Connection]]) -> None:
        self._connect = connect
        self._connection: Connection | None = None

    async def get(self) -> Connection:
        if self._connection is None or self._connection.is_closed():
            self._connection = await self._connect()
        return self._connection

    def close(self) -> None:
        """Close it at once. `get` opens another one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.terminate()


async def open_database(url: str) -> Database:
    """Connect and check version and clock.

    Raises DatabaseUnavailableError, or UnsupportedDatabaseError with the remedy.
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
async def connect_read_only(url: str) -> AsyncIterator[Connection]:
    """A read-only connection, without any check. Raises DatabaseUnavailableError."""
    connection = await _connect(url, {"default_transaction_read_only": "on"})
    try:
        yield connection
    finally:
        await connection.close(timeout=CONNECT_TIMEOUT_S)


async def _connect(url: str, settings: dict[str, str], **options: Any) -> Connection:
    try:
        return await asyncpg.connect(
            url,
            timeout=CONNECT_TIMEOUT_S,
            command_timeout=COMMAND_TIMEOUT_S,
            server_settings=_SESSION | settings,
            **options,
        )
    except Exception as error:
        raise away(error) from error


def away(error: BaseException) -> DatabaseUnavailableError:
    """The error for a database that cannot be reached."""
    if isinstance(error, DatabaseUnavailableError):
        return error
    remedy = _remedy(error)
    return DatabaseUnavailableError(
        f"the database cannot be reached: {type(error).__name__}: {error}"
        + (f"; {remedy}" if remedy else "")
    )


def redact_url(url: str) -> str:
    """The URL without user and password."""
    parts = urlsplit(url)
    return f"{parts.scheme}://…@{parts.hostname or ''}:{parts.port or 5432}{parts.path}"


@asynccontextmanager
async def explain_missing_privileges(url: str) -> AsyncIterator[None]:
    """Raise UnsupportedDatabaseError with the remedy when the body lacks a privilege."""
    try:
        yield
    except Exception as error:
        refusal = next((one for one in _causes(error) if isinstance(one, _NO_RIGHT)), None)
        if refusal is None:
            raise
        role = urlsplit(url).username or "the role"
        raise UnsupportedDatabaseError(
            f"database.url = {redact_url(url)}: {role} lacks a privilege: {refusal}; connect "
            f"as the owner of the tables, or GRANT CREATE, USAGE ON SCHEMA public TO {role}"
        ) from error


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error and its causes: SQLAlchemy wraps the errors of the driver."""
    cause: BaseException | None = error
    for _ in range(MAX_CAUSES):
        if cause is None:
            return
        yield cause
        cause = cause.__cause__


def _remedy(error: BaseException) -> str:
    """What to do about a refused connection; empty if the error says it."""
    match error:
        case asyncpg.InvalidPasswordError() | asyncpg.InvalidAuthorizationSpecificationError():
            return "correct user or password in database.url, or allow the user in pg_hba.conf"
        case asyncpg.InvalidCatalogNameError():
            return "create that database (createdb), or correct its name in database.url"
        case asyncpg.TooManyConnectionsError():
            return "raise max_connections, or run fewer processes"
        case socket.gaierror():
            return "correct the host in database.url"
        case ConnectionRefusedError() | TimeoutError():
            return "start PostgreSQL there, or correct host and port in database.url"
        case _:
            return ""


@dataclass(frozen=True, slots=True)
class ClockReading:
    """Three clocks at one moment, in nanoseconds: the database's, ours, and the monotonic one."""

    database_ns: int
    wall_ns: int
    monotonic_ns: int

    @property
    def skew_s(self) -> float:
        """By how much the database's clock is ahead of ours."""
        return (self.database_ns - self.wall_ns) / 1e9


async def read_clock(connection: Connection) -> ClockReading | None:
    """The database's clock beside ours; None if the answer took too long to be believed."""
    wall_ns, began_ns = time.time_ns(), time.monotonic_ns()
    now_us: int = await connection.fetchval(
        "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
    )
    half_ns = (time.monotonic_ns() - began_ns) // 2
    if half_ns > MAX_ROUND_TRIP_S * 1e9 / 2:
        return None
    return ClockReading(now_us * 1_000, wall_ns + half_ns, began_ns + half_ns)


async def _check_fitness(connection: Connection) -> None:
    version = connection.get_server_version()
    if version.major < OLDEST_VERSION:
        raise UnsupportedDatabaseError(
            f"database.url leads to PostgreSQL {version.major}; "
            f"Paidonce needs {OLDEST_VERSION} or newer"
        )
    reading = await read_clock(connection)
    if reading is not None and abs(reading.skew_s) > MAX_SKEW_S:
        raise UnsupportedDatabaseError(
            f"the database's clock is {reading.skew_s:+.1f} s off this machine's; "
            f"more than {MAX_SKEW_S:.0f} s would misplace events: set both by NTP"
        )
