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

import base64
import binascii
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, NamedTuple
from uuid import uuid4

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from paidonce.domain.events import MAX_EXTERNAL_ID, Ignored, PaymentEvent
from paidonce.errors import ConfigurationError, InvalidSignatureError
from paidonce.providers.contract import Delivery, Identity, Provider, Sample, Setup
from paidonce.providers.described import (
    Description,
    Header,
    Place,
    described,
    pointer,
)
from paidonce.providers.fields import identity, meaning
from paidonce.providers.signing import any_matches, exact_base64, hmac_sha256, refuse_stale

MAX_SIGNATURES: Final = 16
"""How many signatures of one delivery are tried; a sender that rotates its keys sends two."""

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

_TIMESTAMP: Final = re.compile(r"[0-9]{1,12}")
_SYMMETRIC, _PUBLIC, _PRIVATE = "whsec_", "whpk_", "whsk_"
_KEPT: Final = frozenset(
    {"content-type", "user-agent"}
    | {f"{family}-{part}" for family in FAMILIES for part in ("id", "timestamp", "signature")}
)


class _Envelope(NamedTuple):
    """What the headers say of a delivery. Believed only after the signature was checked."""

    id: str
    timestamp: str
    signatures: str

    def signed(self, body: bytes) -> bytes:
        return f"{self.id}.{self.timestamp}.".encode() + body


@dataclass(frozen=True, slots=True, eq=False)
class Standard(Provider):
    """A source whose sender follows Standard Webhooks."""

    name: ClassVar = "standard"
    content_types: ClassVar = frozenset({"application/json"})
    links_by_email: ClassVar = True

    secrets: tuple[bytes, ...]
    public_keys: tuple[Ed25519PublicKey, ...]
    description: Description
    tolerance_s: int | None
    kept_headers: frozenset[str]

    def verify(self, delivery: Delivery) -> None:
        envelope = _envelope(delivery.headers)
        signed = envelope.signed(delivery.body)
        if not (self._is_signed(envelope, signed) or self._is_signed_by_key(envelope, signed)):
            raise InvalidSignatureError("no signature matches the delivery")
        refuse_stale(int(envelope.timestamp), delivery.received_at, self.tolerance_s)

    def identify(self, delivery: Delivery) -> Identity:
        said = delivery.read(self.description.read)
        digest = meaning(said)
        signed_id = _envelope(delivery.headers).id
        if said.event_id is None:
            return identity(said._replace(event_id=signed_id), signed_id, digest)
        if isinstance(self.description.places["event_id"], Header):
            # Nobody signed it: alone, it could be that of an event which is still to come.
            return identity(said, f"{said.event_id}:{digest.hex()}", digest)
        return identity(said, said.event_id, digest)

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
        sent_at = str(int(sample.sent_at.timestamp()))
        envelope = _Envelope(sample.event_id or f"msg_{uuid4().hex}", sent_at, "")
        return {
            **headers,
            "content-type": "application/json",
            "webhook-id": envelope.id,
            "webhook-timestamp": envelope.timestamp,
            "webhook-signature": "v1," + _v1(self.secrets[0], envelope.signed(body)).decode(),
        }, body

    def _is_signed(self, envelope: _Envelope, signed: bytes) -> bool:
        expected = [_v1(secret, signed) for secret in self.secrets]
        return bool([one for one in _of_version(envelope, "v1") if any_matches(one, expected)])

    def _is_signed_by_key(self, envelope: _Envelope, signed: bytes) -> bool:
        if not self.public_keys:
            return False
        given = [exact_base64(one) for one in _of_version(envelope, "v1a")]
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


def _envelope(headers: Mapping[str, str]) -> _Envelope:
    """What the headers of one family say. Raises InvalidSignatureError."""
    family = next((one for one in FAMILIES if f"{one}-signature" in headers), FAMILIES[0])
    event_id = headers.get(f"{family}-id")
    timestamp = headers.get(f"{family}-timestamp")
    signatures = headers.get(f"{family}-signature")
    if not event_id or timestamp is None or signatures is None:
        raise InvalidSignatureError(f"there is no {family}-id, -timestamp or -signature header")
    is_plain = event_id.isascii() and event_id.isprintable() and len(event_id) <= MAX_EXTERNAL_ID
    if "." in event_id or not is_plain:
        raise InvalidSignatureError(f"the header {family}-id cannot be an id")
    if not _TIMESTAMP.fullmatch(timestamp):
        raise InvalidSignatureError(f"the header {family}-timestamp is no count of seconds")
    return _Envelope(event_id, timestamp, signatures)


def _of_version(envelope: _Envelope, wanted: str) -> Iterator[str]:
    """The signatures of one version. What has another, or none, is for other readers."""
    for entry in envelope.signatures.split(" ", MAX_SIGNATURES)[:MAX_SIGNATURES]:
        version, _, signature = entry.partition(",")
        if version == wanted:
            yield signature


def _v1(secret: bytes, signed: bytes) -> bytes:
    return base64.b64encode(hmac_sha256(secret, signed))


def _verifies(key: Ed25519PublicKey, signature: bytes, signed: bytes) -> bool:
    try:
        key.verify(signature, signed)
    except InvalidSignature:
        return False
    return True


def _secret(secret: str, key: str) -> bytes:
    if secret.startswith(_PRIVATE):
        raise ConfigurationError(f"{key}: is a private key; give the public one, whpk_…")
    return _decoded(secret.removeprefix(_SYMMETRIC), key, "whsec_… or whpk_…")


def _public_key(secret: str, key: str) -> Ed25519PublicKey:
    try:
        return Ed25519PublicKey.from_public_bytes(
            _decoded(secret.removeprefix(_PUBLIC), key, "whpk_…")
        )
    except ValueError:
        raise ConfigurationError(f"{key}: is not an ed25519 public key of 32 bytes") from None


def _decoded(text: str, key: str, form: str) -> bytes:
    """The bytes of a secret, padded or not. The message never tells the secret."""
    unpadded = text.rstrip("=")
    try:
        padded = unpadded + "=" * (-len(unpadded) % 4)
        value = base64.b64decode(padded.encode("ascii"), validate=True)
    except (ValueError, binascii.Error):
        raise ConfigurationError(
            f"{key}: is not base64; give it as it was issued, {form}"
        ) from None
    if not value:
        raise ConfigurationError(f"{key}: the secret is empty; give it as it was issued, {form}")
    return value
