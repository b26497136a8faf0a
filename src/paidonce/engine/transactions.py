"""Settling in a transaction of one's own, and what to do when the database refuses.

A deadlock or a lost race is run again; a database that is away is said to be away; a batch that
holds something the database refuses is halved until the poisoned event is alone, and that one is
stored without its effect.
"""

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import fields, replace
from datetime import UTC, datetime
from typing import Any, Final

from paidonce.domain.events import Code, EventStatus, Outcome
from paidonce.engine.items import Item, Refused, Result, Revisit, Rules, Settled, Verdict
from paidonce.engine.settle import settle, settle_at_once
from paidonce.errors import DatabaseAwayError
from paidonce.providers.contract import Identity
from paidonce.store.db import Database, Trouble, away, is_lock_timeout, trouble
from paidonce.store.queries import Connection
from paidonce.telemetry import logger

log = logger(__name__)

MAX_RUNS: Final = 10
RERUN_PAUSE_S: Final = 0.01
CAREFUL_FOR_S: Final = 2.0
"""For how long rows are locked first after one was found to be held by somebody else."""
ONCE_S: Final = 0.1
"""The same after somebody else was merely faster: enough for the batch to be run again."""


class Settler:
    """A long-lived connection on which batches are settled, one transaction each."""

    def __init__(self, database: Database, rules: Rules) -> None:
        self._database = database
        self._rules = rules
        self._connection: Connection | None = None
        self._careful_until_s = 0.0

    async def settle(self, items: Sequence[Item]) -> Settled:
        """Settle and commit. Raises DatabaseAwayError, and then it is not known what happened."""
        for run in range(MAX_RUNS):
            try:
                return await self._settle_once(items)
            except Exception as error:
                match trouble(error):
                    case Trouble.AWAY:
                        await self.close()
                        raise away(error) from error
                    case Trouble.RERUN:
                        self._be_careful(error)
                        await asyncio.sleep(RERUN_PAUSE_S * run * random.random())
                    case Trouble.POISON | None:
                        return await self._settle_halves(items, error)
        raise DatabaseAwayError(f"others were first {MAX_RUNS} times; try again")

    def _be_careful(self, error: Exception) -> None:
        """Lock first: at least this batch, and for a while if a row was held for long."""
        held_long = is_lock_timeout(error)
        self._careful_until_s = time.monotonic() + (CAREFUL_FOR_S if held_long else ONCE_S)

    async def close(self) -> None:
        """Let go of the connection; the next call makes a new one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.terminate()

    async def _settle_once(self, items: Sequence[Item]) -> Settled:
        if self._connection is None or self._connection.is_closed():
            self._connection = await self._database.dedicated()
        if time.monotonic() >= self._careful_until_s:
            settled = await settle_at_once(self._connection, items, self._rules)
            if settled is not None:
                return settled
        async with self._connection.transaction():
            return await settle(self._connection, items, self._rules)

    async def _settle_halves(self, items: Sequence[Item], error: Exception) -> Settled:
        if len(items) == 1:
            return await self._settle_poisoned(items[0], error)
        log.warning("batch_halved", items=len(items), exc_info=error)
        middle = len(items) // 2
        first = await self.settle(items[:middle])
        second = await self.settle(items[middle:])
        return Settled(second.now, first.verdicts + second.verdicts)

    async def _settle_poisoned(self, item: Item, error: Exception) -> Settled:
        """Store the event without its effect, so that it is not lost and a person sees it."""
        if isinstance(item, Refused):  # evidence that cannot be kept; nobody else may suffer for it
            log.error("evidence_lost", request_id=item.request.id, exc_info=error)
            return Settled(datetime.now(UTC), [Verdict(item, Result.FAILED_FINAL, None)])
        if isinstance(item, Revisit) or item.preset is not None:
            raise error
        log.error("event_poisoned", webhook_event_id=str(item.event_id), exc_info=error)
        fault = f"the database refused it: {type(error).__name__}"
        outcome = Outcome(EventStatus.FAILED_RETRYABLE, Code.INTERNAL, fault)
        identity = replace(item.identity, **_storable(item.identity))
        return await self.settle([replace(item, identity=identity, preset=outcome)])


def _storable(identity: Identity) -> dict[str, Any]:
    """The texts of an identity as a text column can hold them: no NUL, no lone surrogates."""
    named = {one.name: getattr(identity, one.name) for one in fields(identity)}
    return {
        name: text.replace("\x00", "�").encode("utf-8", "replace").decode()
        for name, text in named.items()
        if isinstance(text, str)
    }
