"""What a group could not take: buried, told to people, and given to the group again if they ask."""

from datetime import UTC, datetime

from paidonce import telemetry
from paidonce.bus.blame import MAX_RERUNS, Failure
from paidonce.bus.contract import Reader, Take
from paidonce.bus.messages import Message
from paidonce.domain.notices import NoticeKind
from paidonce.errors import MessageRefusedError
from paidonce.store import dead_messages, notices
from paidonce.store.db import Trouble, is_away, trouble
from paidonce.store.dead_messages import Retried
from paidonce.store.notices import Notice, Telling
from paidonce.store.queries import Connection
from paidonce.telemetry import logger

log = logger(__name__)


class DeadLetters:
    """Those of one group."""

    def __init__(self, group: str, told_to: Telling) -> None:
        self._group = group
        self._told_to = told_to
        self._lost_races = 0

    async def bury(
        self, connection: Connection, reader: Reader, message: Message, failure: Failure
    ) -> None:
        """Keep the message for a person, in the transaction that passes over it."""
        await dead_messages.bury(
            connection,
            consumer=self._group,
            event_id=message.id,
            topic=message.topic,
            key=message.key,
            type_=message.type,
            version=message.version,
            time=message.time,
            body=message.body,
            error=failure.error,
            attempts=failure.attempts,
        )
        await reader.bury(connection, message, failure.error, failure.attempts)
        said = {"consumer": self._group, "type": message.type, "key": message.key}
        details = notices.clean({**said, "message": failure.error})
        notice = Notice(NoticeKind.BUS_DEAD_LETTER, datetime.now(UTC), details=details)
        await notices.add(connection, self._told_to, notice)

    async def retry_once(self, connection: Connection, take: Take) -> bool:
        """Take one that an operator wants to be taken; returns whether more may be taken at once.

        It is out of its order: what came after it has been taken long ago.
        """
        letter = None
        try:
            async with connection.transaction():
                letter = await dead_messages.next_retried(connection, self._group)
                if letter is None:
                    return False
                await take(connection, [_message_of(letter)])
                await dead_messages.taken(connection, letter.id)
        except Exception as error:
            if letter is None or is_away(error, connection):
                raise
            return await self._fail(connection, letter, error)
        self._lost_races = 0
        telemetry.bound(telemetry.TAKEN, self._group).inc()
        return True

    async def _fail(self, connection: Connection, letter: Retried, error: Exception) -> bool:
        """Leave it for the next look if somebody else was first, else to a person."""
        if trouble(error) is Trouble.RERUN and self._lost_races < MAX_RERUNS:
            self._lost_races += 1
            return False
        self._lost_races = 0
        log.warning("dead_letter_failed_again", letter_id=letter.id, exc_info=error)
        await dead_messages.failed_again(connection, letter.id, told(error))
        return True


def _message_of(letter: Retried) -> Message:
    return Message(
        id=letter.event_id,
        topic=letter.topic,
        key=letter.key,
        type=letter.type,
        version=letter.version,
        time=letter.time,
        body=letter.body,
    )


def told(error: Exception) -> str:
    """What is kept of an error. Others' own words may hold what is in the message."""
    refused = isinstance(error, MessageRefusedError)
    return notices.shown(f"{error}" if refused else type(error).__name__)
