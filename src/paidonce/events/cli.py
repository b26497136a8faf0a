"""`paidonce events`."""

import asyncio
from typing import Final
from uuid import UUID

from paidonce.audit.cli import print_trail
from paidonce.core.printable import printable
from paidonce.db.paging import all_pages
from paidonce.events.model import EventDetail, EventQuery, NewEventFilter
from paidonce.settings.reading import load_settings
from paidonce.terminal.commands import Commands, Json, Limit, Result, query_options
from paidonce.terminal.output import columns, print_body, print_fields, print_line, stderr, stdout
from paidonce.terminal.session import Config, Services, Use, open_services, run

commands = Commands("events", "Events: every delivery that was stored.")

POLL_S: Final = 0.5

COLUMNS: Final = columns(
    "received_at as received, source, type, status, error_code as code, payment, order, id"
)


@commands.operation("list", COLUMNS, use=Use.STORED)
def list_events(services: Services, query: EventQuery, limit: Limit = 50) -> Result:
    """List events, newest first."""
    return all_pages(services.events.search, query, limit)


def _print_event(event: EventDetail) -> None:
    print_fields(event)
    print_trail(event.trail)
    if event.evidence is None:
        return
    for name, value in event.evidence.headers.items():
        stdout.print(printable(f"{name}: {value}"))
    stdout.print("")
    print_body(event.evidence.body)
    if event.evidence.is_truncated:
        stderr.print(f"… of {event.evidence.size} bytes")


@commands.operation("show", _print_event, use=Use.STORED)
def show_event(services: Services, event_id: UUID) -> Result:
    """Show an event with its audit trail and its masked evidence."""
    return services.events.get(event_id, with_evidence=True)


@commands.command("follow")
@query_options
def follow(query: NewEventFilter, config: Config = None, json: Json = False) -> None:
    """Print new events as they arrive, until Ctrl-C."""
    from paidonce.events.service import EventFollower

    settings = load_settings(config)

    async def within() -> None:
        async with open_services(settings, Use.STORED) as services:
            follower = EventFollower(services.events, EventQuery(**query.filters()))
            stderr.print("Following; Ctrl-C ends it.")
            while True:
                for event in await follower.poll():
                    print_line(event, COLUMNS, json)
                await asyncio.sleep(POLL_S)

    run(within())
