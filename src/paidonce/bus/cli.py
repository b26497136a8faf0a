"""`paidonce bus`."""

from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from paidonce.bus.model import BusDeadLetterFilter, BusDeadLetterQuery
from paidonce.db.paging import all_pages
from paidonce.terminal.commands import Commands, Json, Limit, Reason, Result, Yes, query_options
from paidonce.terminal.output import columns, confirm, print_table, show, stderr
from paidonce.terminal.session import Config, Services, Use, operate, operator

if TYPE_CHECKING:
    from paidonce.bus.model import BusDeadLetterCount, BusStatus

INACTIVE_AFTER_S: Final = 30.0
"""An active group sends a heartbeat every ten seconds."""

commands = Commands("bus", "The message bus: status and dead letters.")
dead_letters = Commands("dead-letters", "Messages that could not be consumed.")
commands.add_typer(dead_letters)

LetterId = Annotated[
    int | None, typer.Argument(min=1, help="The id that `list` shows; all that match if left out.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show how many match.")]

_GROUPS: Final = columns(
    "consumer as group, aggregate_type as aggregate type, lag, seen_at as seen"
)
_LETTERS: Final = "id, consumer as group, failed_at as failed, type, key, error, attempts"
_PENDING: Final = columns(f"{_LETTERS}, retried_at as retried")
_DISCARDED: Final = columns(
    f"{_LETTERS}, discarded_at as discarded, discarded_by as by, discard_reason as reason"
)


def _print_status(found: "BusStatus") -> None:
    for line in _summary(found):
        stderr.print(line)
    print_table(found.groups, _GROUPS)


@commands.operation("status", _print_status, use=Use.STORED)
def status(services: Services) -> Result:
    """Show unpublished messages, and the lag of each consumer group."""
    return services.bus.status()


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
    found = operate(
        config, lambda services: all_pages(services.bus.search, query, limit), Use.STORED
    )
    show(found, json, _DISCARDED if query.discarded else _PENDING)


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
        show(done, json, f"Group {done.consumer} receives message {done.event_id} again.")
        return

    def change(services: Services, is_dry_run: bool) -> "Awaitable[BusDeadLetterCount]":
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
        show(done, json, f"Message {done.event_id} of group {done.consumer} is discarded.")
        return

    def change(services: Services, is_dry_run: bool) -> "Awaitable[BusDeadLetterCount]":
        return services.bus.discard_matching(query, operator(), reason, is_dry_run=is_dry_run)

    _change_all(config, change, "discarded", is_dry_run=dry_run, is_sure=yes, as_json=json)


def _refuse_filter(query: BusDeadLetterFilter, is_dry_run: bool) -> None:
    if query != BusDeadLetterFilter() or is_dry_run:
        raise typer.BadParameter("give the id of one message, or filters, not both")


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
        show(found, is_dry_run and as_json, f"{number} dead letters would be {changed}.")
        if is_dry_run or found.number == 0:
            return
        if not confirm("Continue?"):
            raise typer.Abort
    done = operate(config, lambda services: change(services, False))
    more = " There are more: run it again." if done.more else ""
    show(done, as_json, f"{done.number} dead letters are {changed}.{more}")
