"""`bus`: what is published, what is taken, and what could not be."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import typer

from paidonce.cli import dead_messages
from paidonce.cli.for_programs import json_text
from paidonce.cli.terminal import Config, Json, operate, show, told

if TYPE_CHECKING:
    from paidonce.views import BusView

ABSENT_AFTER_S: Final = 30.0
"""A group that is at work is seen every ten seconds."""

commands = typer.Typer(help="Messages that leave, and who takes them.", no_args_is_help=True)
commands.add_typer(dead_messages.commands, name="dead-letters")


def add_to(app: typer.Typer) -> None:
    """Make these commands of the program."""
    app.add_typer(commands, name="bus")


@commands.command("status")
def status(config: Config = None, json: Json = False) -> None:
    """Show what is not published yet, and how far each group is behind."""
    found = operate(config, lambda verbs: verbs.bus_status())
    if json:
        typer.echo(json_text(found))
        return
    for line in _told_of(found):
        told.print(line)
    columns = {
        "group": lambda one: one.consumer,
        "topic": lambda one: one.about,
        "not taken": lambda one: one.lag,
        "seen": lambda one: one.seen_at,
    }
    show(found.groups, columns, json)


def _told_of(found: "BusView") -> Iterator[str]:
    """What a person should know before he reads the numbers."""
    age = f", the oldest for {found.oldest_unpublished_s:.1f} s" if found.unpublished else ""
    yield f"{found.unpublished} messages are not published yet{age}."
    dead = [f"{number} of {group}" for group, number in found.dead_letters.items() if number]
    if dead:
        yield f"Dead letters: {', '.join(dead)}; see `paidonce bus dead-letters list`."
    for group, absent_s in sorted(found.absences().items()):
        if absent_s > ABSENT_AFTER_S:
            yield (
                f"Group {group} was last at work {absent_s:.0f} s ago, and on Kafka its numbers "
                "are of then: see that a process with its role runs, and what its log says."
            )
