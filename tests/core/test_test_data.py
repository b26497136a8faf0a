"""A payment is test data only while every event of it is."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations, product
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paidonce.core.decide import decide
from paidonce.core.events import ExternalId, PaymentEvent, PaymentId, ReceivedEvent
from paidonce.core.facts import Facts
from paidonce.core.payments import Payment, merge_payments
from tests.core.test_facts import (
    FAILED,
    NOW,
    PAID,
    PAYMENT,
    PENDING,
    SOME_BACK,
    SOURCE,
    Life,
    facts,
)

AS_CHARGE = replace(PAID, ids=(ExternalId("charge", "c-1"),))
BOTH_NAMES = replace(PENDING, ids=(*PAYMENT, ExternalId("charge", "c-1")))

Marked = tuple[PaymentEvent, bool]


def lived(events: Sequence[Marked], with_user: bool = False) -> Payment:
    """The payment after these events, each made for a test or not."""
    state = Life(with_user).state
    for event, is_test in events:
        arrived = ReceivedEvent(SOURCE, event, NOW, link_by_email=True, is_test=is_test)
        state.save(decide(state, arrived, NOW))
    (payment,) = state.payments.values()
    return payment


@pytest.mark.parametrize(
    "said", [(PENDING, PAID, SOME_BACK), (FAILED, PAID, PAID), (AS_CHARGE, FAILED, BOTH_NAMES)],
    ids=["refunded", "second try", "two names"],
)  # fmt: skip
def test_a_payment_is_a_test_while_all_its_events_are(
    said: Sequence[PaymentEvent],
) -> None:
    """OPS-6"""
    for marks in product([True, False], repeat=len(said)):
        for order in permutations(zip(said, marks, strict=True)):
            assert lived(order).is_test is all(marks), order
            assert lived(order, with_user=True).is_test is all(marks), order


@given(facts, facts, st.booleans(), st.booleans())
def test_merged_payments_are_a_test_if_both_were(
    one: Facts, other: Facts, is_test: bool, is_other_test: bool
) -> None:
    """OPS-6 PAY-1"""
    first = Payment(PaymentId(UUID(int=1)), SOURCE, PAYMENT, one, is_test=is_test)
    second = Payment(PaymentId(UUID(int=2)), SOURCE, (), other, is_test=is_other_test)
    assert merge_payments(first, second, True).is_test is (is_test and is_other_test)
    assert merge_payments(second, first, True).is_test is (is_test and is_other_test)
