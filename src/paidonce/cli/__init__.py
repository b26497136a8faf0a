"""The command line: thin over `server` and `operations`.

The server, the database and the gateways are imported by the commands that need them: importing
them takes most of a second, and `paidonce --help` should not.
"""

import sys
from typing import Annotated, NoReturn

import typer

from paidonce import __version__
from paidonce.cli import (
    bans,
    bus,
    dead_letters,
    events,
    keys,
    listening,
    notifying,
    payments,
    reconciling,
    replays,
    sending,
    serving,
    statistics,
    wallet_payments,
    wallets,
)
from paidonce.cli.terminal import exit_code, shown

app = typer.Typer(
    name="paidonce",
    help="Receives payment webhooks and makes each one count exactly once.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
looking = (events, payments, wallets, wallet_payments, statistics, listening)
mending = (dead_letters, replays, reconciling, bus)
guarding = (bans, notifying, keys)
for commands in (serving, sending, *looking, *mending, *guarding):
    commands.add_to(app)


def main() -> NoReturn:
    """Run the command that was given."""
    sys.exit(exit_code(app))


def _tell_version(is_wanted: bool) -> None:
    if is_wanted:
        shown.print(__version__)
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version.", callback=_tell_version, is_eager=True),
    ] = False,
) -> None:
    """Options that every command may have before it; each is seen to by its own callback."""
