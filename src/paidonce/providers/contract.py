"""What a provider is: one gateway's wire contract as three verbs without I/O.

*verify* says whether a delivery is authentic, *identify* which event it carries, *translate* what
the event says. A provider reads the bytes as they arrived and keeps nothing.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from hashlib import blake2b
from typing import Any, ClassVar, Final, Protocol, TypeVar
from uuid import UUID

import orjson

from paidonce.domain.events import Ignored, PaymentEvent
from paidonce.providers.json_strict import parse_object

T = TypeVar("T")

DIGEST_SIZE: Final = 16
FINGERPRINT_VERSION: Final = 1


@dataclass(frozen=True)
class Delivery:
    """One request as it arrived. Header names are in lower case."""

    headers: Mapping[str, str]
    body: bytes
    received_at: datetime

    @cached_property
    def json(self) -> dict[str, Any]:
        """The body as a JSON object, strictly read, once. Raises MalformedError."""
        return parse_object(self.body)

    def read(self, reader: Callable[[Mapping[str, Any]], T]) -> T:
        """What the reader makes of the JSON body, made once for all the verbs of a provider."""
        made: dict[object, T] = self.__dict__.setdefault("made", {})
        if reader not in made:
            made[reader] = reader(self.json)
        return made[reader]


@dataclass(frozen=True, slots=True)
class Identity:
    """Which event a delivery carries, and a fingerprint of what it means.

    Two deliveries with one key are one event; if their fingerprints differ, they contradict each
    other.
    """

    key: str
    fingerprint: bytes
    type: str
    event_id: str | None = None  # the gateway's own
    payment_id: str | None = None
    order: str | None = None
    amount: str | None = None  # as it was sent, for the log
    currency: str | None = None
    occurred_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    """A test webhook to be made: what it should say."""

    payment_id: str
    amount: str
    currency: str
    status: str
    event_id: str | None = None
    email: str | None = None
    plan_id: str | None = None


class Provider(Protocol):
    """One configured source's way of reading its gateway."""

    name: ClassVar[str]
    signature_method: ClassVar[str]
    content_types: ClassVar[frozenset[str]]
    evidence_headers: ClassVar[frozenset[str]]
    """The headers that verification needs; they are kept beside the raw bytes."""
    links_by_email: ClassVar[bool]
    """Whether sources of this provider link by e-mail unless they say otherwise."""

    def verify(self, delivery: Delivery) -> None:
        """Raises InvalidSignatureError unless the delivery comes from the gateway."""

    def identify(self, delivery: Delivery) -> Identity:
        """Which event this is. Raises MalformedError."""

    def translate(self, delivery: Delivery) -> PaymentEvent | Ignored:
        """What the event says. Raises MalformedError."""

    def acknowledge(self, status: str, event_id: UUID) -> tuple[str, bytes]:
        """Content type and body of the answer to a delivery that was accepted."""

    def compose(self, sample: Sample) -> tuple[dict[str, str], bytes]:
        """Headers and body of an authentic delivery that says what the sample asks for."""


def key_digest(key: str) -> bytes:
    """An event's key as the database keeps it."""
    return blake2b(key.encode(), digest_size=DIGEST_SIZE).digest()


def fingerprint(*parts: object) -> bytes:
    """A digest of what an event means, from its canonical fields."""
    return blake2b(orjson.dumps(parts, default=str), digest_size=DIGEST_SIZE).digest()
