"""Cases of the conformance suite that every provider has to pass (PRV-9).

Each provider has a module in `cases/`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final, Protocol
from urllib.parse import parse_qsl, urlencode

from paidonce.core.events import Ignored, PaymentEvent
from paidonce.providers.contract import (
    ConfirmationRequest,
    Delivery,
    GatewayRequest,
    GatewayResponse,
    Identity,
    LookupRequired,
    Provider,
)

KEY: Final = "sources.test"
JSON: Final = {"content-type": "application/json"}
FORM: Final = {"content-type": "application/x-www-form-urlencoded"}
RECEIVED_AT: Final = datetime(2026, 11, 15, 12, tzinfo=UTC)
SECRETS: Final = ("the-first-secret", "the-second-secret")
TOLERANCE_S: Final = 300
MAX_CALLS: Final = 8


@dataclass(frozen=True)
class ExpectedEvent:
    """The content of an authentic delivery, independent of the gateway."""

    payment_id: str = "p-1"
    event_id: str | None = "evt-1"
    amount: str = "990.00"
    currency: str = "RUB"
    kind: str = "paid"  # or a type of the gateway
    email: str | None = "buyer@example.com"


class MakeProvider(Protocol):
    """Builds a source with these secrets, each in the format of the gateway."""

    def __call__(
        self, *secrets: str, currency: str = "RUB", tolerance_s: int | None = TOLERANCE_S
    ) -> Provider: ...


class MakeDelivery(Protocol):
    """Builds an authentic delivery without the provider's code, signed with this secret."""

    def __call__(self, expected: ExpectedEvent, secret: str, sent_at: datetime) -> Delivery: ...


@dataclass(frozen=True)
class Case:
    """A provider, how to build the deliveries of its gateway, and what is expected of it."""

    name: str
    provider: MakeProvider
    deliver: MakeDelivery
    unknown_kind: str
    signature_header: str = ""
    """The header of the signature, or `form:NAME` for a form parameter; empty if unsigned."""
    unknown_payment_id: str | None = "p-1"
    """The payment id of an event of the unknown kind, if it has one."""
    wrong_signatures: Mapping[str, str] = field(default_factory=dict)
    """Signatures in a wrong format."""
    signed_headers: tuple[str, ...] = ()
    signs_whole_body: bool = True
    signs_time: bool = False
    keeps_proof: bool = True
    """Whether the stored evidence can be verified again: a signature can, an API key cannot."""
    composes: bool = True
    names_events: bool = True
    """Whether a delivery contains the gateway's own id of the event."""
    answer: Callable[[ExpectedEvent, GatewayRequest], GatewayResponse] | None = None
    """The response of the gateway to a request about the event; None if there are no lookups."""
    secrets_setting: str = "secrets"
    tells_email: bool = True

    def __str__(self) -> str:
        return self.name

    @property
    def is_signed(self) -> bool:
        return self.signature_header != ""

    @property
    def needs_lookup(self) -> bool:
        """Whether events only announce a change and the gateway has to be queried."""
        return self.answer is not None

    @property
    def configured(self) -> Provider:
        return self.provider(*SECRETS)

    def authentic(
        self,
        expected: ExpectedEvent | None = None,
        secret: str = SECRETS[0],
        sent_at: datetime = RECEIVED_AT,
    ) -> Delivery:
        return self.deliver(expected or ExpectedEvent(), secret, sent_at)

    def late_by(self, seconds: float) -> Delivery:
        """A delivery that was signed this long before it arrived."""
        return self.authentic(sent_at=RECEIVED_AT - timedelta(seconds=seconds))

    def identified(self, expected: ExpectedEvent) -> Identity:
        """The identity of an authentic delivery."""
        return self.provider(*SECRETS, currency=expected.currency).identify(
            self.authentic(expected)
        )

    def paid(self, expected: ExpectedEvent) -> PaymentEvent:
        """The event of an authentic delivery of a payment."""
        provider = self.provider(*SECRETS, currency=expected.currency)
        event = self.event(provider, self.authentic(expected), expected)
        assert isinstance(event, PaymentEvent)
        return event

    def event(
        self, provider: Provider, delivery: Delivery, expected: ExpectedEvent
    ) -> PaymentEvent | Ignored:
        """The event of a delivery, after a lookup if one is required."""
        meaning = provider.translate(delivery)
        assert not isinstance(meaning, ConfirmationRequest)
        if not isinstance(meaning, LookupRequired):
            assert not self.needs_lookup or isinstance(meaning, Ignored)
            return meaning
        answer = self.answer
        assert answer is not None
        return run_lookup(meaning, lambda call: answer(expected, call))


def run_lookup(
    lookup: LookupRequired, answer: Callable[[GatewayRequest], GatewayResponse]
) -> PaymentEvent | Ignored:
    """Run the lookup against a gateway that answers like this."""
    query = lookup.query()
    try:
        call = next(query)
        for _ in range(MAX_CALLS):
            call = query.send(answer(call))
    except StopIteration as end:
        event: PaymentEvent | Ignored = end.value
        return event
    raise AssertionError("the query does not end")


def changed(
    delivery: Delivery, *, body: bytes | None = None, headers: Mapping[str, str] | None = None
) -> Delivery:
    """The delivery with another body or other headers, without its cached results."""
    return Delivery(
        delivery.headers if headers is None else headers,
        delivery.body if body is None else body,
        delivery.received_at,
    )


def header(delivery: Delivery, name: str) -> str:
    """The value of a header, or of a form parameter (`form:NAME`)."""
    if name.startswith(_FORM):
        return _form(delivery)[name.removeprefix(_FORM)]
    return delivery.headers[name]


def with_header(delivery: Delivery, name: str, value: str) -> Delivery:
    """The delivery with one header or form parameter replaced."""
    if name.startswith(_FORM):
        return _with_form(delivery, _form(delivery) | {name.removeprefix(_FORM): value})
    return changed(delivery, headers={**delivery.headers, name: value})


def without_header(delivery: Delivery, name: str) -> Delivery:
    """The delivery without one of its headers or form parameters."""
    if name.startswith(_FORM):
        form = _form(delivery)
        return _with_form(delivery, {key: form[key] for key in form if f"{_FORM}{key}" != name})
    others = {key: value for key, value in delivery.headers.items() if key != name}
    return changed(delivery, headers=others)


_FORM: Final = "form:"


def _form(delivery: Delivery) -> dict[str, str]:
    return dict(parse_qsl(delivery.body.decode("ascii"), keep_blank_values=True))


def _with_form(delivery: Delivery, form: Mapping[str, str]) -> Delivery:
    pairs = {name: value.encode("utf-8", "surrogatepass") for name, value in form.items()}
    return changed(delivery, body=urlencode(pairs).encode())
