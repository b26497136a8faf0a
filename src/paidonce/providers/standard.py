"""Any sender that follows Standard Webhooks, or Svix, from which that standard comes.

Deliveries are signed as `standard_webhooks.py` says, in headers named `webhook-…` or `svix-…`: `v1`
with HMAC-SHA256 (secrets `whsec_…`), `v1a` with ed25519 (public keys `whpk_…`). Bodies are

    {"type": "payment.succeeded", "timestamp": "2026-11-15T10:00:00Z",
     "data": {"payment_id": "…", "order": "…"?, "amount": "990.00", "currency": "RUB",
              "email": "…"?, "plan_id": "…"?}}

unless the settings describe others (`field_mapping.py`). The amount of a refund is the total
refunded so far.
"""

from dataclasses import dataclass, field, replace
from typing import ClassVar, Final
from uuid import uuid4

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from paidonce.errors import ConfigurationError, InvalidSignatureError
from paidonce.providers import contract
from paidonce.providers.field_mapping import (
    MappedProvider,
    check_unsigned,
    load_mapping,
)
from paidonce.providers.public_keys import der, is_signed_by_any
from paidonce.providers.signing import decode_base64
from paidonce.providers.standard_webhooks import (
    PARTS,
    Envelope,
    decode_secret,
    read_envelope,
    signed_headers,
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
LOCATIONS: Final = {
    "type": "/type",
    "occurred_at": "/timestamp",
    "payment_id": "/data/payment_id",
    "order": "/data/order",
    "amount": "/data/amount",
    "currency": "/data/currency",
    "email": "/data/email",
    "plan_id": "/data/plan_id",
}

_PUBLIC, _PRIVATE = "whpk_", "whsk_"
_HEADERS: Final = frozenset(
    (*contract.COMMON_HEADERS, *(f"{family}-{part}" for family in FAMILIES for part in PARTS))
)


@dataclass(frozen=True, slots=True, eq=False)
class Standard(MappedProvider):
    """A source whose sender follows Standard Webhooks."""

    name: ClassVar = "standard"
    links_by_email: ClassVar = True

    secrets: tuple[bytes, ...] = field(repr=False)
    public_keys: tuple[Ed25519PublicKey, ...]

    def verify(self, delivery: contract.Delivery) -> None:
        envelope, body = read_envelope(delivery.headers, FAMILIES), delivery.body
        if not (envelope.is_signed(body, self.secrets) or self._is_signed_by_key(envelope, body)):
            raise InvalidSignatureError("no signature matches the delivery")
        envelope.check_age(delivery, self.tolerance_s)

    def identify(self, delivery: contract.Delivery) -> contract.Identity:
        fields = delivery.parse_once(self.mapping.read_fields)
        if fields.event_id is None:
            fields = fields._replace(event_id=read_envelope(delivery.headers, FAMILIES).id)
        key = None if "event_id" in self.unsigned else fields.event_id
        return self.identity_of(fields, key, delivery)

    def signing_keys(self) -> tuple[bytes, ...]:
        return (*self.secrets, *(der(key) for key in self.public_keys))

    def signature_method(self, delivery: contract.Delivery) -> str:
        signatures = " ".join(delivery.headers.get(f"{one}-signature", "") for one in FAMILIES)
        return "ed25519" if self.public_keys and "v1a," in signatures else "hmac-sha256"

    def build_sample(self, sample: contract.SampleEvent) -> contract.Webhook:
        if not self.secrets:
            raise ConfigurationError("a public key cannot sign: a test webhook needs a whsec_…")
        body, headers = self.mapping.build_sample(sample)
        event_id, sent_at_s = sample.event_id or f"msg_{uuid4().hex}", sample.sent_at.timestamp()
        return headers | signed_headers(event_id, sent_at_s, body, self.secrets[0]), body

    def _is_signed_by_key(self, envelope: Envelope, body: bytes) -> bool:
        if not self.public_keys:
            return False
        signatures = [one for one in map(decode_base64, envelope.of_version("v1a")) if one]
        return is_signed_by_any(self.public_keys, signatures, envelope.signed_content(body))


def configure(config: contract.ProviderConfig) -> Standard:
    """Build the provider of a source. Raises ConfigurationError."""
    config.reject_unknown_options({"fields", "types"})
    secrets: list[bytes] = []
    public_keys: list[Ed25519PublicKey] = []
    for key, secret in config.named_secrets():
        if secret.startswith(_PRIVATE):
            raise ConfigurationError(f"{key}: is a private key; give the public key, whpk_…")
        if secret.startswith(_PUBLIC):
            public_keys.append(_load_public_key(secret, key))
        else:
            secrets.append(decode_secret(secret, key, "whsec_… or whpk_…"))
    mapping = load_mapping(_without_signed_id(config), LOCATIONS, TYPES)
    kept = _HEADERS | mapping.headers
    unsigned = mapping.unsigned_fields(())
    check_unsigned(config.key, unsigned)
    return Standard(mapping, config.tolerance_s, kept, unsigned, tuple(secrets), tuple(public_keys))


def _without_signed_id(config: contract.ProviderConfig) -> contract.ProviderConfig:
    """Drop `fields.event_id` if it names the signed id, which is the default."""
    fields = dict(config.table("fields").options)
    name = str(fields.get("event_id")).lower().removeprefix("header:").strip()
    if name in ID_HEADERS:
        del fields["event_id"]
    return replace(config, options={**config.options, "fields": fields})


def _load_public_key(secret: str, key: str) -> Ed25519PublicKey:
    try:
        return Ed25519PublicKey.from_public_bytes(decode_secret(secret, key, "whpk_…", _PUBLIC))
    except ValueError:
        raise ConfigurationError(f"{key}: is not an ed25519 public key of 32 bytes") from None
