"""What is looked up before a gateway is told to go on with a payment."""

from typing import Final

from paidonce.domain.events import SourceId
from paidonce.domain.money import Money
from paidonce.store.queries import Connection, load_queries

QUERIES: Final = load_queries(__file__)


async def is_expected(
    connection: Connection, source_id: SourceId, reference: str, amount: Money
) -> bool:
    """Whether an order waits for exactly this payment."""
    row = await QUERIES["is_expected"].row(
        connection,
        source_id=source_id,
        reference=reference,
        amount_minor=amount.amount_minor,
        currency=amount.currency,
    )
    return row is not None and bool(row["is_so"])
