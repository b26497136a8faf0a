"""Takes part in reloads: reads and checks the settings, answers, and takes them if all can."""

import asyncio
import os
import socket
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final
from uuid import UUID

from paidonce.audit.model import OURSELVES
from paidonce.core.actors import Actor, Scope
from paidonce.db.pool import Database
from paidonce.db.queries import Connection
from paidonce.errors import DatabaseUnavailableError, PaidonceError
from paidonce.reload.model import Candidate, Origin, ReloadStatus
from paidonce.reload.service import (
    CHANNEL,
    FORGOTTEN_S,
    QUERIES,
    ReloadService,
)
from paidonce.runtime.service import Service
from paidonce.telemetry import logger, masked

log = logger(__name__)

POLL_S: Final = 5.0
"""Notifications tell of reloads; this is for one that is lost."""
DECISION_POLL_S: Final = 1.0
MAX_REASON: Final = 1_000
_AWAY: Final = "the database is away, and it is needed to reload; nothing has changed"

Prepare = Callable[[Connection], Awaitable[Candidate]]
"""Reads and checks the settings. Raises ConfigurationError."""
Take = Callable[[Candidate], Awaitable[None]]
"""Uses them from now on. Raises DatabaseUnavailableError."""


class Reloader(Service):
    """One for each process that has its settings from a file."""

    def __init__(self, database: Database, origin: Origin, prepare: Prepare, take: Take) -> None:
        super().__init__("reloader")
        self._database = database
        self._origin = origin
        self._prepare = prepare
        self._take = take
        self._process = f"{socket.gethostname()}:{os.getpid()}"
        self._pending: tuple[UUID, Candidate] | None = None  # answered, and not decided or taken
        self._read_s = time.monotonic()  # when the settings that are used were read
        self._asking: asyncio.Task[None] | None = None
        self._is_lost = False

    async def run(self) -> None:
        """Take part until asked to finish. Raises DatabaseUnavailableError."""
        loop = asyncio.get_running_loop()
        connection = await self._database.dedicated()
        self._is_lost = False
        self._origin.on_asked = lambda: loop.call_soon_threadsafe(self._on_asked)
        try:
            connection.add_termination_listener(lambda _: self._on_lost())
            await connection.add_listener(CHANNEL, lambda *_: self._listener.wake())
            await QUERIES["join"].run(connection, group=self._origin.group)
            await self._ask_if_missed(connection)
            while not (self.is_finishing or self._is_lost):
                await self._settle(connection)
                await self._answer(connection)
                self._begin_to_ask()
                await self._listener.wait(DECISION_POLL_S if self._pending else POLL_S)
        finally:
            connection.terminate()
        if not self.is_finishing:
            raise DatabaseUnavailableError("the connection that receives reloads was lost")

    def finish(self) -> None:
        """Take no further part."""
        self._origin.on_asked = lambda: None
        super().finish()
        if self._asking is not None:
            self._asking.cancel()

    def _on_lost(self) -> None:
        self._is_lost = True
        self._on_asked()

    def _on_asked(self) -> None:
        if self._is_lost and self._origin.is_asked:
            self._origin.is_asked = False
            log.error("settings_refused", reason=_AWAY)
        self._listener.wake()

    async def _ask_if_missed(self, connection: Connection) -> None:
        """A reload that was taken without this process is made up for."""
        age_s = time.monotonic() - self._read_s
        if self._pending is None and await QUERIES["missed"].value(
            connection, group=self._origin.group, age_s=age_s
        ):
            self._origin.is_asked = True

    async def _answer(self, connection: Connection) -> None:
        """Read and check the settings, if a reload is open."""
        reload_id = await QUERIES["open_reload"].value(connection, group=self._origin.group)
        if reload_id is None:
            return
        read_s, candidate, reason = time.monotonic(), None, None
        try:
            candidate = await self._prepare(connection)
        except PaidonceError as error:
            reason = masked(str(error))[:MAX_REASON]
        except Exception as error:
            log.exception("settings_not_read")
            reason = f"they cannot be read: {type(error).__name__}; the log has the details"
        await QUERIES["answer"].run(
            connection,
            id=reload_id,
            process=self._process,
            group=self._origin.group,
            is_accepted=candidate is not None,
            reason=reason,
            changed=candidate.changed if candidate else [],
            needs_restart=candidate.needs_restart if candidate else [],
            digest=candidate.digest if candidate else None,
        )
        await connection.execute(f"NOTIFY {CHANNEL}")
        if candidate is not None:
            self._pending, self._read_s = (reload_id, candidate), read_s
        else:
            log.error("settings_refused", reason=reason)

    async def _settle(self, connection: Connection) -> None:
        """Take the settings that were answered for, or drop them, once it is decided."""
        while self._pending is not None and not (self.is_finishing or self._is_lost):
            reload_id, candidate = self._pending
            await QUERIES["close_forgotten"].run(connection, forgotten_s=FORGOTTEN_S)
            row = await QUERIES["status"].row(connection, id=reload_id)
            status = ReloadStatus.REFUSED if row is None else ReloadStatus(row["status"])
            if status is ReloadStatus.ASKED:
                await self._listener.wait(DECISION_POLL_S)
                continue
            if status is ReloadStatus.TAKEN:
                await self._take(candidate)
                told = {"changed": candidate.changed, "needs_restart": candidate.needs_restart}
                log.info("settings_reloaded", **{name: one for name, one in told.items() if one})
            elif row is not None:
                log.error("settings_refused", reason=row["reason"])
            self._pending = None
            if status is ReloadStatus.TAKEN:
                await QUERIES["taken"].run(connection, id=reload_id, process=self._process)
                await connection.execute(f"NOTIFY {CHANNEL}")

    def _begin_to_ask(self) -> None:
        """Ask on behalf of a signal. Signals that come meanwhile become one more reload."""
        if self._origin.is_asked and (self._asking is None or self._asking.done()):
            self._origin.is_asked = False
            self._asking = asyncio.create_task(self._ask(), name="reload")
            self._asking.add_done_callback(lambda _: self._listener.wake())

    async def _ask(self) -> None:
        service = ReloadService(self._database)
        with suppress(asyncio.CancelledError):
            try:
                await service.reload(Actor(OURSELVES, Scope.ADMIN), self._origin.group)
            except Exception as error:
                log.error("settings_refused", reason=masked(str(error)))
