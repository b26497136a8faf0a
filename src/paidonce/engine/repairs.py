"""Repairs: what a gateway's books tell is settled as if its webhook had come (PAY-9).

A repair is an event like any other, "look at this payment", with a key of its own: of what the
books say. So the same repair is made once, and the webhook that comes after all adds nothing. One
that was given up, and is still needed, is the same event, processed again.
"""

import asyncio
import contextlib
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final
from uuid import UUID

from paidonce.domain.events import DEFERRED, EventId, EventStatus, PaymentEvent
from paidonce.engine.bell import Bell
from paidonce.engine.gateway_calls import SHARE_OF_RATE
from paidonce.engine.items import Incoming, Request, Result, Rules, Source, Verdict
from paidonce.engine.outcomes import report
from paidonce.engine.reprocessing import Reprocessor
from paidonce.engine.transactions import Settler
from paidonce.errors import DatabaseAwayError
from paidonce.providers.contract import Books, Confirmation, Delivery, fingerprint, key_digest
from paidonce.store import due, listings, reconciliations
from paidonce.store.db import Database

PATIENCE_S: Final = 30.0
"""How long repairs are waited for, besides the time that asking for them takes."""
CHUNK_S: Final = 1.0
"""As many are stored at once as may be asked for in this time."""
LOOK_PAUSE_S: Final = 0.1
MAX_TRIES: Final = 5
TRY_PAUSE_S: Final = 0.2

_UNSETTLED: Final = (EventStatus.RECEIVED, EventStatus.VALIDATED)
_GIVEN_UP: Final = (EventStatus.FAILED_FINAL, EventStatus.DEAD_LETTER)


@dataclass(frozen=True, slots=True)
class Repair:
    """An entry of the books that is to be settled, as the event of this id."""

    event_id: EventId
    entry: PaymentEvent


@dataclass(frozen=True, slots=True)
class Repairs:
    """How the repairs of one reconciliation are made."""

    database: Database
    rules: Rules
    source: Source
    books: Books
    bell: Bell
    run_id: UUID
    actor: str

    async def store(self, repairs: Sequence[Repair]) -> list[EventId]:
        """Store the events; returns their ids, or those of the same repairs made earlier.

        Raises DatabaseAwayError.
        """
        rate = self.source.ask_rate * SHARE_OF_RATE
        size, stored = max(int(rate * CHUNK_S), 1), list[EventId]()
        for start in range(0, len(repairs), size):
            if start > 0:  # webhooks of the same gateway are not to wait for all of them
                await asyncio.sleep(size / rate)
            stored += await self._store(repairs[start : start + size])
        return stored

    async def _store(self, repairs: Sequence[Repair]) -> list[EventId]:
        settler = Settler(self.database, self.rules)
        try:
            verdicts = await self._settle(settler, [self._incoming(one) for one in repairs])
        finally:
            await settler.close()
        async with self.database.transaction() as connection:
            for verdict in verdicts:
                await listings.record_action(
                    connection,
                    self.actor,
                    "reconciliation_repair",
                    event_id=verdict.event_id,
                    reconciliation=str(self.run_id),
                )
            await due.ring(connection)  # heard when this transaction has committed
        event_ids = [EventId(one.event_id) for one in verdicts if one.event_id is not None]
        await self._take_up(event_ids)
        self.bell.ring()
        return event_ids

    async def settled(self, event_ids: Collection[EventId]) -> dict[EventId, str]:
        """What became of the events, in a word for each; waits for them, but not for ever."""
        asking_s = len(event_ids) / self.source.ask_rate
        deadline_s = time.monotonic() + PATIENCE_S + 2 * asking_s
        while True:
            async with self.database.connection() as connection:
                found = await reconciliations.events(connection, event_ids)
            is_settled = all(row["status"] not in _UNSETTLED for row in found.values())
            if is_settled or time.monotonic() > deadline_s:
                return {one: row["error_code"] or row["status"] for one, row in found.items()}
            await asyncio.sleep(LOOK_PAUSE_S)

    async def _take_up(self, event_ids: Collection[EventId]) -> None:
        """Process again what was given up earlier: the payment still lacks it."""
        async with self.database.connection() as connection:
            found = await reconciliations.events(connection, event_ids)
        reprocessor = Reprocessor(self.database, self.rules)
        for event_id, row in found.items():
            if row["status"] in _GIVEN_UP:
                with contextlib.suppress(DatabaseAwayError):  # somebody else has it in hand
                    await reprocessor.reprocess(event_id, self.actor)

    async def _settle(self, settler: Settler, items: list[Incoming]) -> list[Verdict]:
        for _ in range(MAX_TRIES):
            settled = await settler.settle(items)
            report(settled)
            if all(one.result not in (Result.BUSY, Result.NOT_STORED) for one in settled.verdicts):
                return settled.verdicts
            await asyncio.sleep(TRY_PAUSE_S)  # those that were stored are duplicates now
        raise DatabaseAwayError("a repair could not be stored")

    def _incoming(self, repair: Repair) -> Incoming:
        headers, body = self.books.notice_of(repair.entry)
        delivery = Delivery(headers, body, datetime.now(UTC))
        key = repair_key(repair.entry)
        identity = self.source.provider.identify(delivery)
        event = self.source.provider.translate(delivery)
        assert not isinstance(event, Confirmation)
        return Incoming(
            event_id=repair.event_id,
            source=self.source,
            request=Request(f"reconciliation-{self.run_id}", None, time.monotonic()),
            delivery=delivery,
            identity=replace(identity, key=key, fingerprint=fingerprint(key), nonce=None),
            key=(self.source.id, key_digest(key)),
            event=event,
            preset=DEFERRED,
            is_delivery=False,
        )


def repair_key(entry: PaymentEvent) -> str:
    """The key of what the books say: the same repair has the same one."""
    captured, refunded = entry.amount, entry.refunded
    said = (
        entry.ids[0].kind,
        entry.ids[0].value,
        entry.says,
        f"{captured.amount_minor} {captured.currency}" if captured else "",
        str(refunded.amount_minor) if refunded else "",
    )
    return f"reconcile:{':'.join(said)}"
