"""Answers gateways that ask for a confirmation of a payment. Nothing is approved by accident."""

from typing import Final

from paidonce.core.events import APPROVED, Ignored
from paidonce.db.pool import Database
from paidonce.db.queries import load_queries
from paidonce.errors import NotApprovedError
from paidonce.processing.items import Source
from paidonce.providers.contract import ConfirmationRequest

QUERIES: Final = load_queries(__file__)


async def approve(database: Database, source: Source, request: ConfirmationRequest) -> Ignored:
    """Approve a payment that matches a pending order.

    Raises NotApprovedError or DatabaseUnavailableError.
    """
    async with database.connection() as connection:
        row = await QUERIES["pending_order"].row(
            connection,
            source_id=source.id,
            reference=request.order,
            amount_minor=request.amount_minor,
            currency=request.currency,
        )
    if row is None:
        raise NotApprovedError("no pending order has this reference and amount")
    return APPROVED
