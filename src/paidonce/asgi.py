"""Paidonce as a part of another program: an ASGI application that holds all of it.

    pay = paidonce.asgi()
    app = FastAPI(lifespan=pay.lifespan)
    app.mount("/pay", pay)

It can also be served alone, by any ASGI server: then it starts and stops with that.
"""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Final

from starlette.responses import Response

from paidonce.api.problems import Problem
from paidonce.bootstrap.application import ALL_ROLES, App, accept_bootstrap_key, running
from paidonce.bootstrap.services import Services
from paidonce.db.queries import Connection
from paidonce.ids import new_id
from paidonce.inbox.edge import Receive, Scope, Send
from paidonce.runtime.crashpoints import arm
from paidonce.settings import Settings
from paidonce.settings.reading import load_settings
from paidonce.telemetry import configure_logging_unless_configured, logger

log = logger(__name__)

_NOT_STARTED: Final = Problem(503, "NOT_STARTED", "The service is not running.", retry_after_s=1)
_REMEDY: Final = "start it with the program that holds it: FastAPI(lifespan=pay.lifespan)"


def asgi(settings: Settings | Path | str | None = None) -> "Mounted":
    """The whole of Paidonce as an ASGI application.

    Give it settings, or the configuration file; without, they are read as by `paidonce serve`.
    Raises ConfigurationError.
    """
    if not isinstance(settings, Settings):
        settings = load_settings(None if settings is None else Path(settings))
    return Mounted(settings)


class Mounted:
    """An ASGI application that runs while its lifespan does."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._app: App | None = None

    @asynccontextmanager
    async def lifespan(self, host: object = None) -> AsyncIterator[None]:
        """Run the service: `FastAPI(lifespan=pay.lifespan)`, or in a lifespan of your own.

        Raises ConfigurationError, UnsupportedDatabaseError or EmbeddedDatabaseError.
        """
        configure_logging_unless_configured()
        arm(self._settings.environment)
        async with running(self._settings, ALL_ROLES) as app:
            await accept_bootstrap_key(app.services)
            self._app = app
            try:
                yield
            finally:
                self._app = None
                app.finish()

    @property
    def services(self) -> Services:
        """What an operator can ask or do, without HTTP: orders, users, payments."""
        return self._running.services

    def connection(self) -> AbstractAsyncContextManager[Connection]:
        """A connection to the database, for tables of your own that handlers write to."""
        return self._running.database.connection()

    @property
    def _running(self) -> App:
        if self._app is None:
            raise RuntimeError(f"Paidonce is not running; {_REMEDY}")
        return self._app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or start and stop with the server."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1000})
        elif self._app is None:
            log.error("not_started", remedy=_REMEDY)
            body, headers = _NOT_STARTED.body(str(new_id())), _NOT_STARTED.headers()
            await Response(body, _NOT_STARTED.status, headers)(scope, receive, send)
        else:
            await self._app.asgi(scope, receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        """The lifespan, in the words of ASGI."""
        await receive()
        word = "startup"
        try:
            async with self.lifespan():
                await send({"type": "lifespan.startup.complete"})
                await receive()
                word = "shutdown"
        except Exception as error:
            await send({"type": f"lifespan.{word}.failed", "message": str(error)})
            raise
        await send({"type": "lifespan.shutdown.complete"})
