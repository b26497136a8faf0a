"""`dead-letters`: what was tried often enough, and waits for a person."""

from dataclasses import asdict
from typing import Annotated
from uuid import UUID

import typer

from paidonce.cli.choosing import (
    ErrorCode,
    Limit,
    Order,
    Payment,
    Rate,
    Since,
    Source,
    Until,
    Yes,
    chosen,
)
from paidonce.cli.for_programs import json_text
from paidonce.cli.replays import replay_chosen
from paidonce.cli.reprocessing import show_reprocessed
from paidonce.cli.terminal import Config, Json, operate, operator, show, told
from paidonce.domain.events import EventStatus

commands = typer.Typer(help="Events that wait for a person.", no_args_is_help=True)

OneId = Annotated[UUID | None, typer.Argument(help="One of them; else all that match.")]
Reason = Annotated[str, typer.Option(help="Why; it stands in the audit log.")]


def add_to(app: typer.Typer) -> None:
    """Make these commands of the program."""
    app.add_typer(commands, name="dead-letters")


@commands.command("list")
def list_dead_letters(
    source: Source = None,
    error_code: ErrorCode = None,
    order: Order = None,
    payment: Payment = None,
    since: Since = None,
    until: Until = None,
    limit: Limit = 50,
    config: Config = None,
    json: Json = False,
) -> None:
    """List dead letters, the newest first."""
    from paidonce.operations.paging import all_of

    which = chosen(
        source=source,
        error_code=error_code,
        order=order,
        payment=payment,
        since=since,
        until=until,
    )
    filters = {name: value for name, value in asdict(which).items() if name != "status"}
    found = operate(config, lambda verbs: all_of(verbs.dead_letters, limit=limit, **filters))
    columns = {
        "id": lambda one: one.id,
        "source": lambda one: one.source,
        "received": lambda one: one.received_at,
        "type": lambda one: one.type,
        "payment": lambda one: one.payment,
        "order": lambda one: one.order,
        "why": lambda one: one.error_code,
        "attempts": lambda one: one.attempts,
    }
    show(found, columns, json)


@commands.command("retry")
def retry(
    event_id: OneId = None,
    source: Source = None,
    error_code: ErrorCode = None,
    order: Order = None,
    payment: Payment = None,
    since: Since = None,
    until: Until = None,
    rate: Rate = None,
    yes: Yes = False,
    config: Config = None,
    json: Json = False,
) -> None:
    """Process a dead letter again, or all that match, after showing what would change."""
    if event_id is not None:
        done = operate(config, lambda verbs: verbs.retry_dead_letter(event_id, operator()))
        show_reprocessed(done, as_json=json)
        return
    which = chosen(
        source=source,
        status=EventStatus.DEAD_LETTER,
        error_code=error_code,
        order=order,
        payment=payment,
        since=since,
        until=until,
    )
    replay_chosen(config, which, rate=rate, is_dry_run=False, is_sure=yes, as_json=json)


@commands.command("discard")
def discard(
    reason: Reason,
    event_id: OneId = None,
    source: Source = None,
    error_code: ErrorCode = None,
    order: Order = None,
    payment: Payment = None,
    since: Since = None,
    until: Until = None,
    yes: Yes = False,
    config: Config = None,
    json: Json = False,
) -> None:
    """Give up a dead letter, or all that match. The money that they brought stays listed."""
    if event_id is not None:
        operate(config, lambda verbs: verbs.discard_dead_letter(event_id, operator(), reason))
        told.print(f"Event {event_id} is discarded.")
        return
    which = chosen(
        source=source,
        error_code=error_code,
        order=order,
        payment=payment,
        since=since,
        until=until,
    )
    if not yes:
        named = which.as_json() or "all of them"
        typer.confirm(f"Discard dead letters ({named})?", abort=True, err=True)
    done = operate(config, lambda verbs: verbs.discard_dead_letters(which, operator(), reason))
    if json:
        typer.echo(json_text(done))
    else:
        more = " There are more: run it again." if done.more else ""
        told.print(f"{done.discarded} dead letters are discarded.{more}")
