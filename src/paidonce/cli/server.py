"""A serving process: socket, signals, and what it prints at the start."""

import asyncio
import errno
import gc
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import contextmanager
from types import FrameType
from typing import Final

import uvicorn

from paidonce.bootstrap.application import ALL_ROLES, App, accept_bootstrap_key, running
from paidonce.core.actors import Scope
from paidonce.errors import ConfigurationError
from paidonce.inbox.protocol import DeliveryConnection, GuardedConnection
from paidonce.runtime.crashpoints import arm
from paidonce.runtime.processes import ALONE, ENDING, Place
from paidonce.settings import Role, ServerSettings, Settings, demo
from paidonce.telemetry import configure_logging, logger

log = logger(__name__)

BACKLOG: Final = 1024
PORTS_TO_TRY: Final = 100
GIVE_UP_S: Final = 4.0
"""On stop, accepted deliveries have this long to be processed; then they are answered 503."""
GRACE_S: Final = 5
LEAVE_S: Final = 0.5
"""After everything has stopped, the user's own code has this long to end."""
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
    listener: socket.socket,
    roles: Set[Role] = ALL_ROLES,
    place: Place = ALONE,
) -> None:
    """Serve until SIGTERM or SIGINT; accepted deliveries are processed and answered."""
    configure_logging()
    arm(settings.environment)
    _relax_garbage_collection()
    try:
        with _cancelled_by_signals():
            # Every process receives and processes; one runs the maintenance.
            own_roles = roles if place.leads else roles - {Role.JANITOR}
            async with running(settings, own_roles) as app:
                has_bootstrap_key = await accept_bootstrap_key(app.services)
                if place.leads:
                    has_key = has_bootstrap_key or Role.WEB not in roles
                    key = None if has_key else await _first_key(app, settings)
                    await _prepare(app, settings, is_demo, listener, roles, key, tell)
                await _Server(_uvicorn(app, settings), app, place.parent).serve(sockets=[listener])
    finally:
        listener.close()
    _exit_in_any_case()


def _uvicorn(app: App, settings: Settings) -> uvicorn.Config:
    return uvicorn.Config(
        app.asgi,
        http=_connection(app, settings.server),
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


async def work(settings: Settings, roles: Set[Role], on_start: Callable[[], None]) -> None:
    """Do the work of these roles without a socket, until SIGTERM or SIGINT."""
    configure_logging()
    arm(settings.environment)
    stop = asyncio.Event()
    for number in ENDING:
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with running(settings, roles):
        on_start()
        await stop.wait()
    _exit_in_any_case()


def _exit_in_any_case() -> None:
    """Exit even if a handler ignores its cancellation or blocks a thread.

    The event loop and the interpreter would wait for it for ever.
    """
    end = threading.Timer(LEAVE_S, _exit)
    end.daemon = True
    end.start()


def _exit() -> None:
    log.warning("handler_did_not_stop", detail="the process exits without it")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


class _Server(uvicorn.Server):
    """uvicorn's server, which returns on a signal instead of raising it again."""

    def __init__(self, config: uvicorn.Config, app: App, parent: int | None) -> None:
        super().__init__(config)
        self._app = app
        self._parent = parent

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in ENDING:
            loop.add_signal_handler(number, self.handle_exit, number, None)
        if self._parent is not None:
            loop.add_reader(self._parent, self._on_parent_dead, self._parent)
        yield

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if not self.should_exit:
            self._app.finish()
            asyncio.get_running_loop().call_later(GIVE_UP_S, self._app.give_up)
        super().handle_exit(sig, frame)

    def _on_parent_dead(self, parent: int) -> None:
        asyncio.get_running_loop().remove_reader(parent)
        self.handle_exit(signal.SIGTERM, None)


def _connection(app: App, server: ServerSettings) -> type[GuardedConnection]:
    """The protocol class that uvicorn uses for connections."""
    bound = {"request_timeout_s": server.request_timeout_s}
    if app.edge is None:
        return type("BoundConnection", (GuardedConnection,), bound)
    return type("BoundConnection", (DeliveryConnection,), {**bound, "edge": app.edge})


def _relax_garbage_collection() -> None:
    """Objects of the start live as long as the process; scanning them costs a tenth."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


def listening_socket(server: ServerSettings) -> socket.socket:
    """The bound socket. Raises ConfigurationError, which names the next free port."""
    try:
        return _bound(server.host, server.port)
    except (OSError, UnicodeError) as error:  # UnicodeError: not a valid host name
        if getattr(error, "errno", None) != errno.EADDRINUSE:
            cause = getattr(error, "strerror", None) or "not a valid host"
            raise ConfigurationError(
                f"server.host = {server.host!r}, server.port = {server.port}: {cause}; "
                f"{_remedy(error)}"
            ) from None
    free = _next_free_port(server.host, server.port)
    raise ConfigurationError(
        f"server.port = {server.port}: the port is in use; {free} is free: "
        f"paidonce serve --port {free}"
    )


def _remedy(error: Exception) -> str:
    if isinstance(error, PermissionError):
        return "ports below 1024 are for root: use a higher one"
    return "use 127.0.0.1, 0.0.0.0 for all, or another address of this machine"


def _bound(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
        bound.listen(BACKLOG)
    except (OSError, UnicodeError):
        bound.close()
        raise
    return bound


def _next_free_port(host: str, port: int) -> int:
    for candidate in range(port + 1, min(port + PORTS_TO_TRY, 65535) + 1):
        try:
            _bound(host, candidate).close()
        except OSError:
            continue
        return candidate
    with _bound(host, 0) as any_port:
        chosen: int = any_port.getsockname()[1]
        return chosen


async def _prepare(
    app: App,
    settings: Settings,
    is_demo: bool,
    listener: socket.socket,
    roles: Set[Role],
    key: str | None,
    tell: Callable[[str], None],
) -> None:
    """Create the demo user, and print how to use the service. `key` is a new one."""
    host, port = listener.getsockname()[:2]
    at = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    if Role.WEB not in roles:
        _print_work(settings, at, roles, tell)
        return
    if is_demo:
        await app.services.users.create(demo.EMAIL)
    tell(f"Paidonce is running at {at}  (API at /docs, metrics at /metrics)")
    if settings.security.pepper is None and not settings.database.is_embedded:
        tell("security.pepper is not set: API keys are hashed without one")
    if key is not None:
        tell(f"Operator key, shown only now: {key}")
    if is_demo:
        tell(_try_it_text(port))


def _print_work(settings: Settings, at: str, roles: Set[Role], tell: Callable[[str], None]) -> None:
    """Print what a process without the web role does."""
    tell(f"Paidonce is running at {at}  (only /healthz, /readyz and /metrics)")
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
