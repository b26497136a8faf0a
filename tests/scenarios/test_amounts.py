"""S3 Payment Amount Verification, over a real server."""

from decimal import Decimal
from typing import Final

import pytest

from tests.scenarios.gateways import CONFIG as FOUR_GATEWAYS
from tests.scenarios.gateways import Sale
from tests.scenarios.merchant import Merchant
from tests.support.tools import items

CONFIG: Final = FOUR_GATEWAYS
FITS: Final = [
    ("cn", "CNY", "88.88", "88.88"),
    ("cn", "CNY", "88.88", "88.87"),
    ("cn", "CNY", "88.88", "88.89"),
    ("creem", "EUR", "49.00", "49.00"),
    ("creem", "EUR", "49.00", "48.99"),
    ("creem", "EUR", "49.00", "49.01"),
    ("payments", "RUB", "990.00", "989.99"),
    ("payments", "RUB", "990.00", "990.01"),
    ("shop", "USD", "0.10", "0.11"),
    ("shop", "JPY", "1000", "1000"),
    ("shop", "KRW", "10000", "10000"),
    ("shop", "KWD", "5.000", "5.010"),
    ("shop", "KWD", "5.000", "4.990"),
]
MISFITS: Final = [
    ("cn", "CNY", "88.88", "88.86"),
    ("cn", "CNY", "88.88", "88.90"),
    ("cn", "CNY", "88.88", "8888.00"),
    ("cn", "CNY", "88.88", "0.01"),
    ("creem", "EUR", "49.00", "48.98"),
    ("creem", "EUR", "49.00", "49.02"),
    ("payments", "RUB", "990.00", "989.98"),
    ("payments", "RUB", "990.00", "990.02"),
    ("shop", "USD", "0.10", "0.08"),
    ("shop", "JPY", "1000", "1001"),
    ("shop", "JPY", "1000", "999"),
    ("shop", "KRW", "10000", "10001"),
    ("shop", "KRW", "10000", "9999"),
    ("shop", "KWD", "5.000", "5.011"),
    ("shop", "KWD", "5.000", "4.989"),
]


@pytest.mark.parametrize(("source", "currency", "price", "paid"), FITS)
def test_an_amount_that_fits_to_the_hundredth_pays_the_order(
    merchant: Merchant, source: str, currency: str, price: str, paid: str
) -> None:
    """S3 Payment Amount Verification / Amount verification success: a hundredth of a unit is
    tolerated, the gateway's number and the exact amount are kept, and the order goes on.
    """
    sale = merchant.sale(source, price, currency=currency).but(amount=Decimal(paid))
    assert merchant.send(sale.told()).http == 200
    assert merchant.is_given(sale)
    payment = merchant.payment(sale)
    assert payment["external_payment_id"] == sale.payment
    assert (payment["order"], payment["currency"]) == (sale.order, currency)
    assert (payment["captured"], payment["status"]) == (paid, "SUCCEEDED")
    assert payment["applied_at"] is not None
    assert payment["review"] is None
    assert merchant.event(sale)["status"] == "PROCESSED"


@pytest.mark.parametrize(("source", "currency", "price", "paid"), MISFITS)
def test_an_amount_that_does_not_fit_pays_nothing(
    merchant: Merchant, source: str, currency: str, price: str, paid: str
) -> None:
    """S3 Payment Amount Verification / Amount mismatch: nothing is given, the evidence is marked
    as failed, and the mismatch is logged, counted and listed. The gateway cannot mend it, and is
    answered 200.
    """
    sale = merchant.sale(source, price, currency=currency).but(amount=Decimal(paid))
    counted = merchant.metric("payments_amount_mismatch_total", source)
    assert merchant.send(sale.told()).http == 200
    assert _is_kept_for_a_person(merchant, sale, "AMOUNT_MISMATCH")
    assert merchant.metric("payments_amount_mismatch_total", source) == counted + 1


def _is_kept_for_a_person(merchant: Merchant, sale: Sale, code: str) -> bool:
    assert not merchant.is_given(sale)
    if sale.order is not None:
        found = merchant.order(sale)
        assert (found["status"], found["paid_at"]) == ("PENDING", None)
    (row,) = merchant.evidence(sale.told())
    assert (row["status"], row["error_code"]) == ("FAILED_FINAL", code)
    event = merchant.event(sale)
    assert (event["status"], event["error_code"]) == ("FAILED_FINAL", code)
    assert event["next_attempt_at"] is None
    (line,) = merchant.lines(external_payment_id=sale.payment)
    assert (line["result"], line["error_code"]) == ("failed_final", code)
    listed = items(merchant.service, "/payments", applied="false", limit=500)
    (payment,) = [one for one in listed if one["external_payment_id"] == sale.payment]
    assert (payment["review"], payment["applied_at"]) == (code, None)
    return True


@pytest.mark.parametrize(
    ("source", "currency"), [("cn", "USD"), ("creem", "USD"), ("payments", "KZT"), ("shop", "EUR")]
)
def test_the_right_amount_in_another_currency_pays_nothing(
    merchant: Merchant, source: str, currency: str
) -> None:
    """S3 Payment Amount Verification / Amount mismatch: 990 of something else is not 990."""
    sale = merchant.sale(source).but(currency=currency)
    assert merchant.send(sale.told()).http == 200
    assert _is_kept_for_a_person(merchant, sale, "CURRENCY_MISMATCH")


@pytest.mark.parametrize("source", ["cn", "creem", "shop"])
def test_the_right_payment_counts_after_a_wrong_one(merchant: Merchant, source: str) -> None:
    """S3 Payment Amount Verification / Amount mismatch: the order is as open as it was before."""
    sale = merchant.sale(source)
    wrong = sale.but(amount=Decimal("1.00"), payment=f"{sale.payment}-wrong").again()
    assert merchant.send(wrong.told()).http == 200
    assert not merchant.is_given(sale)
    assert merchant.send(sale.told()).http == 200
    assert merchant.is_given(sale)
    applied = [one["applied_at"] is not None for one in merchant.order(sale)["payments"]]
    assert sorted(applied) == [False, True]


def test_two_payments_of_half_the_price_do_not_make_a_whole(merchant: Merchant) -> None:
    """S3 Payment Amount Verification / Amount mismatch: each is compared by itself."""
    sale = merchant.sale("shop", "100.00")
    for half in (sale.but(amount=Decimal("50.00")), sale.but(amount=Decimal("50.00"))):
        other = half.but(payment=f"{sale.payment}-{half.again().event_id}").again()
        assert merchant.send(other.told()).http == 200
    assert not merchant.is_given(sale)


@pytest.mark.parametrize(
    "amount", ["-88.88", "0.00", "88.888", "8.8e1", "NaN", "", "88,88", "٨٨.٨٨"]
)
def test_an_amount_that_is_none_is_malformed(merchant: Merchant, amount: str) -> None:
    """S3 Payment Amount Verification / Amount mismatch: Alipay tells amounts with two decimals;
    what is written otherwise, though signed, pays nothing.
    """
    sale = merchant.sale("cn", "88.88")
    reply = merchant.send(sale.told(total_amount=amount))
    assert reply.http in {200, 400}
    assert reply.http == 400 or merchant.event(sale)["status"] == "FAILED_FINAL"
    assert not merchant.is_given(sale)
