"""Whether the service is well: for orchestrators, for people, and for Prometheus."""

import asyncio
import time
from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal

from fastapi import FastAPI, Response
from fastapi.responses import PlainTextResponse
from prometheus_client import Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from pydantic import BaseModel

from paidonce import telemetry
from paidonce.domain.events import Code
from paidonce.domain.money import EXPONENTS
from paidonce.engine.group import Group
from paidonce.engine.items import Source
from paidonce.errors import DatabaseAwayError, PaidonceError
from paidonce.operations import Operations
from paidonce.views import BusView
from paidonce.web.problems import CONTENT_TYPE

UNLINKED: Final = frozenset({Code.USER_MISSING, Code.UNLINKED_PAYMENT, Code.ORDER_MISSING})
WAITING_STATUSES: Final = ("RECEIVED", "VALIDATED", "FAILED_RETRYABLE", "DEAD_LETTER")

_ERRORS: Final = {
    "invalid_signature": telemetry.INVALID_SIGNATURES,
    "stale": telemetry.STALE,
    "conflict": telemetry.CONFLICTS,
    "failed_retryable": telemetry.FAILED_RETRYABLE,
    "failed_final": telemetry.FAILED_FINAL,
    "dead_letter": telemetry.DEAD_LETTERS,
}
_AWAY: Final[dict[int | str, dict[str, Any]]] = {
    503: {
        "description": "Deliveries cannot be taken now.",
        "content": {CONTENT_TYPE: {"schema": {"$ref": "#/components/schemas/ProblemBody"}}},
    }
}


class HealthySource(BaseModel):
    """A gateway that may send."""

    name: str
    provider: str


class Health(BaseModel):
    """Whether the service is well: `errors` counts since it started, over all its processes."""

    status: Literal["ok", "unavailable"]
    sources: list[HealthySource]
    response_time_ms: float
    errors: dict[str, int]


def add_health(
    api: FastAPI, operations: Operations, group: Group | None, sources: Mapping[str, Source]
) -> None:
    """Add the endpoints that need no key."""

    measures = _Measures(operations)

    @api.get("/healthz", tags=["health"])
    async def healthz() -> dict[str, str]:
        """Whether the process answers."""
        return {"status": "ok"}

    @api.get("/readyz", tags=["health"], responses=_AWAY)
    async def readyz() -> dict[str, str]:
        """Whether deliveries can be taken now."""
        await operations.ping()
        if group is not None and not group.is_running:
            raise DatabaseAwayError("no flusher runs")
        return {"status": "ready"}

    @api.get("/webhooks/health", tags=["health"], responses={503: {"model": Health}})
    async def webhooks_health(answer: Response) -> Health:
        """Status, sources, response time and error counts."""
        return await _webhooks_health(operations, group, sources, answer)

    @api.get("/metrics", tags=["health"], response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Prometheus metrics."""
        told = telemetry.exposition(await measures.measured())
        return Response(told, media_type=CONTENT_TYPE_PLAIN_0_0_4)


async def _webhooks_health(
    operations: Operations, group: Group | None, sources: Mapping[str, Source], answer: Response
) -> Health:
    started_s = time.monotonic()
    try:
        await operations.ping()
        is_well = group is None or group.is_running
    except PaidonceError:
        is_well = False
    answer.status_code = 200 if is_well else 503
    return Health(
        status="ok" if is_well else "unavailable",
        sources=[
            HealthySource(name=source.name, provider=source.provider.name)
            for source in sources.values()
        ],
        response_time_ms=round((time.monotonic() - started_s) * 1000, 3),
        errors={name: telemetry.total(counter) for name, counter in _ERRORS.items()},
    )


class _Measures:
    """Asks the database for one at a time: whoever comes meanwhile is told the same."""

    def __init__(self, operations: Operations) -> None:
        self._operations = operations
        self._asking: asyncio.Task[list[Metric]] | None = None

    async def measured(self) -> list[Metric]:
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(_measured(self._operations))
        return await asyncio.shield(self._asking)


async def _measured(operations: Operations) -> list[Metric]:
    """What only the database knows; nothing when it is away: the counters are told all the same."""
    try:
        backlog = await operations.backlog()
        money = await operations.unapplied_money()
        review = await operations.to_review()
        bans = await operations.number_of_bans()
        untold = await operations.untold_notices()
        findings = await operations.open_findings()
        reconciled = await operations.last_reconciled()
        bus = await operations.bus_status()
        wallet_review = await operations.wallet_payments_to_review()
        dead_callbacks = await operations.number_of_dead_callbacks()
    except PaidonceError:
        return []
    waiting = {row["status"]: row for row in backlog}
    nothing = {"number": 0, "oldest_s": 0.0}
    rows = {(status,): waiting.get(status, nothing) for status in WAITING_STATUSES}
    counts: dict[tuple[str, ...], float] = {
        (row["currency"], row["reason"]): row["number"] for row in money
    }
    amounts: dict[tuple[str, ...], float] = {
        (row["currency"], row["reason"]): row["sum_minor"] / 10 ** EXPONENTS[row["currency"]]
        for row in money
    }
    return [
        telemetry.BACKLOG.family({labels: row["number"] for labels, row in rows.items()}),
        telemetry.OLDEST_EVENT.family({labels: row["oldest_s"] for labels, row in rows.items()}),
        telemetry.UNAPPLIED.family(counts),
        telemetry.UNAPPLIED_AMOUNT.family(amounts),
        telemetry.OLDEST_UNAPPLIED.family({(): _oldest_s(money)}),
        telemetry.OLDEST_UNLINKED.family(
            {(): _oldest_s(row for row in money if row["reason"] in UNLINKED)}
        ),
        telemetry.REVIEW.family({(row["reason"],): row["number"] for row in review}),
        telemetry.OLDEST_REVIEW.family({(row["reason"],): row["oldest_s"] for row in review}),
        telemetry.BANS.family({(): bans}),
        telemetry.UNTOLD.family({(row["channel"],): row["number"] for row in untold}),
        telemetry.OLDEST_UNTOLD.family({(row["channel"],): row["oldest_s"] for row in untold}),
        telemetry.RECONCILIATION_FINDINGS.family(
            {(row["source"], row["kind"]): row["number"] for row in findings}
        ),
        telemetry.RECONCILIATION_AGE.family({(row["source"],): row["age_s"] for row in reconciled}),
        telemetry.WALLET_PAYMENTS_REVIEW.family(
            {(reason,): number for reason, number in wallet_review.items()}
        ),
        telemetry.DEAD_CALLBACKS.family({(): dead_callbacks}),
        *_measured_bus(bus),
    ]


def _measured_bus(bus: BusView) -> list[Metric]:
    return [
        telemetry.UNPUBLISHED.family({(): bus.unpublished}),
        telemetry.OLDEST_UNPUBLISHED.family({(): bus.oldest_unpublished_s}),
        telemetry.BUS_LAG.family({(one.consumer, one.about): one.lag for one in bus.groups}),
        telemetry.BUS_ABSENT.family({(name,): s for name, s in bus.absences().items()}),
        telemetry.OPEN_DEAD_LETTERS.family({(name,): n for name, n in bus.dead_letters.items()}),
    ]


def _oldest_s(rows: Iterable[Mapping[str, Any]]) -> float:
    return max((float(row["oldest_s"]) for row in rows), default=0.0)
