"""HTTP route of the audit log."""

from fastapi import FastAPI

from paidonce.api.requests import FromQuery, Reader
from paidonce.audit.model import AuditQuery, AuditView
from paidonce.audit.service import AuditService
from paidonce.db.paging import Page


def add_to(api: FastAPI, audit: AuditService) -> None:
    @api.get("/api/v1/audit", tags=["audit"])
    async def list_audit(query: FromQuery[AuditQuery], actor: Reader) -> Page[AuditView]:
        """The audit log, newest first: what operators did, and steps of processing."""
        return await audit.search(query)
