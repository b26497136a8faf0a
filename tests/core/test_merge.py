"""Payments that turn out to be one: whichever row stays, it knows the same."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paidonce.core.events import Code, ExternalId, PaymentEvent, PaymentId
from paidonce.core.facts import Facts, merge
from paidonce.core.payments import Payment, merge_payments
from tests.core.test_facts import (
    ALL_BACK,
    EMAIL,
    FAILED,
    NOW,
    PAID,
    PAYMENT,
    PENDING,
    SOURCE,
    Life,
    facts,
)


@given(facts, facts, st.sampled_from([None, "order-1"]), st.sampled_from([None, "order-1", "o-2"]))
def test_merging_two_unapplied_payments_is_commutative(
    one: Facts, other: Facts, order: str | None, other_order: str | None
) -> None:
    """PAY-1: whichever row stays, it knows the same."""
    first = Payment(PaymentId(UUID(int=1)), SOURCE, PAYMENT, one, order=order, email=EMAIL)
    second = Payment(
        PaymentId(UUID(int=2)), SOURCE, (ExternalId("charge", "c-1"),), other, order=other_order
    )
    here, there = merge_payments(first, second, True), merge_payments(second, first, True)
    assert here.facts == there.facts == merge(one, other)
    assert set(here.ids) == set(there.ids)
    assert here.email == there.email == EMAIL
    disagree = None not in (order, other_order) and order != other_order
    assert here.is_contested == there.is_contested == disagree
    if not disagree:
        assert here.order == there.order


JOINING = replace(PENDING, ids=(*PAYMENT, ExternalId("charge", "c-1")))
AS_CHARGE = replace(PAID, ids=(ExternalId("charge", "c-1"),))
LIVES_OF_TWO_NAMES = {
    "paid under one": (AS_CHARGE, FAILED, JOINING),
    "paid under both": (AS_CHARGE, PAID, JOINING),
    "refunded under the other": (AS_CHARGE, ALL_BACK, JOINING),
}


@pytest.mark.parametrize("with_user", [True, False], ids=["user", "no user"])
@pytest.mark.parametrize("life", LIVES_OF_TWO_NAMES.values(), ids=LIVES_OF_TWO_NAMES.keys())
def test_merged_payments_end_alike_in_every_order(
    life: Sequence[PaymentEvent], with_user: bool
) -> None:
    """PAY-1: one row unless both were applied, which is a conflict for a person."""
    ends = []
    for order in permutations(life):
        lived = Life(with_user).hears(*order)
        if sum(one.applied_at is not None for one in lived.state.payments.values()) == 2:
            assert {one.review for one in lived.state.payments.values()} >= {Code.LINK_CONFLICT}
            continue
        (payment,) = lived.state.payments.values()
        given = lived.subscription.current_period_end if lived.subscription else None
        ends.append((payment.facts, payment.review, set(payment.ids), max(given or NOW, NOW)))
    assert ends
    assert all(end == ends[0] for end in ends)
