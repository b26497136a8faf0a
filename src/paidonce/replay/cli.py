"""`paidonce replay`, `dead-letters` and `events reprocess`."""

import asyncio
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final
from uuid import UUID

import typer
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

from paidonce.core.events import Code, EventStatus
from paidonce.db.paging import ListQuery, all_pages
from paidonce.errors import InvalidRequestError
from paidonce.events.model import DeadLetterFilter, DeadLetterQuery, EventFilter
from paidonce.terminal.commands import Commands, Json, Limit, Result, Yes, parse_time, query_options
from paidonce.terminal.output import columns, confirm, progress_bar, show, stderr, stdout
from paidonce.terminal.session import Config, Services, Use, operate, operator

if TYPE_CHECKING:
    from paidonce.replay.model import Replay, ReprocessedEvent

POLL_S: Final = 0.2
INTERRUPTED: Final = 130

replays = Commands("replay", "Process all events that match again.", no_args_is_help=False)
dead_letters = Commands("dead-letters", "Events that need a person.")

DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show what would change.")]
Rate = Annotated[int | None, typer.Option(min=1, max=10_000, help="Events per second at most.")]
OneId = Annotated[UUID | None, typer.Argument(help="One of them; else all that match.")]
Reason = Annotated[str, typer.Option(help="Why; for the audit log.")]


_REPLAYS: Final = columns(
    "id, status, dry_run as dry run, done, total as of, actor as by, created_at as created, events",
    dry_run=lambda one: "yes" if one.dry_run else "",
    events=lambda one: " ".join(f"{name}={value}" for name, value in one.filter.items()),
)
_DEAD_LETTERS: Final = columns(
    "id, source, received_at as received, type, payment, order, error_code as code, attempts"
)


# Replays


@replays.callback(invoke_without_command=True)
@query_options
def replay(
    context: typer.Context,
    events: EventFilter,
    dry_run: DryRun = False,
    rate: Rate = None,
    yes: Yes = False,
    config: Config = None,
    json: Json = False,
) -> None:
    """Process again all events that match, after showing what would change.

    Nothing is applied twice. Ctrl-C pauses it; `paidonce replay resume` continues.
    """
    if context.invoked_subcommand is None:
        _replay(config, events, rate=rate, dry_run=dry_run, is_confirmed=yes, as_json=json)


def _replay(
    config: Path | None,
    events: EventFilter,
    *,
    rate: int | None,
    dry_run: bool,
    is_confirmed: bool,
    as_json: bool,
) -> None:
    """Show what would change, ask for confirmation, and process the events again."""

    async def preview_and_run(services: Services) -> "Replay | None":
        if dry_run or not is_confirmed:
            preview = await _run(services, events, dry_run=True, rate=None)
            if dry_run or preview.status != "DONE":
                return preview
            _print(preview)
            if preview.done == 0 or not await asyncio.to_thread(_confirm):
                return None
        return await _run(services, events, dry_run=False, rate=rate)

    _end(operate(config, preview_and_run), as_json)


@replays.command("resume")
def resume(replay_id: UUID, config: Config = None, json: Json = False) -> None:
    """Continue a paused replay, and follow it."""

    async def resume_and_follow(services: Services) -> "Replay":
        if (await services.replays.get(replay_id)).status == "PAUSED":
            await services.replays.resume(replay_id, operator())
        return await _follow(services, replay_id)

    _end(operate(config, resume_and_follow), json)


def _print(found: "Replay") -> None:
    what = "would be processed again" if found.dry_run else "processed again"
    of = "" if found.total in (None, found.done) else f" of {found.total}"
    stdout.print(f"{found.status}: {found.done}{of} events {what} (replay {found.id}).")
    for change, number in sorted(found.counts.items(), key=lambda one: -one[1]):
        stdout.print(f"  {number} × {change}")
    if found.applied.number:
        sums = ", ".join(f"{amount} {code}" for code, amount in found.applied.sums.items())
        applied = "would be applied" if found.dry_run else "applied"
        stdout.print(f"  {found.applied.number} payments {applied}: {sums}")
    if found.error:
        stdout.print(f"  {found.error}", style="red")


@replays.operation("pause", _print, Use.STORED)
def pause(services: Services, replay_id: UUID) -> Result:
    """Pause a replay, in whatever process it runs; what it did stays."""
    return services.replays.pause(replay_id, operator())


@replays.operation("cancel", _print, Use.STORED)
def cancel(services: Services, replay_id: UUID) -> Result:
    """End a replay; what it did stays."""
    return services.replays.cancel(replay_id, operator())


@replays.operation("show", _print, use=Use.STORED)
def show_replay(services: Services, replay_id: UUID) -> Result:
    """Show one replay with its progress."""
    return services.replays.get(replay_id)


@replays.operation("list", _REPLAYS, use=Use.STORED)
def list_replays(services: Services, limit: Limit = 50) -> Result:
    """List replays, newest first."""
    return all_pages(services.replays.search, ListQuery(), limit)


async def _run(
    services: Services, events: EventFilter, *, dry_run: bool, rate: int | None
) -> "Replay":
    from paidonce.replay.model import ReplayRequest

    request = ReplayRequest(filter=events, dry_run=dry_run, rate=rate)
    created = await services.replays.create(request, operator(), wait_s=0)
    return await _follow(services, created.id)


async def _follow(services: Services, replay_id: UUID) -> "Replay":
    """Run it, unless another process does, and show its progress; Ctrl-C pauses it."""
    interrupted = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, interrupted.set)
    running = asyncio.create_task(services.replays.run(replay_id))
    shown = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    with progress_bar(*shown, TimeRemainingColumn()) as update:
        while not running.done() and not interrupted.is_set():
            found = await services.replays.get(replay_id)
            description = "dry run" if found.dry_run else "processing"
            update(description=description, completed=found.done, total=found.total)
            await asyncio.wait({running}, timeout=POLL_S)
    if interrupted.is_set() and not running.done():
        await services.replays.pause(replay_id, operator())
    await running
    asyncio.get_running_loop().remove_signal_handler(signal.SIGINT)
    return await services.replays.get(replay_id)


def _confirm() -> bool:
    return confirm("Process them again?")


def _end(found: "Replay | None", as_json: bool) -> None:
    """Show how the replay ended, and exit with the code for that."""
    if found is None:
        stderr.print("Nothing was done.")
        return
    show(found, as_json, _print)
    if found.status == "PAUSED":
        stderr.print(f"The replay is paused. Continue it with: paidonce replay resume {found.id}")
        raise typer.Exit(INTERRUPTED)
    if found.status != "DONE":
        raise typer.Exit(1)


# Dead letters and single events


@dead_letters.operation("list", _DEAD_LETTERS, use=Use.STORED)
def list_dead_letters(services: Services, query: DeadLetterQuery, limit: Limit = 50) -> Result:
    """List dead letters, newest first."""
    return all_pages(services.dead_letters.search, query, limit)


@dead_letters.command("retry")
@query_options
def retry(
    query: DeadLetterFilter,
    event_id: OneId = None,
    rate: Rate = None,
    yes: Yes = False,
    config: Config = None,
    json: Json = False,
) -> None:
    """Process a dead letter again, or all that match, after showing what would change."""
    if event_id is not None:
        done = operate(config, lambda services: services.dead_letters.retry(event_id, operator()))
        show(done, json, print_reprocessed)
        return
    events = EventFilter(**query.filters(), status=EventStatus.DEAD_LETTER)
    _replay(config, events, rate=rate, dry_run=False, is_confirmed=yes, as_json=json)


@dead_letters.command("discard")
@query_options
def discard(
    reason: Reason,
    query: DeadLetterFilter,
    event_id: OneId = None,
    yes: Yes = False,
    config: Config = None,
    json: Json = False,
) -> None:
    """Discard a dead letter, or all that match. Their payments stay listed."""
    if event_id is not None:
        operate(
            config, lambda services: services.dead_letters.discard(event_id, operator(), reason)
        )
        stderr.print(f"Event {event_id} is discarded.")
        return
    if not yes:
        which = query.model_dump(mode="json", exclude_none=True) or "all of them"
        if not confirm(f"Discard dead letters ({which})?"):
            raise typer.Abort
    done = operate(
        config, lambda services: services.dead_letters.discard_matching(query, operator(), reason)
    )
    more = " There are more: run it again." if done.more else ""
    show(done, json, f"{done.discarded} dead letters are discarded.{more}")


def reprocess(
    event_id: Annotated[UUID | None, typer.Argument(help="One event.")] = None,
    refused: Annotated[
        bool, typer.Option("--refused", help="All deliveries with a wrong signature.")
    ] = False,
    source: Annotated[str | None, typer.Option(help="Refused by this source.")] = None,
    since: Annotated[str | None, typer.Option(help="Refused at or after this time.")] = None,
    until: Annotated[str | None, typer.Option(help="Refused before this time.")] = None,
    dry_run: DryRun = False,
    rate: Rate = None,
    yes: Yes = False,
    config: Config = None,
    json: Json = False,
) -> None:
    """Verify and process an event again, from its raw bytes, or all that were refused.

    After a wrong secret is repaired, --refused verifies each refused delivery as of its arrival
    with the secrets of now, and processes the authentic ones. Forgeries stay refused. Nothing is
    applied twice.
    """
    if refused == (event_id is not None):
        raise InvalidRequestError("give the id of one event, or --refused")
    if event_id is not None:
        done = operate(
            config, lambda services: services.dead_letters.reprocess(event_id, operator())
        )
        show(done, json, print_reprocessed)
        return
    events = EventFilter(
        source=source,
        since=parse_time("--since", since),
        until=parse_time("--until", until),
        status=EventStatus.FAILED_FINAL,
        error_code=Code.INVALID_SIGNATURE,
    )
    _replay(config, events, rate=rate, dry_run=dry_run, is_confirmed=yes, as_json=json)


def _reprocess_one(config: Path | None, event_id: UUID, as_json: bool) -> None:
    done = operate(config, lambda services: services.dead_letters.reprocess(event_id, operator()))
    show(done, as_json, print_reprocessed)


def print_reprocessed(event: "ReprocessedEvent") -> None:
    done = event.reprocessed
    stdout.print(f"It was {done.was} {done.was_error_code or ''}".rstrip() + f": {done.result}.")
    if done.event_id != event.id:
        stdout.print(f"It is event {done.event_id} now.")
    else:
        stdout.print(f"It is {event.status} {event.error_code or ''}".rstrip() + ".")
    if done.applied:
        stdout.print("Its payment was applied.")
