"""Dead letters: messages that a consumer group could not consume, and their retries (BUS-1)."""

from collections.abc import Sequence
from typing import Final

from paidonce.bus.bisect import MAX_RERUNS, MessageFailure
from paidonce.bus.contract import Consume, Reader
from paidonce.bus.model import BusDeadLetter, BusDeadLetterFilter, BusDeadLetterQuery, Message
from paidonce.clock import CLOCK
from paidonce.core.notifications import NotificationKind
from paidonce.db.pool import Trouble, is_away, trouble
from paidonce.db.queries import Connection, load_queries
from paidonce.db.search import MAX_COUNTED
from paidonce.errors import InvalidMessageError
from paidonce.notifications import store as notifications_store
from paidonce.notifications.model import Notification, Routes, clean, clean_text
from paidonce.telemetry import logger, metrics

log = logger(__name__)

QUERIES: Final = load_queries(__file__)
_LIST: Final = QUERIES["find_dead_letters"].without("ids", "unretried", "locks")
LIST_OPEN: Final = _LIST.without("discarded")
LIST_DISCARDED: Final = _LIST.without("open")
LOCK_RETRIED_TOO: Final = QUERIES["find_dead_letters"].without("list", "discarded", "unretried")
LOCK: Final = QUERIES["find_dead_letters"].without("list", "discarded")
_RETRY: Final = QUERIES["change_dead_letters"].without("discard")
_DISCARD: Final = QUERIES["change_dead_letters"].without("retry")


async def add(
    connection: Connection, consumer: str, message: Message, error: str, attempts: int
) -> None:
    """Store a dead letter, in the caller's transaction."""
    names = ("topic", "key", "type", "version", "time", "body")
    fields = {name: getattr(message, name) for name in names} | {"event_id": message.id}
    await QUERIES["add_dead_letter"].run(
        connection, consumer=consumer, error=error, attempts=attempts, **fields
    )


async def search(connection: Connection, query: BusDeadLetterQuery) -> list[BusDeadLetter]:
    """A page of dead letters, and one more if there is one."""
    sql = LIST_DISCARDED if query.discarded else LIST_OPEN
    values = query.model_dump(exclude={"discarded"}) | {"limit": query.limit + 1}
    return [BusDeadLetter(**row) for row in await sql.rows(connection, **values)]


async def lock(
    connection: Connection,
    filter_: BusDeadLetterFilter,
    *,
    with_retried: bool,
    after: int,
    limit: int,
) -> list[int]:
    """Lock open dead letters that match and that nobody else holds, oldest first; returns ids."""
    sql = LOCK_RETRIED_TOO if with_retried else LOCK
    rows = await sql.rows(connection, **filter_.model_dump(), after=after, limit=limit)
    return [row["id"] for row in rows]


async def count(
    connection: Connection, filter_: BusDeadLetterFilter, *, with_retried: bool, limit: int
) -> int:
    """The number of open dead letters that match, up to a limit."""
    sql = (LOCK_RETRIED_TOO if with_retried else LOCK).without("locks")
    return len(await sql.rows(connection, **filter_.model_dump(), after=0, limit=limit))


async def retry(connection: Connection, ids: Sequence[int]) -> list[BusDeadLetter]:
    """Let the groups receive these again; returns those that are still open."""
    return [BusDeadLetter(**row) for row in await _RETRY.rows(connection, ids=ids)]


async def discard(
    connection: Connection, ids: Sequence[int], *, actor: str, reason: str
) -> list[BusDeadLetter]:
    """Discard these; returns those that were still open."""
    rows = await _DISCARD.rows(connection, ids=ids, actor=actor, reason=reason)
    return [BusDeadLetter(**row) for row in rows]


async def why_closed(connection: Connection, letter_id: int) -> str | None:
    """How a dead letter was closed, for an error message; None if it does not exist."""
    row = await QUERIES["discarded_by"].row(connection, id=letter_id)
    if row is None:
        return None
    return f"discarded by {row['discarded_by']}" if row["discarded_by"] else "consumed already"


async def next_retry(connection: Connection, consumer: str) -> tuple[int, Message] | None:
    """Lock the next dead letter that the group is to receive again; returns its id, too."""
    row = await QUERIES["next_retry"].row(connection, consumer=consumer)
    if row is None:
        return None
    fields = dict(row)
    return fields.pop("letter_id"), Message(**fields)


async def mark_consumed(connection: Connection, letter_id: int) -> None:
    """Close a dead letter, in the transaction of its effect."""
    await QUERIES["mark_consumed"].run(connection, id=letter_id)


async def retry_failed(connection: Connection, letter_id: int, error: str) -> None:
    """Record a failed retry; the dead letter waits for the next request."""
    await QUERIES["retry_failed"].run(connection, id=letter_id, error=error)


async def count_by_group(connection: Connection) -> dict[str, int]:
    """The number of open dead letters of each group, up to MAX_COUNTED."""
    rows = await QUERIES["count_dead_letters"].rows(connection, most=MAX_COUNTED)
    return {row["consumer"]: row["number"] for row in rows}


class DeadLetterQueue:
    """The dead letters of one consumer group."""

    def __init__(self, group: str, routes: Routes) -> None:
        self._group = group
        self._routes = routes
        self._lost_races = 0

    async def add(
        self, connection: Connection, reader: Reader, message: Message, failure: MessageFailure
    ) -> None:
        """Store the message and notify, in the transaction that skips it."""
        await add(connection, self._group, message, failure.error, failure.attempts)
        await reader.dead_letter(message, failure.error, failure.attempts)
        details = {"consumer": self._group, "type": message.type, "key": message.key}
        notification = Notification(
            NotificationKind.BUS_DEAD_LETTER,
            CLOCK.now(),
            details=clean(details | {"message": failure.error}),
        )
        await notifications_store.add(connection, self._routes, notification)

    async def retry_once(self, connection: Connection, consume: Consume) -> bool:
        """Consume one dead letter that an operator retries; returns whether more may follow.

        It is out of order: later messages with its key were consumed before.
        """
        letter_id = None
        try:
            async with connection.transaction():
                found = await next_retry(connection, self._group)
                if found is None:
                    return False
                letter_id, message = found
                await consume(connection, [message])
                await mark_consumed(connection, letter_id)
        except Exception as error:
            if letter_id is None or is_away(error, connection):
                raise
            return await self._fail(connection, letter_id, error)
        self._lost_races = 0
        metrics.bound(metrics.BUS_CONSUMED, self._group).inc()
        return True

    async def _fail(self, connection: Connection, letter_id: int, error: Exception) -> bool:
        """Try again later after a lost race; record every other failure."""
        if trouble(error) is Trouble.RERUN and self._lost_races < MAX_RERUNS:
            self._lost_races += 1
            return False
        self._lost_races = 0
        log.warning("dead_letter_retry_failed", letter_id=letter_id, exc_info=error)
        await retry_failed(connection, letter_id, error_text(error))
        return True


def error_text(error: Exception) -> str:
    """The text to store for an error. Other errors' texts may quote the message."""
    is_refused = isinstance(error, InvalidMessageError)
    return clean_text(str(error) if is_refused else type(error).__name__)
