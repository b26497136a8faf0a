"""`events`: what has arrived, and what arrives."""

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import typer

from paidonce.cli.choosing import (
    ErrorCode,
    Limit,
    Order,
    Payment,
    Since,
    Source,
    Status,
    Test,
    Until,
    time_of,
)
from paidonce.cli.reprocessing import reprocess
from paidonce.cli.terminal import (
    Config,
    Json,
    chosen_settings,
    line_of,
    operate,
    run,
    show,
    show_one,
    told,
)
from paidonce.domain.events import EventStatus

if TYPE_CHECKING:
    from paidonce.views import EvidenceView

commands = typer.Typer(help="Every delivery that was kept.", no_args_is_help=True)

LOOK_PERIOD_S: Final = 0.5

COLUMNS: Final[Mapping[str, Callable[[Any], object]]] = {
    "received": lambda event: event.received_at,
    "source": lambda event: event.source,
    "type": lambda event: event.type,
    "status": lambda event: event.status,
    "code": lambda event: event.error_code,
    "payment": lambda event: event.payment,
    "order": lambda event: event.order,
    "id": lambda event: event.id,
}


def add_to(app: typer.Typer) -> None:
    """Make these commands of the program."""
    commands.command("reprocess")(reprocess)
    app.add_typer(commands, name="events")


@commands.command("list")
def list_events(
    source: Source = None,
    status: Status = None,
    error_code: ErrorCode = None,
    order: Order = None,
    payment: Payment = None,
    since: Since = None,
    until: Until = None,
    test: Test = None,
    limit: Limit = 50,
    config: Config = None,
    json: Json = False,
) -> None:
    """List events, the newest first."""
    from paidonce.operations.paging import all_of

    filters = _filters(source, status, error_code, order, payment, test)
    filters |= {"since": time_of("--since", since), "until": time_of("--until", until)}
    found = operate(config, lambda verbs: all_of(verbs.events, limit=limit, **filters))
    show(found, COLUMNS, json)


@commands.command("show")
def show_event(event_id: UUID, config: Config = None, json: Json = False) -> None:
    """Show one event, its whole trail, and what arrived, with card numbers and secrets masked."""
    event = operate(config, lambda verbs: verbs.event(event_id, with_evidence=True))
    show_one(event, json)
    if not json:
        columns = {
            "at": lambda item: item.at.isoformat(timespec="milliseconds"),
            "action": lambda item: item.action,
            "success": lambda item: item.success,
            "details": lambda item: ", ".join(f"{k}={v}" for k, v in item.details.items()),
        }
        show(event.trail, columns, as_json=False)
        if event.evidence is not None:
            _show_evidence(event.evidence)


def _show_evidence(evidence: "EvidenceView") -> None:
    for name, value in evidence.headers.items():
        typer.echo(f"{name}: {value}")
    typer.echo(f"\n{evidence.body}")
    if evidence.is_truncated:
        told.print(f"… of {evidence.size} bytes")


@commands.command("follow")
def follow(
    source: Source = None,
    status: Status = None,
    error_code: ErrorCode = None,
    order: Order = None,
    payment: Payment = None,
    test: Test = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Print new events as they arrive, until Ctrl-C."""
    from paidonce.operating import opened_operations
    from paidonce.operations.following import Following

    settings, _ = chosen_settings(config)
    filters = _filters(source, status, error_code, order, payment, test)

    async def within() -> None:
        async with opened_operations(settings) as operations:
            following = Following(operations, **filters)
            told.print("Following; Ctrl-C ends it.")
            while True:
                for event in await following.look():
                    typer.echo(line_of(event, COLUMNS, json))
                await asyncio.sleep(LOOK_PERIOD_S)

    run(within())


def _filters(
    source: str | None,
    status: EventStatus | None,
    error_code: str | None,
    order: str | None,
    payment: str | None,
    test: bool | None,
) -> dict[str, Any]:
    return {
        "source": source,
        "status": status,
        "error_code": error_code,
        "order": order,
        "payment": payment,
        "test": test,
    }
