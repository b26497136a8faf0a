"""`paidonce replay`, `dead-letters` and `events reprocess`."""

import asyncio
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final
from uuid import UUID

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from paidonce.core.events import EventStatus
from paidonce.db.paging import ListQuery, all_pages
from paidonce.events.model import DeadLetterFilter, DeadLetterQuery, EventFilter
from paidonce.terminal.output import Columns, Json, json_text, show, stderr, stdout
from paidonce.terminal.query_options import Limit, query_options
from paidonce.terminal.session import Config, operate, operator

if TYPE_CHECKING:
    from paidonce.bootstrap.services import Services
    from paidonce.replay.model import Replay, ReprocessedEvent

POLL_S: Final = 0.2
INTERRUPTED: Final = 130

replays = typer.Typer(help="Process all events that match again.")
dead_letters = typer.Typer(help="Events that need a person.", no_args_is_help=True)

DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show what would change.")]
Rate = Annotated[int | None, typer.Option(min=1, max=10_000, help="Events per second at most.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]
OneId = Annotated[UUID | None, typer.Argument(help="One of them; else all that match.")]
Reason = Annotated[str, typer.Option(help="Why; for the audit log.")]


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(dead_letters, name="dead-letters")
    app.add_typer(replays, name="replay")


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

    async def preview_and_run(services: "Services") -> "Replay | None":
        if dry_run or not is_confirmed:
            preview = await _run(services, events, dry_run=True, rate=None)
            if dry_run or preview.status != "DONE":
                return preview
            _show(preview, as_json=False)
            if preview.done == 0:
                return None
            if not await asyncio.to_thread(typer.confirm, "Process them again?", err=True):
                return None
        return await _run(services, events, dry_run=False, rate=rate)

    _end(operate(config, preview_and_run), as_json)


@replays.command("resume")
def resume(replay_id: UUID, config: Config = None, json: Json = False) -> None:
    """Continue a paused replay, and follow it."""

    async def resume_and_follow(services: "Services") -> "Replay":
        if (await services.replays.get(replay_id)).status == "PAUSED":
            await services.replays.resume(replay_id, operator())
        return await _follow(services, replay_id)

    _end(operate(config, resume_and_follow), json)


@replays.command("pause")
def pause(replay_id: UUID, config: Config = None, json: Json = False) -> None:
    """Pause a replay, in whatever process it runs; what it did stays."""
    _show(operate(config, lambda services: services.replays.pause(replay_id, operator())), json)


@replays.command("cancel")
def cancel(replay_id: UUID, config: Config = None, json: Json = False) -> None:
    """End a replay; what it did stays."""
    _show(operate(config, lambda services: services.replays.cancel(replay_id, operator())), json)


@replays.command("show")
def show_replay(replay_id: UUID, config: Config = None, json: Json = False) -> None:
    """Show one replay with its progress."""
    _show(operate(config, lambda services: services.replays.get(replay_id)), json)


@replays.command("list")
def list_replays(limit: Limit = 50, config: Config = None, json: Json = False) -> None:
    """List replays, newest first."""
    columns: Columns = {
        "id": lambda one: one.id,
        "status": lambda one: one.status,
        "dry run": lambda one: "yes" if one.dry_run else "",
        "done": lambda one: one.done,
        "of": lambda one: one.total,
        "by": lambda one: one.actor,
        "created": lambda one: one.created_at,
        "events": lambda one: " ".join(f"{name}={value}" for name, value in one.filter.items()),
    }
    found = operate(config, lambda services: all_pages(services.replays.search, ListQuery(), limit))
    show(found, columns, json)


async def _run(
    services: "Services", events: EventFilter, *, dry_run: bool, rate: int | None
) -> "Replay":
    from paidonce.replay.model import ReplayRequest

    request = ReplayRequest(filter=events, dry_run=dry_run, rate=rate)
    created = await services.replays.create(request, operator(), wait_s=0)
    return await _follow(services, created.id)


async def _follow(services: "Services", replay_id: UUID) -> "Replay":
    """Run it, unless another process does, and show its progress; Ctrl-C pauses it."""
    interrupted = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, interrupted.set)
    running = asyncio.create_task(services.replays.run(replay_id))
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeRemainingColumn(), console=stderr, transient=True) as progress:
        bar = progress.add_task("", total=None)
        while not running.done() and not interrupted.is_set():
            found = await services.replays.get(replay_id)
            description = "dry run" if found.dry_run else "processing"
            progress.update(bar, description=description, completed=found.done, total=found.total)
            await asyncio.wait({running}, timeout=POLL_S)
    if interrupted.is_set() and not running.done():
        await services.replays.pause(replay_id, operator())
    await running
    asyncio.get_running_loop().remove_signal_handler(signal.SIGINT)
    return await services.replays.get(replay_id)


def _end(found: "Replay | None", as_json: bool) -> None:
    """Show how the replay ended, and exit with the code for that."""
    if found is None:
        stderr.print("Nothing was done.")
        return
    _show(found, as_json)
    if found.status == "PAUSED":
        stderr.print(f"The replay is paused. Continue it with: paidonce replay resume {found.id}")
        raise typer.Exit(INTERRUPTED)
    if found.status != "DONE":
        raise typer.Exit(1)


def _show(found: "Replay", as_json: bool) -> None:
    if as_json:
        typer.echo(json_text(found))
        return
    what = "would be processed again" if found.dry_run else "processed again"
    of = "" if found.total in (None, found.done) else f" of {found.total}"
    stdout.print(
        f"{found.status}: {found.done}{of} events {what} (replay {found.id}).", soft_wrap=True
    )
    for change, number in sorted(found.counts.items(), key=lambda one: -one[1]):
        stdout.print(f"  {number} × {change}")
    if found.applied.number:
        sums = ", ".join(f"{amount} {code}" for code, amount in found.applied.sums.items())
        applied = "would be applied" if found.dry_run else "applied"
        stdout.print(f"  {found.applied.number} payments {applied}: {sums}")
    if found.error:
        stdout.print(f"  {found.error}", style="red")


# Dead letters and single events


@dead_letters.command("list")
@query_options
def list_dead_letters(
    query: DeadLetterQuery, limit: Limit = 50, config: Config = None, json: Json = False
) -> None:
    """List dead letters, newest first."""
    found = operate(config, lambda services: all_pages(services.dead_letters.search, query, limit))
    columns: Columns = {
        "id": lambda one: one.id,
        "source": lambda one: one.source,
        "received": lambda one: one.received_at,
        "type": lambda one: one.type,
        "payment": lambda one: one.payment,
        "order": lambda one: one.order,
        "code": lambda one: one.error_code,
        "attempts": lambda one: one.attempts,
    }
    show(found, columns, json)


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
        _show_reprocessed(done, json)
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
        typer.confirm(f"Discard dead letters ({which})?", abort=True, err=True)
    done = operate(
        config, lambda services: services.dead_letters.discard_matching(query, operator(), reason)
    )
    if json:
        typer.echo(json_text(done))
    else:
        more = " There are more: run it again." if done.more else ""
        stderr.print(f"{done.discarded} dead letters are discarded.{more}")


def reprocess(event_id: UUID, config: Config = None, json: Json = False) -> None:
    """Verify and process an event again, from its raw bytes. Nothing is applied twice."""
    done = operate(config, lambda services: services.dead_letters.reprocess(event_id, operator()))
    _show_reprocessed(done, json)


def _show_reprocessed(event: "ReprocessedEvent", as_json: bool) -> None:
    if as_json:
        typer.echo(json_text(event))
        return
    done = event.reprocessed
    stdout.print(f"It was {done.was} {done.was_error_code or ''}".rstrip() + f": {done.result}.")
    if done.event_id != event.id:
        stdout.print(f"It is event {done.event_id} now.")
    else:
        stdout.print(f"It is {event.status} {event.error_code or ''}".rstrip() + ".")
    if done.applied:
        stdout.print("Its payment was applied.")
