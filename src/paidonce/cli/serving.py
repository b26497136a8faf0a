"""`serve`, `work`, `relay`, `migrate` and `doctor`: the service itself."""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from paidonce.cli.for_programs import json_text
from paidonce.cli.terminal import Config, Json, chosen_settings, exit_code, run, shown, told
from paidonce.errors import ConfigurationError
from paidonce.settings import METRICS_FOLDER, Role

if TYPE_CHECKING:
    from paidonce.doctor import Finding

Host = Annotated[str | None, typer.Option(help="Where to listen.")]
Port = Annotated[int | None, typer.Option(help="Where to listen.")]


def add_to(app: typer.Typer) -> None:
    """Make these commands of the program."""
    for command in (serve, work, relay, migrate, doctor):
        app.command()(command)


def serve(
    config: Config = None,
    host: Host = None,
    port: Port = None,
    processes: Annotated[
        int, typer.Option(min=1, max=64, help="How many processes share the socket.")
    ] = 1,
    roles: Annotated[
        str, typer.Option(help=f"What they do: some of {', '.join(Role)}.")
    ] = ",".join(Role),
) -> None:
    """Run the service. Without a configuration it is a demo on an embedded database."""
    settings, is_demo = chosen_settings(config, host=host, port=port)
    chosen = _roles(roles)
    with _counting_together(processes):
        from paidonce import server
        from paidonce.processes import ALONE, Place, Processes

        listener = server.listening_socket(settings.server)

        def serve_at(place: Place) -> None:
            run(server.serve(settings, is_demo, told.print, listener, chosen, place))

        if processes == 1:
            serve_at(ALONE)
            return
        code = Processes(processes, lambda place: exit_code(serve_at, place), listener.close).run()
    sys.exit(code)


def work(config: Config = None, host: Host = None, port: Port = None) -> None:
    """Settle what waits, beside a service that runs elsewhere; any number of these may run.

    With a host or a port it answers there whether it is well (/healthz, /readyz), and /metrics.
    """
    from paidonce.server import work as work_until_stopped

    if host is None and port is None:
        settings, _ = chosen_settings(config)
        run(work_until_stopped(settings, told.print))
    else:
        serve(config, host, port, 1, f"{Role.WORKER},{Role.JANITOR}")


def relay(config: Config = None, host: Host = None, port: Port = None) -> None:
    """Publish what is to leave, and tell people; one at a time does it, the others stand by.

    With a host or a port it answers there whether it is well (/healthz, /readyz), and /metrics.
    """
    from paidonce.server import relay as relay_until_stopped

    if host is None and port is None:
        settings, _ = chosen_settings(config)
        run(relay_until_stopped(settings, told.print))
    else:
        serve(config, host, port, 1, Role.RELAY)


def migrate(config: Config = None) -> None:
    """Bring the database's schema up to date."""
    from paidonce.opening import opened_database

    settings, _ = chosen_settings(config)

    async def bring_up() -> None:
        async with opened_database(settings):
            told.print("The schema is up to date.")

    run(bring_up())


def doctor(config: Config = None, json: Json = False) -> None:
    """Look for what is wrong and say what to do; changes nothing. Exit code 1 if there is any."""
    from paidonce.doctor import State, examine

    findings = run(examine(config))
    has_problem = any(one.state is State.PROBLEM for one in findings)
    if json:
        typer.echo(json_text(findings))
    else:
        _show_findings(findings)
    raise typer.Exit(1 if has_problem else 0)


def _roles(names: str) -> frozenset[Role]:
    """The roles that a list names. Raises ConfigurationError."""
    chosen = {name.strip() for name in names.split(",") if name.strip()}
    known = set(Role)
    if not chosen or not chosen <= known:
        unknown = ", ".join(sorted(chosen - known)) or "none"
        raise ConfigurationError(f"--roles {names}: {unknown}; known are {', '.join(Role)}")
    return frozenset(map(Role, chosen))


@contextmanager
def _counting_together(processes: int) -> Iterator[None]:
    """A folder where several processes keep what they count; one alone needs none."""
    if processes == 1:
        yield
        return
    with TemporaryDirectory(prefix="paidonce-metrics-") as folder:
        os.environ[METRICS_FOLDER] = folder
        yield


def _show_findings(findings: Sequence["Finding"]) -> None:
    colours = {"ok": "green", "warning": "yellow", "problem": "red", "skipped": "dim"}
    table = Table("check", "", "found", "what to do")
    for one in findings:
        state = Text(one.state, style=colours[one.state])
        table.add_row(one.name, state, Text(one.found), Text(one.remedy))
    shown.print(table)
