"""Wallets, reservations and ledger entries in the database."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import attrgetter
from typing import Any, Final
from uuid import UUID

import asyncpg
import orjson

from paidonce.audit.model import AuditEntry
from paidonce.core.events import WalletId
from paidonce.core.wallets import Wallet
from paidonce.db.queries import Connection, WrittenRow, columns_of, load_queries
from paidonce.wallet.reservations import Command, Reservation, ReservationStatus, Reserve

QUERIES: Final = load_queries(__file__)
MAX_WALLETS: Final = 500
"""Of one owner: more than there are currencies."""
MAX_OWNER_READS: Final = 2
LAST_ENTRY: Final = 2**63 - 1

_reservation_row = attrgetter(*Reservation.__slots__)
_STATUS: Final = Reservation.__slots__.index("status")


@dataclass(frozen=True, slots=True)
class LoadedWallets:
    """The stored state that a batch of commands needs."""

    now: datetime
    wallets: Mapping[WalletId, Wallet]
    reservations: Mapping[str, Reservation]


@dataclass(frozen=True, slots=True)
class WalletChanges:
    """The rows that a batch of commands writes."""

    wallets: list[Wallet]
    new: list[Reservation]
    changed: list[tuple[ReservationStatus, Reservation]]
    """With the status that was loaded."""
    entries: list[WrittenRow]
    """In the order of the type `written_reservation_entry`."""
    audit: list[AuditEntry]


async def create_wallet(
    connection: Connection, wallet_id: UUID, owner: str, currency: str
) -> tuple[asyncpg.Record, bool]:
    """The owner's wallet in this currency, and whether it is new."""
    row = await QUERIES["create_wallet"].row(
        connection, id=wallet_id, owner=owner, currency=currency
    )
    if row is not None:
        return row, True
    (existing,) = await find_wallets(connection, owner=owner, currency=currency)
    return existing, False


async def owner_of(connection: Connection, owner: str) -> str:
    """The owner, or the user that remains of a merged one. Needs a transaction."""
    try:
        user_id = UUID(owner)
    except ValueError:
        return owner
    for _ in range(MAX_OWNER_READS):
        found: str | None = await QUERIES["owner_user"].value(connection, id=user_id)
        if found is not None:  # else it is no user, or was merged while we waited for the lock
            return found
    return owner


async def find_wallets(connection: Connection, **filters: object) -> Sequence[asyncpg.Record]:
    """Wallets by `id`, or by `owner` and perhaps `currency`."""
    query = QUERIES["find_wallets"].without(*{"id", "owner", "currency"} - filters.keys())
    return await query.rows(connection, **filters, limit=MAX_WALLETS)


async def lock(connection: Connection, commands: Sequence[Command]) -> LoadedWallets:
    """Lock the wallets of the commands, in the order of their ids, and load.

    Needs a transaction. Raises a serialization failure if a reservation was created in between: its
    wallet is not locked.
    """
    rows = await QUERIES["lock_wallets"].rows(connection, **_ids_of(commands))
    loaded = await load(connection, commands)
    _require_locked(loaded, commands, {row["id"] for row in rows})
    return loaded


async def load(connection: Connection, commands: Sequence[Command]) -> LoadedWallets:
    """Load without locks: `write` fails if another session changes a row in between."""
    return await _load(connection, **_ids_of(commands))


async def write(connection: Connection, changes: WalletChanges) -> None:
    """Write everything, or nothing.

    Raises a serialization failure if a row is not as it was loaded: the version of a wallet, the
    status of a reservation, a payment id without a reservation.
    """
    expected = sum(len(getattr(changes, kind)) for kind in WalletChanges.__slots__)
    if expected == 0:
        return
    await QUERIES["write"].row(
        connection,
        wallets=[
            (one.id, one.balance_minor, one.reserved_minor, one.version)
            for one in sorted(changes.wallets, key=lambda one: one.id)
        ],
        new=[_reservation_row(one) for one in sorted(changes.new, key=lambda r: r.payment_id)],
        changed=[
            (one.payment_id, loaded, one.status, one.committed_minor, one.expires_at, one.ended_at)
            for loaded, one in changes.changed
        ],
        entries=changes.entries,
        **columns_of(changes.audit, "actor", "action"),
        details=[orjson.dumps(one.details).decode() for one in changes.audit],
        expected=expected,
    )


async def find_reservation(
    connection: Connection, payment_id: str
) -> tuple[Reservation, str] | None:
    """The reservation of a payment, and its currency."""
    loaded = await _load(connection, wallet_id=[], payment_id=[payment_id])
    found = loaded.reservations.get(payment_id)
    return None if found is None else (found, loaded.wallets[found.wallet_id].currency)


async def _load(connection: Connection, **ids: object) -> LoadedWallets:
    row = await QUERIES["load"].row(connection, **ids)
    assert row is not None
    return LoadedWallets(
        row["now"],
        {one.id: one for one in (Wallet(*cells) for cells in row["wallets"])},
        {one.payment_id: one for one in map(_reservation, row["reservations"])},
    )


def _reservation(cells: Sequence[Any]) -> Reservation:
    fields = list(cells)
    fields[_STATUS] = ReservationStatus(fields[_STATUS])
    return Reservation(*fields)


def _ids_of(commands: Iterable[Command]) -> dict[str, object]:
    return {
        "wallet_id": sorted({one.wallet_id for one in commands if isinstance(one, Reserve)}),
        "payment_id": sorted({one.payment_id for one in commands}),
    }


def _require_locked(
    loaded: LoadedWallets, commands: Iterable[Command], locked: Collection[WalletId]
) -> None:
    """A reserve that conflicts with a reservation of any wallet changes nothing, so is exempt."""
    for command in commands:
        existing = loaded.reservations.get(command.payment_id)
        if existing is not None and existing.wallet_id not in locked:
            if isinstance(command, Reserve) and command.request_hash != existing.request_hash:
                continue
            raise asyncpg.SerializationError("another transaction created the reservation")
