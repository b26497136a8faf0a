"""Reconciliations with the gateways' own books."""

from datetime import datetime
from uuid import UUID

from fastapi import FastAPI, status
from pydantic import BaseModel, ConfigDict

from paidonce.operations.reconciliations import ReconciliationDetail, ReconciliationView
from paidonce.web.api.shapes import Limit, Page, Text, page
from paidonce.web.auth import Operator, Reader, Verbs


class NewReconciliation(BaseModel):
    """Which time of which source. A time without a zone is UTC; without `until` it is till now."""

    model_config = ConfigDict(extra="forbid")
    source: Text
    since: datetime
    until: datetime | None = None
    dry_run: bool = False


def add_to(api: FastAPI) -> None:
    """Add these calls."""

    @api.post(
        "/api/v1/reconciliations", status_code=status.HTTP_201_CREATED, tags=["reconciliations"]
    )
    async def start_reconciliation(
        body: NewReconciliation, verbs: Verbs, actor: Operator
    ) -> ReconciliationView:
        """Compare what the gateway says with what is here, and repair what can be repaired.

        A worker does it; look at it until its status is `DONE` or `FAILED`. A dry run repairs
        nothing.
        """
        return await verbs.start_reconciliation(actor, **body.model_dump())

    @api.get("/api/v1/reconciliations", tags=["reconciliations"])
    async def list_reconciliations(
        verbs: Verbs,
        actor: Reader,
        source: Text | None = None,
        limit: Limit = 50,
        cursor: UUID | None = None,
    ) -> Page[ReconciliationView]:
        """Reconciliations, the newest first."""
        return page(await verbs.reconciliations(limit=limit, cursor=cursor, source=source))

    @api.get("/api/v1/reconciliations/{run_id}", tags=["reconciliations"])
    async def get_reconciliation(run_id: UUID, verbs: Verbs, actor: Reader) -> ReconciliationDetail:
        """One with its report: what was found and repaired, and how much money is explained."""
        return await verbs.reconciliation(run_id)
