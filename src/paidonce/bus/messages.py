"""What travels on a bus: a fact with its CloudEvents attributes."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

TOPIC_PREFIX: Final = "paidonce."
OURS: Final = "/paidonce"
"""The `source` of what this system tells."""


@dataclass(frozen=True, slots=True)
class Message:
    """One event, as a consumer gets it. On any bus it may come more than once."""

    id: UUID
    topic: str
    key: str
    type: str
    version: int
    """Of what it is about. Messages with one key are in the order of their versions."""
    time: datetime
    body: bytes
    """JSON, as its schema in `bus/schemas` says."""
    published_at: datetime | None = None
    """When the bus got it, where the bus tells."""
    source: str = OURS


def topic_of(about: str) -> str:
    """The topic of what is about such things, such as `wallet-payment`."""
    return TOPIC_PREFIX + about
