"""Checks of this machine: settings, secrets, files, disk, port."""

import errno
import http.client
import os
import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from paidonce.bootstrap.exposure import load_metrics_token
from paidonce.bootstrap.rules import load_gateway, load_plans
from paidonce.bus.contract import open_bus
from paidonce.doctor.checks import CheckResult, defect, ok, problem, refused, skipped, warning
from paidonce.errors import PaidonceError
from paidonce.guard.setup import load_addresses
from paidonce.keys.pepper import load_pepper, pepper_file
from paidonce.notifications.channels import load_channels
from paidonce.providers import load_providers
from paidonce.providers.shared_keys import shared_keys
from paidonce.settings import Settings
from paidonce.settings.secrets import resolve_secret

SHORTEST_SECRET: Final = 16
LOW_DISK_BYTES: Final = 10**9
LOW_DISK_SHARE: Final = 0.10
FULL_DISK_BYTES: Final = 200 * 10**6
PROBE_TIMEOUT_S: Final = 3.0
PROBE_BYTES: Final = 1_000
READABLE_BY_ALL: Final = 0o004
READABLE_BY_OTHERS: Final = 0o044
OF_EMBEDDED: Final = ("data directory", "disk")
"""Checks that concern only the embedded database."""


@dataclass(frozen=True, slots=True)
class Installation:
    """The settings and their file, if there is one."""

    settings: Settings
    path: Path | None


def examine(installation: Installation) -> list[CheckResult]:
    """Run every check of this machine. Raises nothing."""
    done: list[CheckResult] = []
    for name, check in CHECKS.items():
        if name in OF_EMBEDDED and not installation.settings.database.is_embedded:
            done += skipped([name], "not used: database.url names a PostgreSQL")
            continue
        try:
            result = check(installation)
        except (PaidonceError, OSError) as error:
            result = refused(error)
        except Exception as error:
            result = defect(error)
        done.append(replace(result, name=name))
    return done


def _configuration(installation: Installation) -> CheckResult:
    path = installation.path
    where = f"read from {path}" if path else f"no file; the defaults, from {Path.cwd()}"
    if path and _holds_secrets(installation.settings) and path.stat().st_mode & READABLE_BY_ALL:
        found = f"{where}; it holds secrets, and every user of this machine can read it"
        return warning(found, f"chmod o-r {path}, or give the secrets as env:NAME or file:PATH")
    return ok(f"{where}; environment is {installation.settings.environment}")


def _holds_secrets(settings: Settings) -> bool:
    given = [secret for one in settings.sources.values() for secret in one.secrets]
    return any(not secret.startswith(("env:", "file:")) for secret in given)


def _sources(installation: Installation) -> CheckResult:
    if not installation.settings.sources:
        if installation.path is None and installation.settings.environment == "development":
            return ok("none: `paidonce serve` adds a demo source")
        remedy = 'add [sources.payments] with provider = "tilda", secrets = ["env:TILDA_SECRET"]'
        return problem("there are none", remedy)
    wrong = list(dict.fromkeys(_wrong_sources(installation.settings)))
    if wrong:
        return problem("; ".join(wrong), "correct the setting that is named")
    named = [f"{name} ({one.provider})" for name, one in installation.settings.sources.items()]
    return ok(", ".join(named))


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
    shared: list[str] = []
    with suppress(PaidonceError):  # reported by the check of the sources
        shared = shared_keys(load_providers(installation.settings))
    if shared:
        is_refused = installation.settings.environment == "production"
        remedy = "give each source its own; in production the service does not start like this"
        return (problem if is_refused else warning)("; ".join(shared), remedy)
    weak, bare = [], []
    for key, reference in _references(installation.settings):
        kind, _, place = reference.partition(":")
        with suppress(PaidonceError, OSError):  # reported by the check of the sources
            if len(resolve_secret(reference, key)) < SHORTEST_SECRET:
                weak.append(key)
            if kind == "file" and Path(place).stat().st_mode & READABLE_BY_ALL:
                bare.append(place)
    found = [f"shorter than {SHORTEST_SECRET} characters: {', '.join(weak)}"] if weak else []
    found += [f"readable by everybody on this machine: {', '.join(bare)}"] if bare else []
    if not found:
        return ok("none is short, or in a file that everybody may read")
    remedies = ["use longer ones"] if weak else []
    remedies += [f"chmod o-r {' '.join(bare)}"] if bare else []
    return warning("; ".join(found), "; ".join(remedies))


def _references(settings: Settings) -> Iterator[tuple[str, str]]:
    """The secrets of sources and of the metrics, as they are configured, each with its key."""
    for name, source in settings.sources.items():
        for index, reference in enumerate(source.secrets):
            yield f"sources.{name}.secrets[{index}]", reference
    if settings.server.metrics_token is not None:
        yield "server.metrics_token", settings.server.metrics_token


def _pepper(installation: Installation) -> CheckResult:
    """What the operators' keys are hashed with. Makes none."""
    settings = installation.settings
    if settings.security.pepper is not None:
        load_pepper(settings)
        return ok("set")
    if not settings.database.is_embedded:
        remedy = 'set security.pepper = "env:NAME" or "file:PATH"; keys made before stay valid'
        return warning("not set: operators' keys are hashed without one", remedy)
    path = pepper_file(settings)
    if not path.exists():
        return ok(f"{path} is created by the first `paidonce serve`")
    if path.stat().st_mode & READABLE_BY_OTHERS:
        return warning(f"{path} can be read by others on this machine", f"chmod 600 {path}")
    return ok(str(path))


def _plans(installation: Installation) -> CheckResult:
    plans = load_plans(installation.settings.plans)
    if not plans and installation.settings.sources:
        remedy = "add [plans.monthly] with price, currency, days, default = true"
        return warning("none: payments extend no subscription", remedy)
    return ok(", ".join(f"{one.id} {one.price}" for one in plans) or "none")


def _notifications(installation: Installation) -> CheckResult:
    channels = load_channels(installation.settings.notifications)
    named = [f"{one.name} ({one.kind})" for one in channels.values()]
    return ok(", ".join(named) or "none: no notifications are sent")


def _bus(installation: Installation) -> CheckResult:
    """Whether the configuration of the bus is valid. Connects to nothing."""
    open_bus(installation.settings.bus)
    return ok(installation.settings.bus.url)


def _payouts(installation: Installation) -> CheckResult:
    source = installation.settings.payouts.source
    if load_gateway(installation.settings) is None:
        return ok("no gateway: no payments from wallets")
    if installation.settings.sources.keys() == {source}:
        found = f"{source} only receives callbacks, and no other source can top up a wallet"
        return warning(found, "add a source for top-ups")
    return ok(f"the gateway sends callbacks to /webhooks/{source}")


def _data_directory(installation: Installation) -> CheckResult:
    folder = installation.settings.database.data_dir.absolute()
    nearest = _nearest(folder)
    remedy = "set database.data_dir to a directory of your own, or change its owner or mode"
    if not nearest.is_dir():
        return problem(f"{nearest} is not a directory", remedy)
    if not os.access(nearest, os.W_OK | os.X_OK):
        return problem(f"{nearest} cannot be written to", remedy)
    if nearest != folder:
        return ok(f"{folder} is created by the first `paidonce serve`")
    if os.geteuid() not in (0, folder.stat().st_uid):
        return warning(f"{folder} belongs to another user", remedy)
    return ok(f"{folder} is writable")


def _disk(installation: Installation) -> CheckResult:
    folder = _nearest(installation.settings.database.data_dir.absolute() / "postgres")
    usage = shutil.disk_usage(folder.resolve())
    return disk_result(usage.free, usage.total, str(folder))


def disk_result(free: int, total: int, where: str) -> CheckResult:
    """The result for this much free space."""
    found = f"{free / 10**9:.1f} GB free of {total / 10**9:.1f} GB at {where}"
    remedy = "free some space: without it the database cannot store deliveries"
    if free < FULL_DISK_BYTES:
        return problem(found, remedy)
    is_low = free < LOW_DISK_BYTES or free < LOW_DISK_SHARE * total
    return warning(found, remedy) if is_low else ok(found)


def _nearest(path: Path) -> Path:
    """The path itself, or its nearest existing parent."""
    return next(one for one in (path, *path.parents) if one.exists())


def _port(installation: Installation) -> CheckResult:
    server = installation.settings.server
    return _port_result(server.host, server.port, "server.")


def _admin_port(installation: Installation) -> CheckResult:
    """Where operators are served, and who may read the metrics there."""
    server = installation.settings.server
    load_metrics_token(installation.settings)
    if server.admin_port is not None:
        return _port_result(server.admin_host, server.admin_port, "server.admin_")
    if installation.settings.environment == "development":
        return ok("none: the port of deliveries answers operators, too")
    remedy = (
        "set server.admin_port, and publish only server.port; or let the proxy publish only "
        "/webhooks/, and set server.metrics_token"
    )
    found = "none: the API and the pages of operators are on the port of deliveries"
    return warning(f"{found}{'' if server.metrics_token else ', and /metrics is open'}", remedy)


def _port_result(host: str, port: int, prefix: str) -> CheckResult:
    if port == 0:
        return ok("any free port")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind((host, port))
            tried.listen(1)
        except (OSError, UnicodeError) as error:
            return _port_in_use(host, port, error, prefix)
    return ok(f"{host}:{port} is free; no Paidonce answers there")


def _port_in_use(host: str, port: int, error: Exception, prefix: str) -> CheckResult:
    if getattr(error, "errno", None) != errno.EADDRINUSE:
        remedy = f"set {prefix}host to an address of this machine, {prefix}port to one you may use"
        return problem(f"{host}:{port}: {error}", remedy)
    if _is_paidonce({"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host), port):  # noqa: S104
        return ok(f"Paidonce answers at {host}:{port}")
    is_admin = prefix == "server.admin_"
    choose = f"set {prefix}port" if is_admin else f"paidonce serve --port {port + 1}"
    return problem(
        f"another program uses {host}:{port}", f"stop what uses it, or choose another: {choose}"
    )


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
    "admin port": _admin_port,
}
