"""A running process: its database, and the generation of what runs with the current settings."""

import asyncio
import time
from collections.abc import AsyncIterator, Set
from contextlib import asynccontextmanager, suppress
from typing import Final

from paidonce.bootstrap.database import open_migrated_database
from paidonce.bootstrap.generation import Generation, Host, open_generation
from paidonce.bootstrap.registration import check_providers
from paidonce.bootstrap.rules import check_settings
from paidonce.bootstrap.services import Services
from paidonce.bus.contract import open_bus
from paidonce.db.pool import Database
from paidonce.db.queries import Connection
from paidonce.inbox.edge import Edge, Receive, Scope, Send
from paidonce.reload import changes
from paidonce.reload.model import Candidate, Origin
from paidonce.reload.reloader import Reloader
from paidonce.reload.store import hurry
from paidonce.runtime.clock_watch import ClockWatch
from paidonce.runtime.service import Supervisor
from paidonce.settings import Role, Settings
from paidonce.settings.reading import with_files_read
from paidonce.telemetry import logger

log = logger(__name__)

ALL_ROLES: Final = frozenset(Role)
QUIET_POLL_S: Final = 0.02
RETIRE_S: Final = 40.0
"""How long a generation may finish what it began, such as a handler; then it is cancelled."""


class App:
    """A running process. Each reload replaces its generation; the earlier one ends what it began.

    There is one assignment at which the new settings count.
    """

    def __init__(self, host: Host, generation: Generation) -> None:
        self._host = host
        self._current = generation
        self._earlier: Generation | None = None
        self._retiring: asyncio.Task[None] | None = None

    @property
    def database(self) -> Database:
        return self._host.database

    @property
    def settings(self) -> Settings:
        return self._current.settings

    @property
    def services(self) -> Services:
        return self._current.services

    @property
    def edge(self) -> Edge | None:
        return self._current.edge

    @property
    def asgi(self) -> "App":
        """The ASGI application, which a server keeps for as long as it runs."""
        return self

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request of an ASGI server."""
        await self._current(scope, receive, send)

    @property
    def has_admin(self) -> bool:
        """Whether operators have an application of their own: `answer_operator`."""
        return self._current.has_admin

    async def answer_operator(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request at the port of operators."""
        await self._current.answer_operator(scope, receive, send)

    def finish(self) -> None:
        """Ask background services to finish, before a stop."""
        self._current.finish()

    def give_up(self) -> None:
        """Answer waiting requests with 503, so that their senders try again."""
        self._current.give_up()
        if self._earlier is not None:
            self._earlier.give_up()

    async def use(self, settings: Settings) -> None:
        """Use these settings for all that begins from now on. Raises DatabaseUnavailableError."""
        if self._retiring is not None:  # one at a time, so that connections stay few
            await self._retiring
        following = await open_generation(self._host, settings)
        self._earlier, self._current = self._current, following
        self._earlier.finish()
        self._retiring = asyncio.create_task(self._retire(self._earlier), name="retire")

    async def _retire(self, earlier: Generation) -> None:
        added = sorted(self.settings.sources.keys() - earlier.settings.sources.keys())
        deadline_s = time.monotonic() + RETIRE_S
        with suppress(asyncio.CancelledError):  # the process stops
            while not earlier.is_quiet:
                if time.monotonic() > deadline_s:
                    break
                await asyncio.sleep(QUIET_POLL_S)
        try:
            await earlier.close()
            if added:
                await hurry(self.database, added)
        except Exception as error:
            log.error("retiring_failed", exc_info=error)
        finally:
            self._earlier = None

    async def close(self) -> None:
        """Process and answer what was accepted, and stop."""
        if self._retiring is not None and not self._retiring.done():
            self._retiring.cancel()
            await asyncio.wait([self._retiring])
        await self._current.close()


@asynccontextmanager
async def running(
    settings: Settings, roles: Set[Role] = ALL_ROLES, origin: Origin | None = None
) -> AsyncIterator[App]:
    """A process with these roles. At the end, accepted deliveries are processed and answered.

    With an origin it takes part in reloads.
    """
    settings = with_files_read(settings)
    bus = open_bus(settings.bus)
    check_settings(settings)
    async with open_migrated_database(settings) as database:
        clock_watch = ClockWatch(database)
        await clock_watch.compare()
        lasting = Supervisor(clock_watch)
        host = Host(database, bus, roles, clock_watch, lasting)
        try:
            app = App(host, await open_generation(host, settings))
            if origin is not None:
                lasting.add(_reloader(app, origin))
            try:
                async with lasting.running():
                    yield app
            finally:
                await app.close()
        finally:
            await bus.close()


def _reloader(app: App, origin: Origin) -> Reloader:
    async def prepare(connection: Connection) -> Candidate:
        candidate = await asyncio.to_thread(_read, app.settings, origin)
        await check_providers(connection, candidate.settings)
        return candidate

    async def take(candidate: Candidate) -> None:
        if candidate.changed:
            await app.use(candidate.settings)

    return Reloader(app.database, origin, prepare, take)


def _read(current: Settings, origin: Origin) -> Candidate:
    """Read the settings again and check them. Raises ConfigurationError."""
    candidate = changes.compare(current, with_files_read(origin.load()), origin)
    check_settings(candidate.settings)
    return candidate
