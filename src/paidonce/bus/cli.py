"""`paidonce bus`."""

from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from paidonce.bus.model import BusDeadLetterFilter, BusDeadLetterQuery
from paidonce.db.paging import all_pages
from paidonce.terminal.output import Json, json_text, show, stderr
from paidonce.terminal.query_options import Limit, query_options
from paidonce.terminal.session import Config, operate, operator

if TYPE_CHECKING:
    from paidonce.bootstrap.services import Services
    from paidonce.bus.model import BusDeadLetter, BusDeadLetterCount, BusStatus

INACTIVE_AFTER_S: Final = 30.0
"""An active group sends a heartbeat every ten seconds."""

commands = typer.Typer(help="The message bus: status and dead letters.", no_args_is_help=True)
dead_letters = typer.Typer(help="Messages that could not be consumed.", no_args_is_help=True)
commands.add_typer(dead_letters, name="dead-letters")

LetterId = Annotated[
    int | None, typer.Argument(min=1, help="The id that `list` shows; all that match if left out.")
]
Reason = Annotated[str, typer.Option(help="The reason, for the audit log.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show how many match.")]


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(commands, name="bus")


@commands.command("status")
def status(config: Config = None, json: Json = False) -> None:
    """Show unpublished messages, and the lag of each consumer group."""
    found = operate(config, lambda services: services.bus.status())
    if json:
        typer.echo(json_text(found))
        return
    for line in _summary(found):
        stderr.print(line)
    columns: dict[str, Callable[[Any], object]] = {
        "group": lambda group: group.consumer,
        "aggregate type": lambda group: group.aggregate_type,
        "lag": lambda group: group.lag,
        "seen": lambda group: group.seen_at,
    }
    show(found.groups, columns, json)


def _summary(status: "BusStatus") -> Iterator[str]:
    age = f", the oldest for {status.oldest_unpublished_s:.1f} s" if status.unpublished else ""
    yield f"{status.unpublished} messages are not published yet{age}."
    dead = [f"{number} of {group}" for group, number in status.dead_letters.items() if number]
    if dead:
        yield f"Dead letters: {', '.join(dead)}; see `paidonce bus dead-letters list`."
    for group, inactive_s in sorted(status.inactive_s().items()):
        if inactive_s > INACTIVE_AFTER_S:
            yield (
                f"Group {group} was last active {inactive_s:.0f} s ago; on Kafka its lag is from "
                "then. Check that a process with its role runs, and read its log."
            )


@dead_letters.command("list")
@query_options
def list_dead_letters(
    query: BusDeadLetterQuery, limit: Limit = 50, config: Config = None, json: Json = False
) -> None:
    """List messages that could not be consumed, newest first."""
    found = operate(config, lambda services: all_pages(services.bus.search, query, limit))
    columns: dict[str, Callable[[Any], object]] = {
        "id": lambda letter: letter.id,
        "group": lambda letter: letter.consumer,
        "failed": lambda letter: letter.failed_at,
        "type": lambda letter: letter.type,
        "key": lambda letter: letter.key,
        "error": lambda letter: letter.error,
        "attempts": lambda letter: letter.attempts,
    }
    if query.discarded:
        columns |= {
            "discarded": lambda letter: letter.discarded_at,
            "by": lambda letter: letter.discarded_by,
            "reason": lambda letter: letter.discard_reason,
        }
    else:
        columns["retried"] = lambda letter: letter.retried_at
    show(found, columns, json)


@dead_letters.command("retry")
@query_options
def retry(
    query: BusDeadLetterFilter,
    letter_id: LetterId = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    config: Config = None,
    json: Json = False,
) -> None:
    """Deliver a message to its group again, or all that match.

    Later messages were consumed meanwhile.
    """
    if letter_id is not None:
        _refuse_filter(query, dry_run)
        done = operate(config, lambda services: services.bus.retry(letter_id, operator()))
        _show_one(done, f"Group {done.consumer} receives message {done.event_id} again.", json)
        return

    def change(services: "Services", is_dry_run: bool) -> "Awaitable[BusDeadLetterCount]":
        return services.bus.retry_matching(query, operator(), is_dry_run=is_dry_run)

    _change_all(config, change, "retried", is_dry_run=dry_run, is_sure=yes, as_json=json)


@dead_letters.command("discard")
@query_options
def discard(
    query: BusDeadLetterFilter,
    reason: Reason,
    letter_id: LetterId = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    config: Config = None,
    json: Json = False,
) -> None:
    """Discard a message, or all that match. They are kept, but no group receives them."""
    if letter_id is not None:
        _refuse_filter(query, dry_run)
        done = operate(config, lambda services: services.bus.discard(letter_id, operator(), reason))
        _show_one(done, f"Message {done.event_id} of group {done.consumer} is discarded.", json)
        return

    def change(services: "Services", is_dry_run: bool) -> "Awaitable[BusDeadLetterCount]":
        return services.bus.discard_matching(query, operator(), reason, is_dry_run=is_dry_run)

    _change_all(config, change, "discarded", is_dry_run=dry_run, is_sure=yes, as_json=json)


def _refuse_filter(query: BusDeadLetterFilter, is_dry_run: bool) -> None:
    if query != BusDeadLetterFilter() or is_dry_run:
        raise typer.BadParameter("give the id of one message, or filters, not both")


def _show_one(letter: "BusDeadLetter", text: str, as_json: bool) -> None:
    if as_json:
        typer.echo(json_text(letter))
    else:
        stderr.print(text)


def _change_all(
    config: Path | None,
    change: "Callable[[Services, bool], Awaitable[BusDeadLetterCount]]",
    changed: str,
    *,
    is_dry_run: bool,
    is_sure: bool,
    as_json: bool,
) -> None:
    """Show how many match, ask, and do it."""
    if is_dry_run or not is_sure:
        found = operate(config, lambda services: change(services, True))
        number = f"more than {found.number}" if found.more else found.number
        if is_dry_run and as_json:
            typer.echo(json_text(found))
            return
        stderr.print(f"{number} dead letters would be {changed}.")
        if is_dry_run or found.number == 0:
            return
        typer.confirm("Continue?", abort=True, err=True)
    done = operate(config, lambda services: change(services, False))
    if as_json:
        typer.echo(json_text(done))
        return
    more = " There are more: run it again." if done.more else ""
    stderr.print(f"{done.number} dead letters are {changed}.{more}")
