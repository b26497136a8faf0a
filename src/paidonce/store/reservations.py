"""Reservations, and the wallets that they hold: what a batch of commands reads and writes."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import asyncpg
from uuid_utils.compat import uuid7

from paidonce.domain.events import WalletId
from paidonce.domain.reservations import Command, Reservation, ReservationStatus, Reserve
from paidonce.domain.wallets import Entry, Wallet
from paidonce.store.queries import Connection, load_queries
from paidonce.store.rows import Row

QUERIES: Final = load_queries(__file__)


@dataclass(frozen=True, slots=True)
class Loaded:
    """What the database knows of what a batch speaks of."""

    now: datetime
    wallets: Mapping[WalletId, Wallet]
    reservations: Mapping[str, Reservation]


@dataclass(frozen=True, slots=True)
class Movement:
    """Money that was taken for a payment, and the entries that say so."""

    payment_id: str
    currency: str
    at: datetime
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class Action:
    """What somebody did, for the audit log. The details are JSON, and masked."""

    actor: str
    action: str
    details: str


@dataclass(slots=True)
class Changes:
    """What a batch of commands changes."""

    wallets: list[Wallet] = field(default_factory=list)
    made: list[Reservation] = field(default_factory=list)
    ended: list[tuple[ReservationStatus, Reservation]] = field(default_factory=list)
    """With the status that was seen before. Also those that only last longer."""
    movements: list[Movement] = field(default_factory=list)
    actions: list[Action] = field(default_factory=list)


async def lock(connection: Connection, commands: Sequence[Command]) -> Loaded:
    """Lock the wallets that the commands speak of, in the order of their ids, and read.

    In a transaction. Raises what `trouble` calls RERUN when a reservation came into being in
    between: its wallet is not locked.
    """
    payment_ids = _payment_ids(commands)
    rows = await QUERIES["lock_wallets"].rows(
        connection, wallet_id=_wallet_ids(commands), payment_id=payment_ids
    )
    row = await QUERIES["reservations"].row(connection, payment_id=payment_ids)
    assert row is not None
    loaded = _loaded(row["now"], [tuple(one) for one in rows], row["reservations"])
    _refuse_unlocked(loaded, commands)
    return loaded


async def look(connection: Connection, commands: Sequence[Command]) -> Loaded:
    """The same without locks: what others change in between makes `write` fail."""
    row = await QUERIES["look"].row(
        connection, wallet_id=_wallet_ids(commands), payment_id=_payment_ids(commands)
    )
    assert row is not None
    return _loaded(row["now"], row["wallets"], row["reservations"])


async def write(connection: Connection, changes: Changes) -> None:
    """Write everything, or nothing.

    Raises what `trouble` calls RERUN when something is not as it was seen: a wallet's version, a
    reservation's status, a payment id that nobody had reserved for.
    """
    entries = [row for movement in changes.movements for row in _entry_rows(movement)]
    kinds: tuple[Sequence[object], ...] = (changes.wallets, changes.made, changes.ended)
    expected = sum(map(len, kinds)) + len(entries) + len(changes.actions)
    if not expected:
        return
    await QUERIES["write"].row(
        connection,
        wallets=[_wallet_row(one) for one in sorted(changes.wallets, key=lambda one: one.id)],
        made=[_made_row(one) for one in sorted(changes.made, key=lambda one: one.payment_id)],
        ended=[_ended_row(seen, one) for seen, one in changes.ended],
        entries=entries,
        actor=[one.actor for one in changes.actions],
        action=[one.action for one in changes.actions],
        details=[one.details for one in changes.actions],
        expected=expected,
    )


async def reservation_by_id(
    connection: Connection, payment_id: str
) -> tuple[Reservation, str] | None:
    """What is reserved for this payment, or was, and in which currency."""
    row = await QUERIES["reservation"].row(connection, payment_id=payment_id)
    return None if row is None else (_reservation_of(row["reservation"]), row["currency"])


async def expiring(connection: Connection, limit: int) -> list[str]:
    """The payments whose reservations have had their time, the oldest first."""
    rows = await QUERIES["expiring"].rows(connection, limit=limit)
    return [row["payment_id"] for row in rows]


def _refuse_unlocked(loaded: Loaded, commands: Iterable[Command]) -> None:
    """A new reserve may find a reservation of any wallet; it contradicts that, and no more."""
    for command in commands:
        known = loaded.reservations.get(command.payment_id)
        if known is not None and known.wallet_id not in loaded.wallets:
            if isinstance(command, Reserve) and command.request_hash != known.request_hash:
                continue
            raise asyncpg.SerializationError("another transaction was first")


def _wallet_ids(commands: Iterable[Command]) -> list[UUID]:
    return sorted({one.wallet_id for one in commands if isinstance(one, Reserve)})


def _payment_ids(commands: Iterable[Command]) -> list[str]:
    return sorted({one.payment_id for one in commands})


def _loaded(
    now: datetime, wallets: Iterable[Sequence[Any]], reservations: Iterable[Sequence[Any]]
) -> Loaded:
    return Loaded(
        now,
        {one.id: one for one in (Wallet(*row) for row in wallets)},
        {one.payment_id: one for one in map(_reservation_of, reservations)},
    )


def _reservation_of(cells: Sequence[Any]) -> Reservation:
    (
        payment_id, wallet_id, request_hash, amount_minor, committed_minor, status, expires_at,
        created_at, ended_at,
    ) = cells  # fmt: skip
    return Reservation(
        payment_id=payment_id,
        wallet_id=wallet_id,
        request_hash=request_hash,
        amount_minor=amount_minor,
        committed_minor=committed_minor,
        status=ReservationStatus(status),
        expires_at=expires_at,
        created_at=created_at,
        ended_at=ended_at,
    )


def _wallet_row(wallet: Wallet) -> Row:
    return (wallet.id, wallet.balance_minor, wallet.reserved_minor, wallet.version)


def _made_row(one: Reservation) -> Row:
    return (
        one.payment_id,
        one.wallet_id,
        one.request_hash,
        one.amount_minor,
        one.committed_minor,
        one.status,
        one.expires_at,
        one.created_at,
        one.ended_at,
    )


def _ended_row(seen: ReservationStatus, one: Reservation) -> Row:
    return (one.payment_id, seen, one.status, one.committed_minor, one.expires_at, one.ended_at)


def _entry_rows(movement: Movement) -> list[Row]:
    movement_id = uuid7()
    return [
        (
            movement_id,
            movement.payment_id,
            entry.account,
            movement.currency,
            entry.amount_minor,
            movement.at,
        )
        for entry in movement.entries
    ]
