"""What an event is for: its order, plan and e-mail address, as a short digest (INB-2).

Two deliveries with one event key that name different ones contradict each other. One that is not
named matches any.
"""

from collections.abc import Collection
from hashlib import blake2b
from typing import Final

from paidonce.core.email import email_key
from paidonce.core.events import PaymentEvent

SIZE: Final = 4
"""Bytes for each of the three."""
ABSENT: Final = bytes(SIZE)


def purpose_digest(event: PaymentEvent, unsigned_fields: Collection[str] = ()) -> bytes | None:
    """The digest of what the event names; None if it names nothing.

    Fields that are not signed take no part: anybody who has seen a delivery can change them.
    """
    order, plan_id, email = event.order, event.plan_id, event.email
    if unsigned_fields:
        order = None if "order" in unsigned_fields else order
        plan_id = None if "plan_id" in unsigned_fields else plan_id
        email = None if "email" in unsigned_fields else email
    if order is None and plan_id is None and email is None:
        return None
    return _short(order) + _short(plan_id) + _short(email_key(email) if email else None)


def is_same_purpose(one: bytes | None, other: bytes | None) -> bool:
    """Whether no field differs that both name."""
    if one is None or other is None or one == other:
        return True
    pairs = ((one[at : at + SIZE], other[at : at + SIZE]) for at in range(0, len(one), SIZE))
    return all(ABSENT in pair or pair[0] == pair[1] for pair in pairs)


def _short(text: str | None) -> bytes:
    if text is None:
        return ABSENT
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=SIZE).digest()
