"""The events to send: signed, unique, for existing users."""

import hashlib
import hmac
import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from uuid import uuid4

SECRET = "benchmark-secret-0123456789abcdef0123456789abcdef"
PLAN_ID = "monthly"
PRICE = "990.00"
CURRENCY = "RUB"
PLAN_DAYS = 30
ORDER_SEED = 20240229


@dataclass(frozen=True, slots=True)
class SignedEvent:
    """A body and the lower-case hex HMAC-SHA256 of its bytes."""

    body: bytes
    signature: str


def email_of(user: int) -> str:
    """The address of the n-th user, in normal form."""
    return f"user{user:06d}@example.com"


def first_events(*, users: int) -> Iterator[SignedEvent]:
    """One event for every user, so that later ones find a subscription to extend."""
    return _events(iter(range(users)))


def random_events(*, users: int, count: int) -> Iterator[SignedEvent]:
    """Events of users in a random order, the same for every contender."""
    order = random.Random(ORDER_SEED)
    return _events(islice(iter(lambda: order.randrange(users), None), count))


def distinct_events(*, users: int, count: int) -> Iterator[SignedEvent]:
    """Events of as many different users, in a random order."""
    return _events(iter(random.sample(range(users), count)))


def _events(owners: Iterator[int]) -> Iterator[SignedEvent]:
    batch = uuid4().hex[:12]
    paid_at = datetime.now(UTC).isoformat(timespec="seconds")
    return (
        _sign(
            f'{{"external_payment_id":"pay-{batch}-{number}","event_id":"evt-{batch}-{number}",'
            f'"status":"paid","amount":"{PRICE}","currency":"{CURRENCY}",'
            f'"email":"{email_of(owner)}","plan_id":"{PLAN_ID}","paid_at":"{paid_at}"}}'
        )
        for number, owner in enumerate(owners)
    )


def _sign(document: str) -> SignedEvent:
    body = document.encode()
    return SignedEvent(body, hmac.digest(SECRET.encode(), body, hashlib.sha256).hex())
