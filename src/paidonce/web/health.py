"""Whether the service is well: for orchestrators, for people, and for Prometheus."""

import time
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Response
from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from paidonce import telemetry
from paidonce.domain.money import EXPONENTS
from paidonce.engine.group import Group
from paidonce.engine.items import Source
from paidonce.errors import DatabaseAwayError, PaidonceError
from paidonce.operations import Operations


def add_health(
    api: FastAPI, operations: Operations, group: Group, sources: Mapping[str, Source]
) -> None:
    """Add the endpoints that need no key."""

    @api.get("/healthz", tags=["health"])
    async def healthz() -> dict[str, str]:
        """Whether the process answers."""
        return {"status": "ok"}

    @api.get("/readyz", tags=["health"])
    async def readyz() -> dict[str, str]:
        """Whether deliveries can be taken now."""
        await operations.ping()
        if not group.is_running:
            raise DatabaseAwayError("no flusher runs")
        return {"status": "ready"}

    @api.get("/webhooks/health", tags=["health"])
    async def webhooks_health(answer: Response) -> dict[str, Any]:
        """Status, sources, response time and error counts."""
        return await _webhooks_health(operations, group, sources, answer)

    @api.get("/metrics", tags=["health"], response_class=Response)
    async def metrics() -> Response:
        """Prometheus metrics."""
        await _measure_backlog(operations)
        return Response(generate_latest(telemetry.REGISTRY), media_type=CONTENT_TYPE_PLAIN_0_0_4)


async def _webhooks_health(
    operations: Operations, group: Group, sources: Mapping[str, Source], answer: Response
) -> dict[str, Any]:
    started_s = time.monotonic()
    try:
        await operations.ping()
        is_well = group.is_running
    except PaidonceError:
        is_well = False
    answer.status_code = 200 if is_well else 503
    return {
        "status": "ok" if is_well else "unavailable",
        "sources": [
            {"name": source.name, "provider": source.provider.name} for source in sources.values()
        ],
        "response_time_ms": round((time.monotonic() - started_s) * 1000, 3),
        "errors": {
            "invalid_signature": _total(telemetry.INVALID_SIGNATURES),
            "failed_retryable": _total(telemetry.FAILED_RETRYABLE),
            "failed_final": _total(telemetry.FAILED_FINAL),
            "conflict": _total(telemetry.CONFLICTS),
        },
    }


def _total(counter: telemetry.PrometheusCounter) -> int:
    samples = [sample for metric in counter.collect() for sample in metric.samples]
    return int(sum(sample.value for sample in samples if sample.name.endswith("_total")))


async def _measure_backlog(operations: Operations) -> None:
    """Set what only the database knows; when it is away, the counters are told all the same."""
    try:
        backlog = await operations.backlog()
        money = await operations.unapplied_money()
    except PaidonceError:
        return
    waiting = {row["status"]: row for row in backlog}
    for status in ("RECEIVED", "VALIDATED", "FAILED_RETRYABLE", "DEAD_LETTER"):
        row = waiting.get(status, {"number": 0, "oldest_s": 0.0})
        telemetry.BACKLOG.labels(status).set(row["number"])
        telemetry.OLDEST_EVENT.labels(status).set(row["oldest_s"])
    telemetry.UNAPPLIED.clear()
    telemetry.UNAPPLIED_AMOUNT.clear()
    for row in money:
        units = row["sum_minor"] / 10 ** EXPONENTS[row["currency"]]
        telemetry.UNAPPLIED.labels(row["currency"]).set(row["number"])
        telemetry.UNAPPLIED_AMOUNT.labels(row["currency"]).set(units)
    telemetry.OLDEST_UNAPPLIED.set(max((row["oldest_s"] for row in money), default=0))
    telemetry.OLDEST_UNLINKED.set(max((row["oldest_unlinked_s"] for row in money), default=0))
