"""The bus: how far it is behind, and the messages that could not be taken."""

from dataclasses import asdict

from paidonce.errors import ConflictError, NotFoundError
from paidonce.operations.desk import Actor, Desk, Found, first_of
from paidonce.store import cursors, dead_messages, outbox
from paidonce.store.listings import record_action
from paidonce.store.planning import read_in_order
from paidonce.views import BusView, DeadMessageView, GroupView


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
        self, *, limit: int, cursor: int | None = None, consumer: str | None = None
    ) -> Found[DeadMessageView]:
        """A page of the messages that could not be taken, the newest first."""
        async with self._database.connection() as connection:
            found = await dead_messages.listed(
                connection, consumer=consumer, after=cursor, limit=limit + 1
            )
        shown = [DeadMessageView(**asdict(one)) for one in found]
        return first_of(shown, limit, lambda one: one.id)

    async def retry_dead_message(self, letter_id: int, actor: Actor) -> DeadMessageView:
        """Give a message to its group again; the group takes it within seconds, if it can.

        Raises NotFoundError, or ConflictError when it was taken already.
        """
        async with self._database.transaction() as connection:
            found = await dead_messages.ask_retry(connection, letter_id)
            if found is None and await dead_messages.is_known(connection, letter_id):
                raise ConflictError(f"message {letter_id} was taken already")
            if found is None:
                raise NotFoundError(f"there is no dead letter {letter_id} of the bus")
            await record_action(
                connection,
                actor.name,
                "bus_dead_letter_retried",
                letter_id=letter_id,
                consumer=found.consumer,
                message_id=str(found.event_id),
            )
        return DeadMessageView(**asdict(found))
