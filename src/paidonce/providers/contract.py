"""The provider contract: how Paidonce reads the deliveries of one gateway.

*verify* checks that a delivery is authentic, *identify* returns which event it carries, *translate*
what the event means. A provider works on the bytes as they arrived and does no I/O. When the
gateway has to be queried, it returns a generator of requests (`GatewayQuery`) that the caller runs.
"""

from collections.abc import Callable, Collection, Generator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from hashlib import blake2b
from typing import Any, ClassVar, Final, Literal, Protocol, TypeVar
from uuid import UUID

import orjson

from paidonce.clock import CLOCK
from paidonce.core.events import ExternalId, Ignored, PaymentEvent
from paidonce.core.money import known_currency
from paidonce.errors import (
    ConfigurationError,
    GatewayUnreachableError,
    InvalidMoneyError,
    MalformedError,
)
from paidonce.providers.parsing import parse_form, parse_object
from paidonce.settings.secrets import resolve_secret

T = TypeVar("T")
ResponseBody = tuple[str, bytes]
"""Content type and body."""
Webhook = tuple[dict[str, str], bytes]
"""Headers and body."""

JSON_TYPE: Final = "application/json"
FORM_TYPE: Final = "application/x-www-form-urlencoded"
COMMON_HEADERS: Final = ("content-type", "user-agent")
DIGEST_SIZE: Final = 16
FINGERPRINT_VERSION: Final = 1
TEST_HEADER: Final = "paidonce-test"
"""Marks a delivery as test data; production rejects it."""


@dataclass(frozen=True)
class Delivery:
    """One webhook request as it arrived, with header names in lower case."""

    headers: Mapping[str, str]
    body: bytes
    received_at: datetime

    @cached_property
    def json(self) -> dict[str, Any]:
        """The body as a JSON object, parsed once. Raises MalformedError."""
        return parse_object(self.body)

    @cached_property
    def form(self) -> dict[str, str]:
        """The body as form fields, parsed once. Raises MalformedError."""
        return parse_form(self.body)

    @cached_property
    def dropped(self) -> list[str]:
        """The fields that cannot be read and that the event does without: times, addresses."""
        return []

    @property
    def is_form(self) -> bool:
        """Whether the content type is that of a form."""
        content_type = self.headers.get("content-type", JSON_TYPE)
        return content_type != JSON_TYPE and content_type.lower().startswith(FORM_TYPE)

    def parse_once(self, parser: Callable[["Delivery"], T]) -> T:
        """Return what the parser makes of the delivery; a second call returns the same result."""
        results: dict[object, T] = self.__dict__.setdefault("parsed", {})
        result = results.get(parser)
        if result is None:
            result = results[parser] = parser(self)
        return result


@dataclass(frozen=True, slots=True)
class ProviderConfig:
    """The settings of one source, for its provider. Its methods raise ConfigurationError."""

    key: str
    """The settings key of the source, such as `sources.shop`, for error messages."""
    secrets: tuple[str, ...] = ()
    """The secrets themselves; references are already resolved."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """The settings that only this provider has."""
    tolerance_s: int | None = 300
    """How far the signed time may be from the arrival; None accepts any."""
    accepts_test: bool = True
    """Whether payments of the gateway's test mode count; in production they are TEST_PAYMENT."""

    def require_secrets(self) -> tuple[str, ...]:
        """Return the secrets: at least one, none empty."""
        if not self.secrets:
            raise ConfigurationError(f'{self.key}.secrets: is required, e.g. ["env:SHOP_SECRET"]')
        for index, secret in enumerate(self.secrets):
            if not secret.strip():
                raise ConfigurationError(f"{self.key}.secrets[{index}]: the secret is empty")
        return self.secrets

    def named_secrets(self) -> list[tuple[str, str]]:
        """Return the secrets, stripped, each with its settings key."""
        secrets = enumerate(self.require_secrets())
        return [(f"{self.key}.secrets[{index}]", secret.strip()) for index, secret in secrets]

    def require_text(self, option: str, example: str) -> str:
        """Return a text option."""
        value = self.options.get(option)
        if not isinstance(value, str) or not value.strip():
            raise ConfigurationError(f"{self.key}.{option}: is required, e.g. {example!r}")
        return value.strip()

    def optional_text(self, option: str, example: str) -> str | None:
        """Return a text option, None if it is not set; it may not be empty."""
        return self.require_text(option, example) if option in self.options else None

    def optional_secret(self, option: str) -> str | None:
        """Return a secret given as itself, `env:NAME` or `file:PATH`; None if it is not set."""
        value = self.options.get(option)
        if value is None:
            return None
        if not isinstance(value, str):
            raise ConfigurationError(f"{self.key}.{option} (hidden): write it as text, in quotes")
        return resolve_secret(value, f"{self.key}.{option}")

    def require_api_key(self, option: str, example: str) -> str:
        """Return a secret option, stripped, that a header can contain."""
        key = self.optional_secret(option)
        if key is None:
            raise ConfigurationError(f"{self.key}.{option}: is required, e.g. {example!r}")
        if not (key.strip().isascii() and key.strip().isprintable()):
            raise ConfigurationError(f"{self.key}.{option} (hidden): contains invalid characters")
        return key.strip()

    def require_secret_list(self, option: str, example: str) -> list[tuple[str, str]]:
        """Return a list of secret options, each with its settings key: at least one, none empty."""
        values, key = self.options.get(option), f"{self.key}.{option}"
        if not values:
            raise ConfigurationError(f"{key}: is required, e.g. {example}")
        if not isinstance(values, list) or not all(isinstance(one, str) for one in values):
            raise ConfigurationError(f"{key} (hidden): write a list of texts, e.g. {example}")
        named = [(f"{key}[{index}]", one) for index, one in enumerate(values)]
        return [(name, resolve_secret(one, name)) for name, one in named]

    def choice(self, option: str, choices: tuple[str, ...]) -> str:
        """Return one of the choices; the first is the default."""
        value = self.options.get(option, choices[0])
        if value not in choices:
            quoted = ", ".join(f'"{one}"' for one in choices)
            raise self.invalid(option, f"write one of {quoted}")
        return str(value)

    def currency(self, default: str) -> str:
        """Return the option `currency`, a code of ISO 4217."""
        code = self.options.get("currency", default)
        try:
            return known_currency(str(code))
        except InvalidMoneyError as error:
            raise self.invalid("currency", f'{error}; write a code such as "{default}"') from None

    def url(self, option: str, default: str) -> str:
        """Return an http(s) address without a slash at its end."""
        url = self.optional_text(option, default) or default
        if not url.startswith(("https://", "http://")):
            raise self.invalid(option, f"write the whole address, e.g. {default!r}")
        return url.rstrip("/")

    def table(self, option: str) -> "ProviderConfig":
        """Return the options in a table, which may be left out."""
        table = self.options.get(option, {})
        if not isinstance(table, Mapping):
            raise self.invalid(option, f"write a table, [{self.key}.{option}]")
        return ProviderConfig(f"{self.key}.{option}", options=table)

    def invalid(self, option: str, remedy: str) -> ConfigurationError:
        """Return the error of an option that cannot have the value that it has."""
        return ConfigurationError(f"{self.key}.{option} = {self.options[option]!r}: {remedy}")

    def reject_unknown_options(self, known: Collection[str]) -> None:
        """Reject options that the provider does not have."""
        for option in self.options:
            if option not in known:
                others = ", ".join(sorted(known)) or "none"
                raise ConfigurationError(
                    f"{self.key}.{option}: this provider has no such setting; its own are {others}"
                )


@dataclass(frozen=True, slots=True)
class Identity:
    """Which event a delivery carries, and a fingerprint of its meaning.

    Deliveries with the same key are the same event; if their fingerprints differ, they conflict.
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
    nonce: str | None = None  # may be used once; with another meaning it is a replay


@dataclass(frozen=True, slots=True)
class GatewayRequest:
    """A request to the gateway's API. Never log it: its headers contain secrets."""

    method: Literal["GET", "POST"]
    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    json: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class GatewayResponse:
    """The response of the gateway's API, with any status."""

    status: int
    body: bytes

    @property
    def json(self) -> dict[str, Any]:
        """The body as a JSON object. Raises GatewayUnreachableError."""
        try:
            return parse_object(self.body)
        except MalformedError as error:
            raise GatewayUnreachableError(f"the response cannot be read: {error}") from None


GatewayQuery = Generator[GatewayRequest, GatewayResponse, T]
"""Yields requests, is sent the response to each, and returns the result.

Raises GatewayUnreachableError when the gateway cannot answer yet (the query is retried later) and
GatewayMismatchError when the gateway contradicts the delivery. The caller throws
GatewayUnreachableError into it when a request gets no response, or one with status 429 or 5xx.
"""
Lookup = GatewayQuery[PaymentEvent | Ignored]


@dataclass(frozen=True, slots=True, eq=False)
class LookupRequired:
    """The event has no meaning of its own: the gateway has to be queried."""

    query: Callable[[], Lookup]


@dataclass(frozen=True, slots=True)
class StatementPage:
    """A page of a gateway's statement: for each payment the event that a webhook would bring."""

    entries: tuple[PaymentEvent, ...]
    unreadable: int = 0
    """The number of payments on the page that cannot be read."""
    next_page: "Callable[[], GatewayQuery[StatementPage]] | None" = None


@dataclass(frozen=True, slots=True)
class ConfirmationRequest:
    """The gateway asks whether it may charge this amount for this order; 200 approves.

    It is not an event.
    """

    order: str
    amount_minor: int
    currency: str


Translation = PaymentEvent | Ignored | LookupRequired | ConfirmationRequest


@dataclass(frozen=True, slots=True)
class SampleEvent:
    """What a test webhook has to contain."""

    payment_id: str
    amount: str
    currency: str
    status: str
    event_id: str | None = None
    order: str | None = None
    email: str | None = None
    plan_id: str | None = None
    sent_at: datetime = field(default_factory=CLOCK.now)


class Provider(Protocol):
    """Reads the deliveries of one configured source. Providers derive from it."""

    name: ClassVar[str]
    content_types: ClassVar[frozenset[str]] = frozenset({JSON_TYPE})
    evidence_header_names: ClassVar[Collection[str]] = COMMON_HEADERS
    """The headers to store beside the raw body: those that the three verbs read, and no secret."""
    is_signed: ClassVar[bool] = True
    """Whether `verify` proves anything. Anybody can send an unsigned delivery."""
    retries_rejected: ClassVar[bool] = True
    """Whether the gateway retries after a 4xx; if not, it gets a 503 where a retry is wanted."""
    links_by_email: ClassVar[bool] = False
    """The default of the source's setting `link_by_email`."""
    samples_are_process_local: ClassVar[bool] = False
    """Whether a test webhook is authentic only in the process that built it."""

    def verify(self, delivery: Delivery) -> None:
        """Raise InvalidSignatureError unless the delivery comes from the gateway.

        Raises TimestampExpiredError when it does, but its signed time is too far from the arrival.
        """

    def identify(self, delivery: Delivery) -> Identity:
        """Return which event this is. Raises MalformedError."""

    def translate(self, delivery: Delivery) -> Translation:
        """Return what the event means. Raises MalformedError."""

    def unreadable_payment(self, delivery: Delivery) -> tuple[ExternalId, ...]:
        """Return the ids of the payment that a malformed delivery reports as paid.

        Empty if it reports something else. Raises MalformedError.
        """
        return ()

    def unsigned_fields(self) -> Collection[str]:
        """Return the fields of events, such as `email`, that are not signed."""
        return ()

    def signature_method(self, delivery: Delivery) -> str:
        """Return how the delivery is authenticated, or claims to be. For the statistics."""
        return "hmac-sha256"

    def evidence_headers(self, headers: Mapping[str, str]) -> dict[str, str]:
        """Return the headers to store beside the raw body."""
        return {name: headers[name] for name in self.evidence_header_names if name in headers}

    def answer_ping(self, body: bytes) -> ResponseBody | None:
        """Return content type and body of the answer to a ping; None if this is not a ping."""
        return None

    def success_response(self, status: str, event_id: UUID, delivery: Delivery) -> ResponseBody:
        """Return content type and body of the answer to an accepted delivery."""
        return json_success(status, event_id)

    def error_response(self, code: str, detail: str) -> ResponseBody | None:
        """Return content type and body of the answer to a rejected delivery.

        None where the gateway prescribes nothing; then it gets problem details (RFC 9457).
        """
        return None

    def build_sample(self, sample: SampleEvent) -> Webhook:
        """Return headers and body of an authentic test webhook.

        Its status is one of `samples.STATUSES` or the gateway's own word. Raises
        InvalidRequestError when the gateway has no such event, ConfigurationError when this source
        cannot sign one.
        """

    def default_currency(self) -> str | None:
        """Return the usual currency of the gateway, for test webhooks."""
        return None

    def statement_api(self) -> "StatementApi | None":
        """Return the gateway's statements, for reconciliation; None where it has none."""
        return None


class StatementApi(Protocol):
    """The payments that a gateway knows of. It does no I/O either."""

    def statement(self, since: datetime, until: datetime) -> GatewayQuery[StatementPage]:
        """Read the first page of the payments that received or returned money in this time.

        A payment may appear more than once. Payments that do not count here are left out.
        """

    def look_up(self, ids: Collection[ExternalId]) -> GatewayQuery[PaymentEvent | None]:
        """Read the current state of one payment; None if the gateway does not know it."""

    def build_webhook(self, entry: PaymentEvent) -> Webhook:
        """Return headers and body of a webhook that announces the payment, for a missed one.

        It is not signed, so `verify` rejects it; `identify` and `translate` read it.
        """


def json_success(status: str, event_id: UUID) -> ResponseBody:
    """Return the answer to an accepted delivery where the gateway prescribes none."""
    return JSON_TYPE, orjson.dumps({"status": status, "event_id": event_id}, default=str)


def key_digest(key: str) -> bytes:
    """Digest an event's key, as it is stored."""
    return blake2b(key.encode(), digest_size=DIGEST_SIZE).digest()


def fingerprint(*parts: object) -> bytes:
    """Digest the canonical fields of an event."""
    return blake2b(orjson.dumps(parts, default=str), digest_size=DIGEST_SIZE).digest()
