"""Balances, and the entries that explain them: each movement is a set that sums to zero (FUL-4)."""

from dataclasses import dataclass, replace

from paidonce.domain.events import SourceId, WalletId


@dataclass(frozen=True, slots=True)
class Wallet:
    """What somebody has in one currency. It never goes negative: what is missing is owed."""

    id: WalletId
    owner: str
    currency: str
    balance_minor: int = 0
    reserved_minor: int = 0
    receivable_minor: int = 0  # what was taken back and could not be covered
    version: int = 1

    @property
    def available_minor(self) -> int:
        return self.balance_minor - self.reserved_minor


@dataclass(frozen=True, slots=True)
class Entry:
    """One side of a movement: so much more, or less, on an account."""

    account: str
    amount_minor: int


def credited(
    wallet: Wallet, amount_minor: int, source_id: SourceId
) -> tuple[Wallet, tuple[Entry, ...]]:
    """The wallet with so much more. What is owed is covered first."""
    owed = min(wallet.receivable_minor, amount_minor)
    after = replace(
        wallet,
        balance_minor=wallet.balance_minor + amount_minor - owed,
        receivable_minor=wallet.receivable_minor - owed,
    )
    return after, _movement(wallet, source_id, amount_minor - owed, owed)


def debited(
    wallet: Wallet, amount_minor: int, source_id: SourceId
) -> tuple[Wallet, tuple[Entry, ...]]:
    """The wallet with so much less. What is not there is owed from now on."""
    covered = min(wallet.available_minor, amount_minor)
    owed = amount_minor - covered
    after = replace(
        wallet,
        balance_minor=wallet.balance_minor - covered,
        receivable_minor=wallet.receivable_minor + owed,
    )
    return after, _movement(wallet, source_id, -covered, -owed)


def _movement(
    wallet: Wallet, source_id: SourceId, balance_minor: int, owed_minor: int
) -> tuple[Entry, ...]:
    """The entries of a movement between a gateway and a wallet; accounts that stay are left out."""
    entries = (
        Entry(f"gateway:{source_id}", -balance_minor - owed_minor),
        Entry(f"wallet:{wallet.id}", balance_minor),
        Entry(f"receivable:{wallet.id}", owed_minor),
    )
    return tuple(entry for entry in entries if entry.amount_minor)
