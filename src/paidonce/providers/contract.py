"""What a provider is: one gateway's wire contract as three verbs without I/O.

*verify* says whether a delivery is authentic, *identify* which event it carries, *translate* what
the event says. A provider reads the bytes as they arrived and does no I/O, not even where the
gateway has to be asked what an event means: it says what to ask, and reads the replies (`Thin`).
"""

from collections.abc import Callable, Collection, Generator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from hashlib import blake2b
from typing import Any, ClassVar, Final, Literal, Protocol, TypeVar
from uuid import UUID

import orjson

from paidonce.domain.events import ExternalId, Ignored, PaymentEvent
from paidonce.errors import ConfigurationError, GatewayUnreachableError, MalformedError
from paidonce.providers.json_strict import parse_object
from paidonce.settings import resolve_secret

T = TypeVar("T")

DIGEST_SIZE: Final = 16
FINGERPRINT_VERSION: Final = 1
DEFAULT_TOLERANCE_S: Final = 300
TEST_HEADER: Final = "paidonce-test"
"""A delivery with this header is marked as test data, and refused in production."""


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

    def read(self, reader: Callable[["Delivery"], T]) -> T:
        """What the reader makes of the delivery, made once for all the verbs of a provider."""
        made: dict[object, T] = self.__dict__.setdefault("made", {})
        known = made.get(reader)
        if known is None:
            known = made[reader] = reader(self)
        return known


@dataclass(frozen=True, slots=True)
class Setup:
    """What a source's settings give its provider."""

    key: str
    """The settings key of the source, such as `sources.shop`, for errors to name."""
    secrets: tuple[str, ...] = ()
    """As they are, no references any more."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """The source's settings that are not every source's."""
    tolerance_s: int | None = DEFAULT_TOLERANCE_S
    """How far a delivery's own time may be from its arrival; None accepts any."""
    accepts_test: bool = True
    """Whether payments of the gateway's sandbox count; in production they are TEST_PAYMENT."""

    def needed_secrets(self) -> tuple[str, ...]:
        """The secrets: at least one, and none empty. Raises ConfigurationError."""
        if not self.secrets:
            raise ConfigurationError(f'{self.key}.secrets: is needed, such as ["env:SHOP_SECRET"]')
        for index, secret in enumerate(self.secrets):
            if not secret.strip():
                raise ConfigurationError(f"{self.key}.secrets[{index}]: the secret is empty")
        return self.secrets

    def needed_text(self, option: str, example: str) -> str:
        """A text option of the provider's own that has to be there. Raises ConfigurationError."""
        value = self.options.get(option)
        if not isinstance(value, str) or not value.strip():
            raise ConfigurationError(f"{self.key}.{option}: is needed, such as {example!r}")
        return value.strip()

    def secret_text(self, option: str) -> str | None:
        """An option that may be a reference, `env:NAME` or `file:PATH`; None if not given.

        Raises ConfigurationError when it is empty, or refers to nothing.
        """
        value = self.options.get(option)
        if value is None:
            return None
        if not isinstance(value, str):
            raise ConfigurationError(f"{self.key}.{option} (hidden): write it as text, in quotes")
        return resolve_secret(value, f"{self.key}.{option}")

    def needed_secret_text(self, option: str, example: str) -> str:
        """The same of one that has to be there."""
        secret = self.secret_text(option)
        if secret is None:
            raise ConfigurationError(f"{self.key}.{option}: is needed, such as {example!r}")
        return secret

    def needed_secret_texts(self, option: str, example: str) -> tuple[str, ...]:
        """A list of such options: at least one, and none empty. Raises ConfigurationError."""
        values = self.options.get(option)
        key = f"{self.key}.{option}"
        if not values:
            raise ConfigurationError(f"{key}: is needed, such as {example}")
        if not isinstance(values, list) or not all(isinstance(one, str) for one in values):
            raise ConfigurationError(f"{key} (hidden): write a list of texts, such as {example}")
        return tuple(resolve_secret(one, f"{key}[{index}]") for index, one in enumerate(values))

    def choice(self, option: str, choices: tuple[str, ...]) -> str:
        """One of some words, the first if nothing is said. Raises ConfigurationError."""
        value = self.options.get(option, choices[0])
        if value not in choices:
            known = ", ".join(f'"{one}"' for one in choices)
            raise ConfigurationError(f"{self.key}.{option} = {value!r}: write one of {known}")
        return str(value)

    def refuse_options_but(self, known: Collection[str]) -> None:
        """Raises ConfigurationError when there is an option that the provider does not have."""
        for option in self.options:
            if option not in known:
                others = ", ".join(sorted(known)) or "none"
                raise ConfigurationError(
                    f"{self.key}.{option}: this provider has no such setting; its own are {others}"
                )


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
    nonce: str | None = None  # to be used once; the same one with another meaning is a replay


@dataclass(frozen=True, slots=True)
class Call:
    """A request to the gateway's query API. Its headers hold secrets: it is never logged."""

    method: Literal["GET", "POST"]
    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    json: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """What the gateway answered to a call, whatever its status."""

    status: int
    body: bytes

    @property
    def json(self) -> dict[str, Any]:
        """The body as a JSON object, strictly read. Raises GatewayUnreachableError."""
        try:
            return parse_object(self.body)
        except MalformedError as error:
            raise GatewayUnreachableError(f"its reply cannot be read: {error}") from None


Conversation = Generator[Call, Reply, PaymentEvent | Ignored]
"""Calls, each answered by its reply, until it is known what an event says.

Raises GatewayUnreachableError when the gateway cannot say (yet): it is asked again later, for days.
Raises GatewayMismatchError when it contradicts the delivery. Whoever drives the conversation raises
GatewayUnreachableError into it when a call gets no reply, or one with status 429 or 5xx.
"""


@dataclass(frozen=True, slots=True, eq=False)
class Thin:
    """An event that says only "look": what it means has to be asked of the gateway."""

    ask: Callable[[], Conversation]


Lookup = Generator[Call, Reply, PaymentEvent | None]
"""Calls, each answered by its reply, until it is known where one payment stands; None if the
gateway does not know it. Raises GatewayUnreachableError when it cannot say.
"""


@dataclass(frozen=True, slots=True)
class Page:
    """A part of a gateway's statement: payments, each as a webhook of today would tell of it."""

    entries: tuple[PaymentEvent, ...]
    unreadable: int = 0
    """How many more there are that cannot be read."""
    follows: "Callable[[], PageTurn] | None" = None
    """What reads on; None at the end."""


PageTurn = Generator[Call, Reply, Page]
"""Calls, each answered by its reply, until a page is read. Raises GatewayUnreachableError."""


@dataclass(frozen=True, slots=True)
class Confirmation:
    """A question on whose answer the gateway waits: may this be charged for that order?

    It is no event. Whoever answers 200 approves it.
    """

    order: str
    amount_minor: int
    currency: str


Meaning = PaymentEvent | Ignored | Thin | Confirmation
"""What a delivery can turn out to say."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A test webhook to be made: what it should say."""

    payment_id: str
    amount: str
    currency: str
    status: str
    event_id: str | None = None
    order: str | None = None
    email: str | None = None
    plan_id: str | None = None
    sent_at: datetime = field(default_factory=lambda: datetime.now(UTC))


class Provider(Protocol):
    """One configured source's way of reading its gateway. Providers derive from it."""

    name: ClassVar[str]
    content_types: ClassVar[frozenset[str]]
    is_signed: ClassVar[bool] = True
    """Whether `verify` proves anything. What is not signed can be sent by anybody."""
    retries_refused: ClassVar[bool] = True
    """Whether the gateway sends again what was answered 4xx; else it is told 503 to make it."""
    links_by_email: ClassVar[bool] = False
    """Whether sources of this provider link by e-mail unless they say otherwise."""
    composes_for_itself: ClassVar[bool] = False
    """Whether only the process that composed a test webhook takes it for authentic."""

    def pong(self, body: bytes) -> tuple[str, bytes] | None:
        """Content type and body of the answer to a ping, which is no event; None to all else."""
        return None

    def verify(self, delivery: Delivery) -> None:
        """Raises InvalidSignatureError unless the delivery comes from the gateway.

        Raises TimestampExpiredError when it does, but at a time too far from its arrival.
        """

    def identify(self, delivery: Delivery) -> Identity:
        """Which event this is. Raises MalformedError."""

    def translate(self, delivery: Delivery) -> Meaning:
        """What the event says. Raises MalformedError."""

    def signature_method(self, delivery: Delivery) -> str:
        """How the delivery proves, or claims, where it comes from. For the statistics."""

    def evidence(self, headers: Mapping[str, str]) -> dict[str, str]:
        """The headers to keep beside the raw bytes: those that the verbs need, and no secret."""

    def acknowledge(self, status: str, event_id: UUID, delivery: Delivery) -> tuple[str, bytes]:
        """Content type and body of the answer to a delivery that was accepted."""
        return json_acknowledgement(status, event_id)

    def refuse(self, code: str, detail: str) -> tuple[str, bytes] | None:
        """Content type and body of the answer to a delivery that was not accepted.

        None where the gateway dictates none: then it is told what went wrong (RFC 9457).
        """
        return None

    def compose(self, sample: Sample) -> tuple[dict[str, str], bytes]:
        """Headers and body of an authentic delivery that says what the sample asks for.

        Its status is one of `samples.WORDS`, or the gateway's own word. Raises InvalidRequestError
        when the gateway has no such event, ConfigurationError when none can be signed here.
        """

    def usual_currency(self) -> str | None:
        """In what the gateway pays where nothing else is said, for test webhooks."""
        return None

    def books(self) -> "Books | None":
        """The gateway's own books, to be reconciled with; None where it shows none."""
        return None


class Books(Protocol):
    """What a gateway knows of all its payments. No I/O here either: it says what to ask."""

    def statement(self, since: datetime, until: datetime) -> PageTurn:
        """The first page of all payments that came to have money, or to give it back, then.

        A payment may be told more than once. Those that would not count here are left out.
        """

    def look_up(self, ids: Collection[ExternalId]) -> Lookup:
        """Where the payment with these ids stands."""

    def notice_of(self, entry: PaymentEvent) -> tuple[dict[str, str], bytes]:
        """Headers and body of what the gateway could have sent to say "look at this payment".

        It proves nothing, and is no forgery: it is not signed. `identify` and `translate` read it.
        """


def json_acknowledgement(status: str, event_id: UUID) -> tuple[str, bytes]:
    """The answer of gateways that dictate none."""
    said = {"status": status, "event_id": event_id}
    return "application/json", orjson.dumps(said, default=str)


def key_digest(key: str) -> bytes:
    """An event's key as the database keeps it."""
    return blake2b(key.encode(), digest_size=DIGEST_SIZE).digest()


def fingerprint(*parts: object) -> bytes:
    """A digest of what an event means, from its canonical fields."""
    return blake2b(orjson.dumps(parts, default=str), digest_size=DIGEST_SIZE).digest()
