"""The command line: thin over `server` and `operations`.

The server and the database are imported by the commands that need them: importing them takes a
second, and `paidonce send` should not.
"""

import os
import sys
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn
from uuid import UUID

import typer
import uvloop
from rich.console import Console
from rich.table import Table
from rich.text import Text

from paidonce import __version__, demo, sender
from paidonce.errors import ConfigurationError, PaidonceError
from paidonce.providers import configured_providers
from paidonce.providers.contract import Sample
from paidonce.settings import METRICS_FOLDER, Role, Settings

if TYPE_CHECKING:
    from paidonce.doctor import Finding

app = typer.Typer(
    name="paidonce",
    help="Receives payment webhooks and makes each one count exactly once.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
keys = typer.Typer(help="API keys for operators.", no_args_is_help=True)
app.add_typer(keys, name="keys")

shown = Console()
told = Console(stderr=True, soft_wrap=True, highlight=False, markup=False)

Config = Annotated[
    Path | None, typer.Option("--config", help="The TOML file; else ./paidonce.toml.")
]
Json = Annotated[bool, typer.Option("--json", help="For programs.")]


def main() -> NoReturn:
    """Run the command that was given."""
    sys.exit(_code(app))


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True)
    ] = False,
) -> None:
    if version:
        shown.print(__version__)
        raise typer.Exit


@app.command()
def serve(
    config: Config = None,
    host: Annotated[str | None, typer.Option(help="Where to listen.")] = None,
    port: Annotated[int | None, typer.Option(help="Where to listen.")] = None,
    processes: Annotated[
        int, typer.Option(min=1, max=64, help="How many processes share the socket.")
    ] = 1,
    roles: Annotated[
        str, typer.Option(help="What they do: some of web, worker, relay, janitor.")
    ] = ",".join(Role),
) -> None:
    """Run the service. Without a configuration it is a demo on an embedded database."""
    settings, is_demo = _settings(config, host=host, port=port)
    chosen = _roles(roles)
    with _counting_together(processes):
        from paidonce import server
        from paidonce.processes import ALONE, Place, Processes

        listener = server.listening_socket(settings.server)

        def serve_at(place: Place) -> None:
            _run(server.serve(settings, is_demo, told.print, listener, chosen, place))

        if processes == 1:
            serve_at(ALONE)
            return
        code = Processes(processes, lambda place: _code(serve_at, place), listener.close).run()
    sys.exit(code)


@app.command()
def work(config: Config = None) -> None:
    """Settle what waits, beside a service that runs elsewhere; any number of these may run."""
    from paidonce.server import work as work_until_stopped

    settings, _ = _settings(config)
    _run(work_until_stopped(settings, told.print))


@app.command()
def migrate(config: Config = None) -> None:
    """Bring the database's schema up to date."""
    from paidonce.app import opened_database

    settings, _ = _settings(config)

    async def run() -> None:
        async with opened_database(settings):
            told.print("The schema is up to date.")

    _run(run())


@app.command()
def doctor(config: Config = None, json: Json = False) -> None:
    """Look for what is wrong and say what to do; changes nothing. Exit code 1 if there is any."""
    from paidonce.doctor import State, examine

    findings = _run(examine(config))
    has_problem = any(one.state is State.PROBLEM for one in findings)
    if json:
        typer.echo(sender.as_json(findings))
    else:
        _show_findings(findings)
    raise typer.Exit(1 if has_problem else 0)


@app.command()
def send(
    config: Config = None,
    source: Annotated[str | None, typer.Option(help="The source to send to.")] = None,
    payment_id: Annotated[
        str | None, typer.Option(help="The gateway's payment id; else a new one.")
    ] = None,
    order: Annotated[str | None, typer.Option(help="The reference of the order it pays.")] = None,
    event_id: Annotated[
        str | None, typer.Option(help="The gateway's event id; else made from payment and status.")
    ] = None,
    amount: Annotated[str, typer.Option(help="In major units.")] = demo.PRICE,
    currency: Annotated[str, typer.Option(help="ISO 4217.")] = demo.CURRENCY,
    email: Annotated[str | None, typer.Option(help="Who paid.")] = None,
    plan: Annotated[str | None, typer.Option(help="The plan that was paid for.")] = None,
    status: Annotated[str, typer.Option(help="The gateway's own word.")] = "paid",
    times: Annotated[int, typer.Option(min=1, max=100_000, help="How often to send it.")] = 1,
    concurrency: Annotated[int, typer.Option(min=1, max=1_000, help="How many at once.")] = 1,
    url: Annotated[str | None, typer.Option(help="Where the service is.")] = None,
    json: Json = False,
) -> None:
    """Send a correctly signed test webhook, once or many times, and show each answer."""
    settings, _ = _settings(config)
    if settings.environment == "production":
        raise ConfigurationError("environment = 'production': test webhooks are refused there")
    name = source or next(iter(settings.sources))
    provider = configured_providers(settings).get(name)
    if provider is None:
        known = ", ".join(settings.sources)
        raise ConfigurationError(f"--source {name}: there is no such source; known are {known}")
    paid = payment_id or sender.new_payment_id()
    known_as = event_id or f"{paid}-{status}".replace(".", "-")
    sample = Sample(paid, amount, currency, status, known_as, order, email, plan)
    headers, body = provider.compose(sample)
    base = url or f"http://{settings.server.host}:{settings.server.port}"
    answers = _run(sender.send(f"{base}/webhooks/{name}", headers, body, times, concurrency))
    _show_answers(answers, base, as_json=json)


@keys.command("create")
def create_key(
    name: Annotated[str, typer.Option(help="What it is for; it stands in the audit log.")],
    scope: Annotated[Literal["read", "operate", "admin"], typer.Option(help="What it may do.")],
    config: Config = None,
) -> None:
    """Make an API key and print it, once."""
    from paidonce.app import opened_operations
    from paidonce.operations import Scope

    settings, _ = _settings(config)

    async def run() -> str:
        async with opened_operations(settings) as operations:
            return await operations.create_key(name, Scope(scope))

    typer.echo(_run(run()))


@keys.command("list")
def list_keys(config: Config = None, json: Json = False) -> None:
    """List the API keys."""
    from paidonce.app import opened_operations

    settings, _ = _settings(config)

    async def run() -> list[Any]:
        async with opened_operations(settings) as operations:
            return await operations.keys()

    table = Table("id", "name", "scope", "begins with", "last used", "revoked")
    found = _run(run())
    if json:
        typer.echo(sender.as_json(found))
        return
    for key in found:
        cells = (key.id, key.name, key.scope, key.hint, key.last_used_at, key.revoked_at)
        table.add_row(*(str(cell or "") for cell in cells))
    shown.print(table)


@keys.command("revoke")
def revoke_key(key_id: UUID, config: Config = None) -> None:
    """Make an API key invalid for good."""
    from paidonce.app import opened_operations

    settings, _ = _settings(config)

    async def run() -> None:
        async with opened_operations(settings) as operations:
            await operations.revoke_key(key_id)

    _run(run())
    told.print(f"Key {key_id} is revoked.")


def _settings(config: Path | None, **server: Any) -> tuple[Settings, bool]:
    chosen = {name: value for name, value in server.items() if value is not None}
    return demo.settings_or_demo(config, **({"server": chosen} if chosen else {}))


def _code(command: Callable[..., Any], *arguments: Any) -> int:
    """The exit code of a command; an error of ours is told in its own words."""
    try:
        command(*arguments)
    except PaidonceError as error:
        told.print(f"paidonce: {error}")
        return 2 if isinstance(error, ConfigurationError) else 1
    return 0


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


def _run(work: Coroutine[Any, Any, Any]) -> Any:
    try:
        return uvloop.run(work)
    except KeyboardInterrupt:
        sys.exit(130)


def _show_findings(findings: Sequence["Finding"]) -> None:
    colours = {"ok": "green", "warning": "yellow", "problem": "red", "skipped": "dim"}
    table = Table("check", "", "found", "what to do")
    for one in findings:
        state = Text(one.state, style=colours[one.state])
        table.add_row(one.name, state, Text(one.found), Text(one.remedy))
    shown.print(table)


def _show_answers(answers: list[sender.Answer], base: str, as_json: bool) -> None:
    if as_json:
        typer.echo(sender.as_json(answers))
    elif len(answers) > sender.MAX_SHOWN:
        shown.print(f"{len(answers)} answers:")
        for words, number in sender.tally(answers).items():
            shown.print(f"  {number} × {words}")
    else:
        table = Table("#", "HTTP", "status", "event", "ms")
        for number, one in enumerate(answers, 1):
            event = one.event_id or one.detail
            table.add_row(str(number), str(one.http), one.status, event, f"{one.duration_ms:.1f}")
        shown.print(table)
    event_id = next((one.event_id for one in answers if one.event_id), None)
    if event_id and not as_json:
        told.print(
            f"Its trail: curl -H 'Authorization: Bearer po_…' {base}/api/v1/events/{event_id}"
        )
    if any(one.http != 200 for one in answers):
        raise typer.Exit(1)
