"""Checks of what can be seen from this machine: settings, secrets, files, disk, port."""

import errno
import http.client
import os
import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from paidonce.bus.opening import open_bus
from paidonce.configured import configured_gateway, configured_plans
from paidonce.doctor.findings import Finding, State
from paidonce.doorkeeping import configured_addresses
from paidonce.engine.channels import configured_channels
from paidonce.errors import PaidonceError
from paidonce.operations.pepper import pepper_file, pepper_of
from paidonce.providers import configured_providers
from paidonce.settings import Settings, config_path, load_settings, resolve_secret

SHORTEST_SECRET: Final = 16
LOW_DISK_BYTES: Final = 10**9
LOW_DISK_SHARE: Final = 0.10
FULL_DISK_BYTES: Final = 200 * 10**6
PROBE_TIMEOUT_S: Final = 3.0
PROBE_BYTES: Final = 1_000
READABLE_BY_ALL: Final = 0o004
READABLE_BY_OTHERS: Final = 0o044


@dataclass(frozen=True, slots=True)
class World:
    """The settings, and the file that they come from, if there is one."""

    settings: Settings
    path: Path | None


def read(config: Path | None) -> World:
    """Raises ConfigurationError."""
    return World(load_settings(config), config_path(config))


def _configuration(world: World) -> Finding:
    path = world.path
    where = f"read from {path}" if path else f"no file; the defaults, from {Path.cwd()}"
    if path and _tells_secrets(world.settings) and path.stat().st_mode & READABLE_BY_ALL:
        remedy = f"chmod o-r {path}, or name the secrets as env:NAME or file:PATH"
        found = f"{where}; it holds secrets, and everybody on this machine may read it"
        return Finding("configuration", State.WARNING, found, remedy)
    found = f"{where}; environment is {world.settings.environment}"
    return Finding("configuration", State.OK, found)


def _tells_secrets(settings: Settings) -> bool:
    given = [secret for one in settings.sources.values() for secret in one.secrets]
    return any(not secret.startswith(("env:", "file:")) for secret in given)


def _sources(world: World) -> Finding:
    if not world.settings.sources:
        if world.path is None and world.settings.environment == "development":
            return Finding("sources", State.OK, "none: `paidonce serve` adds one to try")
        remedy = 'add [sources.payments] with provider = "tilda", secrets = ["env:TILDA_SECRET"]'
        return Finding("sources", State.PROBLEM, "there are none", remedy)
    wrong = list(dict.fromkeys(_wrong_sources(world.settings)))
    if wrong:
        return Finding("sources", State.PROBLEM, "; ".join(wrong), "mend what is named")
    named = [f"{name} ({one.provider})" for name, one in world.settings.sources.items()]
    return Finding("sources", State.OK, ", ".join(named))


def _wrong_sources(settings: Settings) -> Iterator[str]:
    for name, source in settings.sources.items():
        try:
            configured_providers(settings.model_copy(update={"sources": {name: source}}))
        except PaidonceError as error:
            yield str(error)
    for check in (configured_providers, configured_addresses):  # one beside the other
        try:
            check(settings)
        except PaidonceError as error:
            yield str(error)


def _secrets(world: World) -> Finding:
    weak, bare = [], []
    for name, source in world.settings.sources.items():
        for index, reference in enumerate(source.secrets):
            key = f"sources.{name}.secrets[{index}]"
            kind, _, place = reference.partition(":")
            with suppress(PaidonceError, OSError):  # told by the check of the sources
                if len(resolve_secret(reference, key)) < SHORTEST_SECRET:
                    weak.append(key)
                if kind == "file" and Path(place).stat().st_mode & READABLE_BY_ALL:
                    bare.append(place)
    found = [f"shorter than {SHORTEST_SECRET} characters: {', '.join(weak)}"] if weak else []
    found += [f"readable by everybody on this machine: {', '.join(bare)}"] if bare else []
    if not found:
        return Finding("secrets", State.OK, "none is short, or in a file that everybody may read")
    remedies = ["have the gateway make a longer one"] if weak else []
    remedies += [f"chmod o-r {' '.join(bare)}"] if bare else []
    return Finding("secrets", State.WARNING, "; ".join(found), "; ".join(remedies))


def _pepper(world: World) -> Finding:
    """What the operators' keys are hashed with. Makes none."""
    settings = world.settings
    if settings.security.pepper is not None:
        pepper_of(settings)
        return Finding("pepper", State.OK, "set")
    if not settings.database.is_embedded:
        remedy = 'set security.pepper = "env:NAME" or "file:PATH"; keys made before stay valid'
        found = "not set: operators' keys are hashed without one"
        return Finding("pepper", State.WARNING, found, remedy)
    path = pepper_file(settings)
    if not path.exists():
        return Finding("pepper", State.OK, f"{path} will be made by the first `paidonce serve`")
    if path.stat().st_mode & READABLE_BY_OTHERS:
        found = f"{path} can be read by others on this machine"
        return Finding("pepper", State.WARNING, found, f"chmod 600 {path}")
    return Finding("pepper", State.OK, str(path))


def _plans(world: World) -> Finding:
    plans = configured_plans(world.settings.plans)
    if not plans and world.settings.sources:
        remedy = "add [plans.monthly] with price, currency, days, default = true"
        return Finding("plans", State.WARNING, "none: what is paid extends nothing", remedy)
    return Finding("plans", State.OK, ", ".join(f"{one.id} {one.price}" for one in plans) or "none")


def _notifications(world: World) -> Finding:
    channels = configured_channels(world.settings.notifications)
    named = [f"{one.name} ({one.kind})" for one in channels.values()]
    return Finding("notifications", State.OK, ", ".join(named) or "none: nobody is told")


def _bus(world: World) -> Finding:
    """Whether it can be opened as it is configured. Connects to nothing."""
    open_bus(world.settings.bus)
    return Finding("bus", State.OK, world.settings.bus.url)


def _payment_service(world: World) -> Finding:
    name, source = "payment service", world.settings.payment_service.source
    if configured_gateway(world.settings) is None:
        return Finding(name, State.OK, "no gateway: nothing is paid out of wallets")
    if world.settings.sources.keys() == {source}:
        found = f"{source} takes callbacks alone, and there is no other source to fill a wallet"
        return Finding(name, State.WARNING, found, "add a source for top-ups")
    return Finding(name, State.OK, f"its gateway calls back at /webhooks/{source}")


def _data_directory(world: World) -> Finding:
    name, folder = "data directory", world.settings.database.data_dir.absolute()
    if not world.settings.database.is_embedded:
        return Finding(name, State.SKIPPED, "not used: database.url names a PostgreSQL")
    nearest = _nearest(folder)
    remedy = "set database.data_dir to a directory of your own, or change its owner or mode"
    if not nearest.is_dir():
        return Finding(name, State.PROBLEM, f"{nearest} is no directory", remedy)
    if not os.access(nearest, os.W_OK | os.X_OK):
        return Finding(name, State.PROBLEM, f"{nearest} cannot be written to", remedy)
    if nearest != folder:
        return Finding(name, State.OK, f"{folder} will be made by the first `paidonce serve`")
    if os.geteuid() not in (0, folder.stat().st_uid):
        return Finding(name, State.WARNING, f"{folder} belongs to another user", remedy)
    return Finding(name, State.OK, f"{folder} is writable")


def _disk(world: World) -> Finding:
    if not world.settings.database.is_embedded:
        return Finding("disk", State.SKIPPED, "the data lies with the PostgreSQL of database.url")
    folder = _nearest(world.settings.database.data_dir.absolute() / "postgres")
    usage = shutil.disk_usage(folder.resolve())
    return disk_finding(usage.free, usage.total, str(folder))


def disk_finding(free: int, total: int, where: str) -> Finding:
    """What so much free space means."""
    found = f"{free / 10**9:.1f} GB free of {total / 10**9:.1f} GB at {where}"
    remedy = "make room: a database that cannot write takes no deliveries"
    if free < FULL_DISK_BYTES:
        return Finding("disk", State.PROBLEM, found, remedy)
    if free < LOW_DISK_BYTES or free < LOW_DISK_SHARE * total:
        return Finding("disk", State.WARNING, found, remedy)
    return Finding("disk", State.OK, found)


def _nearest(path: Path) -> Path:
    """The path itself, or the nearest one above it that is there."""
    return next(one for one in (path, *path.parents) if one.exists())


def _port(world: World) -> Finding:
    host, port = world.settings.server.host, world.settings.server.port
    if port == 0:
        return Finding("port", State.OK, "any that is free")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind((host, port))
            tried.listen(1)
        except (OSError, UnicodeError) as error:
            return _port_in_use(host, port, error)
    return Finding("port", State.OK, f"{host}:{port} is free; no Paidonce answers there")


def _port_in_use(host: str, port: int, error: Exception) -> Finding:
    if getattr(error, "errno", None) != errno.EADDRINUSE:
        remedy = "set server.host to an address of this machine, server.port to one you may use"
        return Finding("port", State.PROBLEM, f"{host}:{port}: {error}", remedy)
    if _is_paidonce({"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host), port):  # noqa: S104
        return Finding("port", State.OK, f"Paidonce answers at {host}:{port}")
    remedy = f"stop what uses it, or choose another: paidonce serve --port {port + 1}"
    return Finding("port", State.PROBLEM, f"another program uses {host}:{port}", remedy)


def _is_paidonce(host: str, port: int) -> bool:
    connection = http.client.HTTPConnection(host, port, timeout=PROBE_TIMEOUT_S)
    try:
        connection.request("GET", "/healthz")
        answer = connection.getresponse()
        return answer.status == 200 and b'"status"' in answer.read(PROBE_BYTES)
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


CHECKS: Final[dict[str, Callable[[World], Finding]]] = {
    "configuration": _configuration,
    "sources": _sources,
    "secrets": _secrets,
    "pepper": _pepper,
    "plans": _plans,
    "notifications": _notifications,
    "bus": _bus,
    "payment service": _payment_service,
    "data directory": _data_directory,
    "disk": _disk,
    "port": _port,
}
