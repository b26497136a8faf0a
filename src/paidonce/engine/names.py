"""The names under which events wait, and under which creators announce what was awaited."""

from hashlib import blake2b

from paidonce.domain.events import PaymentId


def waits_for_email(key: str) -> str:
    """The name under which events wait for a user with this e-mail key."""
    return f"email:{key}"


def waits_for_payment(payment_id: PaymentId) -> str:
    """The name under which events wait for a payment to be linked."""
    return f"payment:{payment_id}"


def waiting_digest(name: str) -> bytes:
    """What `due.waits_on` holds of a name."""
    return blake2b(name.encode("utf-8", "surrogatepass"), digest_size=16).digest()
