"""The short digest of what an event is for."""

from itertools import product

from paidonce.core.events import EventType, ExternalId, PaymentEvent
from paidonce.core.purpose import is_same_purpose, purpose_digest


def event(order: str | None, plan: str | None, email: str | None) -> PaymentEvent:
    ids = (ExternalId("payment", "p-1"),)
    return PaymentEvent(EventType.PAID, ids, order=order, plan_id=plan, email=email)


def test_two_purposes_differ_where_both_name_something_else() -> None:
    """INB-2: what one of them does not name matches anything."""
    values = list(product((None, "a", "b"), (None, "a", "b"), (None, "a@x.com", "b@x.com")))
    for one, other in product(values, values):
        differs = any(
            left is not None and right is not None and left != right
            for left, right in zip(one, other, strict=True)
        )
        digests = purpose_digest(event(*one)), purpose_digest(event(*other))
        assert is_same_purpose(*digests) is not differs


def test_addresses_are_compared_without_their_case() -> None:
    """INB-2 PAY-5"""
    one, other = event(None, None, "Anna@Example.com"), event(None, None, "anna@example.COM")
    assert is_same_purpose(purpose_digest(one), purpose_digest(other))


def test_unsigned_fields_take_no_part() -> None:
    """INB-2"""
    one, other = event("o-1", None, "a@x.com"), event("o-1", None, "b@x.com")
    assert is_same_purpose(purpose_digest(one, {"email"}), purpose_digest(other, {"email"}))
    assert purpose_digest(event(None, None, "a@x.com"), {"email"}) is None
