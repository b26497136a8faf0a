"""Verifies that the ledger explains every wallet, and that every movement sums to zero."""

from collections.abc import Callable
from typing import Final
from uuid import UUID

from paidonce.core.money import format_minor
from paidonce.db.pool import Database
from paidonce.db.queries import load_queries
from paidonce.db.search import FIRST_ID
from paidonce.wallet.model import Discrepancy, DiscrepancyKind

QUERIES: Final = load_queries(__file__)
PAGE_WALLETS: Final = 50
"""Few enough that the statement ends in time if each has a million entries."""
PAGE_ENTRIES: Final = 50_000
MAX_ID_DISTANCE: Final = 10_000
"""Between the entries of one movement: other sessions draw ids at the same time."""
MAX_DISCREPANCIES: Final = 1_000

Progress = Callable[[str, int, int], None]
"""Called with what is verified (`wallets`, `entries`), how many are done, and of about how many."""

_AMOUNTS: Final[tuple[DiscrepancyKind, ...]] = ("balance", "receivable", "reserved")


async def verify(database: Database, progress: Progress) -> list[Discrepancy]:
    """Add up every wallet and every movement; returns at most MAX_DISCREPANCIES.

    Each page is read in one snapshot, so the service may run meanwhile.
    """
    async with database.connection() as connection:
        size = await QUERIES["ledger_size"].row(connection)
    assert size is not None
    wallets, entries = size
    found = await _verify_wallets(database, lambda done: progress("wallets", done, wallets))
    found += await _verify_movements(database, lambda done: progress("entries", done, entries))
    return found[:MAX_DISCREPANCIES]


async def _verify_wallets(database: Database, progress: Callable[[int], None]) -> list[Discrepancy]:
    found: list[Discrepancy] = []
    after, done, is_more = FIRST_ID, 0, True
    while is_more and len(found) < MAX_DISCREPANCIES:
        async with database.connection() as connection:
            rows = await QUERIES["wallet_sums"].rows(connection, after=after, limit=PAGE_WALLETS)
        for row in rows:
            after = row["id"]
            for kind in _AMOUNTS:
                recorded, expected = row[f"{kind}_minor"], row[f"{kind}_expected"]
                if recorded != expected:
                    found.append(_discrepancy(kind, after, row["currency"], recorded, expected))
        is_more = len(rows) == PAGE_WALLETS
        done += len(rows)
        progress(done)
    return found


async def _verify_movements(
    database: Database, progress: Callable[[int], None]
) -> list[Discrepancy]:
    found: dict[tuple[UUID, str], Discrepancy] = {}
    last_id: int | None = 0
    while last_id is not None and len(found) < MAX_DISCREPANCIES:
        progress(last_id)
        async with database.connection() as connection:
            page = await QUERIES["unbalanced_movements"].row(
                connection, after=last_id, limit=PAGE_ENTRIES, distance=MAX_ID_DISTANCE
            )
        assert page is not None
        last_id, movements = page
        for movement_id, currency, minor in movements:  # one that a page cuts is found twice
            found[movement_id, currency] = _discrepancy("movement", movement_id, currency, minor, 0)
    return list(found.values())


def _discrepancy(
    kind: DiscrepancyKind, owner_id: UUID, currency: str, recorded_minor: int, expected_minor: int
) -> Discrepancy:
    recorded = format_minor(recorded_minor, currency)
    return Discrepancy(kind, owner_id, currency, recorded, format_minor(expected_minor, currency))
