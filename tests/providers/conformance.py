"""What every provider has to do, whatever its gateway (PRV-9): one suite, one `Case` each.

A provider joins by a module of its own in `cases/`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final, Protocol
from urllib.parse import parse_qsl, urlencode

from paidonce.domain.events import PaymentEvent
from paidonce.providers.contract import Delivery, Identity, Provider

KEY: Final = "sources.test"
JSON: Final = {"content-type": "application/json"}
FORM: Final = {"content-type": "application/x-www-form-urlencoded"}
RECEIVED_AT: Final = datetime(2026, 11, 15, 12, tzinfo=UTC)
SECRETS: Final = ("the-first-secret", "the-second-secret")
TOLERANCE_S: Final = 300


@dataclass(frozen=True)
class Said:
    """What an authentic delivery is to say, in no gateway's words."""

    payment_id: str = "p-1"
    event_id: str | None = "evt-1"
    amount: str = "990.00"
    currency: str = "RUB"
    kind: str = "paid"  # in the gateway's words where a case says so
    email: str | None = "buyer@example.com"


class MakeProvider(Protocol):
    """A source with these secrets, each in the form that the gateway gives it."""

    def __call__(
        self, *secrets: str, currency: str = "RUB", tolerance_s: int | None = TOLERANCE_S
    ) -> Provider: ...


class MakeDelivery(Protocol):
    """An authentic delivery, made without the provider's code, signed with the secret given."""

    def __call__(self, said: Said, secret: str, sent_at: datetime) -> Delivery: ...


@dataclass(frozen=True)
class Case:
    """A provider, how to make what its gateway sends, and what is expected of it."""

    name: str
    provider: MakeProvider
    deliver: MakeDelivery
    signature_header: str
    """Where the signature is: a header, or `form:NAME`, a parameter of the form."""
    unknown_kind: str
    unknown_payment_id: str | None = "p-1"
    """The payment of an event of that kind, where it still names one."""
    wrong_signatures: Mapping[str, str] = field(default_factory=dict)
    """Signatures that are wrong by their form alone."""
    signed_headers: tuple[str, ...] = ()
    signs_whole_body: bool = True
    signs_time: bool = False
    keeps_proof: bool = True
    """Whether what is kept as evidence proves the delivery again: a signature does, no key."""
    composes: bool = True
    secrets_setting: str = "secrets"
    tells_email: bool = True

    def __str__(self) -> str:
        return self.name

    @property
    def configured(self) -> Provider:
        return self.provider(*SECRETS)

    def authentic(
        self,
        said: Said | None = None,
        secret: str = SECRETS[0],
        sent_at: datetime = RECEIVED_AT,
    ) -> Delivery:
        return self.deliver(said or Said(), secret, sent_at)

    def late_by(self, seconds: float) -> Delivery:
        """A delivery that was signed so long before it arrived."""
        return self.authentic(sent_at=RECEIVED_AT - timedelta(seconds=seconds))

    def identified(self, said: Said) -> Identity:
        """Which event an authentic delivery carries."""
        return self.provider(*SECRETS, currency=said.currency).identify(self.authentic(said))

    def paid(self, said: Said) -> PaymentEvent:
        """What an authentic delivery of a payment says."""
        provider = self.provider(*SECRETS, currency=said.currency)
        event = provider.translate(self.authentic(said))
        assert isinstance(event, PaymentEvent)
        return event


def changed(
    delivery: Delivery, *, body: bytes | None = None, headers: Mapping[str, str] | None = None
) -> Delivery:
    """The delivery with another body or other headers, and nothing remembered of the old ones."""
    return Delivery(
        delivery.headers if headers is None else headers,
        delivery.body if body is None else body,
        delivery.received_at,
    )


def header(delivery: Delivery, name: str) -> str:
    """What a header says, or a parameter of a form (`form:NAME`)."""
    if name.startswith(_FORM):
        return _form(delivery)[name.removeprefix(_FORM)]
    return delivery.headers[name]


def with_header(delivery: Delivery, name: str, value: str) -> Delivery:
    """The delivery with one other header, or parameter of its form."""
    if name.startswith(_FORM):
        return _with_form(delivery, _form(delivery) | {name.removeprefix(_FORM): value})
    return changed(delivery, headers={**delivery.headers, name: value})


def without_header(delivery: Delivery, name: str) -> Delivery:
    """The delivery without one of its headers, or parameters of its form."""
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
