"""`paidonce events`."""

import asyncio
from typing import Final
from uuid import UUID

import typer

from paidonce.db.paging import all_pages
from paidonce.events.model import EventQuery, EvidenceView, NewEventFilter
from paidonce.terminal.output import Columns, Json, line_of, show, show_one, stderr
from paidonce.terminal.query_options import Limit, query_options
from paidonce.terminal.session import Config, load_command_settings, open_services, operate, run

commands = typer.Typer(help="Events: every delivery that was stored.", no_args_is_help=True)

POLL_S: Final = 0.5

COLUMNS: Final[Columns] = {
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
    """Add the commands."""
    app.add_typer(commands, name="events")


@commands.command("list")
@query_options
def list_events(
    query: EventQuery, limit: Limit = 50, config: Config = None, json: Json = False
) -> None:
    """List events, newest first."""
    found = operate(config, lambda services: all_pages(services.events.search, query, limit))
    show(found, COLUMNS, json)


@commands.command("show")
def show_event(event_id: UUID, config: Config = None, json: Json = False) -> None:
    """Show an event with its audit trail and its masked evidence."""
    event = operate(config, lambda services: services.events.get(event_id, with_evidence=True))
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


def _show_evidence(evidence: EvidenceView) -> None:
    for name, value in evidence.headers.items():
        typer.echo(f"{name}: {value}")
    typer.echo(f"\n{evidence.body}")
    if evidence.is_truncated:
        stderr.print(f"… of {evidence.size} bytes")


@commands.command("follow")
@query_options
def follow(query: NewEventFilter, config: Config = None, json: Json = False) -> None:
    """Print new events as they arrive, until Ctrl-C."""
    from paidonce.events.service import EventFollower

    settings, _ = load_command_settings(config)

    async def within() -> None:
        async with open_services(settings) as services:
            follower = EventFollower(services.events, EventQuery(**query.filters()))
            stderr.print("Following; Ctrl-C ends it.")
            while True:
                for event in await follower.poll():
                    typer.echo(line_of(event, COLUMNS, json))
                await asyncio.sleep(POLL_S)

    run(within())
