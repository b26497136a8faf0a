"""Settling in a transaction of one's own, and what to do when the database refuses.

A lost race is run again; a database that is away is said to be away; a batch that holds something
the database refuses, or waits for too long, is halved until that one is alone, and that one is
stored without its effect, or put off. Nobody else suffers for it.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import fields, replace
from datetime import UTC, datetime
from typing import Any, Final

from paidonce.domain.events import DEFERRED, Code, EventStatus, Outcome
from paidonce.engine.items import (
    Incoming,
    Item,
    Refused,
    Result,
    Rules,
    Settled,
    Verdict,
    Waiting,
)
from paidonce.engine.settle import settle, settle_at_once
from paidonce.providers.contract import Identity
from paidonce.store.db import Database, Trouble, away, is_lock_timeout, trouble
from paidonce.store.queries import Connection
from paidonce.telemetry import logger

log = logger(__name__)

MAX_RUNS_TOGETHER: Final = 3
MAX_RUNS_ALONE: Final = 5
RERUN_PAUSE_S: Final = 0.01
PATIENCE_S: Final = 1.5
"""For how long after a first failure the rest of a batch is tried in smaller parts."""
CAREFUL_FOR_S: Final = 2.0
"""For how long rows are locked first after one was found to be held by somebody else."""
ONCE_S: Final = 0.1
"""The same after somebody else was merely faster: enough for the batch to be run again."""

Attempt = Callable[[Sequence[Item]], Awaitable[Settled]]
"""Settles the items in one transaction or savepoint: all of them, or none."""

PutOff = Callable[[Item, Exception], Awaitable[Verdict]]
"""Says what becomes of an item that cannot be settled now, whatever is tried."""


async def settle_whatever_happens(
    items: Sequence[Item], attempt: Attempt, put_off: PutOff, deadline_s: float | None = None
) -> Settled:
    """Settle all of some items that can be settled, and put off what cannot.

    Gives up soon after the first failure: what waits behind a lock that is held for long must not
    be asked one by one. Raises what means that the database is away.
    """
    assert items
    error: Exception | None = None
    for run in range(MAX_RUNS_ALONE if len(items) == 1 else MAX_RUNS_TOGETHER):
        try:
            return await attempt(items)
        except Exception as failure:
            error = failure
            deadline_s = deadline_s or time.monotonic() + PATIENCE_S
            if trouble(failure) is Trouble.AWAY:
                raise
            if trouble(failure) is not Trouble.RERUN or is_lock_timeout(failure):
                break
            await asyncio.sleep(RERUN_PAUSE_S * run * random.random())
    assert error is not None
    assert deadline_s is not None
    if time.monotonic() > deadline_s:
        return Settled(datetime.now(UTC), [await put_off(item, error) for item in items])
    if len(items) == 1:
        return await _settle_alone(items[0], error, attempt, put_off, deadline_s)
    log.warning("batch_halved", items=len(items), exc_info=error)
    middle = len(items) // 2
    first = await settle_whatever_happens(items[:middle], attempt, put_off, deadline_s)
    second = await settle_whatever_happens(items[middle:], attempt, put_off, deadline_s)
    return first.and_then(second)


async def _settle_alone(
    item: Item, error: Exception, attempt: Attempt, put_off: PutOff, deadline_s: float
) -> Settled:
    """Store an event without its effect: for later if it is held up, failed if it is refused."""
    is_held = trouble(error) is Trouble.RERUN
    simpler = _deferred(item) if is_held else _poisoned(item, error)
    if simpler is None:
        return Settled(datetime.now(UTC), [await put_off(item, error)])
    return await settle_whatever_happens([simpler], attempt, put_off, deadline_s)


def _deferred(item: Item) -> Item | None:
    """The delivery, stored and nothing else; None if that is what it was already."""
    if isinstance(item, Incoming) and item.preset is None:
        return replace(item, preset=DEFERRED)
    return None


def _poisoned(item: Item, error: Exception) -> Item | None:
    """The event as one that failed, with nothing that a column cannot hold; None if it is that."""
    if isinstance(item, Refused) and item.event is not None:
        log.error("stale_money_not_recorded", request_id=item.request.id, exc_info=error)
        return replace(item, identity=None, event=None)
    if not isinstance(item, Incoming | Waiting):
        return None
    if item.preset is not None and item.preset.code is Code.INTERNAL:
        return None
    log.error("event_poisoned", webhook_event_id=str(item.event_id), exc_info=error)
    fault = f"the database refused it: {type(error).__name__}"
    outcome = Outcome(EventStatus.FAILED_RETRYABLE, Code.INTERNAL, fault)
    identity = replace(item.identity, **_storable(item.identity))
    return replace(item, identity=identity, preset=outcome)


class Settler:
    """A long-lived connection on which batches are settled, one transaction each."""

    def __init__(self, database: Database, rules: Rules) -> None:
        self._database = database
        self._rules = rules
        self._connection: Connection | None = None
        self._careful_until_s = 0.0

    async def settle(self, items: Sequence[Item]) -> Settled:
        """Settle and commit. Raises DatabaseAwayError, and then it is not known what happened."""
        try:
            return await settle_whatever_happens(items, self._attempt, self._put_off)
        except Exception as error:
            if trouble(error) is not Trouble.AWAY:
                raise
            await self.close()
            raise away(error) from error

    async def close(self) -> None:
        """Let go of the connection; the next call makes a new one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.terminate()

    async def _attempt(self, items: Sequence[Item]) -> Settled:
        if self._connection is None or self._connection.is_closed():
            self._connection = await self._database.dedicated()
        try:
            if time.monotonic() >= self._careful_until_s:
                settled = await settle_at_once(self._connection, items, self._rules)
                if settled is not None:
                    return settled
            async with self._connection.transaction():
                return await settle(self._connection, items, self._rules)
        except Exception as error:
            if trouble(error) is Trouble.RERUN:
                self._be_careful(error)
            raise

    def _be_careful(self, error: Exception) -> None:
        """Lock first: at least this batch, and for a while if a row was held for long."""
        held_long = is_lock_timeout(error)
        self._careful_until_s = time.monotonic() + (CAREFUL_FOR_S if held_long else ONCE_S)

    async def _put_off(self, item: Item, error: Exception) -> Verdict:
        """Nothing is stored of it. What is held up may come again, what is refused may not."""
        if not isinstance(item, Incoming | Refused):
            raise error
        may_wait = isinstance(item, Incoming) or item.event is not None
        if may_wait and trouble(error) is Trouble.RERUN:
            return Verdict(item, Result.BUSY, None)
        is_evidence = isinstance(item, Refused)
        log.error(
            "evidence_lost" if is_evidence else "delivery_not_stored",
            request_id=item.request.id,
            exc_info=error,
        )
        result = Result.FAILED_FINAL if is_evidence else Result.NOT_STORED
        return Verdict(item, result, None)


def _storable(identity: Identity) -> dict[str, Any]:
    """The texts of an identity as a text column can hold them: no NUL, no lone surrogates."""
    named = {one.name: getattr(identity, one.name) for one in fields(identity)}
    return {
        name: text.replace("\x00", "�").encode("utf-8", "replace").decode()
        for name, text in named.items()
        if isinstance(text, str)
    }
