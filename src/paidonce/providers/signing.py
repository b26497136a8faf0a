"""Signatures that several gateways share."""

import hmac
from binascii import hexlify
from collections.abc import Iterable
from hashlib import sha256


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
