"""What Standard Webhooks signs, and how: shared by the providers whose gateways follow it.

The headers `webhook-id`, `webhook-timestamp` and `webhook-signature` sign `id.timestamp.body`. The
id stays the same when an event is sent again, and is its key; the time is that of the attempt.

https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md, v1.0.0,
checked on 2026-11-15.
"""

import base64
import binascii
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from paidonce.domain.events import MAX_EXTERNAL_ID
from paidonce.errors import ConfigurationError, InvalidSignatureError
from paidonce.providers.contract import Delivery, Sample
from paidonce.providers.signing import any_matches, hmac_sha256, refuse_stale

MAX_SIGNATURES: Final = 16
"""How many signatures of one delivery are tried; a sender that rotates its keys sends two."""
FAMILY: Final = "webhook"
PARTS: Final = ("id", "timestamp", "signature")

_SYMMETRIC: Final = "whsec_"
_TIMESTAMP: Final = re.compile(r"[0-9]{1,12}")


class Envelope(NamedTuple):
    """What the headers say of a delivery. Believed only after the signature was checked."""

    id: str
    timestamp: str
    signatures: str

    def signed(self, body: bytes) -> bytes:
        """The bytes that the signatures are of."""
        return f"{self.id}.{self.timestamp}.".encode() + body

    def of_version(self, wanted: str) -> Iterator[str]:
        """The signatures of one version. What has another, or none, is for other readers."""
        for entry in self.signatures.split(" ", MAX_SIGNATURES)[:MAX_SIGNATURES]:
            version, _, signature = entry.partition(",")
            if version == wanted:
                yield signature

    def is_signed(self, body: bytes, secrets: Iterable[bytes]) -> bool:
        """Whether one of the secrets made one of the signatures (`v1`, HMAC-SHA256)."""
        signed = self.signed(body)
        expected = [v1(secret, signed) for secret in secrets]
        return bool([one for one in self.of_version("v1") if any_matches(one, expected)])

    def check_age(self, delivery: Delivery, tolerance_s: int | None) -> None:
        """Raises TimestampExpiredError when it was signed too long before it arrived, or after."""
        refuse_stale(int(self.timestamp), delivery.received_at, tolerance_s)


def envelope(headers: Mapping[str, str], families: tuple[str, ...] = (FAMILY,)) -> Envelope:
    """What the headers of one family say. Raises InvalidSignatureError."""
    family = next((one for one in families if f"{one}-signature" in headers), families[0])
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
    return Envelope(event_id, timestamp, signatures)


def sealed(sample: Sample, event_id: str, body: bytes, secret: bytes) -> dict[str, str]:
    """The headers of a test webhook with this body."""
    unsigned = Envelope(event_id, str(int(sample.sent_at.timestamp())), "")
    signature = v1(secret, unsigned.signed(body)).decode()
    return {
        "content-type": "application/json",
        f"{FAMILY}-id": unsigned.id,
        f"{FAMILY}-timestamp": unsigned.timestamp,
        f"{FAMILY}-signature": f"v1,{signature}",
    }


def unsealed(event_id: str) -> dict[str, str]:
    """The headers of what nobody has signed, and nobody but ourselves believes."""
    return {
        "content-type": "application/json",
        f"{FAMILY}-id": event_id,
        f"{FAMILY}-timestamp": "0",
        f"{FAMILY}-signature": "",
    }


def v1(secret: bytes, signed: bytes) -> bytes:
    """The signature of version 1, in ASCII."""
    return base64.b64encode(hmac_sha256(secret, signed))


def symmetric_secret(secret: str, key: str, form: str) -> bytes:
    """The bytes of a secret, with or without its prefix `whsec_`. Raises ConfigurationError."""
    return decoded(secret.strip().removeprefix(_SYMMETRIC), key, form)


def decoded(text: str, key: str, form: str) -> bytes:
    """The bytes of a secret, padded or not. Raises ConfigurationError, which tells no secret."""
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
