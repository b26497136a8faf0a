"""Dead letters that operators retry or discard."""

from paidonce.bus import dead_letters
from paidonce.bus.model import BusDeadLetter, BusDeadLetterFilter
from paidonce.db.pool import Database
from paidonce.errors import InvalidMessageError
from tests.bus.poison import POISON, PoisonConsumer, drained
from tests.bus.reading import message
from tests.bus.traffic import follower, relay_all, rows, write_changes

ALL = BusDeadLetterFilter()


async def add_dead_letters(database: Database, number: int) -> list[int]:
    async with database.transaction() as connection:
        for key in range(number):
            failed = message("thing", str(key), 1)
            await dead_letters.add(connection, "followers", failed, "KeyError", 1)
    return [row["id"] for row in await rows(database, "SELECT id FROM bus_dead_letters ORDER BY 1")]


async def retry(database: Database, letter_ids: list[int]) -> list[BusDeadLetter]:
    async with database.transaction() as connection:
        return await dead_letters.retry(connection, letter_ids)


async def discard(database: Database, letter_ids: list[int]) -> list[BusDeadLetter]:
    async with database.transaction() as connection:
        return await dead_letters.discard(connection, letter_ids, actor="me", reason="why")


async def forget(database: Database) -> None:
    """Forget what the groups have consumed, so that everything is delivered again."""
    await rows(database, "DELETE FROM processed_events")
    await rows(database, "UPDATE bus_cursors SET pos = 0")


async def test_a_discarded_message_is_not_delivered(database: Database) -> None:
    """BUS-1 OPS-5: also if it was to be retried."""
    one, two = await add_dead_letters(database, 2)
    await retry(database, [one, two])
    await discard(database, [one])
    async with database.transaction() as connection:
        found = await dead_letters.next_retry(connection, "followers")
        assert found is not None
        assert found[0] == two
        await dead_letters.mark_consumed(connection, two)
        assert await dead_letters.next_retry(connection, "followers") is None
    assert await retry(database, [one, two]) == []
    assert await discard(database, [one, two]) == []


async def test_locked_dead_letters_are_skipped(database: Database) -> None:
    """RET-3 BUS-1: retrying or discarding many waits for no lock."""
    one, two = await add_dead_letters(database, 2)
    await retry(database, [one])
    async with database.transaction() as holding:
        assert await dead_letters.next_retry(holding, "followers") is not None
        async with database.transaction() as connection:
            page = await dead_letters.lock(connection, ALL, with_retried=True, after=0, limit=10)
    assert page == [two]


async def test_a_dead_letter_discarded_during_a_failing_retry_stays_discarded(
    database: Database,
) -> None:
    """BUS-1 OPS-5: the failure is written after its transaction has ended."""
    (one,) = await add_dead_letters(database, 1)
    await discard(database, [one])
    async with database.transaction() as connection:
        await dead_letters.retry_failed(connection, one, "ValueError")
    (letter,) = await rows(database, "SELECT * FROM bus_dead_letters")
    assert (letter["discarded_by"], letter["error"], letter["attempts"]) == ("me", "KeyError", 1)


async def test_dead_letters_retried_together_are_delivered_in_order(database: Database) -> None:
    """BUS-1 RET-3: later messages of their keys were consumed before."""
    letters = await add_dead_letters(database, 5)
    await retry(database, letters[::-1])
    got = []
    async with database.transaction() as connection:
        while letter := await dead_letters.next_retry(connection, "followers"):
            got.append(letter[0])
            await dead_letters.mark_consumed(connection, letter[0])
    assert got == letters


async def test_a_discarded_message_that_fails_again_is_open_again(
    database: Database,
) -> None:
    """BUS-1 OPS-5: an operator has to see it."""
    await write_changes(database, POISON)
    await relay_all(database)
    picky = PoisonConsumer(InvalidMessageError("not yet"))
    consumer = follower(database, consume=picky.consume)
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
    assert (letter["discarded_at"], letter["consumed_at"] is None) == (None, False), "consumed"
    await consumer.close()
