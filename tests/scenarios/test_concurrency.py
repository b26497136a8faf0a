"""S3 Concurrent Processing and Idempotency, over a real server."""

from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from functools import partial
from typing import Final

import pytest

from tests.scenarios.gateways import CONFIG as FOUR_GATEWAYS
from tests.scenarios.gateways import Sale
from tests.scenarios.merchant import Merchant
from tests.scenarios.trouble import cut_connections, locked, refusing
from tests.support.servers import Shared, StartService
from tests.support.tools import at_once, until

CONFIG: Final = f"""{FOUR_GATEWAYS}
[retry]
initial_s = 0.05
"""
NUMBER: Final = 50
TRANSACTIONS: Final = """
SELECT DISTINCT transaction_id FROM (
    SELECT transaction_id FROM webhook_events WHERE order_reference = $1
    UNION ALL SELECT transaction_id FROM payments WHERE order_reference = $1
    UNION ALL SELECT transaction_id FROM orders WHERE reference = $1
) AS rows
"""


def top_up(merchant: Merchant, source: str, currency: str) -> tuple[Sale, str]:
    """A sale of which every effect can be counted: its order fills a wallet."""
    wallet = merchant.wallet(currency)
    return merchant.sale(
        source, "100.00", currency=currency, kind="wallet", wallet_id=wallet
    ), wallet


@pytest.mark.parametrize(("source", "currency"), [("cn", "CNY"), ("creem", "EUR"), ("shop", "USD")])
def test_50_identical_deliveries_at_once_count_once(
    merchant: Merchant, source: str, currency: str
) -> None:
    """S3 Concurrent Processing and Idempotency / Concurrent webhook processing: the first one
    counts, all others are answered as duplicates.
    """
    sale, wallet = top_up(merchant, source, currency)
    counted = merchant.metric("webhook_duplicate_total", source)
    sent = sale.told()
    replies = at_once(*[partial(merchant.send, sent)] * NUMBER)
    assert {reply.http for reply in replies} == {200}
    if source == "shop":
        words = [reply.json["status"] for reply in replies]
        assert (words.count("success"), words.count("duplicate")) == (1, NUMBER - 1)
    else:
        assert len({reply.body for reply in replies}) == 1
    assert merchant.balance(wallet) == 100
    assert merchant.event(sale)["status"] == "PROCESSED"
    assert len(merchant.payments(sale)) == 1
    assert merchant.metric("webhook_duplicate_total", source) == counted + NUMBER - 1
    (line,) = merchant.lines(external_payment_id=sale.payment, result="processed")
    assert line["webhook_event_id"] == merchant.event(sale)["id"]


def test_many_notifications_of_one_trade_at_once_count_once(merchant: Merchant) -> None:
    """S3 Concurrent Processing and Idempotency / Concurrent webhook processing: each has its own
    id and is signed anew, and all of them are about one order.
    """
    sale, wallet = top_up(merchant, "cn", "CNY")
    told = [sale.again().late(number).told() for number in range(20)]
    told += [sale.again().told(trade_status="TRADE_FINISHED") for _ in range(5)]
    replies = at_once(*[partial(merchant.send, one) for one in told])
    assert {(reply.http, reply.body) for reply in replies} == {(200, b"success")}
    assert merchant.balance(wallet) == 100
    assert {one["status"] for one in merchant.events(sale)} == {"PROCESSED"}
    assert len(merchant.payments(sale)) == 1


def test_two_gateways_that_pay_one_order_at_once(merchant: Merchant) -> None:
    """S3 Concurrent Processing and Idempotency / Concurrent webhook processing: one of the two
    payments counts, and the other is kept to be refunded.
    """
    for _ in range(5):
        sale, wallet = top_up(merchant, "cn", "CNY")
        other = Sale("shop", sale.order, amount=sale.amount, currency="CNY")
        third = Sale("creem", sale.order, amount=sale.amount, currency="CNY")
        sales = (sale, other, third)
        replies = at_once(*[partial(merchant.send, one.told()) for one in sales])
        assert {reply.http for reply in replies} == {200}
        assert until(partial(merchant.is_given, sale))
        assert merchant.balance(wallet) == 100
        payments = [merchant.payment(one) for one in sales]
        assert sum(one["applied_at"] is not None for one in payments) == 1
        reviews = sorted(one["review"] or "" for one in payments)
        assert reviews == ["", "DUPLICATE_PAYMENT", "DUPLICATE_PAYMENT"]
        assert len(merchant.order(sale)["payments"]) == 3


def test_a_redelivery_while_the_first_is_in_flight(merchant: Merchant) -> None:
    """S3 Concurrent Processing and Idempotency / Concurrent webhook processing: somebody holds the
    order's row; both deliveries are answered, and what they say counts once he lets go.
    """
    sale, wallet = top_up(merchant, "shop", "USD")
    sent = sale.told()
    with locked(merchant.shared, sale):
        replies = at_once(*[partial(merchant.send, sent)] * 3)
        assert {reply.http for reply in replies} == {200}
        assert {reply.json["event_id"] for reply in replies} == {merchant.event(sale)["id"]}
        words = sorted(reply.json["status"] for reply in replies)
        assert words == ["accepted", "duplicate", "duplicate"]
        assert merchant.balance(wallet) == 0
    assert until(lambda: merchant.balance(wallet) == 100)
    assert merchant.event(sale)["status"] == "PROCESSED"
    assert merchant.send(sent).json["status"] == "duplicate"
    assert merchant.balance(wallet) == 100


def test_contradicting_deliveries_with_one_id_at_once(merchant: Merchant) -> None:
    """S3 Concurrent Processing and Idempotency / Concurrent webhook processing: whichever comes
    first counts; the other is a conflict and changes nothing.
    """
    for _ in range(5):
        sale, wallet = top_up(merchant, "shop", "USD")
        other = sale.but(amount=Decimal("1.00"))
        replies = at_once(partial(merchant.send, sale.told()), partial(merchant.send, other.told()))
        words = {reply.json["status"] for reply in replies}
        assert words in ({"success", "conflict"}, {"accepted", "conflict"})
        assert merchant.balance(wallet) == (100 if "success" in words else 0)


@pytest.mark.parametrize("how", ["two processes", "queued"])
def test_identical_deliveries_at_once_however_it_is_run(
    start_service: StartService, database_url: str, how: str
) -> None:
    """S3 Concurrent Processing and Idempotency / Concurrent webhook processing: it is the database
    that decides who was first, between processes and between a worker and the door.
    """
    queued = f'{CONFIG}\n[server]\nmode = "queued"\n'
    service = (
        start_service(queued)
        if how == "queued"
        else start_service(CONFIG, arguments=("--processes", "2"))
    )
    merchant = Merchant(Shared(service, database_url))
    for source, currency in (("cn", "CNY"), ("creem", "EUR"), ("shop", "USD")):
        sale, wallet = top_up(merchant, source, currency)
        replies = at_once(*[partial(merchant.send, sale.told())] * 20)
        assert {reply.http for reply in replies} == {200}
        assert until(partial(merchant.is_given, sale))
        assert merchant.send(sale.told()).http == 200
        assert merchant.balance(wallet) == 100
        assert merchant.event(sale)["status"] == "PROCESSED"
        assert len(merchant.payments(sale)) == 1


def test_one_id_at_two_gateways_is_two_events(merchant: Merchant) -> None:
    """S3 Concurrent Processing and Idempotency / Concurrent webhook processing: nothing of one
    source is mistaken for another's.
    """
    first, second = merchant.sale("creem"), merchant.sale("shop")
    second = second.but(event_id=first.event_id, payment=first.payment)
    at_once(partial(merchant.send, first.told()), partial(merchant.send, second.told()))
    assert merchant.is_given(first)
    assert merchant.is_given(second)
    assert merchant.event(first)["id"] != merchant.event(second)["id"]


@pytest.mark.parametrize("source", ["cn", "creem", "shop"])
def test_order_payment_and_evidence_commit_together(merchant: Merchant, source: str) -> None:
    """S3 Concurrent Processing and Idempotency / Database transaction safety: one transaction
    changes all of them, and its number is kept with each.
    """
    sale = merchant.sale(source)
    assert merchant.send(sale.told()).http == 200
    (transaction,) = merchant.shared.rows(TRANSACTIONS, sale.order)
    number = str(transaction["transaction_id"])
    assert int(number) > 0
    assert merchant.order(sale)["transaction_id"] == number
    assert merchant.payment(sale)["transaction_id"] == number
    assert merchant.event(sale)["transaction_id"] == number


@pytest.mark.parametrize("source", ["cn", "creem", "shop"])
def test_what_fails_is_rolled_back_and_done_later(merchant: Merchant, source: str) -> None:
    """S3 Concurrent Processing and Idempotency / Database transaction safety: while the order
    cannot be written, nothing says that it was paid; then all of it does.
    """
    sale = merchant.sale(source)
    with refusing(merchant.shared, sale, times=2):
        assert merchant.send(sale.told()).http == 200
        event = merchant.event(sale)
        if event["status"] != "PROCESSED":
            assert not any(one["applied_at"] for one in merchant.payments(sale))
        assert until(partial(merchant.is_given, sale))
    assert merchant.event(sale)["status"] == "PROCESSED"
    assert merchant.payment(sale)["applied_at"] is not None
    assert len(merchant.shared.rows(TRANSACTIONS, sale.order)) == 1


def test_connections_that_are_cut_lose_and_repeat_nothing(merchant: Merchant) -> None:
    """S3 Concurrent Processing and Idempotency / Database transaction safety: the database ends
    every session in the middle of it; what was answered 200 is paid, the rest is put off.
    """
    made = [top_up(merchant, "cn", "CNY") for _ in range(30)]

    def is_taken(sale: Sale) -> bool:
        reply = merchant.send(sale.told())
        assert reply.http in {200, 503}
        return reply.http == 200

    with ThreadPoolExecutor(8) as pool:
        answers = [pool.submit(is_taken, sale) for sale, _ in made]
        for _ in range(3):
            cut_connections(merchant.shared)
        taken = [answer.result() for answer in answers]
    for (sale, _), was_taken in zip(made, taken, strict=True):
        assert was_taken or until(partial(is_taken, sale))
    for sale, wallet in made:
        assert until(partial(merchant.is_given, sale))
        assert merchant.balance(wallet) == 100
        assert len(merchant.payments(sale)) == 1
