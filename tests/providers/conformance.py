"""What every provider has to do, whatever its gateway (PRV-9): one suite, one `Case` each.

A provider joins by a module of its own in `cases/`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final, Protocol
from urllib.parse import parse_qsl, urlencode

from paidonce.domain.events import Ignored, PaymentEvent
from paidonce.providers.contract import (
    Call,
    Confirmation,
    Delivery,
    Identity,
    Provider,
    Reply,
    Thin,
)

KEY: Final = "sources.test"
JSON: Final = {"content-type": "application/json"}
FORM: Final = {"content-type": "application/x-www-form-urlencoded"}
RECEIVED_AT: Final = datetime(2026, 11, 15, 12, tzinfo=UTC)
SECRETS: Final = ("the-first-secret", "the-second-secret")
TOLERANCE_S: Final = 300
MAX_CALLS: Final = 8


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
    unknown_kind: str
    signature_header: str = ""
    """Where the signature is: a header, or `form:NAME`, a parameter of the form.

    Empty where the gateway signs nothing.
    """
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
    names_events: bool = True
    """Whether a delivery holds the gateway's own id of the event."""
    answer: Callable[[Said, Call], Reply] | None = None
    """What the gateway replies when it is asked about what was said; None if it need not be."""
    secrets_setting: str = "secrets"
    tells_email: bool = True

    def __str__(self) -> str:
        return self.name

    @property
    def is_signed(self) -> bool:
        return self.signature_header != ""

    @property
    def is_thin(self) -> bool:
        """Whether events hold no more than a reason to ask the gateway."""
        return self.answer is not None

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
        event = self.event(provider, self.authentic(said), said)
        assert isinstance(event, PaymentEvent)
        return event

    def event(self, provider: Provider, delivery: Delivery, said: Said) -> PaymentEvent | Ignored:
        """What a delivery says, after the gateway was asked where it has to be."""
        meaning = provider.translate(delivery)
        assert not isinstance(meaning, Confirmation)
        if not isinstance(meaning, Thin):
            assert not self.is_thin or isinstance(meaning, Ignored)
            return meaning
        answer = self.answer
        assert answer is not None
        return converse(meaning, lambda call: answer(said, call))


def converse(thin: Thin, answer: Callable[[Call], Reply]) -> PaymentEvent | Ignored:
    """What comes of asking a gateway that answers so."""
    conversation = thin.ask()
    try:
        call = next(conversation)
        for _ in range(MAX_CALLS):
            call = conversation.send(answer(call))
    except StopIteration as end:
        event: PaymentEvent | Ignored = end.value
        return event
    raise AssertionError("the conversation does not end")


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
