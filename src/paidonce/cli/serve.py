"""`paidonce serve`, `work`, `relay`, `migrate` and `doctor`."""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from paidonce.errors import ConfigurationError, did_you_mean
from paidonce.reload.model import Origin
from paidonce.runtime import hangup
from paidonce.settings import METRICS_FOLDER, Role
from paidonce.terminal.commands import Json
from paidonce.terminal.output import Columns, print_table, show, stderr
from paidonce.terminal.session import Config, exit_code, load_command_settings, run

if TYPE_CHECKING:
    from paidonce.doctor import CheckResult

Host = Annotated[str | None, typer.Option(help="The address to listen on.")]
Port = Annotated[int | None, typer.Option(help="The port to listen on.")]


def serve(
    config: Config = None,
    host: Host = None,
    port: Port = None,
    processes: Annotated[
        int, typer.Option(min=1, max=64, help="How many processes share the socket.")
    ] = 1,
    roles: Annotated[
        str, typer.Option(help=f"What the processes do: any of {', '.join(Role)}.")
    ] = ",".join(Role),
) -> None:
    """Run the service. Without a configuration it runs a demo on an embedded database."""
    origin = Origin(lambda: load_command_settings(config, host=host, port=port)[0])
    hangup.reload_on_hangup(origin)
    settings, is_demo = load_command_settings(config, host=host, port=port)
    chosen = _roles(roles)
    with _shared_metrics(processes):
        from paidonce.cli import server
        from paidonce.cli.listeners import open_listeners
        from paidonce.runtime.processes import ALONE, Place, Processes
        from paidonce.telemetry import configure_logging

        configure_logging(settings.log)
        listeners = open_listeners(settings.server)

        def serve_at(place: Place) -> None:
            hangup.reload_on_hangup(origin)  # a child has the handler of its parent until then
            given = settings if place.is_first_start else server.current_settings(settings, origin)
            run(server.serve(given, is_demo, stderr.print, listeners, chosen, place, origin))

        if processes == 1:
            serve_at(ALONE)
            return
        code = Processes(processes, lambda place: exit_code(serve_at, place), listeners.all).run()
    sys.exit(code)


def work(config: Config = None, host: Host = None, port: Port = None) -> None:
    """Process pending events of a service that runs elsewhere. Any number of workers may run.

    With a host or a port, it serves /healthz, /readyz and /metrics there.
    """
    _work(config, host, port, "processes pending events", Role.WORKER, Role.JANITOR)


def relay(config: Config = None, host: Host = None, port: Port = None) -> None:
    """Publish outbox messages and send notifications. One relay leads, the others stand by.

    With a host or a port, it serves /healthz, /readyz and /metrics there.
    """
    _work(config, host, port, "publishes outbox messages", Role.RELAY)


def _work(config: Path | None, host: str | None, port: int | None, what: str, *roles: Role) -> None:
    from paidonce.cli import server

    if host is not None or port is not None:
        serve(config, host, port, 1, ",".join(roles))
        return
    origin = Origin(lambda: load_command_settings(config)[0])
    hangup.reload_on_hangup(origin)
    settings = origin.load()
    message = f"Paidonce {what}. `paidonce serve` receives deliveries."
    run(server.work(settings, frozenset(roles), lambda: stderr.print(message), origin))


def migrate(
    config: Config = None,
    source: Annotated[
        str | None, typer.Option("--from", help="First move our tables here from this schema.")
    ] = None,
    another: Annotated[
        bool, typer.Option("--another", help="Create tables although another schema has ours.")
    ] = False,
) -> None:
    """Migrate the schema of the database to this version."""
    from paidonce.bootstrap.database import open_migrated_database
    from paidonce.bootstrap.rules import check_settings
    from paidonce.db import schema
    from paidonce.db.pool import Database

    settings, _ = load_command_settings(config)
    check_settings(settings)

    async def prepare(database: Database) -> str | None:
        if source is not None:
            moved = await schema.move_tables(database, source)
            stderr.print(f"{moved} objects are in schema {database.schema} now.")
        return await schema.migrate(database, beside_others=another)

    async def bring_up() -> None:
        async with open_migrated_database(settings, prepare):
            stderr.print("The schema is up to date.")

    run(bring_up())


def doctor(config: Config = None, json: Json = False) -> None:
    """Check the installation and say how to repair it. Exit code 1 if there is a problem."""
    from paidonce.doctor import examine

    findings = run(examine(config))
    has_problem = any(one.state == "problem" for one in findings)
    show(findings, json, _print_findings)
    raise typer.Exit(1 if has_problem else 0)


def _roles(names: str) -> frozenset[Role]:
    """The roles in a comma-separated list. Raises ConfigurationError."""
    chosen = {name.strip() for name in names.split(",") if name.strip()}
    known = set(Role)
    if not chosen or not chosen <= known:
        unknown = ", ".join(sorted(chosen - known)) or "none"
        hint = did_you_mean(unknown, Role)
        roles = ", ".join(Role)
        raise ConfigurationError(f"--roles {names}: {unknown}; the roles are {roles}{hint}")
    return frozenset(map(Role, chosen))


@contextmanager
def _shared_metrics(processes: int) -> Iterator[None]:
    """A folder in which several processes keep their metrics; one process needs none."""
    if processes == 1:
        yield
        return
    with TemporaryDirectory(prefix="paidonce-metrics-") as folder:
        os.environ[METRICS_FOLDER] = folder
        yield


def _print_findings(findings: Sequence["CheckResult"]) -> None:
    colours = {"ok": "green", "warning": "yellow", "problem": "red", "skipped": "dim"}
    shown: Columns = {
        "check": lambda one: one.name,
        "": lambda one: Text(one.state, style=colours[one.state]),
        "found": lambda one: one.found,
        "what to do": lambda one: one.remedy,
    }
    print_table(findings, shown, wraps=True)
