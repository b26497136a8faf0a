"""What the outside is to be told, written with the facts that it is of (BUS-1)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import orjson
from uuid_utils.compat import uuid7

from paidonce.store.queries import Connection, load_queries

QUERIES: Final = load_queries(__file__)


@dataclass(frozen=True, slots=True)
class Fact:
    """Something that happened to one thing, in words for the outside."""

    about: str
    """What kind of thing, such as `wallet-payment`: the end of its topic's name."""
    key: str
    """Which of them. Facts with one key keep their order."""
    type: str
    version: int
    """Of the thing, after it happened. It grows by each fact."""
    said: Mapping[str, Any]
    at: datetime
    id: UUID = field(default_factory=uuid7)


async def add(connection: Connection, facts: Sequence[Fact]) -> None:
    """Tell of these, in this order, if and when the transaction commits.

    The rows of the things that they are about have to be locked.
    """
    if facts:
        await QUERIES["add"].run(connection, messages=[_row(fact) for fact in facts])


def _row(fact: Fact) -> tuple[object, ...]:
    said = orjson.dumps(fact.said, default=str).decode()
    return (fact.id, fact.about, fact.key, fact.type, fact.version, said, fact.at)
