"""`paidonce listen`: forwards copies of deliveries to a developer's server."""

import asyncio
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from paidonce.core.printable import printable
from paidonce.events.cli import COLUMNS, POLL_S
from paidonce.events.model import EventQuery, EventView
from paidonce.settings.reading import load_settings
from paidonce.terminal.commands import Json
from paidonce.terminal.output import line_of, print_json, stderr, stdout
from paidonce.terminal.session import Config, Use, open_services, run

if TYPE_CHECKING:
    from paidonce.cli.http import Forwarded

MAX_COPIES: Final = 64
"""How many copies are in memory at once."""


def listen(
    forward_to: Annotated[
        str, typer.Option(help="The URL that gets the copies, such as your own server.")
    ],
    source: Annotated[str | None, typer.Option(help="From this source.")] = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Forward copies of deliveries as they arrive, and show the responses, until Ctrl-C.

    A copy has the stored headers and the raw body. Rejected deliveries are forwarded too. The
    responses change nothing.
    """
    from paidonce.cli.http import FORWARD_TIMEOUT_S, MAX_AT_ONCE, Forwarder, client_session
    from paidonce.events.service import EventFollower

    settings = load_settings(config)

    async def within() -> None:
        async with (
            open_services(settings, Use.STORED) as services,
            client_session(MAX_AT_ONCE, FORWARD_TIMEOUT_S) as session,
        ):
            forwarder = Forwarder(forward_to, session)
            follower = EventFollower(services.events, EventQuery(source=source))

            async def forward(event: EventView, headers: dict[str, str], body: bytes) -> None:
                _print(event, await forwarder.send(headers, body), json)

            stderr.print(f"Forwarding to {forward_to}; Ctrl-C ends it.")
            while True:
                new = await follower.poll()
                for first in range(0, len(new), MAX_COPIES):
                    copies = await services.events.deliveries(new[first : first + MAX_COPIES])
                    await asyncio.gather(*(forward(*one) for one in copies))
                await asyncio.sleep(POLL_S)

    run(within())


def _print(event: EventView, answer: "Forwarded", as_json: bool) -> None:
    if as_json:
        both: dict[str, Any] = {"event": event, "answer": answer}
        print_json(both, in_one_line=True)
        return
    status = answer.http if answer.http is not None else "no response"
    detail = printable(answer.detail)
    line = line_of(event, COLUMNS)
    stdout.print(f"{line}  →  {status} {detail} ({answer.duration_ms} ms)")
