"""`paidonce reload`."""

from typing import TYPE_CHECKING

import typer

from paidonce.terminal.commands import Json
from paidonce.terminal.output import show, stdout
from paidonce.terminal.session import Config, Use, operate, operator

if TYPE_CHECKING:
    from paidonce.reload.model import Reload


def reload(config: Config = None, json: Json = False) -> None:
    """Have all running processes read their settings again. All take them, or none does.

    It says what changed, and which of it needs a restart. Exit code 1 if it was refused.
    """
    done = operate(config, lambda services: services.reloads.reload(operator()), Use.STORED)
    show(done, json, _print)
    raise typer.Exit(0 if done.status == "TAKEN" and done.is_complete else 1)


def _print(done: "Reload") -> None:
    if done.status != "TAKEN":
        stdout.print(f"Refused, and nothing has changed: {done.reason}")
        return
    number = sum(one.is_taken for one in done.processes)
    what = "The settings are reloaded" if done.changed else "Nothing has changed"
    stdout.print(f"{what} ({number} of {len(done.processes)} processes).")
    for name in done.changed:
        stdout.print(f"  {name}")
    for name in done.needs_restart:
        stdout.print(f"  {name}: needs a restart; the old value is used until then")
    for one in done.processes:
        if not one.is_taken:
            stdout.print(f"{one.process} has not taken them yet; its log may say why")
