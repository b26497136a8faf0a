"""Answers gateways that ask whether to go on with a payment. Nothing is approved by accident."""

from typing import Final

from paidonce.domain.events import Code, Ignored
from paidonce.domain.money import Money
from paidonce.engine.items import Source
from paidonce.errors import NotApprovedError
from paidonce.providers.contract import Confirmation
from paidonce.store import confirmations
from paidonce.store.db import Database

APPROVED: Final = Ignored(
    Code.NON_SUCCESS_STATUS, "approved: a pending order had this reference and amount"
)


class Approver:
    """Says yes to what an order waits for, and no to everything else."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def approve(self, source: Source, asked: Confirmation) -> Ignored:
        """What the question means, now that it is approved.

        Raises NotApprovedError, or DatabaseAwayError: then nobody has approved anything.
        """
        async with self._database.connection() as connection:
            is_expected = await confirmations.is_expected(
                connection, source.id, asked.order, Money(asked.amount_minor, asked.currency)
            )
        if not is_expected:
            raise NotApprovedError("no pending order has this reference and amount")
        return APPROVED
