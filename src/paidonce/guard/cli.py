"""`paidonce bans`."""

from typing import Final

import typer

from paidonce.db.paging import all_pages
from paidonce.guard.model import BanQuery
from paidonce.terminal.output import Json, show, stderr
from paidonce.terminal.session import Config, operate, operator

MAX_SHOWN: Final = 1_000

commands = typer.Typer(help="Banned addresses.", no_args_is_help=True)


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(commands, name="bans")


@commands.command("list")
def list_bans(config: Config = None, json: Json = False) -> None:
    """List banned addresses."""
    columns = {
        "address": lambda ban: ban.address,
        "reason": lambda ban: ban.reason,
        "times": lambda ban: ban.times,
        "since": lambda ban: ban.banned_at,
        "until": lambda ban: ban.until,
    }
    found = operate(config, lambda services: all_pages(services.bans.search, BanQuery(), MAX_SHOWN))
    show(found, columns, json)


@commands.command("lift")
def lift_ban(address: str, config: Config = None) -> None:
    """Lift a ban; a running service follows within seconds."""
    operate(config, lambda services: services.bans.lift(address, operator()))
    stderr.print(f"{address} is no longer banned.")
