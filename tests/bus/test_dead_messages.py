"""Messages that a group could not take, and that a person retries or discards meanwhile."""

from datetime import UTC, datetime
from uuid import uuid4

from paidonce.errors import MessageRefusedError
from paidonce.store import dead_messages
from paidonce.store.db import Database
from paidonce.store.dead_messages import Buried, LetterFilter
from tests.bus.poison import POISON, Picky, drained
from tests.bus.traffic import follower, relay_all, rows, told

NOW = datetime(2026, 11, 15, tzinfo=UTC)
EVERYTHING = LetterFilter()


async def bury(database: Database, number: int) -> list[int]:
    async with database.transaction() as connection:
        for key in range(number):
            await dead_messages.bury(
                connection,
                consumer="followers",
                event_id=uuid4(),
                topic="paidonce.thing",
                key=str(key),
                type_="Changed",
                version=1,
                time=NOW,
                body=b"{}",
                error="KeyError",
                attempts=1,
            )
    return [row["id"] for row in await rows(database, "SELECT id FROM bus_dead_letters ORDER BY 1")]


async def retry(database: Database, letter_ids: list[int]) -> list[Buried]:
    async with database.transaction() as connection:
        return await dead_messages.ask_retry(connection, letter_ids)


async def discard(database: Database, letter_ids: list[int]) -> list[Buried]:
    async with database.transaction() as connection:
        return await dead_messages.discard(connection, letter_ids, actor="me", reason="why")


async def forget(database: Database) -> None:
    """Nobody knows any more what the groups have taken, and everything comes again."""
    await rows(database, "DELETE FROM processed_events")
    await rows(database, "UPDATE bus_cursors SET pos = 0")


async def test_a_group_does_not_get_what_was_discarded(database: Database) -> None:
    """BUS-1 OPS-5: also if somebody had asked for it before."""
    one, two = await bury(database, 2)
    await retry(database, [one, two])
    await discard(database, [one])
    async with database.transaction() as connection:
        found = await dead_messages.next_retried(connection, "followers")
        assert found is not None
        assert found.id == two
        await dead_messages.taken(connection, two)
        assert await dead_messages.next_retried(connection, "followers") is None
    assert await retry(database, [one, two]) == []
    assert await discard(database, [one, two]) == []


async def test_what_a_group_has_in_hand_is_passed_over(database: Database) -> None:
    """RET-3 BUS-1: whoever retries or discards many waits for nobody."""
    one, two = await bury(database, 2)
    await retry(database, [one])
    async with database.transaction() as holding:
        assert await dead_messages.next_retried(holding, "followers") is not None
        async with database.transaction() as connection:
            page = await dead_messages.lock_page(
                connection, EVERYTHING, with_retried=True, after=0, limit=10
            )
    assert page == [two]


async def test_one_that_is_discarded_while_it_fails_again_stays_discarded(
    database: Database,
) -> None:
    """BUS-1 OPS-5: the failure is written after its transaction has ended."""
    (one,) = await bury(database, 1)
    await discard(database, [one])
    async with database.transaction() as connection:
        await dead_messages.failed_again(connection, one, "ValueError")
    (letter,) = await rows(database, "SELECT * FROM bus_dead_letters")
    assert (letter["discarded_by"], letter["error"], letter["attempts"]) == ("me", "KeyError", 1)


async def test_those_that_are_retried_together_come_in_their_order(database: Database) -> None:
    """BUS-1 RET-3: as far as they can, since what followed them was taken long ago."""
    letters = await bury(database, 5)
    await retry(database, letters[::-1])
    got = []
    async with database.transaction() as connection:
        while letter := await dead_messages.next_retried(connection, "followers"):
            got.append(letter.id)
            await dead_messages.taken(connection, letter.id)
    assert got == letters


async def test_one_that_was_discarded_and_comes_and_fails_again_is_open_again(
    database: Database,
) -> None:
    """BUS-1 OPS-5: a person has to know of it."""
    await told(database, POISON)
    await relay_all(database)
    picky = Picky(MessageRefusedError("not yet"))
    consumer = follower(database, take=picky.take)
    await drained(consumer)
    (letter,) = await rows(database, "SELECT id FROM bus_dead_letters")
    await discard(database, [letter["id"]])
    await forget(database)
    await drained(consumer)
    (letter,) = await rows(database, "SELECT * FROM bus_dead_letters")
    assert (letter["discarded_at"], letter["discard_reason"], letter["attempts"]) == (None, None, 2)

    await discard(database, [letter["id"]])
    picky.is_cured = True
    await forget(database)
    await drained(consumer)
    (letter,) = await rows(database, "SELECT * FROM bus_dead_letters")
    assert (letter["discarded_at"], letter["taken_at"] is None) == (None, False), "taken after all"
    await consumer.close()
