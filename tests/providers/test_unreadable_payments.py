"""Which payment a malformed delivery reports as paid, for every provider that needs no lookup."""

import pytest

from paidonce.core.events import PaymentEvent
from tests.providers.cases import CASES
from tests.providers.conformance import Case, ExpectedEvent

pytestmark = pytest.mark.parametrize(
    "case", [one for one in CASES if not one.needs_lookup], ids=str
)


def test_the_payment_of_a_paid_event_is_found_without_reading_its_money(case: Case) -> None:
    """REC-8: under ids that the event itself has."""
    delivery = case.authentic()
    ids = case.configured.unreadable_payment(delivery)
    event = case.configured.translate(delivery)
    assert isinstance(event, PaymentEvent)
    assert ids
    assert set(ids) <= set(event.ids)


def test_an_event_that_is_not_about_money_reports_no_payment(case: Case) -> None:
    """REC-8"""
    delivery = case.authentic(ExpectedEvent(kind=case.unknown_kind))
    assert case.configured.unreadable_payment(delivery) == ()
