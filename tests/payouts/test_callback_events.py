"""Events of the source whose webhooks are the payment service's callbacks."""

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime

import pytest
import pytest_asyncio
from uuid_utils.compat import uuid7

from paidonce.core.events import EventId, EventType
from paidonce.db.pool import Database
from paidonce.errors import TimestampExpiredError
from paidonce.lookup.http_client import HttpTimeouts
from paidonce.lookup.worker import LookupWorker
from paidonce.processing.items import Incoming, Rejected, Request, ResultKind
from paidonce.processing.transactions import Processor
from paidonce.providers.contract import Delivery, key_digest
from tests.lookup.test_lookup import with_sources
from tests.support.batches import Stage, stage
from tests.support.lookup_gateway import gateway_running, looks


@pytest_asyncio.fixture(loop_scope="session")
async def bank(database: Database) -> Stage:
    """A stage whose one source calls back."""
    return _calling_back(await stage(database))


def _calling_back(shop: Stage) -> Stage:
    source = replace(shop.source, is_payout_source=True)
    rules = replace(shop.rules, sources={source.id: source})
    return replace(shop, source=source, rules=rules)


@pytest_asyncio.fixture(loop_scope="session")
async def processor(bank: Stage) -> AsyncIterator[Processor]:
    made = Processor(bank.database, bank.rules)
    yield made
    await made.close()


async def test_each_status_of_a_transaction_is_stored_and_published_once(
    bank: Stage, processor: Processor
) -> None:
    """SVC-1: in one batch or several; and no payment of the ordinary kind is made."""
    words = [EventType.PENDING, EventType.PAID, EventType.PAID, EventType.FAILED, EventType.VOIDED]
    batch = [
        bank.event(event_type, "tx-1", key=f"k-{number}", amount_minor=5, currency="RUB")
        for number, event_type in enumerate(words)
    ]
    processed = await processor.process(batch)
    assert [one.kind for one in processed.results] == [ResultKind.PROCESSED] * 5
    again = bank.event(EventType.PAID, "tx-1", key="k-9", amount_minor=5, currency="RUB")
    await processor.process([again])
    kept = await bank.rows("SELECT gateway_status, status FROM gateway_callbacks ORDER BY id")
    assert [one["gateway_status"] for one in kept] == ["pending", "succeeded", "failed"]
    told = await bank.rows(
        "SELECT type, payload->>'transaction_id' AS transaction FROM outbox ORDER BY seq"
    )
    assert told == [{"type": "ProviderCallbackReceived", "transaction": "tx-1"}] * 3
    for table in ("payments", "payment_ids", "event_queue"):
        assert await bank.number(table) == 0


async def test_a_callback_that_needs_a_lookup_is_stored_after_it(database: Database) -> None:
    """SVC-1 REC-4: a source whose webhooks say only "load" can call back too."""
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
        processor = Processor(database, thin.rules)
        await processor.process([item])
        assert await thin.number("gateway_callbacks") == 0
        await thin.rows("UPDATE event_queue SET run_at = now()")
        asker = LookupWorker(database, thin.rules, timeouts=HttpTimeouts(pauses_s=()))
        await asker.run_once()
        await asker.close()
        await processor.close()
    kept = await thin.rows("SELECT transaction_id, gateway_status FROM gateway_callbacks")
    assert kept == [{"transaction_id": "tx-1", "gateway_status": "succeeded"}]
    assert await thin.number("payments") == 0


async def test_an_expired_callback_is_stored_as_evidence_only(
    bank: Stage, processor: Processor
) -> None:
    """SVC-1 PRV-8: the gateway is asked anyway; nothing is listed that nobody can apply."""
    sent = bank.event(EventType.PAID, "tx-1", amount_minor=5, currency="RUB")
    refusal = TimestampExpiredError("too old")
    late = Rejected(
        sent.event_id, bank.source, sent.request, sent.delivery, refusal, True, sent.identity,
        sent.event,  # type: ignore[arg-type]
    )  # fmt: skip
    await processor.process([late])
    assert (await bank.event_row(sent))["error_code"] == "TIMESTAMP_EXPIRED"
    for table in ("payments", "gateway_callbacks", "outbox"):
        assert await bank.number(table) == 0


@pytest.mark.parametrize("event_type", [EventType.REFUNDED, EventType.DISPUTED, EventType.CANCELED])
async def test_refunds_and_disputes_are_for_a_person(
    bank: Stage, processor: Processor, event_type: EventType
) -> None:
    """SVC-1"""
    event = bank.event(event_type, "tx-1", amount_minor=5, currency="RUB")
    processed = await processor.process([event])
    assert processed.results[0].kind is ResultKind.FAILED_FINAL
    assert await bank.number("gateway_callbacks") == 0
