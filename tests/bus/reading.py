"""How tests put messages on a bus and take them off."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Final

import orjson
from uuid_utils.compat import uuid7

from paidonce.bus.contract import Reader
from paidonce.bus.model import TOPIC_PREFIX, Message
from paidonce.db.queries import Connection
from paidonce.errors import BusUnavailableError

DEADLINE_S: Final = 60.0
PAUSE_S: Final = 0.05


def message(about: str, key: str, version: int) -> Message:
    """Something that happened to `key`, as its so-manieth."""
    body = orjson.dumps({"key": key, "version": version})
    return Message(
        id=uuid7(),
        topic=TOPIC_PREFIX + about,
        key=key,
        type="ThingHappened",
        version=version,
        time=datetime.now(UTC),
        body=body,
    )


def lives(about: str, *, keys: int, versions: int) -> list[Message]:
    """The lives of some things, mingled."""
    return [
        message(about, f"thing-{key}", version)
        for version in range(1, versions + 1)
        for key in range(keys)
    ]


async def read(
    reader: Reader, connection: Connection, number: int, limit: int = 100
) -> list[Message]:
    """Take messages until so many have come, each acknowledged."""
    found: list[Message] = []

    async def take() -> bool:
        found.extend(await next_batch(reader, connection, limit))
        await reader.advance(connection)
        await reader.acknowledge()
        return len(found) >= number

    await until(take)
    return found


async def next_batch(reader: Reader, connection: Connection, limit: int) -> Sequence[Message]:
    """What is there, if anything; nothing is said of what became of it."""
    if not await reader.wait(connection, limit):
        return []
    return await reader.fetch(connection, limit)


async def until(is_done: Callable[[], Awaitable[bool]]) -> None:
    """Ask again until it is so. A bus that is away is waited for."""
    deadline_s = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline_s:
        try:
            if await is_done():
                return
        except BusUnavailableError:
            pass
        await asyncio.sleep(PAUSE_S)
    raise AssertionError(f"not so after {DEADLINE_S} s")


def first_copies(messages: Iterable[Message]) -> list[Message]:
    """As an inbox sees them: what came before is passed over."""
    return list({one.id: one for one in reversed(list(messages))}.values())[::-1]


def versions_by_key(messages: Sequence[Message]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for one in messages:
        found.setdefault(one.key, []).append(one.version)
    return found
