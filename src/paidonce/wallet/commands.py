"""Executes commands on reservations in batches (WAL-1 WAL-2).

`execute` runs a batch in the caller's transaction. `WalletCommands` makes one transaction for all
commands that arrive together. `ReservationExpiry` releases expired reservations.
"""

import time
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from paidonce.audit.model import AuditEntry
from paidonce.audit.store import audit_name
from paidonce.core.events import WalletId
from paidonce.core.money import format_minor
from paidonce.core.wallets import Wallet
from paidonce.db.pool import Database, OwnConnection, Trouble, away, is_lock_timeout, trouble
from paidonce.db.queries import Connection, WrittenRow
from paidonce.errors import DatabaseUnavailableError
from paidonce.ids import new_id
from paidonce.runtime.bisect import Bisection
from paidonce.runtime.bounded import Bounded
from paidonce.runtime.group_commit import Entry, GroupCommit
from paidonce.telemetry import logger, masked, metrics
from paidonce.wallet import reservations, store
from paidonce.wallet.reservations import Command, CommandResult, Reservation, Reserve

log = logger(__name__)

MAX_WAITING: Final = 4096
MAX_RUNS: Final = 5
CAREFUL_FOR_S: Final = 0.1
"""For how long wallets are locked first after another session was faster."""
MAX_REMEMBERED: Final = 10_000
"""For how many payments the service remembers the wallet."""
EXPIRY_PAGE: Final = 128
MAX_EXPIRY_PAGES: Final = 20

Load = Callable[[Connection, Sequence[Command]], Awaitable[store.LoadedWallets]]


class WalletBatch:
    """The state of a batch: wallets and reservations as the commands so far leave them."""

    def __init__(self, loaded: store.LoadedWallets) -> None:
        self._loaded = loaded
        self._wallets = dict(loaded.wallets)
        self._reservations = dict(loaded.reservations)
        self._entries: list[WrittenRow] = []
        self._audit: list[AuditEntry] = []

    def execute(self, command: Command, actor: str | None = None) -> CommandResult:
        """Execute a command after the earlier ones; what an actor changes is audited."""
        before = self._reservations.get(command.payment_id)
        now = self._loaded.now
        result = reservations.decide(self._wallet_of(command), before, command, now)
        if result.reservation is None or result.reservation == before:
            return result
        wallet, movement_id = result.wallet, new_id()
        assert wallet is not None
        self._wallets[wallet.id] = wallet
        self._reservations[command.payment_id] = result.reservation
        self._entries += [
            (movement_id, command.payment_id, one.account, wallet.currency, one.amount_minor, now)
            for one in result.entries
        ]
        if actor is not None:
            self._audit.append(_audit_entry(actor, wallet, result.reservation))
        return result

    def changes(self) -> store.WalletChanges:
        """Each row that differs from the loaded one, once."""
        loaded = self._loaded.reservations
        changed = [
            one for one in self._reservations.values() if one is not loaded.get(one.payment_id)
        ]
        return store.WalletChanges(
            wallets=[one for one in self._wallets.values() if one != self._loaded.wallets[one.id]],
            new=[one for one in changed if one.payment_id not in loaded],
            changed=[
                (loaded[one.payment_id].status, one) for one in changed if one.payment_id in loaded
            ],
            entries=self._entries,
            audit=self._audit,
        )

    def _wallet_of(self, command: Command) -> Wallet | None:
        """The wallet of the reservation; of a new one, the wallet in the command."""
        existing = self._reservations.get(command.payment_id)
        if existing is not None:
            return self._wallets.get(existing.wallet_id)
        return self._wallets.get(command.wallet_id) if isinstance(command, Reserve) else None


def _audit_entry(actor: str, wallet: Wallet, reservation: Reservation) -> AuditEntry:
    minor = reservation.committed_minor or reservation.amount_minor
    details = {
        "payment_id": masked(reservation.payment_id),
        "wallet_id": str(wallet.id),
        "amount": format_minor(minor, wallet.currency),
        "currency": wallet.currency,
    }
    action = f"wallet_{reservation.status.lower()}"
    return AuditEntry(audit_name(actor), action, details=details)


async def execute(connection: Connection, commands: Sequence[Command]) -> list[CommandResult]:
    """Execute commands in their order, in the caller's transaction.

    The wallets stay locked until it ends. The time is read after the lock, so the entries of a
    wallet are in the order of their times. A rejected command changes nothing and raises nothing:
    see `CommandResult.reject_reason`. After a serialization failure, roll back and run again.
    """
    submissions = [_Submission(command, None) for command in commands]
    results = await _execute(connection, store.lock, submissions)
    _count(submissions, results)
    return results


@dataclass(frozen=True, slots=True)
class _Submission:
    """A command, and the operator who gave it."""

    command: Command
    actor: str | None


_Entry = Entry[_Submission, CommandResult]


class WalletCommands(GroupCommit[_Submission, CommandResult, "_Session"]):
    """The queue of commands before the wallets."""

    def __init__(self, database: Database, max_waiting: int = MAX_WAITING) -> None:
        super().__init__(max_waiting)
        self._database = database
        self._wallet_of = Bounded[str, WalletId](MAX_REMEMBERED)
        self.start()

    async def execute(self, command: Command, actor: str | None = None) -> CommandResult:
        """Execute the command together with others; returns after the commit.

        What an actor changes is audited. Raises QueueFullError. After DatabaseUnavailableError the
        result is unknown, and the command may be repeated.
        """
        return await self.submit(_Submission(command, actor))

    def open_session(self) -> "_Session":
        """A session that executes batches."""
        return _Session(self._database)

    def keys(self, item: _Submission) -> set[Hashable]:
        """The payment, and its wallet if that is known."""
        command = item.command
        if isinstance(command, Reserve):
            return {command.payment_id, command.wallet_id}
        wallet_id = self._wallet_of.get(command.payment_id)
        return {command.payment_id} if wallet_id is None else {command.payment_id, wallet_id}

    async def commit(self, session: "_Session", batch: list[_Entry]) -> None:
        """Execute all commands that can be executed, and answer."""
        await session.execute_all(batch)
        for entry in batch:
            if isinstance(entry.item.command, Reserve):
                self._wallet_of.put(entry.item.command.payment_id, entry.item.command.wallet_id)


class _Session:
    """A long-lived connection on which batches are executed, one transaction each."""

    def __init__(self, database: Database) -> None:
        self._connection = OwnConnection(database.dedicated)
        self._careful_until_s = 0.0

    async def execute_all(self, batch: list[_Entry]) -> None:
        """Execute and answer. Raises DatabaseUnavailableError."""
        bisection = Bisection(
            self._execute, _max_runs, _fail_one, _fail, lambda first, second: None
        )
        try:
            await bisection.run(batch)
        except Exception as error:
            if trouble(error) is not Trouble.AWAY:
                raise
            raise away(error) from error

    async def _execute(self, batch: Sequence[_Entry]) -> None:
        results = await self._commit(batch)
        _count([entry.item for entry in batch], results)
        for entry, one in zip(batch, results, strict=True):
            entry.resolve(one)

    async def _commit(self, batch: Sequence[_Entry]) -> list[CommandResult]:
        """Without locks unless another session was faster a moment ago."""
        connection = await self._connection.get()
        submissions = [entry.item for entry in batch]
        if time.monotonic() >= self._careful_until_s:
            try:
                return await _execute(connection, store.load, submissions)
            except Exception as error:
                if trouble(error) is Trouble.RERUN:
                    self._careful_until_s = time.monotonic() + CAREFUL_FOR_S
                raise
        async with connection.transaction():
            return await _execute(connection, store.lock, submissions)

    async def close(self) -> None:
        """Close the connection; the next batch opens a new one."""
        self._connection.close()


def _max_runs(error: Exception, size: int) -> int:
    if trouble(error) is Trouble.AWAY:
        return 0
    is_lost_race = trouble(error) is Trouble.RERUN and (size == 1 or not is_lock_timeout(error))
    return MAX_RUNS if is_lost_race else 1


async def _fail_one(entry: _Entry, error: Exception, deadline_s: float) -> None:
    await _fail([entry], error)


async def _fail(batch: Sequence[_Entry], error: Exception) -> None:
    """A lost race says nothing about the money."""
    if trouble(error) is Trouble.RERUN:
        error = DatabaseUnavailableError("another transaction held the wallet for too long")
    for entry in batch:
        entry.fail(error)


async def _execute(
    connection: Connection, load: Load, submissions: Sequence[_Submission]
) -> list[CommandResult]:
    batch = WalletBatch(await load(connection, [one.command for one in submissions]))
    results = [batch.execute(one.command, one.actor) for one in submissions]
    await store.write(connection, batch.changes())
    return results


def _count(submissions: Sequence[_Submission], results: Sequence[CommandResult]) -> None:
    counts = Counter(
        (type(one.command).__name__.lower(), result.reject_reason or "EXECUTED")
        for one, result in zip(submissions, results, strict=True)
    )
    for labels, number in counts.items():
        metrics.bound(metrics.WALLET_COMMANDS, *labels).inc(number)


class ReservationExpiry:
    """A task of the janitor. The database's clock decides what has expired."""

    name = "reservations"
    period_s = 10.0

    async def run_once(self, connection: Connection, now: datetime) -> bool:
        """Release a few pages; returns whether there are more."""
        for _ in range(MAX_EXPIRY_PAGES):
            async with connection.transaction():
                expired = store.QUERIES["expired_reservations"]
                page = await expired.rows(connection, limit=EXPIRY_PAGE)
                commands = [reservations.Expire(row["payment_id"]) for row in page]
                results = await execute(connection, commands) if page else []
            ended = [one.reservation.status for one in results if one.reservation is not None]
            number = ended.count(reservations.ReservationStatus.EXPIRED)
            if number:
                log.info("reservations_expired", number=number)
            if len(page) < EXPIRY_PAGE:
                return False
        return True
