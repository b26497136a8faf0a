"""`bus dead-letters`: messages that a group of consumers could not take."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from paidonce.cli.choosing import Limit, Since, Until, Yes, time_of
from paidonce.cli.for_programs import json_text
from paidonce.cli.terminal import Config, Json, operate, operator, show, told

if TYPE_CHECKING:
    from paidonce.operations import LetterFilter, Operations
    from paidonce.views import DeadMessagesView

commands = typer.Typer(help="Messages that could not be taken.", no_args_is_help=True)

OneId = Annotated[
    int | None, typer.Argument(min=1, help="The number that `list` shows; else all that match.")
]
Consumer = Annotated[str | None, typer.Option(help="Of this group of consumers.")]
Type = Annotated[str | None, typer.Option("--type", help="Of this type.")]
Topic = Annotated[str | None, typer.Option(help="Of this topic.")]
Discarded = Annotated[bool, typer.Option("--discarded", help="Those that were discarded.")]
Reason = Annotated[str, typer.Option(help="Why; it is kept, and stands in the audit log.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say how many match.")]


@commands.command("list")
def list_letters(
    consumer: Consumer = None,
    type_: Type = None,
    topic: Topic = None,
    since: Since = None,
    until: Until = None,
    discarded: Discarded = False,
    limit: Limit = 50,
    config: Config = None,
    json: Json = False,
) -> None:
    """List messages that could not be taken, the newest first."""
    from paidonce.operations.paging import all_of

    which = _chosen(consumer, type_, topic, since, until)
    found = operate(
        config,
        lambda verbs: all_of(
            verbs.dead_messages, limit=limit, chosen=which, is_discarded=discarded
        ),
    )
    columns = {
        "id": lambda one: one.id,
        "group": lambda one: one.consumer,
        "died": lambda one: one.died_at,
        "type": lambda one: one.type,
        "key": lambda one: one.key,
        "why": lambda one: one.error,
        "attempts": lambda one: one.attempts,
    }
    if discarded:
        columns |= {
            "discarded": lambda one: one.discarded_at,
            "by": lambda one: one.discarded_by,
            "because": lambda one: one.discard_reason,
        }
    else:
        columns["retried"] = lambda one: one.retried_at
    show(found, columns, json)


@commands.command("retry")
def retry(
    letter_id: OneId = None,
    consumer: Consumer = None,
    type_: Type = None,
    topic: Topic = None,
    since: Since = None,
    until: Until = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    config: Config = None,
    json: Json = False,
) -> None:
    """Give a message to its group again, or all that match.

    What came after it has been taken meanwhile.
    """
    which = _chosen(consumer, type_, topic, since, until)
    if letter_id is not None:
        _refuse_filter(which, dry_run)
        done = operate(config, lambda verbs: verbs.retry_dead_message(letter_id, operator()))
        if json:
            typer.echo(json_text(done))
        else:
            told.print(f"Group {done.consumer} gets message {done.event_id} again.")
        return

    def change(verbs: "Operations", is_dry_run: bool) -> "Awaitable[DeadMessagesView]":
        return verbs.retry_dead_messages(which, operator(), is_dry_run=is_dry_run)

    _change_all(config, change, "retried", is_dry_run=dry_run, is_sure=yes, as_json=json)


@commands.command("discard")
def discard(
    reason: Reason,
    letter_id: OneId = None,
    consumer: Consumer = None,
    type_: Type = None,
    topic: Topic = None,
    since: Since = None,
    until: Until = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    config: Config = None,
    json: Json = False,
) -> None:
    """Give up a message, or all that match. They are kept, and nobody gets them any more."""
    which = _chosen(consumer, type_, topic, since, until)
    if letter_id is not None:
        _refuse_filter(which, dry_run)
        done = operate(
            config, lambda verbs: verbs.discard_dead_message(letter_id, operator(), reason)
        )
        if json:
            typer.echo(json_text(done))
        else:
            told.print(f"Message {done.event_id} of group {done.consumer} is discarded.")
        return

    def change(verbs: "Operations", is_dry_run: bool) -> "Awaitable[DeadMessagesView]":
        return verbs.discard_dead_messages(which, operator(), reason, is_dry_run=is_dry_run)

    _change_all(config, change, "discarded", is_dry_run=dry_run, is_sure=yes, as_json=json)


def _chosen(
    consumer: str | None,
    type_: str | None,
    topic: str | None,
    since: str | None,
    until: str | None,
) -> "LetterFilter":
    from paidonce.operations import LetterFilter

    return LetterFilter(
        consumer, type_, topic, time_of("--since", since), time_of("--until", until)
    )


def _refuse_filter(which: "LetterFilter", is_dry_run: bool) -> None:
    """Whoever names one message and says more would get something else than he asked for."""
    if which.as_json() or is_dry_run:
        raise typer.BadParameter("give the number of one message, or a filter, not both")


def _change_all(
    config: Path | None,
    change: "Callable[[Operations, bool], Awaitable[DeadMessagesView]]",
    changed: str,
    *,
    is_dry_run: bool,
    is_sure: bool,
    as_json: bool,
) -> None:
    """Say how many match, ask, and do it."""
    if is_dry_run or not is_sure:
        seen = operate(config, lambda verbs: change(verbs, True))
        number = f"more than {seen.number}" if seen.more else seen.number
        if is_dry_run and as_json:
            typer.echo(json_text(seen))
            return
        told.print(f"{number} dead letters would be {changed}.")
        if is_dry_run or seen.number == 0:
            return
        typer.confirm("Do it?", abort=True, err=True)
    done = operate(config, lambda verbs: change(verbs, False))
    if as_json:
        typer.echo(json_text(done))
        return
    more = " There are more: run it again." if done.more else ""
    told.print(f"{done.number} dead letters are {changed}.{more}")
