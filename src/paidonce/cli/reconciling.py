"""`reconcile`: what a gateway's own books say."""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from paidonce.cli.choosing import time_of
from paidonce.cli.for_programs import json_text
from paidonce.cli.terminal import Config, Json, chosen_settings, operator, run, show, shown, told
from paidonce.errors import ConfigurationError, InvalidRequestError, NotFoundError
from paidonce.settings import Settings

if TYPE_CHECKING:
    from paidonce.operations.reconciliations import FindingView, ReconciliationDetail

LOOK_PAUSE_S: Final = 0.3
"""How often to look how far another process is with it."""
_COUNTED: Final = (
    "compared",
    "agreed",
    "repaired",
    "behind",
    "differs",
    "missing_here",
    "missing_there",
    "unreadable",
)
_MINUTE: Final = "%Y-%m-%d %H:%M"


def add_to(app: typer.Typer) -> None:
    """Make it a command of the program."""
    app.command()(reconcile)


def reconcile(
    source: Annotated[str, typer.Option(help="The source whose gateway is asked.")],
    since: Annotated[str, typer.Option(help="A date or time (ISO 8601, UTC), or 7d.")],
    until: Annotated[str | None, typer.Option(help="The same; else till now.")] = None,
    dry_run: Annotated[bool, typer.Option(help="Only look: repair nothing.")] = False,
    config: Config = None,
    json: Json = False,
) -> None:
    """Compare a gateway's payments with those here, and repair what can be repaired.

    Exit code 0: all is explained, or was repaired. 1: a person has to look at something, or it
    could not be done. 2: the settings are wrong, or the gateway has no list of payments.
    """
    from paidonce.telemetry import keep_quiet

    settings, _ = chosen_settings(config)
    begin, end = time_of("--since", since), time_of("--until", until)
    assert begin is not None
    keep_quiet()
    report = run(_reconciled(settings, source, begin, end, dry_run))
    if json:
        typer.echo(json_text(report))
    else:
        _show(report)
    if report.needs_a_person:
        raise typer.Exit(1)


async def _reconciled(
    settings: Settings, source: str, since: datetime, until: datetime | None, dry_run: bool
) -> "ReconciliationDetail":
    """The report, when it is finished: by this process, or by a worker that was faster."""
    from paidonce.operating import opened_reconciler

    async with opened_reconciler(settings) as verbs:
        try:
            wanted = await verbs.start_reconciliation(
                operator(), source=source, since=since, until=until, dry_run=dry_run
            )
        except (InvalidRequestError, NotFoundError) as error:
            raise ConfigurationError(str(error)) from None
        with _progress() as tell:
            while True:
                report = await verbs.reconciliation(wanted.id)
                tell(report.compared)
                if report.is_finished:
                    return report
                await asyncio.sleep(LOOK_PAUSE_S)


@contextmanager
def _progress() -> Iterator[Callable[[int], None]]:
    """Tells on standard error how many payments were compared."""
    columns = (TextColumn("{task.completed} payments compared"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=told, transient=True, redirect_stdout=False) as progress:
        task = progress.add_task("", total=None)
        yield lambda compared: progress.update(task, completed=compared)


def _show(report: "ReconciliationDetail") -> None:
    shown.print(f"{report.source}, {report.since:{_MINUTE}} to {report.until:{_MINUTE}} UTC")
    table = Table("", "payments")
    for name in _COUNTED:
        table.add_row(name.replace("_", " "), str(getattr(report, name)))
    shown.print(table)
    for money in report.explained:
        shown.print(
            f"{money.explained} of {money.reported} {money.currency} explained "
            f"({money.explained_percent:.2f} %)"
        )
    for unapplied in report.unapplied:
        shown.print(
            f"Received and not applied: {unapplied.number} payments, {unapplied.amount} "
            f"{unapplied.currency}, the oldest since {unapplied.oldest_at:{_MINUTE}} UTC"
        )
    if report.findings:
        _show_findings(report.findings)
    if report.error_message:
        told.print(f"It could not be finished: {report.error_message}")


def _show_findings(findings: "Sequence[FindingView]") -> None:
    columns: Mapping[str, Callable[[Any], object]] = {
        "payment": lambda one: one.external_payment_id,
        "order": lambda one: one.order,
        "found": lambda one: one.kind.replace("_", " "),
        "gateway": lambda one: _sums(one.reported, one.reported_refunded, one.currency),
        "here": lambda one: _sums(one.known, one.known_refunded, one.currency),
        "": lambda one: one.resolution or ("new" if one.new else "known"),
        "what it is": lambda one: one.reason,
    }
    show(findings, columns, as_json=False)


def _sums(captured: str | None, refunded: str | None, currency: str | None) -> str:
    if captured is None:
        return ""
    back = f", {refunded} back" if refunded and refunded != "0" else ""
    return f"{captured} {currency}{back}"
