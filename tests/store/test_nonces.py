"""A nonce is used once: for another meaning it is a replay, for the same one a duplicate."""

import asyncio
import json
from dataclasses import dataclass, replace
from typing import Any

import pytest_asyncio

from paidonce.domain.events import SourceId
from paidonce.engine.items import Incoming, Refused, Result, Verdict
from paidonce.engine.transactions import Settler
from paidonce.errors import InvalidSignatureError
from paidonce.providers.contract import FINGERPRINT_VERSION, Delivery, Identity, key_digest
from tests.store.batches import Plain, Stage, somebody_waits


@dataclass(frozen=True)
class WithNonce(Plain):
    """A gateway that signs a nonce, where there is one."""

    def identify(self, delivery: Delivery) -> Identity:
        nonce = json.loads(delivery.body).get("nonce")
        return replace(super().identify(delivery), nonce=nonce)


@pytest_asyncio.fixture(loop_scope="session")
async def shop(shop: Stage) -> Stage:
    """The shop, whose source has nonces."""
    source = replace(shop.source, provider=WithNonce())
    return replace(shop, source=source, rules=replace(shop.rules, sources={source.id: source}))


async def judged(settler: Settler, *items: Incoming) -> list[Verdict]:
    return (await settler.settle(items)).verdicts


async def results(settler: Settler, *items: Incoming) -> list[Result]:
    return [verdict.result for verdict in await judged(settler, *items)]


def paid(shop: Stage, payment: str, nonce: str | None = "n", **said: Any) -> Incoming:
    """A paid event of a user that is known."""
    return shop.paid(payment, nonce=nonce, email="one@example.com", **said)


async def test_a_nonce_with_another_meaning_is_a_replay(shop: Stage, settler: Settler) -> None:
    """SEC-3: it is kept as evidence, and claims no key."""
    await shop.user("one@example.com")
    first, second = paid(shop, "p"), paid(shop, "q")
    assert await results(settler, first) == [Result.PROCESSED]
    (verdict,) = await judged(settler, second)
    assert verdict.result is Result.FAILED_FINAL
    assert isinstance(verdict.item, Refused)
    row = await shop.event_row(second)
    assert (row["status"], row["error_code"]) == ("FAILED_FINAL", "REPLAYED_NONCE")
    assert row["signature_valid"]
    assert row["raw_body"] == second.delivery.body
    assert await shop.number("event_keys") == await shop.number("payments") == 1
    assert await results(settler, paid(shop, "q", nonce="m")) == [Result.PROCESSED]


async def test_a_nonce_with_the_same_meaning_is_a_duplicate(shop: Stage, settler: Settler) -> None:
    """SEC-3 REC-7"""
    await shop.user("one@example.com")
    assert await results(settler, paid(shop, "p")) == [Result.PROCESSED]
    assert await results(settler, paid(shop, "p")) == [Result.DUPLICATE]
    assert await results(settler, paid(shop, "p", nonce="m")) == [Result.DUPLICATE]
    assert await shop.number("nonces") == 2


async def test_another_meaning_of_the_same_key_is_another_meaning(
    shop: Stage, settler: Settler
) -> None:
    """SEC-3: a conflict that also replays a nonce is a replay."""
    await shop.user("one@example.com")
    assert await results(settler, paid(shop, "p")) == [Result.PROCESSED]
    assert await results(settler, paid(shop, "p", amount_minor=1)) == [Result.FAILED_FINAL]
    other = paid(shop, "p", nonce="m", amount_minor=1)
    assert await results(settler, other) == [Result.CONFLICT]


async def test_two_sources_may_use_the_same_nonce(shop: Stage, settler: Settler) -> None:
    """SEC-3"""
    await shop.user("one@example.com")
    other = replace(paid(shop, "q"), source=replace(shop.source, id=SourceId(7)))
    other = replace(other, key=(other.source.id, other.key[1]))
    assert await results(settler, paid(shop, "p"), other) == [Result.PROCESSED] * 2


async def test_the_first_of_a_batch_uses_the_nonce(shop: Stage, settler: Settler) -> None:
    """SEC-3: those without one are not concerned."""
    await shop.user("one@example.com")
    items = [
        paid(shop, "p"),
        paid(shop, "q"),
        paid(shop, "p"),
        paid(shop, "r", nonce=None),
        paid(shop, "s", nonce="m"),
    ]
    done = Result.PROCESSED
    expected = [done, Result.FAILED_FINAL, Result.DUPLICATE, done, done]
    assert await results(settler, *items) == expected


async def test_of_two_transactions_one_uses_the_nonce(shop: Stage) -> None:
    """SEC-3: whoever comes second waits for the first, and sees what it used it for."""
    await shop.user("one@example.com")
    items = [paid(shop, f"p-{number}") for number in range(6)]
    settlers = [Settler(shop.database, shop.rules) for _ in items]
    done = await asyncio.gather(*map(results, settlers, items))
    for settler in settlers:
        await settler.close()
    found = sorted(result for (result,) in done)
    assert found == [Result.FAILED_FINAL] * 5 + [Result.PROCESSED]
    assert await shop.number("payments") == 1


async def test_a_nonce_of_a_transaction_that_is_undone_was_not_used(
    shop: Stage, settler: Settler
) -> None:
    """SEC-3: and whoever waits for it goes on."""
    await shop.user("one@example.com")
    other = await shop.database.dedicated()
    transaction = other.transaction()
    await transaction.start()
    item = paid(shop, "p")
    await other.execute(
        "INSERT INTO nonces (source_id, digest, fingerprint, fingerprint_version)"
        " VALUES ($1, $2, $2, $3)",
        shop.source.id,
        key_digest("n"),
        FINGERPRINT_VERSION,
    )
    settling = asyncio.create_task(results(settler, item))
    async with shop.database.connection() as connection:
        await somebody_waits(connection)
    await transaction.rollback()
    await other.close()
    assert await settling == [Result.PROCESSED]


async def test_what_is_forged_or_refused_uses_no_nonce(shop: Stage, settler: Settler) -> None:
    """SEC-3: otherwise anybody could use up the nonce of what is still to come."""
    await shop.user("one@example.com")
    item = paid(shop, "p")
    refusal = InvalidSignatureError("no")
    forged = Refused(
        item.event_id, item.source, item.request, item.delivery, refusal, signature_valid=False
    )
    await settler.settle([forged])
    assert await shop.number("nonces") == 0


async def test_what_an_older_program_meant_is_not_compared(shop: Stage, settler: Settler) -> None:
    """SEC-3: its fingerprints were made otherwise; the key still tells what is known."""
    await shop.user("one@example.com")
    assert await results(settler, paid(shop, "p")) == [Result.PROCESSED]
    async with shop.database.connection() as connection:
        await connection.execute("UPDATE nonces SET fingerprint_version = 0")
    assert await results(settler, paid(shop, "q")) == [Result.PROCESSED]


async def test_a_batch_without_nonces_asks_nothing_of_them(shop: Stage, settler: Settler) -> None:
    """SEC-3 REC-3: neither a round trip nor a part of a statement."""
    await shop.user("one@example.com")
    await settler.settle([paid(shop, "first", nonce=None)])
    asked: list[str] = []
    connection = settler._connection
    assert connection is not None
    with connection.query_logger(lambda one: asked.append(one.query)):
        await settler.settle([paid(shop, "p", nonce=None)])
    await asyncio.sleep(0)  # the driver tells of a query a moment later
    assert len(asked) == 2
    assert not any("nonces" in query for query in asked)
