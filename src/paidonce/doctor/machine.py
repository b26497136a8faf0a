"""Checks of this machine: settings, secrets, files, disk, port."""

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

from paidonce.bootstrap.rules import load_gateway, load_plans
from paidonce.bus.contract import open_bus
from paidonce.doctor.checks import CheckResult, CheckState
from paidonce.errors import PaidonceError
from paidonce.guard.setup import load_addresses
from paidonce.keys.pepper import load_pepper, pepper_file
from paidonce.notifications.channels import load_channels
from paidonce.providers import load_providers
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
class Installation:
    """The settings and their file, if there is one."""

    settings: Settings
    path: Path | None


def read(config: Path | None) -> Installation:
    """Raises ConfigurationError."""
    return Installation(load_settings(config), config_path(config))


def _configuration(installation: Installation) -> CheckResult:
    path = installation.path
    where = f"read from {path}" if path else f"no file; the defaults, from {Path.cwd()}"
    if path and _holds_secrets(installation.settings) and path.stat().st_mode & READABLE_BY_ALL:
        remedy = f"chmod o-r {path}, or give the secrets as env:NAME or file:PATH"
        found = f"{where}; it holds secrets, and every user of this machine can read it"
        return CheckResult("configuration", CheckState.WARNING, found, remedy)
    found = f"{where}; environment is {installation.settings.environment}"
    return CheckResult("configuration", CheckState.OK, found)


def _holds_secrets(settings: Settings) -> bool:
    given = [secret for one in settings.sources.values() for secret in one.secrets]
    return any(not secret.startswith(("env:", "file:")) for secret in given)


def _sources(installation: Installation) -> CheckResult:
    if not installation.settings.sources:
        if installation.path is None and installation.settings.environment == "development":
            return CheckResult(
                "sources", CheckState.OK, "none: `paidonce serve` adds a demo source"
            )
        remedy = 'add [sources.payments] with provider = "tilda", secrets = ["env:TILDA_SECRET"]'
        return CheckResult("sources", CheckState.PROBLEM, "there are none", remedy)
    wrong = list(dict.fromkeys(_wrong_sources(installation.settings)))
    if wrong:
        return CheckResult(
            "sources", CheckState.PROBLEM, "; ".join(wrong), "correct the setting that is named"
        )
    named = [f"{name} ({one.provider})" for name, one in installation.settings.sources.items()]
    return CheckResult("sources", CheckState.OK, ", ".join(named))


def _wrong_sources(settings: Settings) -> Iterator[str]:
    for name, source in settings.sources.items():
        try:
            load_providers(settings.model_copy(update={"sources": {name: source}}))
        except PaidonceError as error:
            yield str(error)
    for check in (load_providers, load_addresses):  # one beside the other
        try:
            check(settings)
        except PaidonceError as error:
            yield str(error)


def _secrets(installation: Installation) -> CheckResult:
    weak, bare = [], []
    for name, source in installation.settings.sources.items():
        for index, reference in enumerate(source.secrets):
            key = f"sources.{name}.secrets[{index}]"
            kind, _, place = reference.partition(":")
            with suppress(PaidonceError, OSError):  # reported by the check of the sources
                if len(resolve_secret(reference, key)) < SHORTEST_SECRET:
                    weak.append(key)
                if kind == "file" and Path(place).stat().st_mode & READABLE_BY_ALL:
                    bare.append(place)
    found = [f"shorter than {SHORTEST_SECRET} characters: {', '.join(weak)}"] if weak else []
    found += [f"readable by everybody on this machine: {', '.join(bare)}"] if bare else []
    if not found:
        return CheckResult(
            "secrets", CheckState.OK, "none is short, or in a file that everybody may read"
        )
    remedies = ["have the gateway make a longer one"] if weak else []
    remedies += [f"chmod o-r {' '.join(bare)}"] if bare else []
    return CheckResult("secrets", CheckState.WARNING, "; ".join(found), "; ".join(remedies))


def _pepper(installation: Installation) -> CheckResult:
    """What the operators' keys are hashed with. Makes none."""
    settings = installation.settings
    if settings.security.pepper is not None:
        load_pepper(settings)
        return CheckResult("pepper", CheckState.OK, "set")
    if not settings.database.is_embedded:
        remedy = 'set security.pepper = "env:NAME" or "file:PATH"; keys made before stay valid'
        found = "not set: operators' keys are hashed without one"
        return CheckResult("pepper", CheckState.WARNING, found, remedy)
    path = pepper_file(settings)
    if not path.exists():
        return CheckResult(
            "pepper", CheckState.OK, f"{path} is created by the first `paidonce serve`"
        )
    if path.stat().st_mode & READABLE_BY_OTHERS:
        found = f"{path} can be read by others on this machine"
        return CheckResult("pepper", CheckState.WARNING, found, f"chmod 600 {path}")
    return CheckResult("pepper", CheckState.OK, str(path))


def _plans(installation: Installation) -> CheckResult:
    plans = load_plans(installation.settings.plans)
    if not plans and installation.settings.sources:
        remedy = "add [plans.monthly] with price, currency, days, default = true"
        return CheckResult(
            "plans", CheckState.WARNING, "none: payments extend no subscription", remedy
        )
    return CheckResult(
        "plans", CheckState.OK, ", ".join(f"{one.id} {one.price}" for one in plans) or "none"
    )


def _notifications(installation: Installation) -> CheckResult:
    channels = load_channels(installation.settings.notifications)
    named = [f"{one.name} ({one.kind})" for one in channels.values()]
    return CheckResult(
        "notifications", CheckState.OK, ", ".join(named) or "none: no notifications are sent"
    )


def _bus(installation: Installation) -> CheckResult:
    """Whether the configuration of the bus is valid. Connects to nothing."""
    open_bus(installation.settings.bus)
    return CheckResult("bus", CheckState.OK, installation.settings.bus.url)


def _payouts(installation: Installation) -> CheckResult:
    name, source = "payouts", installation.settings.payouts.source
    if load_gateway(installation.settings) is None:
        return CheckResult(name, CheckState.OK, "no gateway: no payments from wallets")
    if installation.settings.sources.keys() == {source}:
        found = f"{source} only receives callbacks, and no other source can top up a wallet"
        return CheckResult(name, CheckState.WARNING, found, "add a source for top-ups")
    return CheckResult(name, CheckState.OK, f"the gateway sends callbacks to /webhooks/{source}")


def _data_directory(installation: Installation) -> CheckResult:
    name, folder = "data directory", installation.settings.database.data_dir.absolute()
    if not installation.settings.database.is_embedded:
        return CheckResult(name, CheckState.SKIPPED, "not used: database.url names a PostgreSQL")
    nearest = _nearest(folder)
    remedy = "set database.data_dir to a directory of your own, or change its owner or mode"
    if not nearest.is_dir():
        return CheckResult(name, CheckState.PROBLEM, f"{nearest} is not a directory", remedy)
    if not os.access(nearest, os.W_OK | os.X_OK):
        return CheckResult(name, CheckState.PROBLEM, f"{nearest} cannot be written to", remedy)
    if nearest != folder:
        return CheckResult(
            name, CheckState.OK, f"{folder} is created by the first `paidonce serve`"
        )
    if os.geteuid() not in (0, folder.stat().st_uid):
        return CheckResult(name, CheckState.WARNING, f"{folder} belongs to another user", remedy)
    return CheckResult(name, CheckState.OK, f"{folder} is writable")


def _disk(installation: Installation) -> CheckResult:
    if not installation.settings.database.is_embedded:
        return CheckResult("disk", CheckState.SKIPPED, "not used: database.url names a PostgreSQL")
    folder = _nearest(installation.settings.database.data_dir.absolute() / "postgres")
    usage = shutil.disk_usage(folder.resolve())
    return disk_result(usage.free, usage.total, str(folder))


def disk_result(free: int, total: int, where: str) -> CheckResult:
    """The result for this much free space."""
    found = f"{free / 10**9:.1f} GB free of {total / 10**9:.1f} GB at {where}"
    remedy = "free some space: without it the database cannot store deliveries"
    if free < FULL_DISK_BYTES:
        return CheckResult("disk", CheckState.PROBLEM, found, remedy)
    if free < LOW_DISK_BYTES or free < LOW_DISK_SHARE * total:
        return CheckResult("disk", CheckState.WARNING, found, remedy)
    return CheckResult("disk", CheckState.OK, found)


def _nearest(path: Path) -> Path:
    """The path itself, or its nearest existing parent."""
    return next(one for one in (path, *path.parents) if one.exists())


def _port(installation: Installation) -> CheckResult:
    host, port = installation.settings.server.host, installation.settings.server.port
    if port == 0:
        return CheckResult("port", CheckState.OK, "any free port")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind((host, port))
            tried.listen(1)
        except (OSError, UnicodeError) as error:
            return _port_in_use(host, port, error)
    return CheckResult("port", CheckState.OK, f"{host}:{port} is free; no Paidonce answers there")


def _port_in_use(host: str, port: int, error: Exception) -> CheckResult:
    if getattr(error, "errno", None) != errno.EADDRINUSE:
        remedy = "set server.host to an address of this machine, server.port to one you may use"
        return CheckResult("port", CheckState.PROBLEM, f"{host}:{port}: {error}", remedy)
    if _is_paidonce({"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host), port):  # noqa: S104
        return CheckResult("port", CheckState.OK, f"Paidonce answers at {host}:{port}")
    remedy = f"stop what uses it, or choose another: paidonce serve --port {port + 1}"
    return CheckResult("port", CheckState.PROBLEM, f"another program uses {host}:{port}", remedy)


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


CHECKS: Final[dict[str, Callable[[Installation], CheckResult]]] = {
    "configuration": _configuration,
    "sources": _sources,
    "secrets": _secrets,
    "pepper": _pepper,
    "plans": _plans,
    "notifications": _notifications,
    "bus": _bus,
    "payouts": _payouts,
    "data directory": _data_directory,
    "disk": _disk,
    "port": _port,
}
