"""HMAC signatures and signed timestamps."""

import base64
import hmac
from binascii import hexlify
from collections.abc import Iterable
from datetime import datetime
from hashlib import sha256

from paidonce.errors import TimestampExpiredError


def hmac_sha256_hex(secret: bytes, content: bytes) -> bytes:
    """Return the HMAC-SHA256 as lower-case hex, in ASCII."""
    return hexlify(hmac.digest(secret, content, sha256))


def any_matches(given: str, expected: Iterable[bytes]) -> bool:
    """Compare a value with each expected one in constant time.

    Compares bytes, because `compare_digest` rejects non-ASCII text, which a header may contain.
    """
    given_bytes = given.encode("utf-8", "surrogatepass")
    found = False
    for one in expected:
        found |= hmac.compare_digest(given_bytes, one)
    return found


def decode_base64(text: str) -> bytes | None:
    """Decode canonical base64; None for anything else."""
    try:
        value = base64.b64decode(text.encode("ascii"), validate=True)
    except ValueError:
        return None
    return value if base64.b64encode(value).decode() == text else None


def check_timestamp(signed_at_s: float, received_at: datetime, tolerance_s: int | None) -> None:
    """Raise TimestampExpiredError when the signed time is too far before or after the arrival."""
    age_s = received_at.timestamp() - signed_at_s
    if tolerance_s is not None and abs(age_s) > tolerance_s:
        side = "before" if age_s > 0 else "after"
        raise TimestampExpiredError(f"it was signed {abs(age_s):.0f} s {side} it arrived")
