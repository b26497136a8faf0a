"""Looks up events at their gateways when the webhook names only a payment (REC-4, PRV-3).

No transaction and no row is held while a gateway is asked. One process at a time asks the gateway
of a source, as leader, so that rate limits hold for all processes together. The event is claimed
after the answer, and processed in that transaction, which is fenced.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final

from paidonce.core.events import EventId, EventStatus, SourceId
from paidonce.db.pool import Database, OwnConnection
from paidonce.db.queries import Connection, load_queries
from paidonce.lookup.http_client import HttpClient, HttpTimeouts, RateLimitedClient
from paidonce.lookup.lookup import look_up_event
from paidonce.lookup.places import Found, Places
from paidonce.processing.hook_calls import find_broken_transaction
from paidonce.processing.items import Rules
from paidonce.processing.outcomes import report
from paidonce.processing.waiting import Lane
from paidonce.providers.contract import LookupRequired
from paidonce.queue import store
from paidonce.queue.claims import LookupAnswer, process_claimed, process_without_hooks
from paidonce.queue.senders import record_answers
from paidonce.queue.store import StoredEvent
from paidonce.runtime.crashpoints import CrashPoint, maybe_crash
from paidonce.runtime.leader import Leader, Leadership, LeadershipLostError
from paidonce.runtime.service import Service
from paidonce.runtime.wakeup import Wakeup
from paidonce.telemetry import logger

log = logger(__name__)

QUERIES: Final = load_queries(__file__)
MAX_AT_ONCE: Final = 64
MAX_OF_SOURCE: Final = 8
"""How many lookups run at once: in all, and at one gateway. Each gateway may have one."""
SLOWEST_LOOK_S: Final = 5.0
FASTEST_LOOK_S: Final = 0.05
"""The queue is not read more often than this, however many wake-ups come."""
STANDBY_S: Final = 0.5
"""How often to look whether this process may lead now."""
PAUSE_S: Final = 1.0
"""After a failure, and when another process has locked an event."""
_PENDING: Final = (EventStatus.VALIDATED, EventStatus.FAILED_RETRYABLE)


class LookupWorker(Service):
    """Looks up due events, independently for each source, and processes them with the answers."""

    def __init__(
        self,
        database: Database,
        rules: Rules,
        wakeup: Wakeup | None = None,
        max_at_once: int = MAX_AT_ONCE,
        timeouts: HttpTimeouts = HttpTimeouts(),  # noqa: B008 - it is frozen
        leader: Leader | None = None,
    ) -> None:
        super().__init__("lookup worker")
        self._database = database
        self._rules = rules
        self._listener = (wakeup or Wakeup()).listener()
        self._leader = leader or Leader(database)
        self._client = HttpClient(timeouts)
        self._clients = {
            source.id: RateLimitedClient(self._client, source.lookup_rate, pauses=source.name)
            for source in rules.sources.values()
        }
        # A share for each, so that many slow gateways together do not hold up one that answers.
        max_of_source = min(max(max_at_once // max(len(self._clients), 1), 1), MAX_OF_SOURCE)
        self._places = Places(max_of_source)
        self._tasks: set[asyncio.Task[None]] = set()
        self._asking: dict[EventId, asyncio.Task[None]] = {}
        self._leads: dict[SourceId, Leadership] = {}  # no other process asks these gateways
        self._connection = OwnConnection(database.dedicated)
        self._connection_in_use = asyncio.Lock()
        self._looked_s = 0.0

    async def run(self) -> None:
        """Look events up until asked to finish."""
        try:
            while not self.is_finishing:
                await self._work()
            await asyncio.gather(*self._tasks, return_exceptions=True)
        finally:
            await self.close()

    async def run_once(self) -> int:
        """Look up the due events that the limits allow, and process them; return their number."""
        begun = await self._begin()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._release(set(self._leads))
        return begun

    def finish(self) -> None:
        """Process what is answered, and then stop. Unanswered lookups are made again."""
        super().finish()
        for task in self._asking.values():
            task.cancel()

    async def close(self) -> None:
        """Cancel everything; unprocessed events stay in the queue."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._client.close()
        self._connection.close()
        await self._release(set(self._leads))

    async def _work(self) -> None:
        await self.pause(self._looked_s + FASTEST_LOOK_S - time.monotonic())
        if await self._begin() == 0:
            await self._listener.wait(await self._idle_s())

    # Due lookups

    async def _begin(self) -> int:
        """Start the due lookups that the limits allow; return their number."""
        self._looked_s = time.monotonic()
        async with self._connected() as connection:
            lookups = await self._take(connection)
        if self.is_finishing:
            return 0
        for found, lookup in lookups:
            self._places.take(found)
            leadership = self._leads[lookup.source_id]
            task = asyncio.create_task(self._look_up_and_process(lookup, leadership))
            self._asking[lookup.event_id] = task
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return len(lookups)

    async def _take(self, connection: Connection) -> list[tuple[Found, StoredEvent]]:
        room = self._room()
        found = await self._find(connection, room)
        if await self._lead({one.source_id for one in found}):
            found = await self._find(connection, room)  # others may have processed some meanwhile
        chosen = self._places.choose((one for one in found if one.source_id in self._leads), room)
        events = await store.read(connection, [one.event_id for one in chosen])
        events_by_id = {one.event_id: one for one in events}
        return [(one, events_by_id[one.event_id]) for one in chosen if one.event_id in events_by_id]

    async def _find(self, connection: Connection, room: Mapping[SourceId, int]) -> list[Found]:
        if not room:
            return []
        rows = await QUERIES["find_due"].rows(
            connection,
            source_id=list(room),
            lane=list(Lane),
            running=self._places.running,
            limit=self._places.max_of_source,
        )
        return [Found(row["source_id"], row["event_id"], Lane(row["lane"])) for row in rows]

    def _room(self) -> dict[SourceId, int]:
        """How many more lookups each source may start now."""
        room = {
            source_id: client.room(self._places.max_of_source) - self._places.count(source_id)
            for source_id, client in self._clients.items()
        }
        return {source_id: number for source_id, number in room.items() if number > 0}

    async def _lead(self, wanted: set[SourceId]) -> bool:
        """Lead for these sources only; returns whether this process leads for a new one."""
        lost = {source_id for source_id, one in self._leads.items() if not one.is_held}
        await self._release(lost | (self._leads.keys() - wanted - self._places.sources))
        roles = {f"lookup {source_id}": source_id for source_id in wanted - self._leads.keys()}
        new = await self._leader.acquire(roles) if roles else {}
        self._leads |= {roles[role]: leadership for role, leadership in new.items()}
        for role, leadership in new.items():
            self._clients[roles[role]].require = leadership.require
        return bool(new)

    async def _release(self, sources: set[SourceId]) -> None:
        await self._leader.release([self._leads.pop(source_id) for source_id in sources])

    async def _idle_s(self) -> float:
        """How long there is nothing to do, unless a wake-up comes or a lookup ends."""
        away_s = [client.away_for_s for client in self._clients.values() if client.away_for_s > 0]
        async with self._connected() as connection:
            next_s: float | None = await QUERIES["seconds_until_due"].value(
                connection,
                source_id=list(self._room()),
                lane=list(Lane),
                running=self._places.running,
            )
        if next_s is not None:
            away_s.append(next_s if next_s > 0 else STANDBY_S)
        return min([*away_s, SLOWEST_LOOK_S])

    # One event

    async def _look_up_and_process(self, lookup: StoredEvent, leadership: Leadership) -> None:
        try:
            async with leadership.cancelling():
                answer = await self._answer(lookup)
                del self._asking[lookup.event_id]
                maybe_crash(CrashPoint.LOOKED_UP)
                is_processed = await self._process(lookup, answer, leadership)
            if not is_processed:
                await self.pause(PAUSE_S)  # another process has locked it
        except LeadershipLostError as error:
            log.warning("leadership_lost", role=leadership.role, detail=str(error))
        except Exception as error:
            self.record_failure(error, PAUSE_S, webhook_event_id=str(lookup.event_id))
            await self.pause(PAUSE_S)
        finally:
            self._places.free(lookup.event_id)
            self._asking.pop(lookup.event_id, None)
            self._listener.wake()

    async def _answer(self, lookup: StoredEvent) -> LookupAnswer | None:
        """Look the event up; None if it needs no lookup or cannot be read."""
        if lookup.status not in _PENDING:  # only its queue rows remain
            return None
        provider = self._rules.sources[lookup.source_id].provider
        try:
            event = provider.translate(lookup.delivery)
        except Exception:
            return None  # processing it tells what is wrong
        if not isinstance(event, LookupRequired):
            return None
        return await look_up_event(event, self._clients[lookup.source_id])

    async def _process(
        self, lookup: StoredEvent, answer: LookupAnswer | None, leadership: Leadership
    ) -> bool:
        """Process the event with the answer; False if another process has locked it."""
        answers = {} if answer is None else {lookup.event_id: answer}
        try:
            async with self._connected() as connection, connection.transaction():
                await leadership.fence(connection)
                claim = await store.claim_events(connection, [lookup.event_id])
                processed = await process_claimed(connection, claim, self._rules, answers=answers)
                await record_answers(connection, processed.results)
            is_taken = claim.number > 0
        except Exception as error:
            broken = find_broken_transaction(error)
            if broken is None:
                raise
            leadership.require()
            async with self._connected() as connection:
                processed = await process_without_hooks(connection, broken, self._rules, answers)
            is_taken = True
        report(processed)
        return is_taken

    # The connection that processes one event after the other

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[Connection]:
        async with self._connection_in_use:
            yield await self._connection.get()
