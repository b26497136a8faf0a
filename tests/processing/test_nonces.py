"""A nonce is used once: for another meaning it is a replay, for the same one a duplicate."""

import asyncio
import json
from dataclasses import dataclass, replace
from typing import Any

import pytest_asyncio

from paidonce.core.events import SourceId
from paidonce.errors import InvalidSignatureError
from paidonce.processing.items import Incoming, Rejected, Result, ResultKind
from paidonce.processing.transactions import Processor
from paidonce.providers.contract import FINGERPRINT_VERSION, Delivery, Identity, key_digest
from tests.support.batches import Plain, Stage, somebody_waits


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


async def judged(processor: Processor, *items: Incoming) -> list[Result]:
    return (await processor.process(items)).results


async def results(processor: Processor, *items: Incoming) -> list[ResultKind]:
    return [result.kind for result in await judged(processor, *items)]


def paid(shop: Stage, payment: str, nonce: str | None = "n", **said: Any) -> Incoming:
    """A paid event of a user that is known."""
    return shop.paid(payment, nonce=nonce, email="one@example.com", **said)


async def test_a_nonce_with_another_meaning_is_a_replay(shop: Stage, processor: Processor) -> None:
    """SEC-3: it is kept as evidence, and claims no key."""
    await shop.user("one@example.com")
    first, second = paid(shop, "p"), paid(shop, "q")
    assert await results(processor, first) == [ResultKind.PROCESSED]
    (result,) = await judged(processor, second)
    assert result.kind is ResultKind.FAILED_FINAL
    assert isinstance(result.item, Rejected)
    row = await shop.event_row(second)
    assert (row["status"], row["error_code"]) == ("FAILED_FINAL", "REPLAYED_NONCE")
    assert row["signature_valid"]
    assert row["raw_body"] == second.delivery.body
    assert await shop.number("event_keys") == await shop.number("payments") == 1
    assert await results(processor, paid(shop, "q", nonce="m")) == [ResultKind.PROCESSED]


async def test_a_nonce_with_the_same_meaning_is_a_duplicate(
    shop: Stage, processor: Processor
) -> None:
    """SEC-3 REC-7"""
    await shop.user("one@example.com")
    assert await results(processor, paid(shop, "p")) == [ResultKind.PROCESSED]
    assert await results(processor, paid(shop, "p")) == [ResultKind.DUPLICATE]
    assert await results(processor, paid(shop, "p", nonce="m")) == [ResultKind.DUPLICATE]
    assert await shop.number("nonces") == 2


async def test_the_same_nonce_and_key_with_another_meaning_is_a_replay(
    shop: Stage, processor: Processor
) -> None:
    """SEC-3: a conflict that also replays a nonce is a replay."""
    await shop.user("one@example.com")
    assert await results(processor, paid(shop, "p")) == [ResultKind.PROCESSED]
    assert await results(processor, paid(shop, "p", amount_minor=1)) == [ResultKind.FAILED_FINAL]
    other = paid(shop, "p", nonce="m", amount_minor=1)
    assert await results(processor, other) == [ResultKind.CONFLICT]


async def test_two_sources_may_use_the_same_nonce(shop: Stage, processor: Processor) -> None:
    """SEC-3"""
    await shop.user("one@example.com")
    other = replace(paid(shop, "q"), source=replace(shop.source, id=SourceId(7)))
    other = replace(other, key=(other.source.id, other.key[1]))
    assert await results(processor, paid(shop, "p"), other) == [ResultKind.PROCESSED] * 2


async def test_the_first_of_a_batch_uses_the_nonce(shop: Stage, processor: Processor) -> None:
    """SEC-3: those without one are not concerned."""
    await shop.user("one@example.com")
    items = [
        paid(shop, "p"),
        paid(shop, "q"),
        paid(shop, "p"),
        paid(shop, "r", nonce=None),
        paid(shop, "s", nonce="m"),
    ]
    done = ResultKind.PROCESSED
    expected = [done, ResultKind.FAILED_FINAL, ResultKind.DUPLICATE, done, done]
    assert await results(processor, *items) == expected


async def test_of_two_transactions_one_uses_the_nonce(shop: Stage) -> None:
    """SEC-3: whoever comes second waits for the first, and sees what it used it for."""
    await shop.user("one@example.com")
    items = [paid(shop, f"p-{number}") for number in range(6)]
    processors = [Processor(shop.database, shop.rules) for _ in items]
    done = await asyncio.gather(*map(results, processors, items))
    for processor in processors:
        await processor.close()
    found = sorted(result for (result,) in done)
    assert found == [ResultKind.FAILED_FINAL] * 5 + [ResultKind.PROCESSED]
    assert await shop.number("payments") == 1


async def test_a_rolled_back_transaction_uses_no_nonce(shop: Stage, processor: Processor) -> None:
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
    processing = asyncio.create_task(results(processor, item))
    async with shop.database.connection() as connection:
        await somebody_waits(connection)
    await transaction.rollback()
    await other.close()
    assert await processing == [ResultKind.PROCESSED]


async def test_a_forged_or_refused_delivery_uses_no_nonce(
    shop: Stage, processor: Processor
) -> None:
    """SEC-3: otherwise anybody could use up the nonce of what is still to come."""
    await shop.user("one@example.com")
    item = paid(shop, "p")
    refusal = InvalidSignatureError("no")
    forged = Rejected(
        item.event_id, item.source, item.request, item.delivery, refusal, signature_valid=False
    )
    await processor.process([forged])
    assert await shop.number("nonces") == 0


async def test_fingerprints_of_another_version_are_not_compared(
    shop: Stage, processor: Processor
) -> None:
    """SEC-3: its fingerprints were made otherwise; the key still tells what is known."""
    await shop.user("one@example.com")
    assert await results(processor, paid(shop, "p")) == [ResultKind.PROCESSED]
    async with shop.database.connection() as connection:
        await connection.execute("UPDATE nonces SET fingerprint_version = 0")
    assert await results(processor, paid(shop, "q")) == [ResultKind.PROCESSED]


async def test_a_batch_without_nonces_queries_none(shop: Stage, processor: Processor) -> None:
    """SEC-3 REC-3: neither a round trip nor a part of a statement."""
    await shop.user("one@example.com")
    await processor.process([paid(shop, "first", nonce=None)])
    asked: list[str] = []
    connection = await processor._connection.get()
    with connection.query_logger(lambda one: asked.append(one.query)):
        await processor.process([paid(shop, "p", nonce=None)])
    await asyncio.sleep(0)  # the driver tells of a query a moment later
    assert len(asked) == 2
    assert not any("nonces" in query for query in asked)
