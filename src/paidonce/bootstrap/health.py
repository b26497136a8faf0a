"""Whether the service is well: for orchestrators, for people, and for Prometheus."""

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from fastapi import FastAPI, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from prometheus_client import Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from pydantic import BaseModel

from paidonce.api.problems import CONTENT_TYPE, RETRY_AFTER_S, Problem
from paidonce.bootstrap.readiness import DETAILS, Readiness
from paidonce.bootstrap.services import Services
from paidonce.bus.model import BusStatus
from paidonce.clock import CLOCK
from paidonce.core.events import Code
from paidonce.core.money import EXPONENTS
from paidonce.errors import PaidonceError
from paidonce.ids import new_id
from paidonce.processing.items import Source
from paidonce.runtime.service import Supervisor
from paidonce.telemetry import metrics
from paidonce.telemetry.metrics import exposition, total

UNLINKED: Final = frozenset({Code.USER_MISSING, Code.UNLINKED_PAYMENT, Code.ORDER_MISSING})
WAITING_STATUSES: Final = ("VALIDATED", "FAILED_RETRYABLE", "DEAD_LETTER")

_ERRORS: Final = {
    "invalid_signature": metrics.INVALID_SIGNATURES,
    "stale": metrics.STALE,
    "conflict": metrics.CONFLICTS,
    "failed_retryable": metrics.FAILED_RETRYABLE,
    "failed_final": metrics.FAILED_FINAL,
    "dead_letter": metrics.DEAD_LETTERS,
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


class ReadinessView(BaseModel):
    """Deliveries can be committed; `degraded` names what else is wrong: background services that
    fail and are restarted, `clock`. It says nothing about a single delivery.
    """

    status: Literal["ready"] = "ready"
    degraded: list[str]


@dataclass(frozen=True, slots=True)
class HealthSource:
    """What the endpoints report on."""

    services: Services
    readiness: Readiness
    sources: Mapping[str, Source]
    supervisors: Sequence[Supervisor] = ()

    @property
    def degraded(self) -> list[str]:
        """The names of background services that failed a moment ago."""
        return sorted(name for one in self.supervisors for name in one.degraded)


def add_health(api: FastAPI, health: HealthSource) -> None:
    """Add the endpoints that need no key."""

    measures = _Measures(health.services)

    @api.get("/healthz", tags=["health"])
    async def healthz() -> dict[str, str]:
        """Whether the process answers."""
        return {"status": "ok"}

    @api.get("/readyz", tags=["health"], response_model=ReadinessView, responses=_AWAY)
    async def readyz() -> Response:
        """Whether deliveries can be committed now, and what else is wrong."""
        reason = await health.readiness.reason()
        degraded = health.degraded
        if reason is None:
            return JSONResponse(ReadinessView(degraded=degraded).model_dump())
        problem = Problem(503, reason, DETAILS[reason], RETRY_AFTER_S)
        body = problem.body(str(new_id()), degraded=degraded)
        return Response(body, problem.status, problem.headers())

    @api.get("/webhooks/health", tags=["health"], responses={503: {"model": Health}})
    async def webhooks_health(answer: Response) -> Health:
        """Status, sources, response time and error counts."""
        started_s = time.monotonic()
        is_well = await health.readiness.reason() is None
        answer.status_code = 200 if is_well else 503
        return Health(
            status="ok" if is_well else "unavailable",
            sources=[
                HealthySource(name=source.name, provider=source.provider.name)
                for source in health.sources.values()
            ],
            response_time_ms=round((time.monotonic() - started_s) * 1000, 3),
            errors={name: total(counter) for name, counter in _ERRORS.items()},
        )

    @api.get("/metrics", tags=["health"], response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Prometheus metrics."""
        text = exposition(await measures.measured())
        return Response(text, media_type=CONTENT_TYPE_PLAIN_0_0_4)


class _Measures:
    """Reads the gauges from the database. Concurrent scrapes share one read."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._asking: asyncio.Task[list[Metric]] | None = None

    async def measured(self) -> list[Metric]:
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(_measured(self._services))
        return await asyncio.shield(self._asking)


async def _measured(services: Services) -> list[Metric]:
    """The gauges; none if the database is unavailable. The counters are returned in any case."""
    try:
        backlog = await services.events.backlog()
        money = await services.payments.unapplied_money()
        review = await services.payments.to_review()
        disputes = await services.payments.open_disputes()
        bans = await services.bans.count()
        pending = await services.notifications.pending()
        findings = await services.reconciliations.open_findings()
        reconciled = await services.reconciliations.last_reconciled()
        bus = await services.bus.status()
        wallet_review = await services.payouts.count_reviews()
        dead_callbacks = await services.payouts.count_dead_callbacks()
    except PaidonceError:
        return []
    waiting = {row["status"]: row for row in backlog}
    nothing = {"number": 0, "oldest_s": 0.0}
    rows = {(status,): waiting.get(status, nothing) for status in WAITING_STATUSES}
    counts: dict[tuple[str, ...], float] = {
        (row["currency"] or "", row["reason"]): row["number"] for row in money
    }
    amounts: dict[tuple[str, ...], float] = {
        (row["currency"], row["reason"]): row["sum_minor"] / 10 ** EXPONENTS[row["currency"]]
        for row in money
        if row["currency"]
    }
    return [
        metrics.BACKLOG.family({labels: row["number"] for labels, row in rows.items()}),
        metrics.OLDEST_EVENT.family({labels: row["oldest_s"] for labels, row in rows.items()}),
        metrics.UNAPPLIED.family(counts),
        metrics.UNAPPLIED_AMOUNT.family(amounts),
        metrics.OLDEST_UNAPPLIED.family({(): _oldest_s(money)}),
        metrics.OLDEST_UNLINKED.family(
            {(): _oldest_s(row for row in money if row["reason"] in UNLINKED)}
        ),
        metrics.REVIEW.family({(row["reason"],): row["number"] for row in review}),
        metrics.OLDEST_REVIEW.family({(row["reason"],): row["oldest_s"] for row in review}),
        metrics.DISPUTES.family({(): disputes}),
        metrics.BANS.family({(): bans}),
        metrics.NOTIFICATIONS_PENDING.family({(one.channel,): one.number for one in pending}),
        metrics.NOTIFICATIONS_OLDEST_PENDING.family(
            {(one.channel,): one.oldest_s for one in pending}
        ),
        metrics.RECONCILIATION_FINDINGS.family(
            {(row["source"], row["kind"]): row["number"] for row in findings}
        ),
        metrics.RECONCILIATION_AGE.family({(row["source"],): row["age_s"] for row in reconciled}),
        metrics.WALLET_PAYMENTS_REVIEW.family(
            {(reason,): number for reason, number in wallet_review.items()}
        ),
        metrics.DEAD_CALLBACKS.family({(): dead_callbacks}),
        metrics.CLOCK_SKEW.family({(): CLOCK.offset_s}),
        *_measured_bus(bus),
    ]


def _measured_bus(bus: BusStatus) -> list[Metric]:
    return [
        metrics.BUS_UNPUBLISHED.family({(): bus.unpublished}),
        metrics.BUS_OLDEST_UNPUBLISHED.family({(): bus.oldest_unpublished_s}),
        metrics.BUS_LAG.family({(one.consumer, one.aggregate_type): one.lag for one in bus.groups}),
        metrics.BUS_INACTIVE.family({(name,): s for name, s in bus.inactive_s().items()}),
        metrics.BUS_DEAD_LETTERS.family({(name,): n for name, n in bus.dead_letters.items()}),
    ]


def _oldest_s(rows: Iterable[Mapping[str, Any]]) -> float:
    return max((float(row["oldest_s"]) for row in rows), default=0.0)
