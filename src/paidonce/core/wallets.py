"""Wallets and their ledger entries. The entries of a movement sum to zero (FUL-4)."""

from dataclasses import dataclass, replace

from paidonce.core.events import SourceId, WalletId


@dataclass(frozen=True, slots=True)
class Wallet:
    """The money of an owner in one currency. The balance is never negative: see receivable."""

    id: WalletId
    owner: str
    currency: str
    balance_minor: int = 0
    reserved_minor: int = 0
    receivable_minor: int = 0  # debits that the balance could not cover
    version: int = 1

    @property
    def available_minor(self) -> int:
        return self.balance_minor - self.reserved_minor


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """The change of one account in a movement."""

    account: str
    amount_minor: int


Moved = tuple[Wallet, tuple[LedgerEntry, ...]]
"""A wallet after a movement, and the entries of the movement."""


def credit(wallet: Wallet, amount_minor: int, source_id: SourceId) -> Moved:
    """Credit the wallet. Its receivable is covered first."""
    owed = min(wallet.receivable_minor, amount_minor)
    after = replace(
        wallet,
        balance_minor=wallet.balance_minor + amount_minor - owed,
        receivable_minor=wallet.receivable_minor - owed,
    )
    return after, _movement(wallet, source_id, amount_minor - owed, owed)


def debit(wallet: Wallet, amount_minor: int, source_id: SourceId) -> Moved:
    """Debit the wallet. What the available balance does not cover becomes receivable."""
    covered = min(wallet.available_minor, amount_minor)
    owed = amount_minor - covered
    after = replace(
        wallet,
        balance_minor=wallet.balance_minor - covered,
        receivable_minor=wallet.receivable_minor + owed,
    )
    return after, _movement(wallet, source_id, -covered, -owed)


def merge_wallets(gone: Wallet, kept: Wallet) -> tuple[Wallet, Wallet, tuple[LedgerEntry, ...]]:
    """Move all money and all debt of a wallet to another one of the same currency.

    What the remaining wallet can cover of the debt is covered at once.
    """
    assert gone.currency == kept.currency
    assert gone.reserved_minor == 0
    balance_minor = kept.balance_minor + gone.balance_minor
    receivable_minor = kept.receivable_minor + gone.receivable_minor
    covered = min(balance_minor - kept.reserved_minor, receivable_minor)
    after = replace(
        kept, balance_minor=balance_minor - covered, receivable_minor=receivable_minor - covered
    )
    entries = (
        LedgerEntry(f"wallet:{gone.id}", -gone.balance_minor),
        LedgerEntry(f"receivable:{gone.id}", gone.receivable_minor),
        LedgerEntry(f"wallet:{kept.id}", after.balance_minor - kept.balance_minor),
        LedgerEntry(f"receivable:{kept.id}", kept.receivable_minor - after.receivable_minor),
    )
    emptied = replace(gone, balance_minor=0, receivable_minor=0)
    return emptied, after, tuple(entry for entry in entries if entry.amount_minor)


def _movement(
    wallet: Wallet, source_id: SourceId, balance_minor: int, owed_minor: int
) -> tuple[LedgerEntry, ...]:
    """The entries of a movement between a gateway and a wallet, without unchanged accounts."""
    entries = (
        LedgerEntry(f"gateway:{source_id}", -balance_minor - owed_minor),
        LedgerEntry(f"wallet:{wallet.id}", balance_minor),
        LedgerEntry(f"receivable:{wallet.id}", owed_minor),
    )
    return tuple(entry for entry in entries if entry.amount_minor)
