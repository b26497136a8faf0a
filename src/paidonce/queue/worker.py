"""Processes queued events: retries, and events that were stored for later (RET-1..4).

A worker claims due events and processes them in one transaction. If it is killed, the claim is
rolled back and another worker takes the events. Any number of workers may run.
"""

from collections.abc import Awaitable, Callable
from typing import Final

from paidonce.core.events import Code, EventStatus, Outcome
from paidonce.db.pool import Database, OwnConnection
from paidonce.processing.hook_calls import find_broken_transaction
from paidonce.processing.items import QueueName, Rules
from paidonce.processing.outcomes import report
from paidonce.queue import store
from paidonce.queue.claims import process_claimed, process_without_hooks
from paidonce.runtime.crashpoints import CrashPoint, maybe_crash
from paidonce.runtime.service import Service
from paidonce.runtime.wakeup import Wakeup

MAX_BATCH: Final = 128
MAX_BYTES_IN_HAND: Final = 64 * 1024 * 1024
SLOWEST_POLL_S: Final = 5.0
FASTEST_POLL_S: Final = 0.05
"""Due events that another worker has locked are polled this often."""
GUARDED_EVENTS: Final = MAX_BATCH
"""How many events a new process handles one by one: an event may have crashed the last one."""
MAX_STARTS: Final = 5
"""How often an event may crash its process before it becomes a dead letter."""


class Worker(Service):
    """Claims due events of a queue and processes each batch in the transaction of its claim."""

    def __init__(
        self,
        database: Database,
        rules: Rules,
        wakeup: Wakeup | None = None,
        max_batch: int = MAX_BATCH,
        queue_name: QueueName = QueueName.PROCESS,
    ) -> None:
        super().__init__(f"{queue_name.name.lower()} worker")
        self._database = database
        self._rules = rules
        self._listener = (wakeup or Wakeup()).listener()
        self._max_batch = max_batch
        self._queue_name = queue_name
        self._claims = store.ClaimQueue(queue_name)
        self._connection = OwnConnection(database.dedicated)
        self._guarded_events_left = GUARDED_EVENTS

    async def run(self) -> None:
        try:
            while not self.is_finishing:
                await self._work()
        except Exception:
            self._guarded_events_left = 0  # no event crashed the process
            raise
        finally:
            await self.close()

    async def close(self) -> None:
        """Close the connection; the next batch opens a new one."""
        self._connection.close()

    async def _work(self) -> None:
        claimed = await (self.run_guarded() if self._guarded_events_left else self.run_once())
        if claimed == 0:
            self._guarded_events_left = 0
            await self._listener.wait(await self._idle_s())

    async def run_once(self) -> int:
        """Process a batch of due events; returns how many were claimed."""
        return await self._recover_from_hooks(self._process_batch)

    async def run_guarded(self) -> int:
        """Process one event, after its start was committed; returns how many were claimed.

        An event that crashed the process at every start becomes a dead letter.
        """
        return await self._recover_from_hooks(self._process_guarded)

    async def _process_batch(self) -> int:
        connection = await self._connection.get()
        async with connection.transaction():
            claim = await self._claims.claim(connection, self._max_batch)
            maybe_crash(CrashPoint.CLAIMED)
            processed = await process_claimed(
                connection, claim, self._rules, queue_name=self._queue_name
            )
        maybe_crash(CrashPoint.WORKER_COMMITTED)
        report(processed)
        return claim.number

    async def _process_guarded(self) -> int:
        connection = await self._connection.get()
        self._guarded_events_left = max(self._guarded_events_left - 1, 0)
        claim = store.Claim(0, [])
        try:
            async with connection.transaction():
                claim, starts = await self._claims.claim_guarded(connection, self._database)
                maybe_crash(CrashPoint.CLAIMED)
                crashed = _crash_outcome(starts) if starts > MAX_STARTS else None
                processed = await process_claimed(
                    connection,
                    claim,
                    self._rules,
                    forced_outcome=crashed,
                    queue_name=self._queue_name,
                )
        except BaseException:  # also when it is canceled: the event did not crash the process
            for one in claim.events:
                await store.forget_start(self._database, one.event_id)
            raise
        maybe_crash(CrashPoint.WORKER_COMMITTED)
        report(processed)
        return claim.number

    async def _recover_from_hooks(self, work: Callable[[], Awaitable[int]]) -> int:
        """Run `work`. An event whose handler broke the transaction is blocked in another one."""
        try:
            return await work()
        except Exception as error:
            broken = find_broken_transaction(error)
            if broken is None or broken.event_id is None:
                raise
            await self.close()
            connection = await self._connection.get()
            report(await process_without_hooks(connection, broken, self._rules))
            return 1

    async def _idle_s(self) -> float:
        next_s = await self._claims.next_run_in_s(await self._connection.get())
        return (
            SLOWEST_POLL_S if next_s is None else min(max(next_s, FASTEST_POLL_S), SLOWEST_POLL_S)
        )


def _crash_outcome(starts: int) -> Outcome:
    fault = f"the process crashed {starts - 1} times while it processed this event"
    return Outcome(EventStatus.DEAD_LETTER, Code.INTERNAL, fault)
