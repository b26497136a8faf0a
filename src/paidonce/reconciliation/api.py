"""HTTP routes of reconciliations."""

from uuid import UUID

from fastapi import FastAPI

from paidonce.api.requests import FromQuery, Operator, Reader
from paidonce.db.paging import Page
from paidonce.reconciliation import model
from paidonce.reconciliation.service import ReconciliationService


def add_to(api: FastAPI, reconciliations: ReconciliationService) -> None:
    @api.post("/api/v1/reconciliations", status_code=201, tags=["reconciliations"])
    async def start_reconciliation(
        body: model.ReconciliationRequest, actor: Operator
    ) -> model.ReconciliationSummary:
        """Compare the gateway's payments with the stored ones, and repair what can be repaired.

        A worker runs it; poll it until its status is `DONE` or `FAILED`. A dry run repairs nothing.
        """
        return await reconciliations.start(body, actor)

    @api.get("/api/v1/reconciliations", tags=["reconciliations"])
    async def list_reconciliations(
        query: FromQuery[model.ReconciliationQuery], actor: Reader
    ) -> Page[model.ReconciliationSummary]:
        """Reconciliations, newest first."""
        return await reconciliations.search(query)

    @api.get("/api/v1/reconciliations/{run_id}", tags=["reconciliations"])
    async def get_reconciliation(run_id: UUID, actor: Reader) -> model.ReconciliationReport:
        """One reconciliation with its findings."""
        return await reconciliations.get(run_id)
