"""What every provider has to do, whatever its gateway (PRV-9): one suite, one `Case` each.

A provider joins by adding its case to `CASES` in `test_conformance.py`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from paidonce.domain.events import PaymentEvent
from paidonce.providers.contract import Delivery, Provider

RECEIVED_AT: Final = datetime(2026, 11, 15, 12, tzinfo=UTC)
SECRETS: Final = ("the-first-secret", "the-second-secret")


@dataclass(frozen=True)
class Said:
    """What an authentic delivery is to say, in no gateway's words."""

    payment_id: str = "p-1"
    event_id: str | None = "evt-1"
    amount: str = "990.00"
    currency: str = "RUB"
    kind: str = "paid"  # in the gateway's words where a case says so
    email: str | None = "buyer@example.com"


MakeProvider = Callable[[Sequence[str]], Provider]
MakeDelivery = Callable[[Said, str], Delivery]
"""An authentic delivery, made without the provider's code, signed with the secret given."""


@dataclass(frozen=True)
class Case:
    """A provider, how to make what its gateway sends, and what is expected of it."""

    name: str
    provider: MakeProvider
    deliver: MakeDelivery
    signature_header: str
    unknown_kind: str
    wrong_signatures: Mapping[str, str] = field(default_factory=dict)
    """Signatures that are wrong by their form alone."""
    signs_whole_body: bool = True

    def __str__(self) -> str:
        return self.name

    @property
    def configured(self) -> Provider:
        return self.provider(SECRETS)

    def authentic(self, said: Said | None = None, secret: str = SECRETS[0]) -> Delivery:
        return self.deliver(said or Said(), secret)

    def paid(self, said: Said) -> PaymentEvent:
        """What an authentic delivery of a payment says."""
        event = self.configured.translate(self.authentic(said))
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
