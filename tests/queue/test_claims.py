"""What was claimed is settled in the claim's own transaction, and no event holds up another."""

from dataclasses import replace
from datetime import timedelta

from paidonce.core.events import DEFERRED
from paidonce.linking.linker import Linker
from paidonce.processing.items import ResultKind
from paidonce.processing.transactions import Processor
from paidonce.queue.worker import Worker
from tests.queue.test_worker import Poisoned, applied, make_due, stored
from tests.support.batches import Stage

REFUSE_FAILURES = """
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF NEW.external_payment_id = 'bad' THEN RAISE EXCEPTION 'no' USING ERRCODE = '23514'; END IF;
    RETURN NEW;
END $$
"""


async def test_an_empty_claim_sends_no_further_query(shop: Stage, worker: Worker) -> None:
    """RET-4: a worker that is idle costs one question."""
    asked: list[str] = []
    connection = await worker._connection.get()
    with connection.query_logger(lambda one: asked.append(one.query)):
        assert await worker.run_once() == 0
    assert len([one for one in asked if "SELECT" in one]) == 1


async def test_an_event_of_an_unconfigured_source_waits_and_delays_no_other(
    shop: Stage, processor: Processor
) -> None:
    """RET-4: until somebody configures it again."""
    (item,) = await stored(shop, processor, "p")
    stranger = Worker(shop.database, replace(shop.rules, sources={}))
    assert await stranger.run_once() == 1
    await stranger.close()
    row = await shop.one("SELECT event_id, run_at - now() AS waits FROM event_queue")
    assert row["event_id"] == item.event_id
    assert row["waits"] > timedelta(minutes=30)
    assert (await shop.event_row(item))["status"] == "VALIDATED"


async def test_an_event_whose_failure_cannot_be_recorded_is_postponed(
    shop: Stage, processor: Processor, worker: Worker
) -> None:
    """RET-4: the others of its batch are settled."""
    bad, *good = await stored(shop, processor, "bad", "p-1", "p-2")
    async with shop.database.connection() as connection:
        await connection.execute(REFUSE_FAILURES)
        await connection.execute(
            "CREATE TRIGGER refuse BEFORE UPDATE ON webhook_events"
            " FOR EACH ROW EXECUTE FUNCTION refuse()"
        )
    assert await worker.run_once() == 3
    assert await applied(shop) == len(good)
    row = await shop.one("SELECT event_id, run_at - now() AS waits FROM event_queue")
    assert row["event_id"] == bad.event_id
    assert row["waits"] > timedelta(seconds=30)
    async with shop.database.connection() as connection:
        await connection.execute("DROP TRIGGER refuse ON webhook_events")
    await make_due(shop)
    assert await worker.run_once() == 1
    assert await applied(shop) == 3


async def test_a_refused_event_does_not_prevent_creating_its_user(
    shop: Stage, processor: Processor
) -> None:
    """PAY-5: what else that user has paid is applied."""
    items = [shop.paid("bad", email="p@example.com"), shop.paid("good", email="p@example.com")]
    await processor.process(items)
    source = replace(shop.source, provider=Poisoned(bad_payment="bad"))
    linker = Linker(shop.database, replace(shop.rules, sources={source.id: source}))
    _, is_new = await linker.create_user("p@example.com", "somebody")
    assert is_new
    assert (await shop.payment("good"))["applied_at"] is not None
    assert (await shop.event_row(items[1]))["status"] == "PROCESSED"


async def test_an_event_locked_by_another_transaction_is_stored_and_processed_later(
    shop: Stage, processor: Processor, worker: Worker
) -> None:
    """REC-4: a payment id that somebody is about to take, and then does not."""
    await shop.user("p@example.com")
    other = await shop.database.dedicated()
    transaction = other.transaction()
    await transaction.start()
    await other.execute(
        "INSERT INTO payment_ids (source_id, kind, external_id, payment_id)"
        " VALUES ($1, 'payment', 'p', gen_random_uuid())",
        shop.source.id,
    )
    processed = await processor.process([shop.paid("p"), shop.paid("q", forced_outcome=DEFERRED)])
    assert [one.kind for one in processed.results] == [ResultKind.ACCEPTED, ResultKind.ACCEPTED]
    assert processed.schedules
    await transaction.rollback()
    await other.close()
    assert await worker.run_once() == 2
    assert (await shop.payment("p"))["applied_at"] is not None
