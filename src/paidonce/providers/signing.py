"""Signatures that several gateways share, and the time that is signed with them."""

import base64
import hmac
from binascii import hexlify
from collections.abc import Iterable
from datetime import datetime
from hashlib import sha256

from paidonce.errors import TimestampExpiredError


def hmac_sha256(secret: bytes, content: bytes) -> bytes:
    """The HMAC-SHA256."""
    return hmac.digest(secret, content, sha256)


def hmac_sha256_hex(secret: bytes, content: bytes) -> bytes:
    """The lower-case hex HMAC-SHA256, in ASCII."""
    return hexlify(hmac.digest(secret, content, sha256))


def any_matches(given: str, expected: Iterable[bytes]) -> bool:
    """Whether what is given equals one of those expected, in time that tells nothing.

    Compared as bytes, because a header may hold letters that comparing text would refuse.
    """
    offered = given.encode("utf-8", "surrogatepass")
    found = False
    for one in expected:
        found |= hmac.compare_digest(offered, one)
    return found


def exact_base64(text: str) -> bytes | None:
    """The bytes, if this is the one way to write them."""
    try:
        value = base64.b64decode(text.encode("ascii"), validate=True)
    except ValueError:
        return None
    return value if base64.b64encode(value).decode() == text else None


def refuse_stale(signed_at_s: float, received_at: datetime, tolerance_s: int | None) -> None:
    """Raises TimestampExpiredError when a signed time is too far from arrival, before or after."""
    age_s = received_at.timestamp() - signed_at_s
    if tolerance_s is not None and abs(age_s) > tolerance_s:
        side = "before" if age_s > 0 else "after"
        raise TimestampExpiredError(f"it was signed {abs(age_s):.0f} s {side} it arrived")
