"""What gateways have told of their transactions, each word once, until it is heard."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

import asyncpg

from paidonce.domain.events import EventId, SourceId
from paidonce.domain.money import Money
from paidonce.domain.wallet_payments import Said, Word
from paidonce.store.outbox import MAX_COUNTED
from paidonce.store.queries import Connection, load_queries
from paidonce.store.rows import Row

QUERIES: Final = load_queries(__file__)

DELAYS_S: Final = (
    1.0, 2.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3_600.0, 10_800.0, 21_600.0, 43_200.0,
)  # fmt: skip
"""When a word whose payment is not known is tried first, and after each attempt in vain.

The last one is repeated; with the usual number of attempts that is more than three days.
"""

COLUMNS: Final = (
    "id", "source_id", "transaction_id", "says", "event_id", "received_at", "amount_minor",
    "currency",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Unheard:
    """A word of the gateway's about one of its transactions."""

    id: UUID
    source_id: SourceId
    transaction_id: str
    says: Said

    @property
    def transaction(self) -> tuple[SourceId, str]:
        return self.source_id, self.transaction_id


@dataclass(frozen=True, slots=True)
class PutOff:
    """A word whose payment is not known. Dead, it is not tried any more."""

    id: UUID
    source_id: SourceId
    transaction_id: str
    says: str
    status: str
    event_id: EventId
    attempts: int

    @property
    def is_dead(self) -> bool:
        return self.status == "DEAD"


async def write(connection: Connection, rows: Sequence[Row]) -> None:
    """Keep what was told, in the order of COLUMNS, and tell of what is new."""
    if rows:
        columns = dict(zip(COLUMNS, zip(*rows, strict=True), strict=True))
        await QUERIES["write"].run(connection, **columns, first_delay_s=DELAYS_S[0])


async def waiting(connection: Connection, ids: Iterable[UUID]) -> set[tuple[SourceId, str]]:
    """The transactions that those of these words are about which nobody has heard."""
    rows = await QUERIES["waiting"].rows(connection, id=list(ids))
    return {(row["source_id"], row["transaction_id"]) for row in rows}


async def due(connection: Connection, limit: int) -> dict[UUID, tuple[SourceId, str]]:
    """The words that are to be tried again now, and their transactions."""
    rows = await QUERIES["due"].rows(connection, limit=limit)
    return {row["id"]: (row["source_id"], row["transaction_id"]) for row in rows}


async def lock_unheard(
    connection: Connection, transactions: Iterable[tuple[SourceId, str]]
) -> list[Unheard]:
    """What was said of these transactions and not heard. Their payments have to be locked."""
    wanted = sorted(set(transactions))
    rows = await QUERIES["lock_unheard"].rows(
        connection,
        source_id=[source_id for source_id, _ in wanted],
        transaction_id=[transaction_id for _, transaction_id in wanted],
    )
    return [Unheard(row["id"], row["source_id"], row["transaction_id"], _said(row)) for row in rows]


async def finish(connection: Connection, heard: Sequence[tuple[UUID, str]]) -> None:
    """These words were heard, each by the payment that is named."""
    if heard:
        await QUERIES["finish"].run(
            connection,
            id=[callback_id for callback_id, _ in heard],
            payment_id=[payment_id for _, payment_id in heard],
        )


async def put_off(connection: Connection, ids: Iterable[UUID], max_attempts: int) -> list[PutOff]:
    """Try these later, or give them up when they were tried so often."""
    rows = await QUERIES["put_off"].rows(
        connection, id=list(ids), max_attempts=max_attempts, delays_s=DELAYS_S
    )
    return [PutOff(**dict(row)) for row in rows]


async def dead(connection: Connection, *, last_id: UUID, limit: int) -> Sequence[asyncpg.Record]:
    """Those that were given up, the newest first."""
    return await QUERIES["dead"].rows(connection, last_id=last_id, limit=limit)


async def number_dead(connection: Connection) -> int:
    """How many were given up, up to MAX_COUNTED."""
    row = await QUERIES["count_dead"].row(connection, most=MAX_COUNTED)
    assert row is not None
    return int(row["number"])


async def wake(connection: Connection, callback_id: UUID) -> bool:
    """Try one that was given up again; False if there is none."""
    return await QUERIES["wake"].row(connection, id=callback_id) is not None


def _said(row: asyncpg.Record) -> Said:
    minor = row["amount_minor"]
    return Said(Word(row["says"]), None if minor is None else Money(minor, row["currency"]))
