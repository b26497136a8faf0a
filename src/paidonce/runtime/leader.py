"""Leader election: one process at a time works in a role, by an advisory lock of its session.

The session that holds the locks does nothing else. The process sends a heartbeat on it; when that
stops (a frozen process, a lost network), PostgreSQL ends the session after a few seconds and the
locks are free. A process may believe for a moment that it still leads. So the work is fenced: it
runs on connections that carry a mark of the role, and a new leader first ends those connections.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from typing import Any, Final

from paidonce.db.pool import Database
from paidonce.db.queries import Connection, in_schema
from paidonce.errors import PaidonceError
from paidonce.runtime.service import Service
from paidonce.telemetry import logger

log = logger(__name__)

HEARTBEAT_S: Final = 1.0
SILENCE_S: Final = 5.0  # PostgreSQL ends the session of a leader that was silent for this long
MAX_SILENCE_S: Final = 60.0  # a leader that lost its session asks for twice as long, up to this
POLL_S: Final = 1.0  # how often a process that does not lead tries to
TAKEOVER_S: Final = 10.0
TAKEOVER_PAUSE_S: Final = 0.02

# Two numbers: another space than that of the locks with one. 716120345 leads, 716120346 works.
# The prefix becomes that of the installation: another one in the database has other leaders.
_ACQUIRE: Final = """
SELECT role FROM unnest($1::text[]) AS role
 WHERE pg_try_advisory_lock(716120345, hashtext('paidonce.' || role))
"""
_RELEASE: Final = """
SELECT pg_advisory_unlock(716120345, hashtext('paidonce.' || role))
  FROM unnest($1::text[]) AS role
"""
_HELD: Final = """
FROM pg_locks
WHERE locktype = 'advisory' AND granted AND objsubid = 2
  AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""
_END_OLD_WORK: Final = f"""
SELECT pg_terminate_backend(pid) {_HELD} AND classid = 716120346 AND objid = ANY (
    SELECT (hashtext('paidonce.' || role)::bigint & 4294967295)::oid
      FROM unnest($1::text[]) AS role)
"""  # noqa: S608 - every part is a constant
# CASE, because the mark has to be there before it is looked whether the lock is held.
_MARK: Final = f"""
SELECT CASE WHEN pg_try_advisory_lock_shared(716120346, hashtext('paidonce.' || $1::text))
  THEN EXISTS (
    SELECT {_HELD} AND classid = 716120345 AND pid = $2
       AND objid = (hashtext('paidonce.' || $1::text)::bigint & 4294967295)::oid) END
"""
_MARK_TRANSACTION: Final = _MARK.replace("advisory_lock_shared", "advisory_xact_lock_shared")


class LeadershipLostError(PaidonceError):
    """This process does not lead any more: another one does, or may."""


class _Session:
    """The connection that holds the locks, and how long it is certainly alive."""

    def __init__(self, connection: Connection, silence_s: float) -> None:
        self.connection = connection
        self.silence_s = silence_s
        self.opened_s = self.beaten_s = time.monotonic()
        self.pid = 0  # its process in PostgreSQL; a pooler would tell another number
        self._statements: dict[str, Any] = {}

    async def prepare(self) -> None:
        """Prepare what is run while locks are held.

        The server knows no idle time between the messages that prepare a statement: a process that
        freezes there would keep its locks.
        """
        self.pid = await self.connection.fetchval("SELECT pg_backend_pid()")
        for sql in (_ACQUIRE, _RELEASE, _END_OLD_WORK):
            text = in_schema(sql, self.connection.schema)
            self._statements[sql] = await self.connection.prepare(text)

    async def run(self, sql: str, roles: Collection[str]) -> list[Any]:
        """Run a prepared statement; it is a heartbeat, too."""
        started_s = time.monotonic()
        async with asyncio.timeout(self.silence_s):
            found: list[Any] = await self._statements[sql].fetch(list(roles))
        self.beaten_s = started_s
        return found

    @property
    def is_alive(self) -> bool:
        """False already before the server ends the session of a process that was frozen."""
        is_recent = time.monotonic() < self.beaten_s + self.silence_s
        return is_recent and not self.connection.is_closed()


class Leadership:
    """The right to work in a role, as long as it is held."""

    def __init__(self, role: str, database: Database, session: _Session) -> None:
        self.role = role
        self._database = database
        self._session = session
        self._is_released = False
        self._leases: set[asyncio.Timeout] = set()

    @property
    def is_held(self) -> bool:
        """Whether this process still leads. Ask before each effect that cannot be fenced."""
        return not self._is_released and self._session.is_alive

    def require(self) -> None:
        """Raise LeadershipLostError unless this process still leads."""
        if not self.is_held:
            raise LeadershipLostError(f"another process may be the leader: {self.role}")

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """A fenced connection of the pool. Raises LeadershipLostError."""
        async with self._database.connection() as connection:
            await self._mark(connection, _MARK)
            yield connection  # the pool removes the mark with all advisory locks

    async def session(self) -> Connection:
        """A fenced connection of one's own. Raises LeadershipLostError."""
        connection = await self._database.dedicated()
        try:
            await self._mark(connection, _MARK)
        except BaseException:
            connection.terminate()
            raise
        return connection

    async def fence(self, connection: Connection) -> None:
        """Fence the open transaction of a connection. Raises LeadershipLostError."""
        await self._mark(connection, _MARK_TRANSACTION)

    async def _mark(self, connection: Connection, sql: str) -> None:
        self.require()
        text = in_schema(sql, connection.schema)
        if not await connection.fetchval(text, self.role, self._session.pid):
            raise LeadershipLostError(f"another process is the leader: {self.role}")

    @asynccontextmanager
    async def cancelling(self) -> AsyncIterator[None]:
        """Cancel the body when the leadership is lost, and raise LeadershipLostError then."""
        self.require()
        lease = asyncio.timeout(None)
        try:
            async with lease:
                self._leases.add(lease)
                try:
                    yield
                finally:
                    self._leases.discard(lease)
        except Exception as error:
            if self.is_held:
                raise
            raise LeadershipLostError(f"the leadership was lost: {self.role}") from error

    def end(self) -> None:
        """The lock is gone: stop what runs under it."""
        self._is_released = True
        for lease in self._leases:
            if not lease.expired():
                lease.reschedule(asyncio.get_running_loop().time())


class Leader:
    """All roles in which a process leads: their locks share one session and one heartbeat."""

    def __init__(self, database: Database, silence_s: float = SILENCE_S) -> None:
        self._database = database
        self._first_silence_s = self._silence_s = silence_s
        self._session: _Session | None = None
        self._in_use = asyncio.Lock()
        self._held: dict[str, Leadership] = {}
        self._followers = 0
        self._heart: asyncio.Task[None] | None = None

    async def follow(
        self, role: str, service: Service, work: Callable[[Leadership], Awaitable[None]]
    ) -> None:
        """Do the work whenever this process leads, until the service is to finish."""
        self._followers += 1
        try:
            while not service.is_finishing:
                try:
                    async with self.lead(role) as leadership:
                        if leadership is not None:
                            log.info("leader_elected", role=role)
                            await work(leadership)
                except LeadershipLostError as error:
                    log.warning("leadership_lost", role=role, detail=str(error.__cause__ or error))
                await service.pause(POLL_S)
        finally:
            self._followers -= 1
            self._close_if_unused()

    @asynccontextmanager
    async def lead(self, role: str) -> AsyncIterator[Leadership | None]:
        """Lead while the body runs; None if another process leads.

        Cancels the body when the leadership is lost, and raises LeadershipLostError.
        """
        leadership = (await self.acquire([role])).get(role)
        if leadership is None:
            yield None
            return
        try:
            async with leadership.cancelling():
                yield leadership
        finally:
            await self.release([leadership])

    async def acquire(self, roles: Collection[str]) -> dict[str, Leadership]:
        """Lead in the roles that are free. Raises DatabaseUnavailableError."""
        async with self._in_use:
            wanted = [role for role in roles if role not in self._held]
            session = await self._connected()
            try:
                found = await session.run(_ACQUIRE, wanted) if wanted else []
                taken = [row["role"] for row in found]
                await self._end_old_work(session, taken)
            except BaseException:
                self._lose(session)
                raise
            new = {role: Leadership(role, self._database, session) for role in taken}
            self._held |= new
            if self._held and self._heart is None:
                self._heart = asyncio.create_task(self._beat(session), name="leader heartbeat")
            self._close_if_unused()
            return new

    async def release(self, leaderships: Collection[Leadership]) -> None:
        """Let other processes lead in these roles."""
        async with self._in_use:
            held = [one for one in leaderships if self._held.get(one.role) is one]
            for one in held:
                one.end()
                del self._held[one.role]
            session = self._session
            if held and session is not None:
                try:
                    await session.run(_RELEASE, [one.role for one in held])
                except Exception as error:
                    self._fail(session, repr(error))
            self._close_if_unused()

    async def _connected(self) -> _Session:
        session = self._session
        if session is not None and session.is_alive:
            return session
        if session is not None:
            self._fail(session, "it was silent, or its connection was lost")
        connection = await self._database.dedicated(self._silence_s)
        self._session = _Session(connection, self._silence_s)
        await self._session.prepare()
        return self._session

    async def _end_old_work(self, session: _Session, roles: Collection[str]) -> None:
        """End the connections on which an earlier leader may still work."""
        deadline_s = time.monotonic() + TAKEOVER_S
        while roles and await session.run(_END_OLD_WORK, roles):
            if time.monotonic() > deadline_s:
                raise LeadershipLostError(f"an earlier leader is still at work: {roles}")
            await asyncio.sleep(TAKEOVER_PAUSE_S)

    async def _beat(self, session: _Session) -> None:
        try:
            while self._session is session and self._held:
                await asyncio.sleep(HEARTBEAT_S)
                async with self._in_use:
                    if self._session is session:
                        await session.run(_RELEASE, [])  # releases nothing: a heartbeat
                        if time.monotonic() - session.opened_s > 10 * MAX_SILENCE_S:
                            self._silence_s = self._first_silence_s
        except Exception as error:
            self._fail(session, repr(error))
        else:
            self._heart = None

    def _fail(self, session: _Session, reason: str) -> None:
        """The session ended unasked. If this process was too slow, it is given more time."""
        if self._held:
            log.warning("leader_session_lost", roles=sorted(self._held), reason=reason)
            self._silence_s = min(session.silence_s * 2, MAX_SILENCE_S)
        self._lose(session)

    def _lose(self, session: _Session) -> None:
        session.connection.terminate()
        if self._session is session:
            heart, self._session, self._heart = self._heart, None, None
            if heart is not None and heart is not asyncio.current_task():
                heart.cancel()
            held, self._held = self._held, {}
            for one in held.values():
                one.end()

    def _close_if_unused(self) -> None:
        """A session that holds nothing and that nobody will ask again costs the server memory."""
        if not self._held and not self._followers and self._session is not None:
            self._lose(self._session)
