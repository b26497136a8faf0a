"""Repairs: entries of a statement are processed as if their webhooks had arrived (PAY-9).

A repair is an event that needs a lookup. Its key is made of the entry: so the same repair is made
once, and the webhook that arrives later adds nothing. A repair that failed and is still needed is
the same event, processed again.
"""

import asyncio
import contextlib
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final

from paidonce.audit.store import record_action
from paidonce.clock import CLOCK
from paidonce.core.events import DEFERRED, EventId, EventStatus, PaymentEvent
from paidonce.db.pool import Database
from paidonce.errors import DatabaseUnavailableError
from paidonce.lookup.http_client import SHARE_OF_RATE
from paidonce.processing.items import Incoming, Request, Result, ResultKind, Rules, Source
from paidonce.processing.outcomes import report
from paidonce.processing.transactions import Processor
from paidonce.providers import contract
from paidonce.reconciliation import store
from paidonce.reconciliation.model import Repair, Run
from paidonce.replay.reprocess import Reprocessor
from paidonce.runtime.wakeup import Wakeup, notify_workers

PATIENCE_S: Final = 30.0
"""How long to wait for repairs, besides the time of their lookups."""
CHUNK_S: Final = 1.0
"""As many are stored at once as can be looked up in this time."""
POLL_S: Final = 0.1
MAX_TRIES: Final = 5
TRY_PAUSE_S: Final = 0.2

_FAILED: Final = (EventStatus.FAILED_FINAL, EventStatus.DEAD_LETTER)


@dataclass(frozen=True, slots=True)
class Repairs:
    """Makes the repairs of one reconciliation."""

    database: Database
    rules: Rules
    source: Source
    statement_api: contract.StatementApi
    wakeup: Wakeup
    run: Run

    async def store(self, repairs: Sequence[Repair]) -> list[EventId]:
        """Store the events; returns their ids, or those of the same repairs that were made earlier.

        Raises DatabaseUnavailableError.
        """
        rate = self.source.lookup_rate * SHARE_OF_RATE
        size, stored = max(int(rate * CHUNK_S), 1), list[EventId]()
        for start in range(0, len(repairs), size):
            if start > 0:  # so that new webhooks do not wait for all of them
                await asyncio.sleep(size / rate)
            stored += await self._store(repairs[start : start + size])
        return stored

    async def _store(self, repairs: Sequence[Repair]) -> list[EventId]:
        processor = Processor(self.database, self.rules)
        try:
            results = await self._process(processor, [self._incoming(one) for one in repairs])
        finally:
            await processor.close()
        async with self.database.transaction() as connection:
            for result in results:
                await record_action(
                    connection,
                    self.run.actor,
                    "reconciliation_repair",
                    event_id=result.event_id,
                    reconciliation=str(self.run.id),
                    **result.named,
                )
            await notify_workers(connection)
        event_ids = [EventId(one.event_id) for one in results if one.event_id is not None]
        await self._retry_failed(event_ids)
        self.wakeup.wake()
        return event_ids

    async def wait(self, event_ids: Collection[EventId]) -> dict[EventId, str]:
        """Wait for the events, within a limit; returns the error code or status of each."""
        lookup_s = len(event_ids) / self.source.lookup_rate
        deadline_s = time.monotonic() + PATIENCE_S + 2 * lookup_s
        while True:
            async with self.database.connection() as connection:
                found = await store.events(connection, event_ids)
            is_finished = all(row["status"] != EventStatus.VALIDATED for row in found.values())
            if is_finished or time.monotonic() > deadline_s:
                return {one: row["error_code"] or row["status"] for one, row in found.items()}
            await asyncio.sleep(POLL_S)

    async def _retry_failed(self, event_ids: Collection[EventId]) -> None:
        """Process failed repairs again: the payment still needs them."""
        async with self.database.connection() as connection:
            found = await store.events(connection, event_ids)
        reprocessor = Reprocessor(self.database, self.rules)
        for event_id, row in found.items():
            if row["status"] in _FAILED:
                with contextlib.suppress(DatabaseUnavailableError):  # another process works on it
                    await reprocessor.reprocess(event_id, self.run.actor)

    async def _process(self, processor: Processor, items: list[Incoming]) -> list[Result]:
        for _ in range(MAX_TRIES):
            processed = await processor.process(items)
            report(processed)
            if all(
                one.kind not in (ResultKind.LOCKED, ResultKind.NOT_STORED)
                for one in processed.results
            ):
                return processed.results
            await asyncio.sleep(TRY_PAUSE_S)  # the stored ones are duplicates now
        raise DatabaseUnavailableError("a repair could not be stored")

    def _incoming(self, repair: Repair) -> Incoming:
        headers, body = self.statement_api.build_webhook(repair.entry)
        delivery = contract.Delivery(headers, body, CLOCK.now())
        key = repair_key(repair.entry)
        identity = self.source.provider.identify(delivery)
        event = self.source.provider.translate(delivery)
        assert not isinstance(event, contract.ConfirmationRequest)
        return Incoming(
            event_id=repair.event_id,
            source=self.source,
            request=Request(f"reconciliation-{self.run.id}", None, time.monotonic()),
            delivery=delivery,
            identity=replace(identity, key=key, fingerprint=contract.fingerprint(key), nonce=None),
            key=(self.source.id, contract.key_digest(key)),
            event=event,
            forced_outcome=DEFERRED,
            is_delivery=False,
        )


def repair_key(entry: PaymentEvent) -> str:
    """The key of an entry: the same repair has the same key."""
    captured, refunded = entry.amount, entry.refunded
    parts = (
        entry.ids[0].kind,
        entry.ids[0].value,
        entry.event_type,
        f"{captured.amount_minor} {captured.currency}" if captured else "",
        str(refunded.amount_minor) if refunded else "",
    )
    return f"reconcile:{':'.join(parts)}"
