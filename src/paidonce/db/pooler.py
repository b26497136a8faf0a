"""A pooler between us and PostgreSQL, such as PgBouncer. It has to keep sessions.

A session has what a transaction does not keep: the settings on which plans and durability depend,
the locks of leaders, LISTEN, and prepared statements. A pooler that gives each transaction another
session is refused. One that keeps them takes or drops the settings that a client sends when it
connects; so they are set afterwards.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import asyncpg

from paidonce.db.queries import Connection
from paidonce.errors import UnsupportedDatabaseError

PROBES: Final = 4
"""How often it is looked whether two clients are in two sessions.

Where transactions share sessions, an idle pooler answers the first time: it gives the session of
the one client to the other. One answer may differ by chance, when other clients are busy."""
_ALWAYS_REFUSED: Final = "08P01"  # protocol violation: PgBouncer's word for what it does not take
_LOST: Final = (_ALWAYS_REFUSED, "26000", "42P05")  # a prepared statement is not there, or already
REMEDY: Final = (
    "database.url leads to a pooler that does not keep sessions (PgBouncer: pool_mode = "
    "transaction or statement). Leaders, wake-ups, prepared statements and the settings of a "
    "session need them: set pool_mode = session for this database and user, or connect to "
    "PostgreSQL itself"
)


def refuses_settings(error: BaseException | None) -> bool:
    """Whether a pooler refused a connection for the settings that were sent with it."""
    is_violation = isinstance(error, asyncpg.PostgresError) and error.sqlstate == _ALWAYS_REFUSED
    return is_violation and "startup parameter" in str(error)


def set_statements(settings: Mapping[str, str]) -> str:
    """What sets them in a session."""
    return "".join(f"SET {name} = '{value}';" for name, value in settings.items())


async def is_direct(connection: Connection) -> bool:
    """Whether it is PostgreSQL that answers: a pooler has process ids of its own for clients."""
    try:
        return await _session_of(connection) == connection.get_server_pid()
    except asyncpg.PostgresError as error:
        if _shows_shared_sessions(error):
            return False
        raise


async def require_sessions(connect: Callable[[], Awaitable[Connection]]) -> None:
    """Raise UnsupportedDatabaseError unless each of two clients stays in a session of its own."""
    one = await connect()
    try:
        other = await connect()
        try:
            if not await _have_sessions(one, other):
                raise UnsupportedDatabaseError(REMEDY)
        finally:
            other.terminate()
    finally:
        one.terminate()


async def _have_sessions(one: Connection, other: Connection) -> bool:
    seen: dict[Connection, set[int]] = {one: set(), other: set()}
    try:
        for _ in range(PROBES):
            for client in (one, other, other, one):
                seen[client].add(await _session_of(client))
    except asyncpg.PostgresError as error:
        if _shows_shared_sessions(error):
            return False
        raise
    return len(seen[one]) == len(seen[other]) == 1 and seen[one] != seen[other]


def _shows_shared_sessions(error: asyncpg.PostgresError) -> bool:
    """Whether a pooler refused a transaction, or a statement was prepared in another session."""
    reasons = (error, error.__cause__)  # a pooler may say the reason, and then hang up
    return any(getattr(one, "sqlstate", None) in _LOST for one in reasons)


async def _session_of(connection: Connection) -> int:
    """The process of PostgreSQL that works for a transaction."""
    async with connection.transaction():
        pid: int = await connection.fetchval("SELECT pg_backend_pid()")
    return pid
