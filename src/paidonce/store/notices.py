"""What people are to be told, and the messages that tell them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import orjson

from paidonce import telemetry
from paidonce.domain.email import masked, without_addresses
from paidonce.domain.events import EventId, PaymentId
from paidonce.domain.notices import NoticeKind
from paidonce.store.queries import Connection, load_queries
from paidonce.store.rows import Row

QUERIES: Final = load_queries(__file__)

MAX_UNTOLD: Final = 1_000
"""How many notices of one kind and source wait for a channel; more are counted and not kept."""
MAX_TAKEN: Final = 10_000
"""How many notices one message is of at most."""
TELL_FOR_S: Final = 7 * 86_400.0
"""How long a notice is put into message after message while nobody takes them."""

MAX_TEXT: Final = 200

Telling = Mapping[NoticeKind, Sequence[str]]
"""The channels that want to be told of each kind."""


@dataclass(frozen=True, slots=True)
class Notice:
    """A fact that people should know of. Its details hold no secret, payload or whole address.

    With `not_before` it is told then, and only if the payment still has the code of the details
    for review.
    """

    kind: NoticeKind
    at: datetime
    source: str = ""
    event_id: EventId | None = None
    payment_id: PaymentId | None = None
    details: Mapping[str, object] = field(default_factory=dict)
    not_before: datetime | None = None

    def rows(self, told_to: Telling) -> Iterator[Row]:
        """A row for each channel that wants it, in the order of COLUMNS."""
        channels = told_to.get(self.kind, ())
        said = orjson.dumps(dict(self.details), default=str, option=_AS_TEXT).decode()
        for channel in channels:
            what = (self.kind, self.source, self.event_id, self.payment_id, said)
            yield (channel, self.at, *what, self.not_before)


_AS_TEXT: Final = orjson.OPT_PASSTHROUGH_DATACLASS

COLUMNS: Final = (
    "channel", "at", "kind", "source", "event_id", "payment_id", "details", "not_before",
)  # fmt: skip


async def add(connection: Connection, told_to: Telling, *notices: Notice) -> None:
    """Let people be told, in the transaction that is open on the connection: once it commits."""
    await write(connection, [row for notice in notices for row in notice.rows(told_to)])


async def write(connection: Connection, rows: Sequence[Row]) -> None:
    """The same of rows that are there already. It waits for nobody."""
    if rows:
        columns = dict(zip(COLUMNS, zip(*rows, strict=True), strict=True))
        await QUERIES["add"].run(connection, **columns, max_untold=MAX_UNTOLD)


def clean(said: Mapping[str, object]) -> dict[str, object]:
    """Texts as a message may show them: masked, short, and such as a column can hold."""
    email = said.get("email")
    wanted = dict(said, email=masked(email) if isinstance(email, str) else None)
    return {name: shown(str(value)) for name, value in wanted.items() if value is not None}


def shown(text: str) -> str:
    """An id may hold whatever its sender has put there: a card number, a secret."""
    storable = text.replace("\x00", "�").encode("utf-8", "replace").decode()
    return without_addresses(telemetry.masked(storable))[:MAX_TEXT]


@dataclass(frozen=True, slots=True)
class Told:
    """A notice as it was kept, and how many others of its kind and source were only counted."""

    kind: str
    source: str
    at: datetime
    event_id: UUID | None
    payment_id: UUID | None
    details: Mapping[str, Any]
    more: int


@dataclass(frozen=True, slots=True)
class Message:
    """What a channel is sent, for this time."""

    id: UUID
    at: datetime
    content: Mapping[str, Any]
    attempts: int
    age_s: float


async def is_time_for(connection: Connection, channel: str, every_s: float) -> bool:
    """Whether something is untold, no message waits, and the last one is so long ago."""
    row = await QUERIES["is_time"].row(connection, channel=channel, every_s=every_s)
    return row is not None and bool(row["is_so"])


async def take(connection: Connection, channel: str, message_id: UUID) -> list[Told]:
    """Put what is untold into this message, the newest last. In the caller's transaction."""
    await QUERIES["forget_settled"].run(connection, channel=channel)
    rows = await QUERIES["take"].rows(
        connection, channel=channel, message_id=message_id, limit=MAX_TAKEN
    )
    found = [dict(row) | {"details": orjson.loads(row["details"])} for row in rows]
    numbered = sorted(found, key=lambda one: one.pop("id"))
    return [Told(**one) for one in numbered]


async def add_message(
    connection: Connection, message_id: UUID, channel: str, content: Mapping[str, Any]
) -> None:
    """Let it be sent. In the caller's transaction."""
    said = orjson.dumps(content, default=str).decode()
    await QUERIES["add_message"].run(connection, id=message_id, channel=channel, content=said)


async def begin_attempt(
    connection: Connection, channel: str, delays_s: Sequence[float]
) -> Message | None:
    """The channel's message that is due, if there is one; it is due again after its delay.

    The delays are those after the first attempt, the second and so on; the last one counts for all
    that follow.
    """
    row = await QUERIES["begin_attempt"].row(connection, channel=channel, delays_s=delays_s)
    if row is None:
        return None
    content = orjson.loads(row["content"])
    return Message(row["id"], row["at"], content, row["attempts"], row["age_s"])


async def end(connection: Connection, message_id: UUID, status: str, error: str | None) -> None:
    """Write what became of an attempt: SENT, GIVEN_UP, or WAITING for another one.

    What was in a message that is given up is untold again, if it is not older than TELL_FOR_S. In
    the caller's transaction.
    """
    await QUERIES["end_attempt"].run(connection, id=message_id, status=status, error=error)
    if status == "GIVEN_UP":
        await QUERIES["tell_again"].run(connection, message_id=message_id, max_age_s=TELL_FOR_S)


async def untold(connection: Connection, channels: Iterable[str]) -> list[dict[str, Any]]:
    """How much each of the channels is still to be told, and the age of the oldest."""
    rows = await QUERIES["untold"].rows(connection, channels=list(channels))
    return [dict(row) for row in rows]
