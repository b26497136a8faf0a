"""What was claimed is settled in the claim's own transaction, and no event holds up another."""

from dataclasses import replace
from datetime import timedelta

from paidonce.domain.events import DEFERRED
from paidonce.engine.items import Result
from paidonce.engine.linking import Linker
from paidonce.engine.transactions import Settler
from paidonce.engine.worker import Worker
from tests.store.batches import Stage
from tests.store.test_worker import Poisoned, applied, make_due, stored

REFUSE_FAILURES = """
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF NEW.external_payment_id = 'bad' THEN RAISE EXCEPTION 'no' USING ERRCODE = '23514'; END IF;
    RETURN NEW;
END $$
"""


async def test_a_claim_of_nothing_asks_the_database_nothing_more(
    shop: Stage, worker: Worker
) -> None:
    """RET-4: a worker that is idle costs one question."""
    asked: list[str] = []
    connection = await worker._connected()
    with connection.query_logger(lambda one: asked.append(one.query)):
        assert await worker.run_once() == 0
    assert len([one for one in asked if "SELECT" in one]) == 1


async def test_an_event_whose_source_is_not_configured_waits_and_holds_up_nobody(
    shop: Stage, settler: Settler
) -> None:
    """RET-4: until somebody configures it again."""
    (item,) = await stored(shop, settler, "p")
    stranger = Worker(shop.database, replace(shop.rules, sources={}))
    assert await stranger.run_once() == 1
    await stranger.close()
    row = await shop.one("SELECT event_id, run_at - now() AS waits FROM due")
    assert row["event_id"] == item.event_id
    assert row["waits"] > timedelta(minutes=30)
    assert (await shop.event_row(item))["status"] == "VALIDATED"


async def test_an_event_of_which_not_even_a_failure_can_be_recorded_is_put_off(
    shop: Stage, settler: Settler, worker: Worker
) -> None:
    """RET-4: the others of its batch are settled."""
    bad, *good = await stored(shop, settler, "bad", "p-1", "p-2")
    async with shop.database.connection() as connection:
        await connection.execute(REFUSE_FAILURES)
        await connection.execute(
            "CREATE TRIGGER refuse BEFORE UPDATE ON webhook_events"
            " FOR EACH ROW EXECUTE FUNCTION refuse()"
        )
    assert await worker.run_once() == 3
    assert await applied(shop) == len(good)
    row = await shop.one("SELECT event_id, run_at - now() AS waits FROM due")
    assert row["event_id"] == bad.event_id
    assert row["waits"] > timedelta(seconds=30)
    async with shop.database.connection() as connection:
        await connection.execute("DROP TRIGGER refuse ON webhook_events")
    await make_due(shop)
    assert await worker.run_once() == 1
    assert await applied(shop) == 3


async def test_an_event_that_is_refused_does_not_keep_its_user_from_being_created(
    shop: Stage, settler: Settler
) -> None:
    """PAY-5: what else that user has paid is applied."""
    items = [shop.paid("bad", email="p@example.com"), shop.paid("good", email="p@example.com")]
    await settler.settle(items)
    source = replace(shop.source, provider=Poisoned(unreadable_payment="bad"))
    linker = Linker(shop.database, replace(shop.rules, sources={source.id: source}))
    _, is_new = await linker.create_user("p@example.com", "somebody")
    assert is_new
    assert (await shop.payment("good"))["applied_at"] is not None
    assert (await shop.event_row(items[1]))["status"] == "PROCESSED"


async def test_what_is_held_up_by_another_transaction_is_stored_and_settled_later(
    shop: Stage, settler: Settler, worker: Worker
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
    settled = await settler.settle([shop.paid("p"), shop.paid("q", preset=DEFERRED)])
    assert [one.result for one in settled.verdicts] == [Result.ACCEPTED, Result.ACCEPTED]
    assert settled.schedules
    await transaction.rollback()
    await other.close()
    assert await worker.run_once() == 2
    assert (await shop.payment("p"))["applied_at"] is not None
