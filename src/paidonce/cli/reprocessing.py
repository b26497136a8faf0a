"""`events reprocess`: one event, processed again."""

from typing import TYPE_CHECKING
from uuid import UUID

import typer

from paidonce.cli.for_programs import json_text
from paidonce.cli.terminal import Config, Json, operate, operator, shown

if TYPE_CHECKING:
    from paidonce.views import ReprocessedEvent


def reprocess(event_id: UUID, config: Config = None, json: Json = False) -> None:
    """Verify and process an event again, from its raw bytes; nothing is applied twice."""
    done = operate(config, lambda verbs: verbs.reprocess_event(event_id, operator()))
    show_reprocessed(done, as_json=json)


def show_reprocessed(done: "ReprocessedEvent", as_json: bool) -> None:
    """What became of one event."""
    if as_json:
        typer.echo(json_text(done))
        return
    told = done.reprocessed
    shown.print(f"It was {told.was} {told.was_error_code or ''}".rstrip() + f": {told.result}.")
    if told.event_id != done.id:
        shown.print(f"It is event {told.event_id} now.")
    else:
        shown.print(f"It is {done.status} {done.error_code or ''}".rstrip() + ".")
    if told.applied:
        shown.print("Its payment was applied.")
