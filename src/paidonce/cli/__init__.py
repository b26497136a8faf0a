"""The command line.

Commands import the server, the database and the gateways when they run: importing them takes most
of a second, and `paidonce --help` should not.
"""

import sys
import traceback
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from paidonce import __version__
from paidonce.audit import cli as audit_cli
from paidonce.bus import cli as bus_cli
from paidonce.cli import database, listen, send, serve
from paidonce.events import cli as events_cli
from paidonce.guard import cli as guard_cli
from paidonce.keys import cli as keys_cli
from paidonce.notifications import cli as notifications_cli
from paidonce.orders import cli as orders_cli
from paidonce.payments import cli as payments_cli
from paidonce.payouts import cli as payouts_cli
from paidonce.reconciliation import cli as reconciliation_cli
from paidonce.reload import cli as reload_cli
from paidonce.replay import cli as replay_cli
from paidonce.settings import Settings
from paidonce.statistics import cli as statistics_cli
from paidonce.terminal.output import stderr, stdout
from paidonce.terminal.session import Use, exit_code, provide_services
from paidonce.users import cli as users_cli
from paidonce.wallet import cli as wallet_cli

if TYPE_CHECKING:
    from paidonce.bootstrap.services import Services

app = typer.Typer(
    name="paidonce",
    help="Receives payment webhooks and makes each one count exactly once.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

for command in (
    serve.serve,
    serve.work,
    serve.relay,
    serve.migrate,
    serve.doctor,
    send.send,
    listen.listen,
    statistics_cli.stats,
    reconciliation_cli.reconcile,
    audit_cli.audit,
    reload_cli.reload,
):
    app.command()(command)
events_cli.commands.command("reprocess")(replay_cli.reprocess)
for group in (
    events_cli.commands,
    payments_cli.commands,
    orders_cli.commands,
    users_cli.commands,
    users_cli.subscriptions,
    wallet_cli.commands,
    payouts_cli.commands,
    payouts_cli.views,
    replay_cli.dead_letters,
    replay_cli.replays,
    bus_cli.commands,
    guard_cli.commands,
    notifications_cli.commands,
    keys_cli.commands,
    database.commands,
):
    app.add_typer(group)


@asynccontextmanager
async def _open_services(settings: Settings, use: Use) -> "AsyncIterator[Services]":
    from paidonce.bootstrap.services import open_services, open_stored_services

    if use is Use.STORED:
        async with open_stored_services(settings, stderr.print) as services:
            yield services
        return
    async with open_services(settings, use is Use.RECONCILE) as services:
        yield services


provide_services(_open_services)


def main() -> NoReturn:
    """Run the command that was given."""
    sys.excepthook = _print_defect
    sys.exit(exit_code(app))


def _print_defect(kind: type[BaseException], error: BaseException, trace: object) -> None:
    """Print an exception that nobody expected. Its message may quote what came from outside."""
    stderr.print("".join(traceback.format_exception(error)).rstrip())


def _print_version(is_given: bool) -> None:
    if is_given:
        stdout.print(__version__)
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Options that come before every command."""
