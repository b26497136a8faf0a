"""A serving process: socket, signals, and what it prints at the start."""

import asyncio
import gc
import os
import resource
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, Final

import uvicorn

from paidonce.bootstrap.application import ALL_ROLES, App, running
from paidonce.bootstrap.generation import accept_bootstrap_key
from paidonce.bootstrap.rules import check_settings
from paidonce.cli.listeners import Listeners
from paidonce.core.actors import Scope
from paidonce.errors import ConfigurationError
from paidonce.inbox.capacity import Capacity
from paidonce.inbox.connection import GuardedConnection
from paidonce.inbox.framing import RequestLimits
from paidonce.inbox.protocol import DeliveryConnection
from paidonce.reload.changes import NEEDS_RESTART
from paidonce.reload.model import Origin
from paidonce.runtime.crashpoints import arm
from paidonce.runtime.hangup import ignore_hangup
from paidonce.runtime.processes import ALONE, ENDING, Place
from paidonce.settings import Role, Settings, demo
from paidonce.settings.reading import with_files_read
from paidonce.settings.sections import ServerSettings
from paidonce.telemetry import configure_logging, flush_log, logger

log = logger(__name__)

GIVE_UP_S: Final = 4.0
"""On stop, accepted deliveries have this long to be processed; then they are answered 503."""
GRACE_S: Final = 5
LEAVE_S: Final = 0.5
"""After everything has stopped, the user's own code has this long to end."""
MAX_ADMIN_CONNECTIONS: Final = 256
MANY_FILES: Final = 1 << 20
"""The limit of open files where the system has none."""
GC_THRESHOLDS: Final = (20_000, 20, 50)

_STOPPED: Final = "stopped by a signal"

_WORK_OF_ROLES: Final[Mapping[Role, str]] = {
    Role.WORKER: "processes pending events",
    Role.RELAY: "publishes outbox messages and sends notifications",
    Role.PAYMENTS: "carries out payments from wallets",
    Role.QUERY: "maintains the read model of payments from wallets",
    Role.JANITOR: "maintains the tables",
}
"""What a process does that receives no deliveries."""


async def serve(
    settings: Settings,
    is_demo: bool,
    tell: Callable[[str], None],
    listeners: Listeners,
    roles: Set[Role] = ALL_ROLES,
    place: Place = ALONE,
    origin: Origin | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT; accepted deliveries are processed and answered."""
    configure_logging(settings.log)
    arm(settings.environment)
    _relax_garbage_collection()
    try:
        with _cancelled_by_signals():
            # Every process receives and processes; one runs the maintenance.
            own_roles = roles if place.leads else roles - {Role.JANITOR}
            async with running(settings, own_roles, origin) as app:
                has_bootstrap_key = await accept_bootstrap_key(app.services)
                if place.leads:
                    has_key = has_bootstrap_key or Role.WEB not in roles
                    key = None if has_key else await _first_key(app, settings)
                    await _prepare(app, settings, is_demo, listeners, roles, key, tell)
                await _serve_all(app, settings, listeners)
    finally:
        listeners.close()
        flush_log()
    _exit_in_any_case()


async def _serve_all(app: App, settings: Settings, listeners: Listeners) -> None:
    """Serve deliveries, and operators if they have a port of their own, until both have stopped."""
    server = settings.server
    public = _Server(_uvicorn(app.asgi, _connection(app, server)), app)
    if listeners.admin is None or not app.has_admin:
        await public.serve(sockets=[listeners.public])
        return
    public.admin = _AdminServer(
        _uvicorn(app.answer_operator, _connection(None, server, MAX_ADMIN_CONNECTIONS))
    )
    async with asyncio.TaskGroup() as both:
        both.create_task(public.admin.serve(sockets=[listeners.admin]))
        await public.serve(sockets=[listeners.public])


def current_settings(started_with: Settings, origin: Origin) -> Settings:
    """The settings of a process that replaces a dead one: as they are now, if they are valid."""
    try:
        settings = with_files_read(origin.load())
        kept = {name: getattr(started_with, name) for name in NEEDS_RESTART}
        settings = settings.model_copy(update=kept)
        check_settings(settings)
    except ConfigurationError as error:
        log.error("settings_refused", reason=str(error), detail="those of the start are used")
        return started_with
    return settings


def _uvicorn(asgi: Any, connection: type[GuardedConnection]) -> uvicorn.Config:
    return uvicorn.Config(
        asgi,
        interface="asgi3",  # uvicorn does not recognise a method
        http=connection,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=GRACE_S,
    )


@contextmanager
def _cancelled_by_signals() -> Iterator[None]:
    """Stop cleanly during the start. A running server handles signals itself."""
    task = asyncio.current_task()
    assert task is not None
    for number in ENDING:
        asyncio.get_running_loop().add_signal_handler(number, task.cancel, _STOPPED)
    try:
        yield
    except asyncio.CancelledError as error:
        if error.args != (_STOPPED,):
            raise


async def work(
    settings: Settings, roles: Set[Role], on_start: Callable[[], None], origin: Origin
) -> None:
    """Do the work of these roles without a socket, until SIGTERM or SIGINT."""
    configure_logging(settings.log)
    arm(settings.environment)
    stop = asyncio.Event()
    for number in ENDING:
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with running(settings, roles, origin):
        on_start()
        await stop.wait()
    flush_log()
    _exit_in_any_case()


def _exit_in_any_case() -> None:
    """Exit even if a handler ignores its cancellation or blocks a thread.

    The event loop and the interpreter would wait for it for ever.
    """
    ignore_hangup()
    end = threading.Timer(LEAVE_S, _exit)
    end.daemon = True
    end.start()


def _exit() -> None:
    log.warning("handler_did_not_stop", detail="the process exits without it")
    flush_log()
    # Handlers may have printed, and whoever reads that may have stopped.
    flushing = threading.Thread(target=_flush_streams, daemon=True)
    flushing.start()
    flushing.join(LEAVE_S)
    os._exit(0)


class _AdminServer(uvicorn.Server):
    """The server of operators. It stops with that of deliveries, which handles the signals."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _flush_streams() -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()


class _Server(uvicorn.Server):
    """uvicorn's server, which returns on a signal instead of raising it again."""

    def __init__(self, config: uvicorn.Config, app: App) -> None:
        super().__init__(config)
        self._app = app
        self.admin: _AdminServer | None = None

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in ENDING:
            loop.add_signal_handler(number, self.handle_exit, number, None)
        yield

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if not self.should_exit:
            self._app.finish()
            asyncio.get_running_loop().call_later(GIVE_UP_S, self._app.give_up)
        if self.admin is not None:
            self.admin.handle_exit(sig, frame)
        super().handle_exit(sig, frame)


def _connection(
    app: App | None, server: ServerSettings, most: int | None = None
) -> type[GuardedConnection]:
    """The protocol class that uvicorn uses for connections."""
    most = most or raise_file_limit() // 2
    bound = {
        "request_timeout_s": server.request_timeout_s,
        "limits": RequestLimits(
            server.max_url_bytes, server.max_header_bytes, server.max_headers, server.max_body_bytes
        ),
        "capacity": Capacity(min(server.max_connections, most), server.max_total_body_bytes),
    }
    if app is None or app.edge is None:
        return type("BoundConnection", (GuardedConnection,), bound)
    current = property(lambda _: app.edge)  # each delivery asks for it: a reload changes it
    return type("BoundConnection", (DeliveryConnection,), {**bound, "edge": current})


def raise_file_limit() -> int:
    """Raise the limit of open files as far as the system allows, and return it.

    Connections take half of it at most; the rest is for the database, files and calls.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = MANY_FILES if hard == resource.RLIM_INFINITY else hard
    if soft < limit:
        with suppress(OSError, ValueError):  # some systems have a lower limit than they say
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
            return limit
    return soft


def _relax_garbage_collection() -> None:
    """Objects of the start live as long as the process; scanning them costs a tenth."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


async def _prepare(
    app: App,
    settings: Settings,
    is_demo: bool,
    listeners: Listeners,
    roles: Set[Role],
    key: str | None,
    tell: Callable[[str], None],
) -> None:
    """Create the demo user, and print how to use the service. `key` is a new one."""
    at = _url(listeners.public)
    admin_at = None if listeners.admin is None else _url(listeners.admin)
    if Role.WEB not in roles:
        _print_work(settings, at, admin_at, roles, tell)
        return
    if is_demo:
        await app.services.users.create(demo.EMAIL)
    for_operators = "API at /docs, metrics at /metrics"
    tell(f"Paidonce is running at {at}  ({for_operators if admin_at is None else 'deliveries'})")
    if admin_at is not None:
        tell(f"Operators use {admin_at}  ({for_operators})")
    if settings.security.pepper is None and not settings.database.is_embedded:
        tell("security.pepper is not set: API keys are hashed without one")
    if key is not None:
        tell(f"Operator key, shown only now: {key}")
    if is_demo:
        tell(_try_it_text(listeners.public.getsockname()[1]))


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _print_work(
    settings: Settings,
    at: str,
    admin_at: str | None,
    roles: Set[Role],
    tell: Callable[[str], None],
) -> None:
    """Print what a process without the web role does."""
    if admin_at is None:
        tell(f"Paidonce is running at {at}  (only /healthz, /readyz and /metrics)")
    else:
        tell(f"Paidonce is running at {at}  (only /healthz and /readyz)")
        tell(f"Metrics are at {admin_at}/metrics")
    work = ", ".join(text for role, text in _WORK_OF_ROLES.items() if role in roles)
    tell(f"It {work}. It receives no deliveries: `paidonce serve --roles web` does.")
    if Role.PAYMENTS in roles and settings.payouts.gateway_url is None:
        tell("payouts.gateway_url is not set: no payments from wallets are carried out")


async def _first_key(app: App, settings: Settings) -> str | None:
    """A new key, if there is none yet."""
    if settings.environment == "development" and not await app.services.keys.any_exist():
        return (await app.services.keys.create("first", Scope.ADMIN)).key
    return None


def _try_it_text(port: int) -> str:
    program = sys.argv[0] if "/" in sys.argv[0] else "paidonce"
    if program.endswith("__main__.py"):
        program = f"{sys.executable} -m paidonce"
    at = "" if port == ServerSettings().port else f" --url http://127.0.0.1:{port}"
    return (
        f"Extend the subscription of the demo user by 30 days, from another terminal:\n"
        f"  {program} send --email {demo.EMAIL} --amount {demo.PRICE} --payment-id pay-1{at}\n"
        f"Run it again: the response is `duplicate`, and nothing is extended twice."
    )
