"""The bus: how far it is behind, and the messages that could not be taken."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import partial
from typing import Final

from paidonce.errors import ConflictError, NotFoundError
from paidonce.operations.desk import Actor, Desk, Found, first_of
from paidonce.store import cursors, dead_messages, outbox
from paidonce.store.dead_messages import Buried, LetterFilter
from paidonce.store.listings import record_action
from paidonce.store.planning import read_in_order
from paidonce.store.queries import Connection
from paidonce.store.reprocessing import Action, record_actions
from paidonce.views import BusView, DeadMessagesView, DeadMessageView, GroupView

BATCH: Final = 500
MAX_BATCHES: Final = 200
"""How much of what matches a filter one call retries or discards."""

Change = Callable[[Connection, Sequence[int]], Awaitable[list[Buried]]]
"""Retries or discards messages, and returns those with which it could."""


class BusVerbs(Desk):
    """What can be asked of the bus, and done about it."""

    async def bus_status(self) -> BusView:
        """What is not published, not taken, and given up."""
        async with self._database.connection() as connection, read_in_order(connection):
            backlog = await outbox.backlog(connection)
            standings = await cursors.standings(connection)
            dead = await dead_messages.numbers_open(connection)
        groups = [GroupView(**asdict(one)) for one in standings]
        return BusView(backlog.number, round(backlog.oldest_s, 3), groups, dead)

    async def dead_messages(
        self,
        *,
        limit: int,
        cursor: int | None = None,
        chosen: LetterFilter = LetterFilter(),  # noqa: B008 - it is frozen
        is_discarded: bool = False,
    ) -> Found[DeadMessageView]:
        """A page of the messages that could not be taken, or of the discarded, the newest first."""
        async with self._database.connection() as connection:
            found = await dead_messages.listed(
                connection, chosen, is_discarded=is_discarded, after=cursor, limit=limit + 1
            )
        shown = [DeadMessageView(**asdict(one)) for one in found]
        return first_of(shown, limit, lambda one: one.id)

    async def retry_dead_message(self, letter_id: int, actor: Actor) -> DeadMessageView:
        """Give a message to its group again; the group takes it within seconds, if it can.

        Raises NotFoundError, or ConflictError when it was taken or discarded already.
        """
        return await self._change_one(letter_id, actor, "retried", dead_messages.ask_retry)

    async def discard_dead_message(
        self, letter_id: int, actor: Actor, reason: str
    ) -> DeadMessageView:
        """Give up a message: it is kept, and nobody gets it any more. Raises the same."""
        reason = self.masked(reason)
        change = partial(dead_messages.discard, actor=actor.name, reason=reason)
        return await self._change_one(letter_id, actor, "discarded", change, reason)

    async def retry_dead_messages(
        self, chosen: LetterFilter, actor: Actor, *, is_dry_run: bool = False
    ) -> DeadMessagesView:
        """Give all messages that match to their groups again, in batches, each committed.

        What dies from now on is not among them. A dry run only says how many there are.
        """
        if is_dry_run:
            return await self._foreseen(chosen, with_retried=False)
        return await self._change_all(chosen, actor, "retried", dead_messages.ask_retry)

    async def discard_dead_messages(
        self, chosen: LetterFilter, actor: Actor, reason: str, *, is_dry_run: bool = False
    ) -> DeadMessagesView:
        """Give up all messages that match, in the same way, also those that are to be retried."""
        if is_dry_run:
            return await self._foreseen(chosen, with_retried=True)
        reason = self.masked(reason)
        change = partial(dead_messages.discard, actor=actor.name, reason=reason)
        return await self._change_all(chosen, actor, "discarded", change, reason)

    async def _change_one(
        self, letter_id: int, actor: Actor, changed: str, change: Change, reason: str | None = None
    ) -> DeadMessageView:
        async with self._database.transaction() as connection:
            done = await change(connection, [letter_id])
            if not done:
                ending = await dead_messages.ending(connection, letter_id)
                if ending is None:
                    raise NotFoundError(f"there is no dead letter {letter_id} of the bus")
                raise ConflictError(f"message {letter_id} {ending}")
            await _record(connection, done, actor, changed, reason)
        return DeadMessageView(**asdict(done[0]))

    async def _change_all(
        self,
        chosen: LetterFilter,
        actor: Actor,
        changed: str,
        change: Change,
        reason: str | None = None,
    ) -> DeadMessagesView:
        chosen = _until_now(chosen)
        after, number = 0, 0
        for _ in range(MAX_BATCHES):
            async with self._database.transaction() as connection:
                page = await dead_messages.lock_page(
                    connection,
                    chosen,
                    with_retried=changed == "discarded",
                    after=after,
                    limit=BATCH,
                )
                done = await change(connection, page)
                await _record(connection, done, actor, changed, reason)
            number += len(done)
            if len(page) < BATCH:
                break
            after = page[-1]
        async with self._database.transaction() as connection:
            await record_action(
                connection,
                actor.name,
                f"bus_dead_letters_{changed}",
                filter=chosen.as_json(),
                number=number,
                reason=reason,
            )
        return DeadMessagesView(number, more=len(page) == BATCH, dry_run=False)

    async def _foreseen(self, chosen: LetterFilter, *, with_retried: bool) -> DeadMessagesView:
        most = BATCH * MAX_BATCHES
        async with self._database.connection() as connection:
            number = await dead_messages.number_of(
                connection, _until_now(chosen), with_retried=with_retried, limit=most + 1
            )
        return DeadMessagesView(min(number, most), more=number > most, dry_run=True)


async def _record(
    connection: Connection,
    changed: Sequence[Buried],
    actor: Actor,
    how: str,
    reason: str | None,
) -> None:
    """Say of each in the audit log what was done with it."""
    actions = [
        Action(
            event_id=None,
            actor=actor.name,
            action=f"bus_dead_letter_{how}",
            success=True,
            details={
                "letter_id": one.id,
                "consumer": one.consumer,
                "message_id": str(one.event_id),
                "reason": reason,
            },
        )
        for one in changed
    ]
    await record_actions(connection, actions)


def _until_now(chosen: LetterFilter) -> LetterFilter:
    now = datetime.now(UTC)
    return replace(chosen, until=now if chosen.until is None else min(chosen.until, now))
