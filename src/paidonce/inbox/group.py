"""Verified deliveries, processed in batches: one transaction for all that arrive together."""

import time
from collections.abc import Hashable
from dataclasses import replace
from typing import Final

from paidonce.core.email import email_key
from paidonce.core.events import DEFERRED, PaymentEvent
from paidonce.db.pool import Database
from paidonce.errors import DatabaseUnavailableError
from paidonce.processing.items import Incoming, Rejected, Result, ResultKind, Rules
from paidonce.processing.outcomes import report
from paidonce.processing.transactions import Processor
from paidonce.runtime.crashpoints import CrashPoint, maybe_crash
from paidonce.runtime.group_commit import Entry, GroupCommit
from paidonce.runtime.wakeup import Wakeup

MAX_BATCH_BYTES: Final = 4 * 1024 * 1024
LOCKED_PAUSE_S: Final = 0.02
DEFER_AFTER_S: Final = 0.5
"""A delivery whose rows stay locked for this long is stored, and processed later."""
MAX_LOCKED_S: Final = 5.0

Arrival = Incoming | Rejected


class Group(GroupCommit[Arrival, Result, Processor]):
    """The queue of verified and refused deliveries before the database."""

    max_batch_size = MAX_BATCH_BYTES

    def __init__(
        self, database: Database, rules: Rules, max_waiting: int, wakeup: Wakeup | None = None
    ) -> None:
        super().__init__(max_waiting)
        self._database = database
        self._rules = rules
        self._wakeup = wakeup or Wakeup()

    def open_session(self) -> Processor:
        return Processor(self._database, self._rules)

    def keys(self, item: Arrival) -> frozenset[Hashable]:
        """The event, payment, and order or address of a delivery."""
        if not isinstance(item.event, PaymentEvent):
            return frozenset((item.key,)) - {None}
        event = item.event
        owner = event.order or (email_key(event.email) if event.email else None)
        return frozenset((item.key, owner, *event.ids)) - {None}

    def size(self, item: Arrival) -> int:
        return len(item.delivery.body)

    async def commit(self, session: Processor, batch: list[Entry[Arrival, Result]]) -> None:
        """Process a batch and answer its senders."""
        processed = await session.process([entry.item for entry in batch])
        maybe_crash(CrashPoint.COMMITTED)
        for entry, result in zip(batch, processed.results, strict=True):
            if result.kind is ResultKind.LOCKED:
                self._retry(entry)
            elif result.kind is ResultKind.NOT_STORED:
                entry.fail(DatabaseUnavailableError("it could not be stored"))
            else:
                entry.resolve(result)
        if any(result.event_id is not None for result in processed.results):
            self.note_stored()
        if processed.schedules:
            self._wakeup.wake()
        report(processed)

    def _retry(self, entry: Entry[Arrival, Result]) -> None:
        """Try a delivery again whose rows are locked; after a while only store it.

        If even that is not possible, the sender has to send it again.
        """
        waited_s = time.monotonic() - entry.since_s
        if waited_s > MAX_LOCKED_S:
            entry.fail(DatabaseUnavailableError("another transaction held its rows for too long"))
            return
        if waited_s > DEFER_AFTER_S and isinstance(entry.item, Incoming):
            entry.item = replace(entry.item, forced_outcome=DEFERRED)
        self.retry(entry, LOCKED_PAUSE_S)
