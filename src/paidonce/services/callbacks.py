"""Tries callbacks again whose payment was not known (RET-5).

A callback may come before the gateway has answered with the transaction's id, and is then applied
when that is saved. If no payment ever has its transaction, it is given up after many attempts, and
a person is told: nothing that concerns money is dropped.
"""

import asyncio
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final
from uuid import UUID

from paidonce import telemetry
from paidonce.bus.ring import Ring
from paidonce.domain.notices import NoticeKind
from paidonce.services.payments import PaymentService, Terms
from paidonce.store import gateway_callbacks, notices
from paidonce.store.db import Database, Trouble, trouble
from paidonce.store.gateway_callbacks import PutOff
from paidonce.store.notices import Notice
from paidonce.store.queries import Connection
from paidonce.telemetry import logger

log = logger(__name__)

MAX_BATCH: Final = 100
POLL_S: Final = 0.5
PAUSE_AFTER_FAILURE_S: Final = 1.0


class CallbackRetries:
    """Lets payments hear what waits for them."""

    def __init__(self, database: Database, terms: Terms) -> None:
        self._database = database
        self._terms = terms
        self._service = PaymentService(terms)
        self._ear = Ring().ear()  # nobody rings but who wants it to stop
        self._stop_asked = asyncio.Event()

    async def run(self) -> None:
        """Work until stopped."""
        while not self._stop_asked.is_set():
            await self._work()

    def finish(self) -> None:
        """Begin nothing new."""
        self._stop_asked.set()
        self._ear.ring()

    async def run_once(self) -> int:
        """Try what is due; returns how many there were."""
        try:
            return await self._try(MAX_BATCH)
        except Exception as error:
            if trouble(error) in (Trouble.AWAY, Trouble.RERUN):
                raise
            log.warning("callback_failed", exc_info=error)
            return await self._try_first()

    async def _try_first(self) -> int:
        """One of them fails, and with it all: try the first alone, and put it off if it is that."""
        try:
            return await self._try(1)
        except Exception as error:
            if trouble(error) in (Trouble.AWAY, Trouble.RERUN):
                raise
            async with self._database.transaction() as connection:
                due = await gateway_callbacks.due(connection, 1)
                await self._put_off(connection, due)
            return len(due)

    async def _try(self, limit: int) -> int:
        async with self._database.transaction() as connection:
            due = await gateway_callbacks.due(connection, limit)
            if due:
                known = await self._service.hear_callbacks(connection, due.values())
                unknown = [one for one, transaction in due.items() if transaction not in known]
                await self._put_off(connection, unknown)
        return len(due)

    async def _work(self) -> None:
        try:
            if await self.run_once() < MAX_BATCH:
                await self._ear.wait(POLL_S)
        except Exception as error:
            log.warning("callback_retries_failed", error=type(error).__name__, detail=str(error))
            await self._ear.wait(PAUSE_AFTER_FAILURE_S)

    async def _put_off(self, connection: Connection, unknown: Iterable[UUID]) -> None:
        tried = await gateway_callbacks.put_off(connection, unknown, self._terms.callback_attempts)
        dead = [one for one in tried if one.is_dead]
        for one in dead:
            telemetry.bound(telemetry.CALLBACKS_DEAD, self._terms.source).inc()
            log.error(
                "callback_given_up",
                transaction=one.transaction_id,
                says=one.says,
                webhook_event_id=str(one.event_id),
            )
        await notices.add(connection, self._terms.told_to, *map(self._notice, dead))

    def _notice(self, dead: PutOff) -> Notice:
        return Notice(
            kind=NoticeKind.CALLBACK,
            at=datetime.now(UTC),
            source=self._terms.source,
            event_id=dead.event_id,
            details=notices.clean({"transaction": dead.transaction_id, "says": dead.says}),
        )
