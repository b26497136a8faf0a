"""Verifies that the ledger explains every wallet, and that every movement sums to zero."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, Literal
from uuid import UUID

from paidonce.core.money import format_minor
from paidonce.db.pool import Database
from paidonce.db.search import FIRST_ID
from paidonce.wallet import store
from paidonce.wallet.model import Discrepancy
from paidonce.wallet.store import Unbalanced

PAGE_WALLETS: Final = 50
"""Few enough that the statement ends in time if each has a million entries."""
PAGE_ENTRIES: Final = 10_000
MAX_DISCREPANCIES: Final = 1_000

Progress = Callable[[str, int, int], None]
"""Called with what is verified (`wallets`, `entries`), how many are done, and of about how many."""

_AMOUNTS: Final[tuple[Literal["balance", "receivable", "reserved"], ...]] = (
    "balance",
    "receivable",
    "reserved",
)


async def verify(database: Database, progress: Progress) -> list[Discrepancy]:
    """Add up every wallet and every movement; returns at most MAX_DISCREPANCIES.

    Each page is read in one snapshot, so the service may run meanwhile.
    """
    async with database.connection() as connection:
        wallets, entries = await store.ledger_size(connection)
    found = await _verify_wallets(database, lambda done: progress("wallets", done, wallets))
    found += await _verify_movements(database, lambda done: progress("entries", done, entries))
    return found[:MAX_DISCREPANCIES]


async def _verify_wallets(database: Database, progress: Callable[[int], None]) -> list[Discrepancy]:
    found: list[Discrepancy] = []
    after, done, is_more = FIRST_ID, 0, True
    while is_more and len(found) < MAX_DISCREPANCIES:
        async with database.connection() as connection:
            rows = await store.wallet_sums(connection, after, PAGE_WALLETS)
        found += [one for row in rows for one in _discrepancies(dict(row))]
        is_more = len(rows) == PAGE_WALLETS
        after = rows[-1]["id"] if rows else after
        done += len(rows)
        progress(done)
    return found


async def _verify_movements(
    database: Database, progress: Callable[[int], None]
) -> list[Discrepancy]:
    suspects: dict[tuple[UUID, str], Unbalanced] = {}
    last_id: int | None = 0
    while last_id is not None and len(suspects) < MAX_DISCREPANCIES:
        progress(last_id)
        async with database.connection() as connection:
            page, last_id = await store.unbalanced_movements(connection, last_id, PAGE_ENTRIES)
        for part in page:
            _add_part(suspects, part)
    found = [await _verify_movement(database, one) for one in suspects.values()]
    return [one for one in found if one is not None]


async def _verify_movement(database: Database, movement: Unbalanced) -> Discrepancy | None:
    """Read the whole movement: a part of it may have been committed after its page was read."""
    async with database.connection() as connection:
        minor = await store.movement_sum(connection, movement)
    if minor == 0:
        return None
    return _discrepancy("movement", movement.movement_id, movement.currency, minor, 0)


def _add_part(suspects: dict[tuple[UUID, str], Unbalanced], part: Unbalanced) -> None:
    """Add a part of a movement to its parts on earlier pages."""
    key = (part.movement_id, part.currency)
    before = suspects.pop(key, None)
    whole = part if before is None else replace(before, sum_minor=before.sum_minor + part.sum_minor)
    if whole.sum_minor:
        suspects[key] = whole


def _discrepancies(row: Mapping[str, Any]) -> Iterator[Discrepancy]:
    for kind in _AMOUNTS:
        recorded, expected = row[f"{kind}_minor"], row[f"{kind}_expected"]
        if recorded != expected:
            yield _discrepancy(kind, row["id"], row["currency"], recorded, expected)


def _discrepancy(
    kind: Literal["balance", "receivable", "reserved", "movement"],
    owner_id: UUID,
    currency: str,
    recorded_minor: int,
    expected_minor: int,
) -> Discrepancy:
    recorded = format_minor(recorded_minor, currency)
    return Discrepancy(kind, owner_id, currency, recorded, format_minor(expected_minor, currency))
