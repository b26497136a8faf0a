"""Events of the source whose webhooks are the payment service's callbacks."""

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime

import pytest
import pytest_asyncio
from uuid_utils.compat import uuid7

from paidonce.domain.events import EventId, Says
from paidonce.engine.asking import Asker
from paidonce.engine.gateway_calls import Patience
from paidonce.engine.items import Incoming, Refused, Request, Result
from paidonce.engine.transactions import Settler
from paidonce.errors import TimestampExpiredError
from paidonce.providers.contract import Delivery, key_digest
from paidonce.store.db import Database
from tests.store.batches import Stage, stage
from tests.store.test_asking import with_sources
from tests.thin import gateway_running, looks


@pytest_asyncio.fixture(loop_scope="session")
async def bank(database: Database) -> Stage:
    """A stage whose one source calls back."""
    return _calling_back(await stage(database))


def _calling_back(shop: Stage) -> Stage:
    source = replace(shop.source, is_calling_back=True)
    rules = replace(shop.rules, sources={source.id: source})
    return replace(shop, source=source, rules=rules)


@pytest_asyncio.fixture(loop_scope="session")
async def settler(bank: Stage) -> AsyncIterator[Settler]:
    made = Settler(bank.database, bank.rules)
    yield made
    await made.close()


async def test_each_word_of_a_transaction_is_kept_and_told_once(
    bank: Stage, settler: Settler
) -> None:
    """SVC-1: in one batch or several; and no payment of the ordinary kind is made."""
    words = [Says.PENDING, Says.PAID, Says.PAID, Says.FAILED, Says.VOIDED]
    batch = [
        bank.event(says, "tx-1", key=f"k-{number}", amount_minor=5, currency="RUB")
        for number, says in enumerate(words)
    ]
    settled = await settler.settle(batch)
    assert [one.result for one in settled.verdicts] == [Result.PROCESSED] * 5
    again = bank.event(Says.PAID, "tx-1", key="k-9", amount_minor=5, currency="RUB")
    await settler.settle([again])
    kept = await bank.rows("SELECT says, status FROM gateway_callbacks ORDER BY id")
    assert [one["says"] for one in kept] == ["pending", "succeeded", "failed"]
    told = await bank.rows(
        "SELECT type, payload->>'transaction_id' AS transaction FROM outbox ORDER BY seq"
    )
    assert told == [{"type": "ProviderCallbackReceived", "transaction": "tx-1"}] * 3
    for table in ("payments", "payment_ids", "due"):
        assert await bank.number(table) == 0


async def test_what_has_to_be_asked_is_told_when_it_is_known(database: Database) -> None:
    """SVC-1 REC-4: a source whose webhooks say only "look" can call back too."""
    async with gateway_running() as gateway:
        thin = _calling_back(await with_sources(await stage(database), looking=gateway.api))
        delivery = Delivery({"signature": "right"}, looks("tx-1"), datetime.now(UTC))
        identity = thin.source.provider.identify(delivery)
        item = Incoming(
            event_id=EventId(uuid7()),
            source=thin.source,
            request=Request("r", None, 0.0),
            delivery=delivery,
            identity=identity,
            key=(thin.source.id, key_digest(identity.key)),
            event=thin.source.provider.translate(delivery),  # type: ignore[arg-type]
        )
        settler = Settler(database, thin.rules)
        await settler.settle([item])
        assert await thin.number("gateway_callbacks") == 0
        await thin.rows("UPDATE due SET run_at = now()")
        asker = Asker(database, thin.rules, patience=Patience(pauses_s=()))
        await asker.run_once()
        await asker.close()
        await settler.close()
    kept = await thin.rows("SELECT transaction_id, says FROM gateway_callbacks")
    assert kept == [{"transaction_id": "tx-1", "says": "succeeded"}]
    assert await thin.number("payments") == 0


async def test_a_stale_callback_leaves_evidence_and_no_money(bank: Stage, settler: Settler) -> None:
    """SVC-1 PRV-8: the gateway is asked anyway; nothing is listed that nobody can apply."""
    sent = bank.event(Says.PAID, "tx-1", amount_minor=5, currency="RUB")
    refusal = TimestampExpiredError("too old")
    late = Refused(
        sent.event_id, bank.source, sent.request, sent.delivery, refusal, True, sent.identity,
        sent.event,  # type: ignore[arg-type]
    )  # fmt: skip
    await settler.settle([late])
    assert (await bank.event_row(sent))["error_code"] == "TIMESTAMP_EXPIRED"
    for table in ("payments", "gateway_callbacks", "outbox"):
        assert await bank.number(table) == 0


@pytest.mark.parametrize("says", [Says.REFUNDED, Says.DISPUTED, Says.CANCELED])
async def test_what_no_payment_can_hear_is_for_a_person(
    bank: Stage, settler: Settler, says: Says
) -> None:
    """SVC-1"""
    event = bank.event(says, "tx-1", amount_minor=5, currency="RUB")
    settled = await settler.settle([event])
    assert settled.verdicts[0].result is Result.FAILED_FINAL
    assert await bank.number("gateway_callbacks") == 0
