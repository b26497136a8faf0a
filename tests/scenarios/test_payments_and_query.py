"""S1's lines about the payment and the query service, each over a real server and gateway."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final
from uuid import UUID, uuid4

import asyncpg
import pytest

from paidonce.db.pool import open_database
from paidonce.maintenance.janitor import Janitor, usual_tasks
from paidonce.runtime.leader import Leader
from paidonce.settings.sections import RetentionSettings
from tests.payouts.payer import Payer, config_for, until
from tests.support.payout_gateway import Manners, PayingGateway, running
from tests.support.postgres import SCHEMA
from tests.support.service import started_service

QUIET: Final = Manners(calls_back=())
SLOW: Final = Manners(calls_back=(), delay_s=0.4)
ROW: Final = "SELECT *, xmin::text AS written_by FROM wallet_payments WHERE payment_id = $1"
VIEW: Final = "SELECT *, xmin::text AS written_by FROM payment_views WHERE payment_id = $1"
COPY: Final = """
INSERT INTO outbox (aggregate_type, aggregate_name, type, version, payload, occurred_at)
SELECT aggregate_type, aggregate_name, type, version, payload, occurred_at + $3
  FROM outbox WHERE aggregate_name = $1 AND type = $2
RETURNING id
"""
TAKEN: Final = "SELECT 1 FROM processed_events WHERE consumer = $1 AND event_id = $2"


@pytest.fixture(scope="module")
def payer(shared_database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Payer]:
    """A server whose gateway says nothing by itself; the tests call back in its name."""
    manners = lambda name: SLOW if name.startswith("slow") else QUIET  # noqa: E731
    with running(PayingGateway(manners)) as gateway:
        config = config_for(gateway, callback_attempts=2)
        service = started_service(tmp_path_factory.mktemp("s1"), shared_database, config)
        yield Payer(service, gateway, shared_database)
        service.end()


def under_way(payer: Payer) -> tuple[str, str, str]:
    """A wallet with 100.00, a payment of 10.00 out of it, and its transaction at the gateway."""
    wallet, payment = payer.wallet("100.00"), uuid4().hex
    assert payer.start(payment, wallet).http == 202
    until(lambda: payer.payment(payment)["transaction_id"] is not None, "its transaction is known")
    return wallet, payment, payer.payment(payment)["transaction_id"]


def repeated(payer: Payer, payment: str, kind: str, later: timedelta = timedelta()) -> UUID:
    """The same event comes again under an id that nobody has seen, and is taken by both."""
    (copy,) = payer.rows(COPY, payment, kind, later)
    for consumer in ("payments", "query"):
        until(partial(_is_taken, payer, consumer, copy["id"]), "it is taken")
    return copy["id"]  # type: ignore[no-any-return]


def _is_taken(payer: Payer, consumer: str, event_id: UUID) -> bool:
    return bool(payer.rows(TAKEN, consumer, event_id))


def callbacks(payer: Payer, transaction: str) -> list[dict[str, Any]]:
    return payer.rows(
        "SELECT gateway_status, status, attempts FROM gateway_callbacks WHERE transaction_id = $1"
        " ORDER BY id",
        transaction,
    )


def test_a_payment_is_created_by_its_event(payer: Payer) -> None:
    """S1 Payment Service, Creation / PaymentInitiated is received from the bus: it reserves."""
    wallet, payment, _ = under_way(payer)
    (event,) = payer.rows(
        "SELECT id FROM outbox WHERE aggregate_name = $1 AND type = 'PaymentInitiated'", payment
    )
    assert payer.rows(TAKEN, "payments", event["id"])
    assert payer.payment(payment)["status"] == "PROCESSING"
    assert payer.balance(wallet) == ("100.00", "10.00")


def test_two_rows_of_one_payment_cannot_be_written(payer: Payer) -> None:
    """S1 Payment Service, Creation / payment_id is the primary key: by a constraint."""
    _, payment, _ = under_way(payer)
    with pytest.raises(asyncpg.UniqueViolationError, match="wallet_payments_pkey"):
        payer.rows(
            "INSERT INTO wallet_payments SELECT * FROM wallet_payments WHERE payment_id = $1",
            payment,
        )


def test_a_duplicate_event_changes_nothing(payer: Payer) -> None:
    """S1 Payment Service, Creation / a duplicate event finds the payment there: as it was."""
    wallet, payment, _ = under_way(payer)
    before = payer.types_of(payment)
    repeated(payer, payment, "PaymentInitiated")
    assert payer.types_of(payment) == [*before, "PaymentInitiated"]  # the copy itself
    assert payer.payment(payment)["status"] == "PROCESSING"
    assert payer.balance(wallet) == ("100.00", "10.00")


def test_a_word_of_a_transaction_cannot_be_written_twice(payer: Payer) -> None:
    """S1 Payment Service, Callback / a transaction's word is unique in callbacks: by source,
    transaction and word, so that `pending` does not swallow `succeeded`.
    """
    _, payment, transaction = under_way(payer)
    payer.call_back(transaction, "pending")
    with pytest.raises(asyncpg.UniqueViolationError, match="gateway_callbacks_source_id"):
        payer.rows(
            "INSERT INTO gateway_callbacks (id, source_id, transaction_id, gateway_status,"
            " event_id, next_attempt_at, received_at)"
            " SELECT gen_random_uuid(), source_id, transaction_id, gateway_status, event_id,"
            " now(), now()"
            " FROM gateway_callbacks WHERE transaction_id = $1",
            transaction,
        )
    payer.call_back(transaction, "succeeded")
    payer.ended(payment)
    assert [one["gateway_status"] for one in callbacks(payer, transaction)] == [
        "pending",
        "succeeded",
    ]


def test_a_callback_that_comes_again_is_answered_and_does_nothing(payer: Payer) -> None:
    """S1 Payment Service, Callback / a callback that is there already is passed over: also under
    an id of its own.
    """
    wallet, payment, transaction = under_way(payer)
    for name in ("again-1", "again-1", "again-2"):
        assert payer.call_back(transaction, "succeeded", f"{name}-{transaction}").http == 200
    payer.ended(payment)
    assert len(callbacks(payer, transaction)) == 1
    assert payer.balance(wallet) == ("90.00", "0.00")


def test_a_new_callback_is_published(payer: Payer) -> None:
    """S1 Payment Service, Callback / a new callback publishes ProviderCallbackReceived: once."""
    _, payment, transaction = under_way(payer)
    for _ in range(3):
        payer.call_back(transaction, "succeeded")
    payer.ended(payment)
    told = payer.rows(
        "SELECT type FROM outbox"
        " WHERE aggregate_type = 'gateway-callback' AND payload->>'transaction_id' = $1",
        transaction,
    )
    assert told == [{"type": "ProviderCallbackReceived"}]


def test_a_callback_finds_its_payment_by_the_transaction(payer: Payer) -> None:
    """S1 Payment Service, Unknown payment / the payment is looked up by its transaction: of two
    that are under way, the right one ends.
    """
    _, first, transaction = under_way(payer)
    _, second, _ = under_way(payer)
    payer.call_back(transaction, "succeeded")
    payer.ended(first)
    assert payer.payment(second)["status"] == "PROCESSING"


def test_a_callback_that_overtakes_the_answer_counts(payer: Payer) -> None:
    """S1 Payment Service, Unknown payment / a callback before its transaction was saved is applied
    later: the gateway calls back while it still thinks about its answer.
    """
    wallet, payment = payer.wallet("100.00"), f"slow-{uuid4().hex}"
    payer.start(payment, wallet)
    until(lambda: payment in payer.gateway.charges, "the gateway has charged")
    transaction = payer.gateway.charges[payment].transaction_id
    assert payer.call_back(transaction, "succeeded").json["status"] == "success"
    payer.ended(payment)
    assert payer.balance(wallet) == ("90.00", "0.00")


def test_a_callback_of_nobody_is_never_dropped(payer: Payer) -> None:
    """S1 Payment Service, Unknown payment / retried with backoff and after N attempts given to a
    person: listed, and tried again when he wants it.
    """
    transaction = f"tx-{uuid4().hex}"
    payer.call_back(transaction, "succeeded")
    until(lambda: callbacks(payer, transaction)[0]["status"] == "DEAD_LETTER", "it is given up")
    assert callbacks(payer, transaction)[0]["attempts"] == 2
    listed = payer.service.api("GET", "/gateway-callbacks").json["items"]
    (dead,) = [one for one in listed if one["transaction_id"] == transaction]
    wanted = payer.service.api("POST", f"/gateway-callbacks/{dead['id']}/retry")
    assert wanted.http == 204
    until(
        lambda: callbacks(payer, transaction)[0]["status"] == "DEAD_LETTER", "it is given up again"
    )


def test_a_status_changes_from_processing_only(payer: Payer) -> None:
    """S1 Payment Service, Status / only what is PROCESSING is updated: succeeded, then taken."""
    wallet, payment, transaction = under_way(payer)
    payer.call_back(transaction, "succeeded")
    payer.ended(payment)
    assert payer.types_of(payment)[-2:] == ["PaymentProcessing", "PaymentCompleted"]
    assert payer.balance(wallet) == ("90.00", "0.00")


@pytest.mark.parametrize(("first", "then"), [("succeeded", "failed"), ("failed", "pending")])
def test_what_has_ended_stays(payer: Payer, first: str, then: str) -> None:
    """S1 Payment Service, Status / what is COMPLETED or FAILED is not updated: whatever the
    gateway says later, the row is not written.
    """
    _, payment, transaction = under_way(payer)
    payer.call_back(transaction, first)
    payer.ended(payment, "COMPLETED" if first == "succeeded" else "FAILED")
    before = payer.rows(ROW, payment)
    payer.call_back(transaction, then)
    until(
        lambda: [one["status"] for one in callbacks(payer, transaction)] == ["DONE", "DONE"],
        "it was heard",
    )
    assert payer.rows(ROW, payment) == before


def test_an_update_that_finds_no_row_is_noticed(payer: Payer) -> None:
    """S1 Payment Service, Status / the number of updated rows is checked: the statement itself
    fails, and the transaction with it.
    """
    with pytest.raises(asyncpg.SerializationError, match="another transaction was first"):
        payer.rows("SELECT require_written(0, 1)")
    _, payment, transaction = under_way(payer)
    for word in ("succeeded", "failed"):
        payer.call_back(transaction, word)
    payer.ended(payment)
    assert payer.types_of(payment).count("PaymentCompleted") == 1


def test_an_event_is_shown_once(payer: Payer) -> None:
    """S1 Query Service, Deduplication / an event that was processed is passed over: its id stands
    in processed_events, by a primary key, in the transaction of what it shows.
    """
    _, payment, transaction = under_way(payer)
    payer.call_back(transaction, "succeeded")
    payer.ended(payment)
    log = payer.rows("SELECT id FROM outbox WHERE aggregate_name = $1", payment)
    for event in log:
        assert len(payer.rows(TAKEN, "query", event["id"])) == 1
    with pytest.raises(asyncpg.UniqueViolationError, match="processed_events_pkey"):
        payer.rows(
            "INSERT INTO processed_events (consumer, event_id) VALUES ('query', $1)", log[0]["id"]
        )


@pytest.mark.parametrize("later", [timedelta(), timedelta(hours=1)], ids=["same", "later"])
def test_an_older_event_that_comes_late_is_not_shown(payer: Payer, later: timedelta) -> None:
    """S1 Query Service, Time / an older event never overwrites a newer state: COMPLETED is not
    INITIATED again, not even if the event claims to be of a later time.
    """
    _, payment, transaction = under_way(payer)
    payer.call_back(transaction, "succeeded")
    payer.ended(payment)
    before = payer.rows(VIEW, payment)
    for kind in ("PaymentInitiated", "PaymentProcessing"):
        repeated(payer, payment, kind, later)
    assert payer.rows(VIEW, payment) == before


def test_processed_events_are_forgotten_in_time(payer: Payer) -> None:
    """S1 Query Service, Cleaning / processed events are forgotten after their time: those that no
    topic can send again, and no others.
    """
    now, ids = datetime.now(UTC), [uuid4(), uuid4()]
    for event_id, days in zip(ids, (9, 7), strict=True):
        payer.rows(
            "INSERT INTO processed_events VALUES ('query', $1, $2)",
            event_id,
            now - timedelta(days=days),
        )

    async def clean() -> None:
        database = await open_database(payer.database_url, SCHEMA)
        await Janitor(usual_tasks(RetentionSettings()), Leader(database)).run_once(now)
        await database.close()

    with ThreadPoolExecutor(1) as thread:
        thread.submit(lambda: asyncio.run(clean())).result()
    kept = [event_id for event_id in ids if payer.rows(TAKEN, "query", event_id)]
    assert kept == ids[1:]
