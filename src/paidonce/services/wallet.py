"""The wallet: commands on reservations, obeyed together (WAL-1 WAL-2).

`obey` does a batch of them in the caller's transaction. `WalletService` makes one transaction for
all that come at once: there is no timer, a flusher that is free takes everything that waits.
"""

import asyncio
import random
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from paidonce.domain.events import WalletId
from paidonce.domain.reservations import Command, Judged, Reserve
from paidonce.errors import DatabaseAwayError, IntakeFullError
from paidonce.services.books import Books
from paidonce.store import reservations
from paidonce.store.db import Database, Trouble, away, is_lock_timeout, trouble
from paidonce.store.queries import Connection
from paidonce.store.reservations import Loaded
from paidonce.telemetry import WALLET_COMMANDS, bound, logger

log = logger(__name__)

FLUSHERS: Final = 2
MAX_BATCH: Final = 128
MAX_WAITING: Final = 4096
MAX_RUNS: Final = 5
RERUN_PAUSE_S: Final = 0.01
PATIENCE_S: Final = 1.5
"""For how long after a first failure the rest of a batch is tried in smaller parts."""
CAREFUL_FOR_S: Final = 0.1
"""For how long wallets are locked first after somebody else was faster."""
MAX_REMEMBERED: Final = 10_000
"""Of how many payments it is remembered which wallet is theirs."""
STOP_TIMEOUT_S: Final = 1.0

Load = Callable[[Connection, Sequence[Command]], Awaitable[Loaded]]


async def obey(connection: Connection, commands: Sequence[Command]) -> list[Judged]:
    """Do what the commands say, in their order, in the caller's transaction.

    The wallets stay locked until it ends. The time is the database's, after they were locked: so
    the entries of a wallet are in the order of their times. A command that is refused changes
    nothing and is no error: see `Judged.refusal`. Raises what `trouble` sorts: after RERUN the
    transaction has to be rolled back and run again.
    """
    loaded = await reservations.lock(connection, commands)
    books = Books(loaded, loaded.now)
    judged = [books.judge(command) for command in commands]
    await reservations.write(connection, books.changes())
    _count(commands, judged)
    return judged


@dataclass(slots=True, eq=False)
class _Entry:
    """A command that waits for its transaction, who gave it, and whoever waits for the answer."""

    command: Command
    actor: str | None
    answer: asyncio.Future[Judged]


class WalletService:
    """The queue before the wallets, and the flushers that empty it; they run while it is filled."""

    def __init__(self, database: Database, max_waiting: int = MAX_WAITING) -> None:
        self._database = database
        self._max_waiting = max_waiting
        self._waiting: deque[_Entry] = deque()
        self._in_hand: set[_Entry] = set()
        self._in_flight: set[object] = set()
        self._wallet_of: dict[str, WalletId] = {}
        self._is_given_up = False
        self._flushers: set[asyncio.Task[None]] = set()
        self._idle: list[_Session] = []

    async def do(self, command: Command, actor: str | None = None) -> Judged:
        """Obey the command together with others; returns after the commit.

        What an actor changes is audited. Raises IntakeFullError, or DatabaseAwayError: then it is
        not known what happened, and the same command may be given again.
        """
        if self._is_given_up:
            raise DatabaseAwayError("the service is stopping")
        if len(self._waiting) + len(self._in_hand) >= self._max_waiting:
            raise IntakeFullError("too many commands wait for the database")
        answer: asyncio.Future[Judged] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Entry(command, actor, answer))
        self._wake()
        return await answer

    def give_up(self) -> None:
        """Answer whoever still waits that he has to come again: the service stops."""
        self._is_given_up = True
        _fail([*self._waiting, *self._in_hand], DatabaseAwayError("the service is stopping"))
        self._waiting.clear()

    async def stop(self) -> None:
        """Obey what waits, then stop; by force after a while."""
        flushers = set(self._flushers)
        if flushers:
            await asyncio.wait(flushers, timeout=STOP_TIMEOUT_S)
        self.give_up()
        for flusher in flushers:
            flusher.cancel()
        if flushers:
            await asyncio.wait(flushers, timeout=STOP_TIMEOUT_S)
        for session in self._idle:
            session.close()

    def _wake(self) -> None:
        if len(self._flushers) < FLUSHERS:
            self._flushers.add(asyncio.create_task(self._flush_all(), name="wallet flusher"))

    async def _flush_all(self) -> None:
        """Until nothing is left that another flusher has not in hand.

        It leaves in the moment in which it finds nothing: who comes then starts another one.
        """
        session = self._idle.pop() if self._idle else _Session(self._database)
        try:
            while batch := self._take():
                await self._flush(session, batch)
        finally:
            self._idle.append(session)
            self._flushers -= {asyncio.current_task()}

    def _take(self) -> list[_Entry]:
        """What waits, up to the limit, without what another flusher has in hand."""
        batch: list[_Entry] = []
        passed_over: list[_Entry] = []
        while self._waiting and len(batch) < MAX_BATCH and len(passed_over) < MAX_BATCH:
            entry = self._waiting.popleft()
            if entry.answer.done():  # whoever asked went away, and nothing was promised
                continue
            if self._in_flight.isdisjoint(self._touches(entry.command)):
                batch.append(entry)
            else:
                passed_over.append(entry)
        self._waiting.extendleft(reversed(passed_over))
        return batch

    async def _flush(self, session: "_Session", batch: list[_Entry]) -> None:
        touched = {one for entry in batch for one in self._touches(entry.command)}
        self._in_flight |= touched
        self._in_hand.update(batch)
        try:
            await _carry_out(session, batch)
            self._remember(batch)
        except Exception as error:
            if trouble(error) is not Trouble.AWAY:
                log.exception("wallet_flush_failed", commands=len(batch))
            session.close()
            _fail(batch, away(error))
        finally:
            self._in_hand.difference_update(batch)
            self._in_flight -= touched

    def _touches(self, command: Command) -> set[object]:
        """What two flushers should not have in hand at once: they would only race each other."""
        if isinstance(command, Reserve):
            return {command.payment_id, command.wallet_id}
        wallet_id = self._wallet_of.get(command.payment_id)
        return {command.payment_id} if wallet_id is None else {command.payment_id, wallet_id}

    def _remember(self, batch: Sequence[_Entry]) -> None:
        for entry in batch:
            if isinstance(entry.command, Reserve):
                self._wallet_of[entry.command.payment_id] = entry.command.wallet_id
        while len(self._wallet_of) > MAX_REMEMBERED:
            del self._wallet_of[next(iter(self._wallet_of))]


class _Session:
    """A long-lived connection on which batches are obeyed, one transaction each."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._connection: Connection | None = None
        self._careful_until_s = 0.0

    async def obey(self, entries: Sequence[_Entry]) -> list[Judged]:
        """Obey and commit, at once if nobody else is at these wallets, else under their locks."""
        if self._connection is None or self._connection.is_closed():
            self._connection = await self._database.dedicated()
        if time.monotonic() >= self._careful_until_s:
            try:
                return await _written(self._connection, reservations.look, entries)
            except Exception as error:
                if trouble(error) is Trouble.RERUN:
                    self._careful_until_s = time.monotonic() + CAREFUL_FOR_S
                raise
        async with self._connection.transaction():
            return await _written(self._connection, reservations.lock, entries)

    def close(self) -> None:
        """Let go of the connection; the next batch makes a new one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.terminate()


async def _carry_out(
    session: _Session, batch: Sequence[_Entry], deadline_s: float | None = None
) -> None:
    """Obey all that can be obeyed, and answer; one that cannot does not hold up the others.

    Raises what means that the database is away.
    """
    error: Exception | None = None
    for run in range(MAX_RUNS):
        try:
            _answer(batch, await session.obey(batch))
            return
        except Exception as failure:
            error = failure
            deadline_s = deadline_s or time.monotonic() + PATIENCE_S
            if trouble(failure) is Trouble.AWAY:
                raise
            is_hopeless = trouble(failure) is not Trouble.RERUN
            is_alone = len(batch) == 1
            if is_hopeless or (is_lock_timeout(failure) and not is_alone):
                break
            await asyncio.sleep(RERUN_PAUSE_S * run * random.random())
    assert error is not None
    assert deadline_s is not None
    if len(batch) == 1 or time.monotonic() > deadline_s:
        _fail(batch, _told(error))
        return
    middle = len(batch) // 2
    await _carry_out(session, batch[:middle], deadline_s)
    await _carry_out(session, batch[middle:], deadline_s)


async def _written(connection: Connection, load: Load, batch: Sequence[_Entry]) -> list[Judged]:
    loaded = await load(connection, [entry.command for entry in batch])
    books = Books(loaded, loaded.now)
    judged = [books.judge(entry.command, entry.actor) for entry in batch]
    await reservations.write(connection, books.changes())
    return judged


def _answer(batch: Sequence[_Entry], judged: Sequence[Judged]) -> None:
    _count([entry.command for entry in batch], judged)
    for entry, one in zip(batch, judged, strict=True):
        if not entry.answer.done():
            entry.answer.set_result(one)


def _told(error: Exception) -> Exception:
    """What is said of a command that could not be obeyed. A lost race says nothing of the money."""
    if trouble(error) is Trouble.RERUN:
        return DatabaseAwayError("others held the wallet for too long")
    return error


def _fail(batch: Sequence[_Entry], error: Exception) -> None:
    for entry in batch:
        if not entry.answer.done():
            entry.answer.set_exception(error)


def _count(commands: Sequence[Command], judged: Sequence[Judged]) -> None:
    counts = Counter(
        (type(command).__name__.lower(), one.refusal or "OBEYED")
        for command, one in zip(commands, judged, strict=True)
    )
    for labels, number in counts.items():
        bound(WALLET_COMMANDS, *labels).inc(number)
