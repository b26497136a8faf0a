"""Any other sender, described by the settings of its source alone.

    [sources.rzp.signature]
    header = "X-Razorpay-Signature"
    algorithm = "hmac-sha256"          # hmac-sha1, hmac-sha512, ed25519, rsa-sha256
    encoding = "hex"                   # base64
    prefix = ""                        # before each signature, such as "sha256="
    signed = "{body}"                  # of {body}, {timestamp}, {id} and {url}
    pairs = false                      # true: the header is such as "ts=…;h1=…"; then
    value = "h1"                       # the name of each signature in it
    timestamp = "ts"                   # and of the time; without pairs the header of the time
    id = "X-Event-Id"                  # the header of {id}; else that of fields.event_id
    url = "https://…/webhooks/rzp"     # what {url} is: never taken from the request

What of this goes together is checked in `generic_scheme.py`. Where the fields of an event stand and
what its types mean is described as in `described.py`.

The key of an event is its id, in the body or signed as `{id}`; without one, a digest of its type,
order, payment and time, or of the body if it tells no time. If anything that is read stands in a
header that nobody signed, whoever has seen a delivery can change that: then the fingerprint is a
part of the key, so that no replay takes the key of an event which is still to come.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Final

from paidonce.domain.events import Ignored, PaymentEvent, Says
from paidonce.errors import ConfigurationError, InvalidSignatureError
from paidonce.providers.contract import Delivery, Identity, Provider, Sample, Setup, fingerprint
from paidonce.providers.described import Description, described
from paidonce.providers.fields import Said, identity, meaning
from paidonce.providers.generic_scheme import Scheme, configured_scheme
from paidonce.providers.signing import refuse_stale

_KEPT: Final = frozenset({"content-type", "user-agent"})


@dataclass(frozen=True, slots=True, eq=False)
class Generic(Provider):
    """A source whose sender is described."""

    name: ClassVar = "generic"
    content_types: ClassVar = frozenset({"application/json"})

    scheme: Scheme
    description: Description
    tolerance_s: int | None
    kept_headers: frozenset[str]
    is_all_signed: bool
    """Whether nothing that is read stands in a header that nobody signed."""

    def verify(self, delivery: Delivery) -> None:
        envelope = self.scheme.envelope(delivery.headers)
        if not self.scheme.proves(envelope, delivery.body):
            raise InvalidSignatureError("no signature matches the delivery")
        if envelope.signed_at_s is not None:
            refuse_stale(envelope.signed_at_s, delivery.received_at, self.tolerance_s)

    def identify(self, delivery: Delivery) -> Identity:
        said = delivery.read(self.description.read)
        if said.event_id is None:
            said = said._replace(event_id=self.scheme.signed_id(delivery.headers))
        digest = meaning(said)
        key = said.event_id or _composed_key(said) or hashlib.sha256(delivery.body).hexdigest()
        if not self.is_all_signed:
            key = f"{key}:{digest.hex()}"
        found = identity(said, key, digest)
        return self.description.with_nonce(found, delivery, self.scheme.signed_headers)

    def translate(self, delivery: Delivery) -> PaymentEvent | Ignored:
        return self.description.event(delivery.read(self.description.read))

    def signature_method(self, delivery: Delivery) -> str:
        return self.scheme.keys.algorithm

    def evidence(self, headers: Mapping[str, str]) -> dict[str, str]:
        return {name: value for name, value in headers.items() if name in self.kept_headers}

    def compose(self, sample: Sample) -> tuple[dict[str, str], bytes]:
        body, headers = self.description.compose(sample)
        sealed = self.scheme.sealed(body, sample.event_id, sample.sent_at)
        return {**headers, "content-type": "application/json", **sealed}, body


def configure(setup: Setup) -> Generic:
    """A source from its settings. Raises ConfigurationError."""
    setup.refuse_options_but({"signature", "fields", "types"})
    scheme = configured_scheme(setup)
    description = described(setup.key, setup.options, {}, {})
    _refuse_what_says_nothing(setup.key, description)
    signed, read = scheme.signed_headers, description.headers
    kept = _KEPT | signed | read | {scheme.header}
    return Generic(scheme, description, setup.tolerance_s, kept, read <= signed)


def _composed_key(said: Said) -> str | None:
    """What an event without an id is known by, if it tells of what and of when it speaks."""
    if said.payment_id is None or said.occurred_at is None:
        return None
    return fingerprint(said.type, said.order, said.payment_id, said.occurred_at).hex()


def _refuse_what_says_nothing(key: str, description: Description) -> None:
    """Raises ConfigurationError when no event of the source could ever count."""
    if not any(description.types.values()):
        raise ConfigurationError(
            f'{key}.types: is needed, and says which type means what, such as "charge.ok" = "paid"'
        )
    has_money = {Says.PAID, Says.REFUNDED} & {*description.types.values()}
    needed = ["type", "payment_id", *(["amount", "currency"] if has_money else [])]
    for name in needed:
        if not {name, f"{name}_minor"} & description.places.keys():
            raise ConfigurationError(
                f'{key}.fields.{name}: is needed, such as "/data/{name}" or "header:NAME"'
            )
