"""Orders and plans for which nothing is to be paid."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

from uuid_utils.compat import uuid7

from paidonce.core.apply import fulfill_free
from paidonce.core.events import ExternalId, OrderId, PaymentId, SourceId, UserId
from paidonce.core.facts import Facts
from paidonce.core.money import Money
from paidonce.core.orders import Kind, Order, OrderStatus
from paidonce.core.payments import Payment, payable_sum, plan_target
from paidonce.core.plans import Plan, plan_book
from paidonce.core.state import Rows, State

NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)
USER = UserId(UUID(int=77))
FREE = Money(0, "RUB")
PLANS = plan_book([Plan("trial", FREE, "default", 7, 0, False, NOW - timedelta(days=9))])


def test_a_free_order_is_fulfilled_once() -> None:
    """FUL-11"""
    order = Order(OrderId(uuid7()), "o-1", Kind.SUBSCRIPTION, FREE, user_id=USER, plan_id="trial")
    state = State(PLANS, uuid7, orders=Rows({"o-1": order}))
    first = fulfill_free(state, order, NOW)
    assert first.order is not None
    assert (first.order.status, first.order.fulfilled_at) == (OrderStatus.PAID, NOW)
    assert first.subscription is not None
    assert first.subscription.current_period_end == NOW + timedelta(days=7)
    state.save(first)
    again = fulfill_free(state, first.order, NOW + timedelta(days=1))
    assert (again.order, again.subscription) == (first.order, None)


def test_no_sum_pays_a_free_plan() -> None:
    """FUL-11 PAY-4: not even one that is within the tolerance."""
    ids = (ExternalId("payment", "p-1"),)
    facts = Facts(captured=Money(1, "RUB"), paid_at=NOW)
    payment = Payment(PaymentId(uuid7()), SourceId(1), ids, facts)
    assert payable_sum(payment, FREE, plan_target("trial")) is None
