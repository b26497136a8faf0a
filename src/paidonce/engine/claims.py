"""Settling what was claimed, in the transaction that claimed it.

Each attempt is a savepoint. An event that cannot be settled is put off, and no other one suffers.
"""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from paidonce.domain.events import Outcome, PaymentEvent
from paidonce.engine.handling import BrokenTransactionError, settle_one, without_calls
from paidonce.engine.items import Item, Result, Revisit, Rules, Settled, Verdict, Waiting
from paidonce.engine.settle import settle
from paidonce.engine.transactions import settle_whatever_happens
from paidonce.engine.waiting import NOBODY_ASKED, Answers, waiting_items
from paidonce.errors import DatabaseAwayError
from paidonce.providers.contract import Thin
from paidonce.store import due
from paidonce.store.db import Trouble, trouble
from paidonce.store.queries import Connection
from paidonce.telemetry import logger

log = logger(__name__)

FOREIGN_DELAY: Final = timedelta(hours=1)
"""After how long an event whose source is not configured here is due again."""
HELD_DELAY: Final = timedelta(seconds=1)
"""The same of one that others are faster with, again and again."""
NO_DELAY: Final = timedelta(0)
MAX_LOOKS: Final = 40
LOOK_PAUSE_S: Final = 0.05
REFUSED_DELAY: Final = timedelta(minutes=1)
"""The same of one of which not even a failure can be recorded."""


async def settle_claimed(
    connection: Connection,
    claim: due.Claim,
    rules: Rules,
    *,
    preset: Outcome | None = None,
    answers: Answers = NOBODY_ASKED,
    revisits: Sequence[Revisit] = (),
    lane: due.Lane | None = None,
) -> Settled:
    """Settle the claimed events, and the payments to be looked at with them.

    With a preset outcome, that is what becomes of the events. Those whose gateway has to be asked
    mean what it answered, or are put where it is asked. Who settles a lane names it: where handlers
    are not called, events that have some are put where they are. Raises what means that the
    database is away, and what a payment without an event fails with.
    """
    await _put_back_foreign(connection, claim, rules)
    claimed = {one.event_id: one for one in claim.events}
    waiting = waiting_items(claim.events, rules, preset, answers)
    unasked = [one for one in waiting if one.preset is None and isinstance(one.event, Thin)]
    await _put_to(due.Lane.ASK, connection, [claimed[one.event_id] for one in unasked])
    uncalled = _uncalled(waiting, rules) if lane is due.Lane.SETTLE else []
    await _put_to(due.Lane.HANDLE, connection, [claimed[one.event_id] for one in uncalled])
    put = [*unasked, *uncalled]
    items: list[Item] = [*(one for one in waiting if one not in put), *revisits]

    async def attempt(items: Sequence[Item]) -> Settled:
        if rules.handlers:
            (item,) = items
            return await settle_one(connection, item, rules)
        async with connection.transaction():
            return await settle(connection, items, rules)

    async def put_off(item: Item, error: Exception) -> Verdict:
        if not isinstance(item, Waiting):
            raise error
        log.error("event_put_off", webhook_event_id=str(item.event_id), exc_info=error)
        delay = HELD_DELAY if trouble(error) is Trouble.RERUN else REFUSED_DELAY
        await due.put_back(connection, claimed[item.event_id], delay)
        return Verdict(item, Result.BUSY, item.event_id)

    if not items:
        return Settled(datetime.now(UTC), [])
    if not rules.handlers:
        return await settle_whatever_happens(items, attempt, put_off)
    settled = Settled(datetime.now(UTC), [])
    for item in items:
        if not _was_held(item, settled):
            settled = settled.and_then(await settle_whatever_happens([item], attempt, put_off))
    return settled


async def settle_without_calls(
    connection: Connection,
    broken: BrokenTransactionError,
    rules: Rules,
    answers: Answers = NOBODY_ASKED,
) -> Settled:
    """Settle, on another connection, an event whose handler has broken the transaction: as held.

    Raises DatabaseAwayError when the database does not let go of it.
    """
    assert broken.event_id is not None
    quiet = without_calls(rules, broken.held)
    for _ in range(MAX_LOOKS):
        async with connection.transaction():
            claim = await due.claim_events(connection, [broken.event_id])
            settled = await settle_claimed(connection, claim, quiet, answers=answers)
        if claim.number > 0:
            return settled
        await asyncio.sleep(LOOK_PAUSE_S)  # the database has not noticed that it was let go
    raise DatabaseAwayError("an event is still held by the connection that its handler broke")


def _was_held(item: Item, settled: Settled) -> bool:
    """Whether an event of the payment has just been held: its handlers were called then."""
    return isinstance(item, Revisit) and any(
        isinstance(verdict.item, Waiting)
        and verdict.item.held is not None
        and verdict.decision is not None
        and verdict.decision.payment is not None
        and verdict.decision.payment.id == item.payment_id
        for verdict in settled.verdicts
    )


def _uncalled(waiting: Sequence[Waiting], rules: Rules) -> list[Waiting]:
    """What may have something to tell to the user's own handlers."""
    if not rules.handlers:
        return []
    return [one for one in waiting if one.preset is None and isinstance(one.event, PaymentEvent)]


async def _put_to(lane: due.Lane, connection: Connection, misplaced: Sequence[due.Claimed]) -> None:
    """What stands in the wrong lane is due now in the right one."""
    for one in misplaced:
        await due.put_back(connection, one, NO_DELAY, lane)
    if misplaced:
        await due.ring(connection)  # heard when this transaction has committed


async def _put_back_foreign(connection: Connection, claim: due.Claim, rules: Rules) -> None:
    """What cannot be read waits until its source is configured again."""
    for one in claim.events:
        if one.source_id not in rules.sources:
            log.warning(
                "source_not_configured",
                webhook_event_id=str(one.event_id),
                source_number=one.source_id,
                remedy="configure the source again to settle what waits",
            )
            await due.put_back(connection, one, FOREIGN_DELAY)
