"""The sockets of a server. They are bound before anything else, and shared by its processes."""

import errno
import socket
from dataclasses import dataclass
from typing import Final

from paidonce.errors import ConfigurationError
from paidonce.settings.sections import ServerSettings

BACKLOG: Final = 1024
PORTS_TO_TRY: Final = 100


@dataclass(frozen=True, slots=True)
class Listeners:
    """The socket of deliveries, and that of operators if they have one of their own."""

    public: socket.socket
    admin: socket.socket | None

    @property
    def all(self) -> list[socket.socket]:
        return [one for one in (self.public, self.admin) if one is not None]

    def close(self) -> None:
        for one in self.all:
            one.close()


def open_listeners(server: ServerSettings) -> Listeners:
    """Bind the sockets. Raises ConfigurationError, which names the next free port."""
    public = _listening_socket(server.host, server.port, "")
    if server.admin_port is None:
        return Listeners(public, None)
    try:
        return Listeners(public, _listening_socket(server.admin_host, server.admin_port, "admin_"))
    except ConfigurationError:
        public.close()
        raise


def _listening_socket(host: str, port: int, prefix: str) -> socket.socket:
    """The bound socket. Raises ConfigurationError, which names the next free port."""
    try:
        return _bound(host, port)
    except (OSError, UnicodeError) as error:  # UnicodeError: not a valid host name
        if getattr(error, "errno", None) != errno.EADDRINUSE:
            cause = getattr(error, "strerror", None) or "not a valid host"
            raise ConfigurationError(
                f"server.{prefix}host = {host!r}, server.{prefix}port = {port}: {cause}; "
                f"{_remedy(error)}"
            ) from None
    free = _next_free_port(host, port)
    remedy = f"PAIDONCE_SERVER__ADMIN_PORT={free}" if prefix else f"paidonce serve --port {free}"
    raise ConfigurationError(
        f"server.{prefix}port = {port}: the port is in use; {free} is free: {remedy}"
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
