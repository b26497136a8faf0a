"""Wallets, reservations and ledger entries in the database."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from operator import attrgetter
from typing import Any, Final
from uuid import UUID

import asyncpg

from paidonce.core.events import WalletId
from paidonce.core.wallets import Wallet
from paidonce.db.queries import Connection, load_queries
from paidonce.db.search import read_in_order
from paidonce.wallet.reservations import Command, Reservation, ReservationStatus, Reserve

QUERIES: Final = load_queries(__file__)
MAX_WALLETS: Final = 500
"""Of one owner: more than there are currencies."""
LAST_ENTRY: Final = 2**63 - 1
MAX_ID_DISTANCE: Final = 10_000
"""Between the entries of one movement: other sessions draw ids at the same time."""

_reservation_row = attrgetter(*Reservation.__slots__)
_STATUS: Final = Reservation.__slots__.index("status")


@dataclass(frozen=True, slots=True)
class LoadedWallets:
    """The stored state that a batch of commands needs."""

    now: datetime
    wallets: Mapping[WalletId, Wallet]
    reservations: Mapping[str, Reservation]


@dataclass(frozen=True, slots=True)
class AuditRow:
    """An operator's action. `details` is JSON with masked texts."""

    actor: str
    action: str
    details: str


@dataclass(slots=True)
class WalletChanges:
    """The rows that a batch of commands writes."""

    wallets: list[Wallet] = field(default_factory=list)
    new: list[Reservation] = field(default_factory=list)
    changed: list[tuple[ReservationStatus, Reservation]] = field(default_factory=list)
    """With the status that was loaded."""
    entries: list[tuple[object, ...]] = field(default_factory=list)
    """In the order of the type `written_reservation_entry`."""
    audit: list[AuditRow] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Unbalanced:
    """A movement whose entries, as far as they were read, do not sum to zero."""

    movement_id: UUID
    currency: str
    sum_minor: int
    first_id: int


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


async def find_wallets(connection: Connection, **filters: object) -> Sequence[asyncpg.Record]:
    """Wallets by `id`, or by `owner` and perhaps `currency`."""
    query = QUERIES["find_wallets"].without(*{"id", "owner", "currency"} - filters.keys())
    return await query.rows(connection, **filters, limit=MAX_WALLETS)


async def wallet_at(connection: Connection, wallet_id: UUID, at: datetime) -> asyncpg.Record | None:
    """The wallet as it was at a time."""
    return await QUERIES["wallet_at"].row(connection, id=wallet_id, at=at)


async def lock(connection: Connection, commands: Sequence[Command]) -> LoadedWallets:
    """Lock the wallets of the commands, in the order of their ids, and load.

    Needs a transaction. Raises a serialization failure if a reservation was created in between: its
    wallet is not locked.
    """
    payment_ids = _payment_ids(commands)
    rows = await QUERIES["lock_wallets"].rows(
        connection, wallet_id=_wallet_ids(commands), payment_id=payment_ids
    )
    row = await QUERIES["reservations"].row(connection, payment_id=payment_ids)
    assert row is not None
    loaded = _loaded(row["now"], [tuple(one) for one in rows], row["reservations"])
    _require_locked(loaded, commands)
    return loaded


async def load(connection: Connection, commands: Sequence[Command]) -> LoadedWallets:
    """Load without locks: `write` fails if another session changes a row in between."""
    row = await QUERIES["load"].row(
        connection, wallet_id=_wallet_ids(commands), payment_id=_payment_ids(commands)
    )
    assert row is not None
    return _loaded(row["now"], row["wallets"], row["reservations"])


async def write(connection: Connection, changes: WalletChanges) -> None:
    """Write everything, or nothing.

    Raises a serialization failure if a row is not as it was loaded: the version of a wallet, the
    status of a reservation, a payment id without a reservation.
    """
    kinds: tuple[Sequence[object], ...] = (
        changes.wallets, changes.new, changes.changed, changes.entries, changes.audit,
    )  # fmt: skip
    if expected := sum(map(len, kinds)):
        await QUERIES["write"].row(
            connection,
            wallets=[
                (one.id, one.balance_minor, one.reserved_minor, one.version)
                for one in sorted(changes.wallets, key=lambda one: one.id)
            ],
            new=[_reservation_row(one) for one in sorted(changes.new, key=lambda r: r.payment_id)],
            changed=[
                (one.payment_id, loaded, one.status, one.committed_minor, one.expires_at,
                 one.ended_at)
                for loaded, one in changes.changed
            ],
            entries=changes.entries,
            actor=[one.actor for one in changes.audit],
            action=[one.action for one in changes.audit],
            details=[one.details for one in changes.audit],
            expected=expected,
        )  # fmt: skip


async def find_reservation(
    connection: Connection, payment_id: str
) -> tuple[Reservation, str] | None:
    """The reservation of a payment, and its currency."""
    row = await QUERIES["reservation"].row(connection, payment_id=payment_id)
    return None if row is None else (_reservation(row["reservation"]), row["currency"])


async def expired_reservations(connection: Connection, limit: int) -> list[str]:
    """The payment ids of open reservations that have expired, the oldest first."""
    rows = await QUERIES["expired_reservations"].rows(connection, limit=limit)
    return [row["payment_id"] for row in rows]


async def entries_of(
    connection: Connection, wallet_id: UUID, before: int | None, limit: int
) -> Sequence[asyncpg.Record]:
    """Entries of a wallet below an id, newest first."""
    async with read_in_order(connection):
        return await QUERIES["entries"].rows(
            connection,
            accounts=[f"wallet:{wallet_id}", f"receivable:{wallet_id}"],
            before=LAST_ENTRY if before is None else before,
            limit=limit,
        )


async def wallet_sums(connection: Connection, after: UUID, limit: int) -> Sequence[asyncpg.Record]:
    """A page of wallets in the order of their ids, with what their entries sum to."""
    return await QUERIES["wallet_sums"].rows(connection, after=after, limit=limit)


async def unbalanced_movements(
    connection: Connection, after: int, limit: int
) -> tuple[list[Unbalanced], int | None]:
    """Movements that do not sum to zero within a page of entries, and the page's last id.

    The id is None after the end.
    """
    row = await QUERIES["unbalanced_movements"].row(connection, after=after, limit=limit)
    assert row is not None
    return [Unbalanced(*cells) for cells in row["movements"]], row["last_id"]


async def movement_sum(connection: Connection, movement: Unbalanced) -> int:
    """The sum of all entries of a movement."""
    row = await QUERIES["movement_sum"].row(
        connection,
        first_id=movement.first_id - MAX_ID_DISTANCE,
        last_id=movement.first_id + MAX_ID_DISTANCE,
        movement_id=movement.movement_id,
        currency=movement.currency,
    )
    assert row is not None
    return int(row["minor"])


async def ledger_size(connection: Connection) -> tuple[int, int]:
    """The estimated number of wallets, and the last entry's id."""
    row = await QUERIES["ledger_size"].row(connection)
    assert row is not None
    return row["wallets"], row["entries"]


def _require_locked(loaded: LoadedWallets, commands: Iterable[Command]) -> None:
    """A reserve that conflicts with a reservation of any wallet changes nothing, so is exempt."""
    for command in commands:
        existing = loaded.reservations.get(command.payment_id)
        if existing is not None and existing.wallet_id not in loaded.wallets:
            if isinstance(command, Reserve) and command.request_hash != existing.request_hash:
                continue
            raise asyncpg.SerializationError("another transaction created the reservation")


def _wallet_ids(commands: Iterable[Command]) -> list[UUID]:
    return sorted({one.wallet_id for one in commands if isinstance(one, Reserve)})


def _payment_ids(commands: Iterable[Command]) -> list[str]:
    return sorted({one.payment_id for one in commands})


def _loaded(
    now: datetime, wallets: Iterable[Sequence[Any]], reservations: Iterable[Sequence[Any]]
) -> LoadedWallets:
    return LoadedWallets(
        now,
        {one.id: one for one in (Wallet(*cells) for cells in wallets)},
        {one.payment_id: one for one in map(_reservation, reservations)},
    )


def _reservation(cells: Sequence[Any]) -> Reservation:
    fields = list(cells)
    fields[_STATUS] = ReservationStatus(fields[_STATUS])
    return Reservation(*fields)
