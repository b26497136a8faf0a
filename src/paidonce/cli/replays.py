"""`replay`: all events that match, processed again."""

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final
from uuid import UUID

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from paidonce.cli.choosing import (
    ErrorCode,
    Order,
    Payment,
    Rate,
    Since,
    Source,
    Status,
    Until,
    Yes,
    chosen,
)
from paidonce.cli.for_programs import json_text
from paidonce.cli.terminal import (
    Config,
    Json,
    operate,
    operator,
    show,
    shown,
    told,
)

if TYPE_CHECKING:
    from paidonce.operations import EventFilter, Operations, ReplayView

LOOK_S: Final = 0.2
INTERRUPTED: Final = 130

commands = typer.Typer(help="Process events again, all that match.")

DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show what would change.")]
Limit = Annotated[int, typer.Option(min=1, max=500, help="How many to show.")]


def add_to(app: typer.Typer) -> None:
    """Make these commands of the program."""
    app.add_typer(commands, name="replay")


@commands.callback(invoke_without_command=True)
def replay(
    context: typer.Context,
    status: Status = None,
    source: Source = None,
    error_code: ErrorCode = None,
    order: Order = None,
    payment: Payment = None,
    since: Since = None,
    until: Until = None,
    dry_run: DryRun = False,
    rate: Rate = None,
    yes: Yes = False,
    config: Config = None,
    json: Json = False,
) -> None:
    """Process again all events that match, after showing what would change.

    Nothing is applied twice. Ctrl-C pauses it; `paidonce replay resume` goes on.
    """
    if context.invoked_subcommand is not None:
        return
    which = chosen(
        status=status,
        source=source,
        error_code=error_code,
        order=order,
        payment=payment,
        since=since,
        until=until,
    )
    replay_chosen(config, which, rate=rate, is_dry_run=dry_run, is_sure=yes, as_json=json)


def replay_chosen(
    config: Path | None,
    which: "EventFilter",
    *,
    rate: int | None,
    is_dry_run: bool,
    is_sure: bool,
    as_json: bool,
) -> None:
    """Show what would change, ask, and process the events again."""

    async def foreseen_and_done(verbs: "Operations") -> "ReplayView | None":
        if is_dry_run or not is_sure:
            seen = await _run(verbs, which, is_dry_run=True, rate=None)
            if is_dry_run or seen.status != "DONE":
                return seen
            _show(seen, as_json=False)
            if seen.done == 0 or not await asyncio.to_thread(_agrees):
                return None
        return await _run(verbs, which, is_dry_run=False, rate=rate)

    _end(operate(config, foreseen_and_done), as_json)


@commands.command("resume")
def resume(replay_id: UUID, config: Config = None, json: Json = False) -> None:
    """Go on with a replay that was paused, here, or where it is running already."""

    async def resumed(verbs: "Operations") -> "ReplayView":
        if (await verbs.replay(replay_id)).status == "PAUSED":
            await verbs.resume_replay(replay_id, operator())
        return await _followed(verbs, replay_id)

    _end(operate(config, resumed), json)


@commands.command("pause")
def pause(replay_id: UUID, config: Config = None, json: Json = False) -> None:
    """Stop a replay for a while, wherever it runs; what it has done stays."""
    _show(operate(config, lambda verbs: verbs.pause_replay(replay_id, operator())), json)


@commands.command("cancel")
def cancel(replay_id: UUID, config: Config = None, json: Json = False) -> None:
    """End a replay; what it has done stays."""
    _show(operate(config, lambda verbs: verbs.cancel_replay(replay_id, operator())), json)


@commands.command("show")
def show_replay(replay_id: UUID, config: Config = None, json: Json = False) -> None:
    """Show one replay, and how far it has come."""
    _show(operate(config, lambda verbs: verbs.replay(replay_id)), json)


@commands.command("list")
def list_replays(limit: Limit = 50, config: Config = None, json: Json = False) -> None:
    """List replays, the newest first."""
    columns: dict[str, Callable[[ReplayView], object]] = {
        "id": lambda one: one.id,
        "status": lambda one: one.status,
        "dry run": lambda one: "yes" if one.dry_run else "",
        "done": lambda one: one.done,
        "of": lambda one: one.total,
        "by": lambda one: one.actor,
        "created": lambda one: one.created_at,
        "events": lambda one: " ".join(f"{name}={said}" for name, said in one.filter.items()),
    }
    found = operate(config, lambda verbs: verbs.replays(limit=limit))
    show(found.items, columns, json)


async def _run(
    verbs: "Operations", which: "EventFilter", *, is_dry_run: bool, rate: int | None
) -> "ReplayView":
    made = await verbs.create_replay(
        which, operator(), is_dry_run=is_dry_run, rate=rate, patience_s=0
    )
    return await _followed(verbs, made.id)


async def _followed(verbs: "Operations", replay_id: UUID) -> "ReplayView":
    """Run it here, unless it runs elsewhere, and show how far it has come; Ctrl-C pauses it."""
    interrupted = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, interrupted.set)
    running = asyncio.create_task(verbs.run_replay(replay_id))
    with _progress() as progress:
        bar = progress.add_task("", total=None)
        while not running.done() and not interrupted.is_set():
            found = await verbs.replay(replay_id)
            told_as = "looking" if found.dry_run else "processing"
            progress.update(bar, description=told_as, completed=found.done, total=found.total)
            await asyncio.wait({running}, timeout=LOOK_S)
    if interrupted.is_set() and not running.done():
        await verbs.pause_replay(replay_id, operator())
    await running
    asyncio.get_running_loop().remove_signal_handler(signal.SIGINT)
    return await verbs.replay(replay_id)


def _progress() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    return Progress(*columns, TimeRemainingColumn(), console=told, transient=True)


def _agrees() -> bool:
    return typer.confirm("Process them again?", err=True)


def _end(found: "ReplayView | None", as_json: bool) -> None:
    """Show how it ended, and say so by the exit code."""
    if found is None:
        told.print("Nothing was done.")
        return
    _show(found, as_json)
    if found.status == "PAUSED":
        told.print(f"It is paused. Go on with: paidonce replay resume {found.id}")
        raise typer.Exit(INTERRUPTED)
    if found.status != "DONE":
        raise typer.Exit(1)


def _show(found: "ReplayView", as_json: bool) -> None:
    if as_json:
        typer.echo(json_text(found))
        return
    what = "would be processed again" if found.dry_run else "processed again"
    of = "" if found.total in (None, found.done) else f" of {found.total}"
    shown.print(
        f"{found.status}: {found.done}{of} events {what} (replay {found.id}).", soft_wrap=True
    )
    for change, number in sorted(found.counts.items(), key=lambda one: -one[1]):
        shown.print(f"  {number} × {change}")
    if found.applied.number:
        sums = ", ".join(f"{amount} {code}" for code, amount in found.applied.sums.items())
        would = "would be applied" if found.dry_run else "applied"
        shown.print(f"  {found.applied.number} payments {would}: {sums}")
    if found.error:
        shown.print(f"  {found.error}", style="red")
