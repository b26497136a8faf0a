"""Serving: the socket, the signals, and what a person is told at the start."""

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

from paidonce import demo
from paidonce.app import ALL_ROLES, App, accept_bootstrap_key, running
from paidonce.crashpoints import arm
from paidonce.errors import ConfigurationError
from paidonce.operations import Scope
from paidonce.processes import ALONE, ENDING, Place
from paidonce.settings import Role, ServerSettings, Settings
from paidonce.telemetry import configure_logging, logger
from paidonce.web.connection import DeliveryConnection, GuardedConnection

log = logger(__name__)

BACKLOG: Final = 1024
PORTS_TO_TRY: Final = 100
GIVE_UP_S: Final = 4.0
"""When to stop, what was accepted has this long to be settled; then it has to come again."""
GRACE_S: Final = 5
LEAVE_S: Final = 0.5
"""When all that is ours has stopped, what is left of a user's own code has this long to end."""
GC_THRESHOLDS: Final = (20_000, 20, 50)

_STOPPED: Final = "stopped by a signal"

_BEHIND_THE_DOOR: Final[Mapping[Role, str]] = {
    Role.WORKER: "settles what waits",
    Role.RELAY: "publishes what is to leave",
    Role.PAYMENTS: "carries out payments out of wallets",
    Role.QUERY: "keeps what is shown of payments out of wallets",
    Role.JANITOR: "keeps the tables small",
}
"""What a process does that takes no deliveries."""


async def serve(
    settings: Settings,
    is_demo: bool,
    tell: Callable[[str], None],
    listener: socket.socket,
    roles: Set[Role] = ALL_ROLES,
    place: Place = ALONE,
) -> None:
    """Serve until SIGTERM or SIGINT; what was accepted is finished and answered."""
    configure_logging()
    arm(settings.environment)
    _collect_less_often()
    try:
        with _start_ended_by_signals():
            async with running(settings, _roles_at(place, roles)) as app:
                if place.leads:
                    await _prepare(app, settings, is_demo, listener, roles, tell)
                await _Server(_uvicorn(app, settings), app, place.parent).serve(sockets=[listener])
    finally:
        listener.close()
    _end_anyway()


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
def _start_ended_by_signals() -> Iterator[None]:
    """End a start that is under way cleanly. Once the server runs, it hears signals itself."""
    task = asyncio.current_task()
    assert task is not None
    for number in ENDING:
        asyncio.get_running_loop().add_signal_handler(number, task.cancel, _STOPPED)
    try:
        yield
    except asyncio.CancelledError as error:
        if error.args != (_STOPPED,):
            raise


async def work(settings: Settings, tell: Callable[[str], None]) -> None:
    """Settle what waits, and keep the tables small, until SIGTERM or SIGINT."""
    told = "Paidonce works on what waits. It takes no deliveries: `paidonce serve` does."
    await _run_without_socket(settings, {Role.WORKER, Role.JANITOR}, lambda: tell(told))


async def relay(settings: Settings, tell: Callable[[str], None]) -> None:
    """Publish what is to leave, and tell people, until SIGTERM or SIGINT."""
    told = "Paidonce publishes what is to leave. It takes no deliveries: `paidonce serve` does."
    await _run_without_socket(settings, {Role.RELAY}, lambda: tell(told))


async def _run_without_socket(
    settings: Settings, roles: Set[Role], begun: Callable[[], None]
) -> None:
    configure_logging()
    arm(settings.environment)
    stop = asyncio.Event()
    for number in ENDING:
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with running(settings, roles):
        begun()
        await stop.wait()
    _end_anyway()


def _end_anyway() -> None:
    """Let nothing keep the process: a handler may ignore that it is cancelled, or sit in a thread.

    The event loop and the interpreter would wait for it for ever.
    """
    end = threading.Timer(LEAVE_S, _leave)
    end.daemon = True
    end.start()


def _leave() -> None:
    log.warning("left_behind", detail="code of a handler did not end; the process does")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _roles_at(place: Place, roles: Set[Role]) -> Set[Role]:
    """Every process takes deliveries and works; one janitor is enough."""
    return roles if place.leads else roles - {Role.JANITOR}


class _Server(uvicorn.Server):
    """uvicorn's server, which ends where it was called and not by the signal that ended it."""

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
    """The class of connections that uvicorn makes."""
    bound = {"request_timeout_s": server.request_timeout_s}
    if app.edge is None:
        return type("BoundConnection", (GuardedConnection,), bound)
    return type("BoundConnection", (DeliveryConnection,), {**bound, "edge": app.edge})


def _collect_less_often() -> None:
    """What is there at the start stays; looking through it again and again costs a tenth."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


def listening_socket(server: ServerSettings) -> socket.socket:
    """The bound socket. Raises ConfigurationError that names the next free port."""
    try:
        return _bound(server.host, server.port)
    except (OSError, UnicodeError) as error:  # a name that cannot be one is the latter
        if getattr(error, "errno", None) != errno.EADDRINUSE:
            cause = getattr(error, "strerror", None) or "it cannot be a host"
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
    tell: Callable[[str], None],
) -> None:
    """The keys and the demo's user, and a word to whoever started it."""
    has_bootstrap_key = await accept_bootstrap_key(app.operations)
    host, port = listener.getsockname()[:2]
    at = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    if Role.WEB not in roles:
        _tell_of_work(settings, at, roles, tell)
        return
    key = None if has_bootstrap_key else await _first_key(app, settings)
    if is_demo:
        await app.operations.create_user(demo.EMAIL)
    tell(f"Paidonce is running at {at}  (API at /docs, metrics at /metrics)")
    if settings.security.pepper is None and not settings.database.is_embedded:
        tell("security.pepper is not set: operators' keys are hashed without one")
    if key is not None:
        tell(f"Operator key, shown only now: {key}")
    if is_demo:
        tell(_invitation(port))


def _tell_of_work(
    settings: Settings, at: str, roles: Set[Role], tell: Callable[[str], None]
) -> None:
    """What is done by a process that has no door, where operators need no key."""
    tell(f"Paidonce is running at {at}  (only /healthz, /readyz and /metrics)")
    work = ", ".join(told for role, told in _BEHIND_THE_DOOR.items() if role in roles)
    tell(f"It {work}. It takes no deliveries: `paidonce serve --roles web` does.")
    if Role.PAYMENTS in roles and settings.payment_service.gateway_url is None:
        tell("payment_service.gateway_url is not set: nothing is paid out of wallets")


async def _first_key(app: App, settings: Settings) -> str | None:
    """A key that was made because there was none."""
    if settings.environment == "development" and not await app.operations.has_keys():
        return (await app.operations.create_key("first", Scope.ADMIN)).key
    return None


def _invitation(port: int) -> str:
    program = sys.argv[0] if "/" in sys.argv[0] else "paidonce"
    if program.endswith("__main__.py"):
        program = f"{sys.executable} -m paidonce"
    at = "" if port == ServerSettings().port else f" --url http://127.0.0.1:{port}"
    return (
        f"Extend the demo user's subscription by a month, from another terminal:\n"
        f"  {program} send --email {demo.EMAIL} --amount {demo.PRICE} --payment-id pay-1{at}\n"
        f"Run the same line again: the answer is a duplicate, and nothing is extended twice."
    )
