"""Processes stored events again, from their raw bytes (OPS-4).

An event that was accepted is settled once more, in a transaction in which nobody else can: what was
applied is not applied again. A delivery that was refused, and is found authentic now, becomes an
event like one that has just arrived; the evidence of the refusal stays.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from paidonce.domain.events import DEFERRED, Code, EventId, EventStatus, SourceId
from paidonce.engine.claims import settle_claimed
from paidonce.engine.fates import Again, Fate, settled_again
from paidonce.engine.gateway_calls import SHARE_OF_RATE
from paidonce.engine.handling import broken_transaction, without_calls
from paidonce.engine.items import (
    Incoming,
    Item,
    Result,
    Rules,
    Settled,
    Source,
    Verdict,
    Waiting,
)
from paidonce.engine.outcomes import report
from paidonce.engine.settle import settle
from paidonce.engine.transactions import settle_whatever_happens
from paidonce.engine.verifying import Signature, delivery_of, taken_in, verified_again
from paidonce.errors import (
    ConflictError,
    DatabaseAwayError,
    NotFoundError,
    RefusedError,
    StillRefusedError,
)
from paidonce.providers.contract import Thin
from paidonce.store import due, reprocessing
from paidonce.store.db import Database, Trouble, trouble
from paidonce.store.queries import Connection
from paidonce.store.reprocessing import Action, Stored

PATIENCE_S: Final = 2.0
BUSY_PAUSE_S: Final = 0.02
MAX_AT_ONCE: Final = 4
TURN_S: Final = 10.0
"""How many events are processed again at once, and how long others wait for their turn."""

_FIRST_ATTEMPT_IS_READ_OFF: Final = (EventStatus.PROCESSED, EventStatus.IGNORED)
"""Of such an event the first attempt stands in its columns alone, which are about to change."""
_FAILED: Final = (EventStatus.FAILED_RETRYABLE, EventStatus.FAILED_FINAL, EventStatus.DEAD_LETTER)


@dataclass(frozen=True, slots=True)
class Operator:
    """For whom events are processed again: who it is, and as a part of what."""

    name: str
    replay: str | None = None


async def reprocess(
    connection: Connection, event_ids: Sequence[EventId], rules: Rules, operator: Operator
) -> list[Again]:
    """Process events again in the transaction that is open, and say so in their trails.

    What others have in hand is BUSY, and nothing was done about it. With handlers give one event:
    raises BrokenTransactionError, and then the connection is closed. Fails with a serialization
    failure when another transaction was first.
    """
    locked = await reprocessing.lock(connection, event_ids)
    foreign = [one for one in locked if one.source_id not in rules.sources]
    known = [one for one in locked if one.source_id in rules.sources]
    accepted = [one for one in known if is_accepted(one)]
    done = [Again(one, Fate.FOREIGN) for one in foreign]
    done += await _settle_again(connection, accepted, rules)
    for one in known:
        if not is_accepted(one):
            done.append(await _take_in(connection, one, rules))
    await _record(connection, done, operator)
    return sorted(done, key=lambda one: one.stored.event_id)


async def record_skipped(
    connection: Connection, event_ids: Sequence[EventId], operator: Operator
) -> list[Again]:
    """Say of events that others hold for too long that they were left as they are."""
    skipped = [
        Again(one, Fate.BUSY, code=one.error_code)
        for one in await reprocessing.look(connection, event_ids)
    ]
    actions = [_action(one, operator) for one in skipped]
    await reprocessing.record_actions(connection, actions)
    return skipped


def asking_s(done: Sequence[Again]) -> float:
    """How long the gateways of these events are asked for them, at the share that they may have."""
    items = [one.verdict.item for one in done if one.verdict is not None]
    asked = [one.source for one in items if isinstance(one, Waiting | Incoming) and _is_asked(one)]
    numbers = Counter(one.id for one in asked)
    return max((_asking(one, numbers[one.id]).total_seconds() for one in asked), default=0.0)


def report_changed(done: Sequence[Again]) -> None:
    """Log and count, after the commit, what has another outcome than before."""
    changed = [one.verdict for one in done if one.verdict is not None and one.is_changed]
    report(Settled(datetime.now(UTC), changed))


class Reprocessor:
    """Processes one event again, in a transaction of its own."""

    def __init__(self, database: Database, rules: Rules) -> None:
        self._rules = rules
        # Handlers may take long. Then others are to have connections.
        is_slow = bool(rules.handlers)
        self._transaction = database.transaction_apart if is_slow else database.transaction
        self._turns = asyncio.Semaphore(rules.handlers.at_once if is_slow else MAX_AT_ONCE)

    async def reprocess(
        self, event_id: EventId, actor: str, only: EventStatus | None = None
    ) -> Again:
        """What became of the event.

        Raises NotFoundError, ConflictError when it is not of the `only` status that was asked for,
        StillRefusedError when it stays refused, or DatabaseAwayError when others hold it too long,
        or too many wait for their turn.
        """
        try:
            async with asyncio.timeout(TURN_S):
                await self._turns.acquire()
        except TimeoutError:
            raise DatabaseAwayError("many events are being processed again; try again") from None
        try:
            return await self._reprocess(event_id, actor, only)
        finally:
            self._turns.release()

    async def _reprocess(self, event_id: EventId, actor: str, only: EventStatus | None) -> Again:
        rules, deadline_s = self._rules, time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline_s:
            try:
                async with self._transaction() as connection:
                    again = await _reprocess_one(connection, event_id, rules, actor, only)
                report_changed([again])
                return again
            except Exception as error:
                broken = broken_transaction(error)
                if broken is not None:
                    rules = without_calls(rules, broken.held)
                    deadline_s = time.monotonic() + PATIENCE_S  # however long the handler took
                elif not isinstance(error, _BusyError) and trouble(error) is not Trouble.RERUN:
                    raise
            await asyncio.sleep(BUSY_PAUSE_S)
        raise DatabaseAwayError("the event is held by another transaction; try again")


class _BusyError(Exception):
    """Somebody else has the event, or what it needs, in hand."""


async def _reprocess_one(
    connection: Connection,
    event_id: EventId,
    rules: Rules,
    actor: str,
    only: EventStatus | None,
) -> Again:
    found = await reprocessing.look(connection, [event_id])
    if not found:
        raise NotFoundError(f"there is no event {event_id}")
    if only is not None and found[0].status is not only:
        raise ConflictError(f"event {event_id} is {found[0].status}, not {only}")
    done = await reprocess(connection, [event_id], rules, Operator(actor))
    if not done or done[0].fate is Fate.BUSY or (only and done[0].stored.status is not only):
        raise _BusyError
    again = done[0]
    if again.fate is Fate.REFUSED:
        assert again.code is not None
        raise StillRefusedError(again.code, f"it is still refused: {again.message}")
    if again.fate is Fate.FOREIGN:
        raise ConflictError("its source is not configured here: configure it again")
    return again


def is_accepted(stored: Stored) -> bool:
    """Whether the event has claimed its key; what has not is evidence of a refusal."""
    return stored.key is not None and stored.conflicts_with is None


async def _settle_again(
    connection: Connection, locked: Sequence[Stored], rules: Rules
) -> list[Again]:
    """Settle events that were accepted. Those whose gateway has to be asked are due to be."""
    stored = {one.event_id: one for one in await reprocessing.take_due(connection, locked)}
    signatures = {
        one.event_id: verified_again(rules.sources[one.source_id], one) for one in stored.values()
    }
    thin: list[Stored] = []
    rest: list[Stored] = []
    for one in stored.values():
        (thin if is_thin(one, rules) else rest).append(one)
    asked = due.Claim(len(thin), [one.claimed(due.Lane.ASK) for one in thin])
    claim = due.Claim(len(rest), [one.claimed(lane_of(one, rules)) for one in rest])
    settled = await settle_claimed(connection, asked, rules, preset=DEFERRED)
    await _spread(connection, thin, rules)
    settled = settled.and_then(await settle_claimed(connection, claim, rules))
    if settled.schedules:
        await due.ring(connection)  # heard when this transaction has committed
    found = [(one, one.item.event_id) for one in settled.verdicts if isinstance(one.item, Waiting)]
    return [settled_again(stored[known], signatures[known], verdict) for verdict, known in found]


async def _spread(connection: Connection, thin: Sequence[Stored], rules: Rules) -> None:
    """Let them be due one after the other, so that a webhook need not wait for all of them."""
    numbers, delays = Counter[SourceId](), dict[EventId, timedelta]()
    for one in thin:
        delays[one.event_id] = _asking(rules.sources[one.source_id], numbers[one.source_id])
        numbers[one.source_id] += 1
    if len(thin) > len(numbers):  # else they are due now, as they should
        await reprocessing.put_off(connection, delays)


def _asking(source: Source, number: int) -> timedelta:
    return timedelta(seconds=number / (source.ask_rate * SHARE_OF_RATE))


async def _take_in(connection: Connection, stored: Stored, rules: Rules) -> Again:
    """Let a delivery that was refused be an event, if it is authentic; leave it if it is not."""
    found = verified_evidence(stored, rules.sources[stored.source_id])
    if isinstance(found, Again):
        return found
    incoming, signature = found

    async def attempt(items: Sequence[Item]) -> Settled:
        savepoint = connection.transaction()
        await savepoint.start()
        try:
            settled = await settle(connection, items, rules)
        except BaseException:
            await savepoint.rollback()
            raise
        is_refused = settled_again(stored, signature, settled.verdicts[0]).fate is Fate.REFUSED
        await (savepoint.rollback() if is_refused else savepoint.commit())
        return settled

    async def put_off(item: Item, error: Exception) -> Verdict:
        if trouble(error) is not Trouble.RERUN:
            raise error
        return Verdict(item, Result.BUSY, None)

    settled = await settle_whatever_happens([incoming], attempt, put_off)
    if settled.schedules:
        await due.ring(connection)
    return settled_again(stored, signature, settled.verdicts[0])


def verified_evidence(stored: Stored, source: Source) -> Again | tuple[Incoming, Signature]:
    """The event that refused evidence may become now, or why it stays refused."""
    if stored.conflicts_with is not None:
        message = f"it contradicts event {stored.conflicts_with}, which has the same key"
        return Again(stored, Fate.REFUSED, code=Code.PAYLOAD_CONFLICT, message=message)
    try:
        signature = verified_again(source, stored)
        return taken_in(source, stored), signature
    except RefusedError as refusal:
        return Again(stored, Fate.REFUSED, code=refusal.code, message=str(refusal))


def _is_asked(item: Waiting | Incoming) -> bool:
    return item.lane is due.Lane.ASK and item.preset is DEFERRED


def is_thin(stored: Stored, rules: Rules) -> bool:
    """Whether the event's gateway has to be asked what it means."""
    try:
        event = rules.sources[stored.source_id].provider.translate(delivery_of(stored))
    except Exception:
        return False  # settling it says what is wrong
    return isinstance(event, Thin)


def lane_of(stored: Stored, rules: Rules) -> due.Lane:
    """Where the event waits, if it has to."""
    return due.Lane.HANDLE if rules.sources[stored.source_id].has_handlers else due.Lane.SETTLE


async def _record(connection: Connection, done: Sequence[Again], operator: Operator) -> None:
    actions = [
        action
        for one in done
        if one.fate is not Fate.BUSY
        for action in (*_first_attempt(one.stored), _action(one, operator), *_origin(one, operator))
    ]
    await reprocessing.record_actions(connection, actions)


def _first_attempt(stored: Stored) -> list[Action]:
    """What was read off the columns of the event so far has to be written down."""
    if stored.attempts != 1 or stored.status not in _FIRST_ATTEMPT_IS_READ_OFF:
        return []
    attempt = {"attempt": 1}
    reason = {"reason": stored.error_code} if stored.error_code else {}
    steps = (("processing_attempt_started", attempt), ("processing_succeeded", attempt | reason))
    return [
        Action(stored.event_id, "paidonce", name, True, details, stored.processed_at)
        for name, details in steps
    ]


def _action(again: Again, operator: Operator) -> Action:
    details = {
        "was": again.stored.status,
        "was_error_code": again.stored.error_code,
        "is": again.becomes,
        "error_code": again.code,
        "signature": again.signature,
        "event_id": None if again.event_id == again.stored.event_id else str(again.event_id),
        "replay": operator.replay,
    }
    told = {name: value for name, value in details.items() if value is not None}
    is_well = again.fate in (Fate.SETTLED, Fate.DUPLICATE) and again.becomes not in _FAILED
    return Action(again.stored.event_id, operator.name, "event_reprocessed", is_well, told)


def _origin(again: Again, operator: Operator) -> list[Action]:
    """An event that was made from evidence names it."""
    is_new = again.fate is Fate.SETTLED and again.event_id != again.stored.event_id
    if not is_new:
        return []
    evidence = {"evidence": str(again.stored.event_id), "signature": again.signature}
    return [Action(again.event_id, operator.name, "event_taken_from_evidence", True, evidence)]
