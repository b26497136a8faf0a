"""Signatures by Standard Webhooks, for the providers and channels that use them.

The headers `webhook-id`, `webhook-timestamp` and `webhook-signature` sign `id.timestamp.body`. A
retry keeps the id, which is the event's key; the time is that of the attempt.

https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md, v1.0.0,
checked on 2026-11-15.
"""

import base64
import binascii
import hmac
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from paidonce.core.events import MAX_EXTERNAL_ID
from paidonce.errors import ConfigurationError, InvalidSignatureError
from paidonce.providers.contract import JSON_TYPE, Delivery
from paidonce.providers.signing import any_matches, check_timestamp

MAX_SIGNATURES: Final = 16
"""How many signatures of a delivery are checked; a sender that rotates its keys sends two."""
PARTS: Final = ("id", "timestamp", "signature")
HEADERS: Final = tuple(f"webhook-{part}" for part in PARTS)

_SYMMETRIC: Final = "whsec_"
_TIMESTAMP: Final = re.compile(r"[0-9]{1,12}")


class Envelope(NamedTuple):
    """The signature headers of a delivery. Trust them only after the signature is checked."""

    id: str
    timestamp: str
    signatures: str

    def signed_content(self, body: bytes) -> bytes:
        """Return the bytes that are signed."""
        return f"{self.id}.{self.timestamp}.".encode() + body

    def of_version(self, wanted: str) -> Iterator[str]:
        """Yield the signatures of one version."""
        for entry in self.signatures.split(" ", MAX_SIGNATURES)[:MAX_SIGNATURES]:
            version, _, signature = entry.partition(",")
            if version == wanted:
                yield signature

    def is_signed(self, body: bytes, secrets: Iterable[bytes]) -> bool:
        """Check the signatures of version v1 (HMAC-SHA256) against the secrets."""
        content = self.signed_content(body)
        expected = [sign_v1(secret, content) for secret in secrets]
        return bool([one for one in self.of_version("v1") if any_matches(one, expected)])

    def check_age(self, delivery: Delivery, tolerance_s: int | None) -> None:
        """Raise TimestampExpiredError when the signed time is too far from the arrival."""
        check_timestamp(int(self.timestamp), delivery.received_at, tolerance_s)


def read_envelope(headers: Mapping[str, str], families: tuple[str, ...] = ("webhook",)) -> Envelope:
    """Read the signature headers of one family. Raises InvalidSignatureError."""
    family = next((one for one in families if f"{one}-signature" in headers), families[0])
    event_id = headers.get(f"{family}-id")
    timestamp = headers.get(f"{family}-timestamp")
    signatures = headers.get(f"{family}-signature")
    if not event_id or timestamp is None or signatures is None:
        raise InvalidSignatureError(f"there is no {family}-id, -timestamp or -signature header")
    is_plain = event_id.isascii() and event_id.isprintable() and len(event_id) <= MAX_EXTERNAL_ID
    if "." in event_id or not is_plain:
        raise InvalidSignatureError(f"the header {family}-id is not a valid id")
    if not _TIMESTAMP.fullmatch(timestamp):
        raise InvalidSignatureError(f"the header {family}-timestamp is not a number of seconds")
    return Envelope(event_id, timestamp, signatures)


def signed_headers(event_id: str, sent_at_s: float, body: bytes, secret: bytes) -> dict[str, str]:
    """Return the headers of a JSON webhook, signed with the secret."""
    unsigned = Envelope(event_id, str(int(sent_at_s)), "")
    signature = sign_v1(secret, unsigned.signed_content(body)).decode()
    return _headers(unsigned._replace(signatures=f"v1,{signature}"))


def unsigned_headers(event_id: str) -> dict[str, str]:
    """Return the headers of a JSON webhook that is not signed."""
    return _headers(Envelope(event_id, "0", ""))


def _headers(envelope: Envelope) -> dict[str, str]:
    return {"content-type": JSON_TYPE, **dict(zip(HEADERS, envelope, strict=True))}


def sign_v1(secret: bytes, content: bytes) -> bytes:
    """Return the signature of version v1, in ASCII."""
    return base64.b64encode(hmac.digest(secret, content, "sha256"))


def decode_secret(secret: str, key: str, form: str, prefix: str = _SYMMETRIC) -> bytes:
    """Decode a secret in base64, with or without prefix and padding.

    Raises ConfigurationError, without the secret.
    """
    unpadded = secret.strip().removeprefix(prefix).rstrip("=")
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
