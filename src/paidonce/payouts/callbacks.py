"""Tries callbacks again that have no payment yet (RET-5).

A callback may arrive before the gateway has returned the transaction's id; it is applied when that
id is saved. A callback that never finds a payment becomes a dead letter after many attempts, and a
person is notified: nothing that concerns money is dropped.
"""

from collections.abc import Iterable
from typing import Final
from uuid import UUID

from paidonce.clock import CLOCK
from paidonce.core.events import EventId
from paidonce.core.notifications import NotificationKind
from paidonce.db.pool import Database, Trouble, trouble
from paidonce.db.queries import Connection
from paidonce.notifications import store as notifications_store
from paidonce.notifications.model import Notification, clean
from paidonce.payouts import store
from paidonce.payouts.model import DeadCallback
from paidonce.payouts.processor import PayoutOptions, PayoutProcessor
from paidonce.runtime.service import Service
from paidonce.telemetry import logger, metrics

log = logger(__name__)

MAX_BATCH: Final = 100
POLL_S: Final = 0.5


class CallbackRetries(Service):
    """Applies callbacks that came before their payment."""

    def __init__(self, database: Database, options: PayoutOptions) -> None:
        super().__init__("callback retries")
        self._database = database
        self._options = options
        self._processor = PayoutProcessor(options)

    async def run(self) -> None:
        """Work until asked to finish."""
        while not self.is_finishing:
            if await self.run_once() < MAX_BATCH:
                await self.pause(POLL_S)

    async def run_once(self) -> int:
        """Try due callbacks; returns their number.

        After a failed batch, the first callback is tried alone, and postponed if it fails.
        """
        for limit in (MAX_BATCH, 1):
            try:
                return await self._try(limit)
            except Exception as error:
                if trouble(error) in (Trouble.AWAY, Trouble.RERUN):
                    raise
                log.warning("callback_failed", exc_info=error)
        async with self._database.transaction() as connection:
            due = await store.due_callbacks(connection, 1)
            await self._postpone(connection, due)
        return len(due)

    async def _try(self, limit: int) -> int:
        async with self._database.transaction() as connection:
            due = await store.due_callbacks(connection, limit)
            if due:
                found = await self._processor.apply_callbacks(connection, due.values())
                missing = [one for one, transaction in due.items() if transaction not in found]
                await self._postpone(connection, missing)
        return len(due)

    async def _postpone(self, connection: Connection, ids: Iterable[UUID]) -> None:
        max_attempts = self._options.settings.callback_attempts
        dead = await store.postpone_callbacks(connection, ids, max_attempts)
        for callback in dead:
            metrics.bound(metrics.CALLBACKS_DEAD, callback.source).inc()
            log.error(
                "callback_dead_letter",
                transaction=callback.transaction_id,
                gateway_status=callback.gateway_status,
                webhook_event_id=str(callback.event_id),
            )
        await notifications_store.add(connection, self._options.routes, *map(_notification, dead))


def _notification(callback: DeadCallback) -> Notification:
    details = {"transaction": callback.transaction_id, "gateway_status": callback.gateway_status}
    return Notification(
        NotificationKind.CALLBACK,
        CLOCK.now(),
        source=callback.source,
        event_id=EventId(callback.event_id),
        details=clean(details),
    )
