"""`listen`: copies of what arrives, for a developer's own server."""

import asyncio
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from paidonce.cli.choosing import Source
from paidonce.cli.events import COLUMNS, LOOK_PERIOD_S
from paidonce.cli.for_programs import json_line
from paidonce.cli.terminal import Config, Json, chosen_settings, line_of, run, told

if TYPE_CHECKING:
    from paidonce.forwarding import Forwarded
    from paidonce.views import EventView

MAX_IN_HAND: Final = 64
"""How many copies are in memory at once."""


def add_to(app: typer.Typer) -> None:
    """Make it a command of the program."""
    app.command()(listen)


def listen(
    forward_to: Annotated[str, typer.Option(help="Where copies go, such as your own server.")],
    source: Source = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Forward copies of deliveries as they arrive, and show the answers, until Ctrl-C.

    A copy has the bytes and the headers that were kept. Refused deliveries are forwarded too, and
    nothing here depends on the answer.
    """
    from paidonce.forwarding import Forwarder
    from paidonce.operating import opened_operations
    from paidonce.operations.following import Following

    settings, _ = chosen_settings(config)

    async def within() -> None:
        async with opened_operations(settings) as operations, Forwarder(forward_to) as forwarder:
            following = Following(operations, source=source)

            async def forward(event: "EventView", headers: dict[str, str], body: bytes) -> None:
                _tell(event, await forwarder.send(headers, body), json)

            told.print(f"Forwarding to {forward_to}; Ctrl-C ends it.")
            while True:
                new = await following.look()
                for first in range(0, len(new), MAX_IN_HAND):
                    copies = await operations.deliveries(new[first : first + MAX_IN_HAND])
                    await asyncio.gather(*(forward(*one) for one in copies))
                await asyncio.sleep(LOOK_PERIOD_S)

    run(within())


def _tell(event: "EventView", answer: "Forwarded", as_json: bool) -> None:
    if as_json:
        both: dict[str, Any] = {"event": event, "answer": answer}
        typer.echo(json_line(both))
        return
    said = answer.http if answer.http is not None else "no answer"
    line = line_of(event, COLUMNS, as_json=False)
    typer.echo(f"{line}  →  {said} {answer.detail} ({answer.duration_ms} ms)")
