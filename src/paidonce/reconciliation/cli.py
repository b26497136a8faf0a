"""`paidonce reconcile`."""

import asyncio
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn

from paidonce.errors import ConfigurationError, InvalidRequestError, NotFoundError
from paidonce.settings import Settings
from paidonce.terminal.commands import Json, parse_time
from paidonce.terminal.output import Columns, print_table, progress_bar, show, stderr, stdout
from paidonce.terminal.session import (
    Config,
    Use,
    load_command_settings,
    open_services,
    operator,
    run,
)

if TYPE_CHECKING:
    from paidonce.reconciliation.model import ReconciliationReport

POLL_S: Final = 0.3
_COUNTED: Final = (
    "compared, agreed, repaired, behind, differs, missing_here, missing_there, unreadable"
)
_MINUTE: Final = "%Y-%m-%d %H:%M"
_FINDINGS: Final[Columns] = {
    "payment": lambda one: one.external_payment_id,
    "order": lambda one: one.order,
    "found": lambda one: one.kind.replace("_", " "),
    "gateway": lambda one: _amounts(one.reported, one.reported_refunded, one.currency),
    "here": lambda one: _amounts(one.recorded, one.recorded_refunded, one.currency),
    "": lambda one: one.resolution or ("new" if one.new else "known"),
    "reason": lambda one: one.reason,
}


def reconcile(
    source: Annotated[str, typer.Option(help="The source to reconcile.")],
    since: Annotated[str, typer.Option(help="A date or time (ISO 8601, UTC), or 7d: days ago.")],
    until: Annotated[str | None, typer.Option(help="The same. Default: now.")] = None,
    dry_run: Annotated[bool, typer.Option(help="Only compare: repair nothing.")] = False,
    config: Config = None,
    json: Json = False,
) -> None:
    """Compare a gateway's payments with the stored ones, and repair what can be repaired.

    Exit code 0: all agree, or were repaired. 1: some need a person, or the run failed. 2: the
    settings are wrong, or the gateway has no list of payments.
    """
    from paidonce.telemetry import keep_quiet

    settings, _ = load_command_settings(config)
    begin, end = parse_time("--since", since), parse_time("--until", until)
    assert begin is not None
    keep_quiet()
    report = run(_reconcile(settings, source, begin, end, dry_run))
    show(report, json, _print)
    if report.needs_review:
        raise typer.Exit(1)


async def _reconcile(
    settings: Settings, source: str, since: datetime, until: datetime | None, dry_run: bool
) -> "ReconciliationReport":
    """Request a run and wait for its report. This process runs it, or another worker does."""
    from paidonce.reconciliation.model import ReconciliationRequest

    async with open_services(settings, Use.RECONCILE) as services:
        try:
            request = ReconciliationRequest(
                source=source, since=since, until=until, dry_run=dry_run
            )
            started = await services.reconciliations.start(request, operator())
        except (InvalidRequestError, NotFoundError) as error:
            raise ConfigurationError(str(error)) from None
        text = TextColumn("{task.completed} payments compared")
        with progress_bar(text, BarColumn(), TimeElapsedColumn()) as update:
            while True:
                report = await services.reconciliations.get(started.id)
                update(completed=report.compared)
                if report.is_finished:
                    return report
                await asyncio.sleep(POLL_S)


def _print(report: "ReconciliationReport") -> None:
    stdout.print(f"{report.source}, {report.since:{_MINUTE}} to {report.until:{_MINUTE}} UTC")
    counted = [(name.replace("_", " "), getattr(report, name)) for name in _COUNTED.split(", ")]
    print_table(counted, {"": lambda one: one[0], "payments": lambda one: one[1]})
    for money in report.explained:
        stdout.print(
            f"{money.explained} of {money.reported} {money.currency} explained "
            f"({money.explained_percent:.2f} %)"
        )
    for unapplied in report.unapplied:
        stdout.print(
            f"Received and not applied: {unapplied.number} payments, {unapplied.amount} "
            f"{unapplied.currency}, the oldest since {unapplied.oldest_at:{_MINUTE}} UTC"
        )
    if report.findings:
        print_table(report.findings, _FINDINGS)
    if report.error_message:
        stderr.print(f"The run failed: {report.error_message}")


def _amounts(captured: str | None, refunded: str | None, currency: str | None) -> str:
    if captured is None:
        return ""
    back = f", {refunded} back" if refunded and refunded != "0" else ""
    return f"{captured} {currency}{back}"
