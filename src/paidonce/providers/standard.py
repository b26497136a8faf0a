"""Any sender that follows Standard Webhooks, or Svix, which it came from.

The headers `webhook-id`, `webhook-timestamp` and `webhook-signature` (or the same with `svix-`)
sign `id.timestamp.body`: `v1` with HMAC-SHA256 (secrets `whsec_…`), `v1a` with ed25519 (public keys
`whpk_…`). The id stays the same when an event is sent again, and is its key; the time is that of
the attempt. Bodies are

    {"type": "payment.succeeded", "timestamp": "2026-11-15T10:00:00Z",
     "data": {"payment_id": "…", "order": "…"?, "amount": "990.00", "currency": "RUB",
              "email": "…"?, "plan_id": "…"?}}

unless the settings describe others (`described.py`). On a refund the amount is all that was
refunded so far.

https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md, v1.0.0,
checked on 2026-11-15.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final
from uuid import uuid4

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from paidonce.domain.events import Ignored, PaymentEvent
from paidonce.errors import ConfigurationError, InvalidSignatureError
from paidonce.providers.contract import Delivery, Identity, Provider, Sample, Setup
from paidonce.providers.described import (
    Description,
    Header,
    Place,
    described,
    pointer,
)
from paidonce.providers.fields import Said, identity, meaning
from paidonce.providers.signing import exact_base64
from paidonce.providers.standard_webhooks import (
    PARTS,
    Envelope,
    decoded,
    envelope,
    sealed,
    symmetric_secret,
)

FAMILIES: Final = ("webhook", "svix")
ID_HEADERS: Final = frozenset(f"{family}-id" for family in FAMILIES)
TYPES: Final = {
    "payment.succeeded": "paid",
    "payment.failed": "failed",
    "payment.canceled": "canceled",
    "payment.refunded": "refunded",
    "payment.pending": "pending",
}
PLACES: Final[Mapping[str, Place]] = {
    "type": pointer("/type"),
    "payment_id": pointer("/data/payment_id"),
    "order": pointer("/data/order"),
    "amount": pointer("/data/amount"),
    "currency": pointer("/data/currency"),
    "email": pointer("/data/email"),
    "plan_id": pointer("/data/plan_id"),
    "occurred_at": pointer("/timestamp"),
}

_PUBLIC, _PRIVATE = "whpk_", "whsk_"
_KEPT: Final = frozenset(
    {"content-type", "user-agent"} | {f"{family}-{part}" for family in FAMILIES for part in PARTS}
)


@dataclass(frozen=True, slots=True, eq=False)
class Standard(Provider):
    """A source whose sender follows Standard Webhooks."""

    name: ClassVar = "standard"
    content_types: ClassVar = frozenset({"application/json"})
    links_by_email: ClassVar = True

    secrets: tuple[bytes, ...] = field(repr=False)
    public_keys: tuple[Ed25519PublicKey, ...]
    description: Description
    tolerance_s: int | None
    kept_headers: frozenset[str]

    def verify(self, delivery: Delivery) -> None:
        given, body = envelope(delivery.headers, FAMILIES), delivery.body
        if not (given.is_signed(body, self.secrets) or self._is_signed_by_key(given, body)):
            raise InvalidSignatureError("no signature matches the delivery")
        given.check_age(delivery, self.tolerance_s)

    def identify(self, delivery: Delivery) -> Identity:
        said = delivery.read(self.description.read)
        digest = meaning(said)
        key = self._key(said, digest, envelope(delivery.headers, FAMILIES).id)
        if said.event_id is None:
            said = said._replace(event_id=key)
        return self.description.with_nonce(identity(said, key, digest), delivery)

    def translate(self, delivery: Delivery) -> PaymentEvent | Ignored:
        return self.description.event(delivery.read(self.description.read))

    def signature_method(self, delivery: Delivery) -> str:
        given = " ".join(delivery.headers.get(f"{one}-signature", "") for one in FAMILIES)
        return "ed25519" if self.public_keys and "v1a," in given else "hmac-sha256"

    def evidence(self, headers: Mapping[str, str]) -> dict[str, str]:
        return {name: value for name, value in headers.items() if name in self.kept_headers}

    def compose(self, sample: Sample) -> tuple[dict[str, str], bytes]:
        if not self.secrets:
            raise ConfigurationError("a public key signs nothing: a test webhook needs a whsec_…")
        body, headers = self.description.compose(sample)
        event_id = sample.event_id or f"msg_{uuid4().hex}"
        return headers | sealed(sample, event_id, body, self.secrets[0]), body

    def _key(self, said: Said, digest: bytes, signed_id: str) -> str:
        if said.event_id is None:
            return signed_id
        if isinstance(self.description.places["event_id"], Header):
            # Nobody signed it: alone, it could be that of an event which is still to come.
            return f"{said.event_id}:{digest.hex()}"
        return said.event_id

    def _is_signed_by_key(self, envelope: Envelope, body: bytes) -> bool:
        if not self.public_keys:
            return False
        signed = envelope.signed(body)
        given = [exact_base64(one) for one in envelope.of_version("v1a")]
        return any(
            _verifies(key, one, signed)
            for one in given
            if one is not None
            for key in self.public_keys
        )


def configure(setup: Setup) -> Standard:
    """A source from its settings. Raises ConfigurationError."""
    setup.refuse_options_but({"fields", "types"})
    secrets: list[bytes] = []
    public_keys: list[Ed25519PublicKey] = []
    for index, secret in enumerate(setup.needed_secrets()):
        key = f"{setup.key}.secrets[{index}]"
        if secret.strip().startswith(_PUBLIC):
            public_keys.append(_public_key(secret.strip(), key))
        else:
            secrets.append(_secret(secret.strip(), key))
    description = described(setup.key, _with_signed_id(setup.options), PLACES, TYPES)
    kept = _KEPT | description.headers
    return Standard(tuple(secrets), tuple(public_keys), description, setup.tolerance_s, kept)


def _with_signed_id(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """An event's id is the signed one unless it stands elsewhere; naming it changes nothing."""
    fields = options.get("fields")
    if not isinstance(fields, Mapping) or "event_id" not in fields:
        return options
    name = str(fields["event_id"]).lower().removeprefix("header:").strip()
    if name not in ID_HEADERS:
        return options
    others = {key: value for key, value in fields.items() if key != "event_id"}
    return {**options, "fields": others}


def _verifies(key: Ed25519PublicKey, signature: bytes, signed: bytes) -> bool:
    try:
        key.verify(signature, signed)
    except InvalidSignature:
        return False
    return True


def _secret(secret: str, key: str) -> bytes:
    if secret.startswith(_PRIVATE):
        raise ConfigurationError(f"{key}: is a private key; give the public one, whpk_…")
    return symmetric_secret(secret, key, "whsec_… or whpk_…")


def _public_key(secret: str, key: str) -> Ed25519PublicKey:
    try:
        return Ed25519PublicKey.from_public_bytes(
            decoded(secret.removeprefix(_PUBLIC), key, "whpk_…")
        )
    except ValueError:
        raise ConfigurationError(f"{key}: is not an ed25519 public key of 32 bytes") from None
