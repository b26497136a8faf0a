"""HTTP routes of reconciliations."""

from typing import Annotated
from uuid import UUID

from fastapi import FastAPI, Query, status

from paidonce.api.auth import Operator, Reader
from paidonce.db.paging import Page
from paidonce.reconciliation import model
from paidonce.reconciliation.model import ReconciliationSummary
from paidonce.reconciliation.service import ReconciliationService


def add_to(api: FastAPI, reconciliations: ReconciliationService) -> None:
    """Add the routes."""

    @api.post(
        "/api/v1/reconciliations", status_code=status.HTTP_201_CREATED, tags=["reconciliations"]
    )
    async def start_reconciliation(
        body: model.ReconciliationRequest, actor: Operator
    ) -> ReconciliationSummary:
        """Compare the gateway's payments with the stored ones, and repair what can be repaired.

        A worker runs it; poll it until its status is `DONE` or `FAILED`. A dry run repairs nothing.
        """
        return await reconciliations.start(body, actor)

    @api.get("/api/v1/reconciliations", tags=["reconciliations"])
    async def list_reconciliations(
        query: Annotated[model.ReconciliationQuery, Query()], actor: Reader
    ) -> Page[ReconciliationSummary]:
        """Reconciliations, newest first."""
        return await reconciliations.search(query)

    @api.get("/api/v1/reconciliations/{run_id}", tags=["reconciliations"])
    async def get_reconciliation(run_id: UUID, actor: Reader) -> model.ReconciliationReport:
        """One reconciliation with its findings."""
        return await reconciliations.get(run_id)
