"""How far each group of consumers has come, and which messages it has taken (BUS-1)."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from paidonce.store.outbox import MAX_COUNTED
from paidonce.store.queries import Connection, load_queries

QUERIES: Final = load_queries(__file__)


async def appear(connection: Connection, consumer: str, about: Collection[str]) -> None:
    """Let the group have a cursor for each of the topics; a new one stands before all that is kept.

    In a transaction of its own.
    """
    await QUERIES["appear"].run(connection, consumer=consumer, about=list(about))


async def is_behind(connection: Connection, consumer: str, about: Collection[str]) -> bool:
    """Whether something is published that the group has not taken."""
    return (
        await QUERIES["is_behind"].row(connection, consumer=consumer, about=list(about)) is not None
    )


async def lock(connection: Connection, consumer: str, about: Collection[str]) -> dict[str, int]:
    """The cursors that no other process of the group reads at now, held to the transaction's end.

    None of them may be there yet: then let the group appear.
    """
    rows = await QUERIES["lock"].rows(connection, consumer=consumer, about=list(about))
    return {row["about"]: row["pos"] for row in rows}


async def advance(connection: Connection, consumer: str, places: Mapping[str, int]) -> None:
    """What stands up to these positions is taken. The cursors have to be locked."""
    await QUERIES["advance"].run(
        connection, consumer=consumer, about=list(places), pos=list(places.values())
    )


async def be_seen(
    connection: Connection, consumer: str, about: Collection[str], lags: Mapping[str, int] | None
) -> None:
    """The group is at work. Lags are given if it reads elsewhere than in this database."""
    known = lags or {}
    await QUERIES["be_seen"].run(
        connection, consumer=consumer, about=list(about), lag=[known.get(one) for one in about]
    )


async def be_here(connection: Connection, consumer: str, about: Collection[str]) -> None:
    """The group is at work, and does not know how far behind it is."""
    await QUERIES["be_here"].run(connection, consumer=consumer, about=list(about))


async def claim(connection: Connection, consumer: str, ids: Collection[UUID]) -> set[UUID]:
    """Those of the messages that the group has not taken yet; from the commit on it has.

    One that was a dead letter, and comes again and is taken, is one no more.
    """
    rows = await QUERIES["claim"].rows(connection, consumer=consumer, ids=list(ids))
    return {row["event_id"] for row in rows}


@dataclass(frozen=True, slots=True)
class Standing:
    """How far a group is behind in a topic, up to MAX_COUNTED, and when it was last at work."""

    consumer: str
    about: str
    lag: int
    seen_at: datetime
    absent_s: float


async def standings(connection: Connection) -> list[Standing]:
    """Where every group stands that was ever there."""
    rows = await QUERIES["groups"].rows(connection, most=MAX_COUNTED)
    return [Standing(**row) for row in rows]
