"""What operators can ask about the bus, and do with its dead letters."""

from collections.abc import Sequence
from typing import Final

from paidonce.audit.model import AuditEntry
from paidonce.audit.store import record_action, record_entries
from paidonce.bus import dead_letters, groups, model, outbox
from paidonce.clock import CLOCK
from paidonce.core.actors import Actor
from paidonce.core.masking import Masker
from paidonce.db.paging import Page, page_of
from paidonce.db.pool import Database
from paidonce.db.queries import Connection
from paidonce.db.search import read_in_order
from paidonce.errors import ConflictError, NotFoundError

BATCH: Final = 500
MAX_BATCHES: Final = 200  # of dead letters that one call retries or discards


class BusService:
    """The status of the bus, and its dead letters."""

    def __init__(self, database: Database, masker: Masker) -> None:
        self._database = database
        self._masker = masker

    async def status(self) -> model.BusStatus:
        """Unpublished messages, the lag of each group, and its number of dead letters."""
        async with self._database.snapshot() as connection, read_in_order(connection):
            unpublished, oldest_s = await outbox.backlog(connection)
            found = await groups.list_groups(connection)
            dead = await dead_letters.count_by_group(connection)
        return model.BusStatus(unpublished, round(oldest_s, 3), found, dead)

    async def search(self, query: model.BusDeadLetterQuery) -> Page[model.BusDeadLetter]:
        """A page of dead letters, newest first."""
        async with self._database.connection() as connection:
            found = await dead_letters.search(connection, query)
        return page_of(found, query.limit, lambda letter: letter.id)

    async def retry(self, letter_id: int, actor: Actor) -> model.BusDeadLetter:
        """Let its group receive a message again, within seconds.

        Raises NotFoundError, or ConflictError if it was consumed or discarded.
        """
        return await self._change_one(letter_id, actor, None)

    async def discard(self, letter_id: int, actor: Actor, reason: str) -> model.BusDeadLetter:
        """Discard a message: it is kept, but no group receives it. Raises the same."""
        return await self._change_one(letter_id, actor, self._masker.line(reason))

    async def retry_matching(
        self, filter_: model.BusDeadLetterFilter, actor: Actor, *, is_dry_run: bool = False
    ) -> model.BusDeadLetterCount:
        """Retry all that match, in batches, each committed. A dry run only counts them.

        Messages that fail from now on are not included.
        """
        return await self._change_all(filter_, actor, None, is_dry_run)

    async def discard_matching(
        self,
        filter_: model.BusDeadLetterFilter,
        actor: Actor,
        reason: str,
        *,
        is_dry_run: bool = False,
    ) -> model.BusDeadLetterCount:
        """Discard all that match, in the same way, including those that are to be retried."""
        return await self._change_all(filter_, actor, self._masker.line(reason), is_dry_run)

    async def _change_one(
        self, letter_id: int, actor: Actor, reason: str | None
    ) -> model.BusDeadLetter:
        async with self._database.transaction() as connection:
            done = await _change(connection, [letter_id], actor, reason)
            if not done:
                why = await dead_letters.why_closed(connection, letter_id)
                if why is None:
                    raise NotFoundError(f"there is no dead letter {letter_id} of the bus")
                raise ConflictError(f"dead letter {letter_id} was {why}")
        return done[0]

    async def _change_all(
        self, filter_: model.BusDeadLetterFilter, actor: Actor, reason: str | None, is_dry_run: bool
    ) -> model.BusDeadLetterCount:
        now = CLOCK.now()
        filter_ = filter_.model_copy(update={"until": min(filter_.until or now, now)})
        with_retried = reason is not None
        if is_dry_run:
            return await self._count(filter_, with_retried)
        after, number = 0, 0
        for _ in range(MAX_BATCHES):
            async with self._database.transaction() as connection:
                ids = await dead_letters.lock(
                    connection, filter_, with_retried=with_retried, after=after, limit=BATCH
                )
                number += len(await _change(connection, ids, actor, reason))
            if len(ids) < BATCH:
                break
            after = ids[-1]
        async with self._database.transaction() as connection:
            await record_action(
                connection,
                actor.name,
                f"bus_dead_letters_{_done(reason)}",
                filter=filter_.model_dump(mode="json", exclude_none=True),
                number=number,
                reason=reason,
            )
        return model.BusDeadLetterCount(number, more=len(ids) == BATCH, dry_run=False)

    async def _count(
        self, filter_: model.BusDeadLetterFilter, with_retried: bool
    ) -> model.BusDeadLetterCount:
        most = BATCH * MAX_BATCHES
        async with self._database.connection() as connection:
            number = await dead_letters.count(
                connection, filter_, with_retried=with_retried, limit=most + 1
            )
        return model.BusDeadLetterCount(min(number, most), more=number > most, dry_run=True)


async def _change(
    connection: Connection, ids: Sequence[int], actor: Actor, reason: str | None
) -> list[model.BusDeadLetter]:
    """Discard dead letters for a reason, or retry them without one; returns those that were open.

    The audit log gets an entry for each.
    """
    if reason is None:
        done = await dead_letters.retry(connection, ids)
    else:
        done = await dead_letters.discard(connection, ids, actor=actor.name, reason=reason)
    action = f"bus_dead_letter_{_done(reason)}"
    entries = []
    for one in done:
        details = {"letter_id": one.id, "consumer": one.consumer, "message_id": str(one.event_id)}
        entries.append(AuditEntry(actor.name, action, reason=reason, details=details))
    await record_entries(connection, entries)
    return done


def _done(reason: str | None) -> str:
    return "retried" if reason is None else "discarded"
