"""`bans`: who is refused at the door."""

from typing import Final

import typer

from paidonce.cli.terminal import Config, Json, operate, operator, show, told

MAX_SHOWN: Final = 1_000

commands = typer.Typer(help="Addresses that are refused for a while.", no_args_is_help=True)


def add_to(app: typer.Typer) -> None:
    """Make these commands of the program."""
    app.add_typer(commands, name="bans")


@commands.command("list")
def list_bans(config: Config = None, json: Json = False) -> None:
    """List the addresses that are banned now."""
    columns = {
        "address": lambda ban: ban.address,
        "for": lambda ban: ban.reason,
        "times": lambda ban: ban.times,
        "since": lambda ban: ban.banned_at,
        "until": lambda ban: ban.until,
    }
    found = operate(config, lambda verbs: verbs.bans(limit=MAX_SHOWN))
    show(found.items, columns, json)


@commands.command("lift")
def lift_ban(address: str, config: Config = None) -> None:
    """Let an address in again; a service that runs does so within seconds."""
    operate(config, lambda verbs: verbs.lift_ban(address, operator()))
    told.print(f"{address} is not banned any more.")
