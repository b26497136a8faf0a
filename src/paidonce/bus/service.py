"""What operators can ask about the bus, and do with its dead letters."""

from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Final

from paidonce.bus import dead_letters, groups, outbox
from paidonce.bus.model import (
    BusDeadLetter,
    BusDeadLetterCount,
    BusDeadLetterFilter,
    BusDeadLetterQuery,
    BusStatus,
)
from paidonce.core.actors import Actor
from paidonce.core.masking import Masker
from paidonce.db.audit import AuditEntry, record_action, record_entries
from paidonce.db.paging import Page, page_of
from paidonce.db.pool import Database
from paidonce.db.queries import Connection
from paidonce.db.search import read_in_order
from paidonce.errors import ConflictError, NotFoundError

BATCH: Final = 500
MAX_BATCHES: Final = 200
"""How many batches of dead letters one call retries or discards."""

Change = Callable[[Connection, Sequence[int]], Awaitable[list[BusDeadLetter]]]
"""Retries or discards dead letters; returns those that were open."""


class BusService:
    """The status of the bus, and its dead letters."""

    def __init__(self, database: Database, masker: Masker) -> None:
        self._database = database
        self._masker = masker

    async def status(self) -> BusStatus:
        """Unpublished messages, the lag of each group, and its number of dead letters."""
        async with self._database.connection() as connection, read_in_order(connection):
            backlog = await outbox.backlog(connection)
            found = await groups.list_groups(connection)
            dead = await dead_letters.count_by_group(connection)
        return BusStatus(backlog.number, round(backlog.oldest_s, 3), found, dead)

    async def search(self, query: BusDeadLetterQuery) -> Page[BusDeadLetter]:
        """A page of dead letters, newest first."""
        async with self._database.connection() as connection:
            found = await dead_letters.search(connection, query)
        return page_of(found, query.limit, lambda letter: letter.id)

    async def retry(self, letter_id: int, actor: Actor) -> BusDeadLetter:
        """Let its group receive a message again, within seconds.

        Raises NotFoundError, or ConflictError if it was consumed or discarded.
        """
        return await self._change_one(letter_id, actor, "retried", dead_letters.retry)

    async def discard(self, letter_id: int, actor: Actor, reason: str) -> BusDeadLetter:
        """Discard a message: it is kept, but no group receives it. Raises the same."""
        reason = self._masker.line(reason)
        change = partial(dead_letters.discard, actor=actor.name, reason=reason)
        return await self._change_one(letter_id, actor, "discarded", change, reason)

    async def retry_matching(
        self, filter_: BusDeadLetterFilter, actor: Actor, *, is_dry_run: bool = False
    ) -> BusDeadLetterCount:
        """Retry all that match, in batches, each committed. A dry run only counts them.

        Messages that fail from now on are not included.
        """
        if is_dry_run:
            return await self._count(filter_, with_retried=False)
        return await self._change_all(filter_, actor, "retried", dead_letters.retry)

    async def discard_matching(
        self, filter_: BusDeadLetterFilter, actor: Actor, reason: str, *, is_dry_run: bool = False
    ) -> BusDeadLetterCount:
        """Discard all that match, in the same way, including those that are to be retried."""
        if is_dry_run:
            return await self._count(filter_, with_retried=True)
        reason = self._masker.line(reason)
        change = partial(dead_letters.discard, actor=actor.name, reason=reason)
        return await self._change_all(filter_, actor, "discarded", change, reason)

    async def _change_one(
        self, letter_id: int, actor: Actor, changed: str, change: Change, reason: str | None = None
    ) -> BusDeadLetter:
        async with self._database.transaction() as connection:
            done = await change(connection, [letter_id])
            if not done:
                why = await dead_letters.why_closed(connection, letter_id)
                if why is None:
                    raise NotFoundError(f"there is no dead letter {letter_id} of the bus")
                raise ConflictError(f"dead letter {letter_id} was {why}")
            await _record(connection, done, actor, changed, reason)
        return done[0]

    async def _change_all(
        self,
        filter_: BusDeadLetterFilter,
        actor: Actor,
        changed: str,
        change: Change,
        reason: str | None = None,
    ) -> BusDeadLetterCount:
        filter_ = _until_now(filter_)
        with_retried = changed == "discarded"
        after, number = 0, 0
        for _ in range(MAX_BATCHES):
            async with self._database.transaction() as connection:
                ids = await dead_letters.lock(
                    connection, filter_, with_retried=with_retried, after=after, limit=BATCH
                )
                done = await change(connection, ids)
                await _record(connection, done, actor, changed, reason)
            number += len(done)
            if len(ids) < BATCH:
                break
            after = ids[-1]
        async with self._database.transaction() as connection:
            await record_action(
                connection,
                actor.name,
                f"bus_dead_letters_{changed}",
                filter=filter_.model_dump(mode="json", exclude_none=True),
                number=number,
                reason=reason,
            )
        return BusDeadLetterCount(number, more=len(ids) == BATCH, dry_run=False)

    async def _count(
        self, filter_: BusDeadLetterFilter, *, with_retried: bool
    ) -> BusDeadLetterCount:
        most = BATCH * MAX_BATCHES
        async with self._database.connection() as connection:
            number = await dead_letters.count(
                connection, _until_now(filter_), with_retried=with_retried, limit=most + 1
            )
        return BusDeadLetterCount(min(number, most), more=number > most, dry_run=True)


async def _record(
    connection: Connection,
    letters: Sequence[BusDeadLetter],
    actor: Actor,
    changed: str,
    reason: str | None,
) -> None:
    """Write an entry for each dead letter to the audit log."""
    entries = [
        AuditEntry(
            event_id=None,
            actor=actor.name,
            action=f"bus_dead_letter_{changed}",
            success=True,
            details={
                "letter_id": one.id,
                "consumer": one.consumer,
                "message_id": str(one.event_id),
                "reason": reason,
            },
        )
        for one in letters
    ]
    await record_entries(connection, entries)


def _until_now(filter_: BusDeadLetterFilter) -> BusDeadLetterFilter:
    now = datetime.now(UTC)
    return filter_.model_copy(update={"until": min(filter_.until or now, now)})
