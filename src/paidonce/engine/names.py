"""The names under which events wait, as the queue keeps them."""

from hashlib import blake2b


def waiting_digest(name: str) -> bytes:
    """What `due.waits_on` holds of a name."""
    return blake2b(name.encode("utf-8", "surrogatepass"), digest_size=16).digest()
