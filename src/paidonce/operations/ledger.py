"""What explains the wallets: how they were, what moved them, and whether it all adds up."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, Final, Literal
from uuid import UUID

from paidonce.domain.money import format_minor
from paidonce.errors import NotFoundError
from paidonce.operations.desk import Found, first_of
from paidonce.operations.wallets import WalletVerbs
from paidonce.store import ledger
from paidonce.store.ledger import Unbalanced
from paidonce.store.listings import FIRST_ID
from paidonce.views import EntryView, WalletFlaw, WalletView, entry_view, past_wallet_view

PAGE_WALLETS: Final = 50
"""Few enough that a statement is in time also where each has a million entries."""
PAGE_ENTRIES: Final = 10_000
MAX_FLAWS: Final = 1_000
"""How many are told; where there are more, something is wrong that needs no list."""

Tell = Callable[[str, int, int], None]
"""Is told how far the work has come: what is looked at, how many of them, of about how many."""

_FACTS: Final[tuple[Literal["balance", "receivable", "reserved"], ...]] = (
    "balance",
    "receivable",
    "reserved",
)


def _tell_nobody(what: str, done: int, total: int) -> None:
    pass


class LedgerVerbs(WalletVerbs):
    """What can be asked of the ledger."""

    async def wallet_at(self, wallet_id: UUID, at: datetime) -> WalletView:
        """What was in the wallet at a time. Raises NotFoundError."""
        async with self._database.connection() as connection:
            row = await ledger.wallet_at(connection, wallet_id, at)
        if row is None:
            raise NotFoundError(f"there is no wallet {wallet_id}")
        return past_wallet_view(dict(row), at)

    async def wallet_entries(
        self, wallet_id: UUID, *, limit: int, cursor: int | None = None
    ) -> Found[EntryView]:
        """A page of what moved a wallet, the newest first. Raises NotFoundError."""
        await self.wallet(wallet_id)
        async with self._database.connection() as connection:
            rows = await ledger.entries_of(connection, wallet_id, before=cursor, limit=limit + 1)
        return first_of([entry_view(dict(row)) for row in rows], limit, lambda one: one.id)

    async def verify_wallets(self, tell: Tell = _tell_nobody) -> list[WalletFlaw]:
        """Add up every wallet and every movement again; what is off, up to MAX_FLAWS.

        Looked at page by page, each at one instant: what moves meanwhile is no flaw.
        """
        async with self._database.connection() as connection:
            wallets, entries = await ledger.size(connection)
        flaws = await self._flawed_wallets(lambda done: tell("wallets", done, wallets))
        flaws += await self._flawed_movements(lambda done: tell("entries", done, entries))
        return flaws[:MAX_FLAWS]

    async def _flawed_wallets(self, tell: Callable[[int], None]) -> list[WalletFlaw]:
        flaws: list[WalletFlaw] = []
        after, done, is_more = FIRST_ID, 0, True
        while is_more and len(flaws) < MAX_FLAWS:
            async with self._database.connection() as connection:
                rows = await ledger.wallets_explained(connection, after, PAGE_WALLETS)
            flaws += [flaw for row in rows for flaw in _flaws_of(dict(row))]
            is_more = len(rows) == PAGE_WALLETS
            after = rows[-1]["id"] if rows else after
            done += len(rows)
            tell(done)
        return flaws

    async def _flawed_movements(self, tell: Callable[[int], None]) -> list[WalletFlaw]:
        cut: dict[tuple[UUID, str], Unbalanced] = {}
        last_id: int | None = 0
        while last_id is not None and len(cut) < MAX_FLAWS:
            tell(last_id)
            async with self._database.connection() as connection:
                found, last_id = await ledger.unbalanced(connection, last_id, PAGE_ENTRIES)
            for one in found:
                _join(cut, one)
        return [flaw for one in cut.values() if (flaw := await self._confirmed(one)) is not None]

    async def _confirmed(self, one: Unbalanced) -> WalletFlaw | None:
        """Look at the whole movement: a part of it may not have been committed at first."""
        async with self._database.connection() as connection:
            minor = await ledger.movement_sum(connection, one)
        if minor == 0:
            return None
        shown = format_minor(minor, one.currency)
        return WalletFlaw(
            "movement", one.movement_id, one.currency, shown, format_minor(0, one.currency)
        )


def _join(cut: dict[tuple[UUID, str], Unbalanced], one: Unbalanced) -> None:
    """Add a part of a movement to what other pages hold of it."""
    name = (one.movement_id, one.currency)
    before = cut.pop(name, None)
    whole = one if before is None else replace(before, sum_minor=before.sum_minor + one.sum_minor)
    if whole.sum_minor:
        cut[name] = whole


def _flaws_of(row: Mapping[str, Any]) -> Iterator[WalletFlaw]:
    currency = row["currency"]
    for what in _FACTS:
        recorded, explained = row[f"{what}_minor"], row[f"{what}_explained"]
        if recorded != explained:
            yield WalletFlaw(
                what,
                row["id"],
                currency,
                format_minor(recorded, currency),
                format_minor(explained, currency),
            )
