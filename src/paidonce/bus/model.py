"""Messages, the status of the bus, and its dead letters."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from pydantic import Field

from paidonce.core.input import Text, Time
from paidonce.db.paging import Filter, ListQuery
from paidonce.ids import new_id

TOPIC_PREFIX: Final = "paidonce."
SOURCE: Final = "/paidonce"
"""The CloudEvents `source` of our own messages."""
MAX_ID: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class NewMessage:
    """A message for the outbox."""

    aggregate_type: str
    """What it is about, such as `wallet-payment`: the end of the topic's name."""
    key: str
    """Messages with the same key keep their order."""
    type: str
    version: int
    """Of the aggregate. It grows with each message of a key."""
    payload: Mapping[str, Any]
    occurred_at: datetime
    id: UUID = field(default_factory=new_id)


@dataclass(frozen=True, slots=True)
class Message:
    """A message as consumers receive it. Every bus may deliver it more than once."""

    id: UUID
    topic: str
    key: str
    type: str
    version: int
    """Messages with the same key arrive in the order of their versions."""
    time: datetime
    body: bytes
    """JSON, as described by its schema in `bus/schemas`."""
    published_at: datetime | None = None
    """When the bus received it, if known."""
    source: str = SOURCE


def topic_of(aggregate_type: str) -> str:
    """The topic of messages about such things, such as `wallet-payment`."""
    return TOPIC_PREFIX + aggregate_type


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """A consumer group in one topic.

    `lag` is the number of messages that it has not consumed. It was last active at `seen_at`,
    `inactive_s` seconds ago.
    """

    consumer: str
    aggregate_type: str
    lag: int
    seen_at: datetime
    inactive_s: float


@dataclass(frozen=True, slots=True)
class BusStatus:
    """Unpublished messages, the lag of each consumer group, and its number of dead letters.

    Numbers are counted up to 100,000.
    """

    unpublished: int
    oldest_unpublished_s: float
    groups: list[GroupStatus]
    dead_letters: dict[str, int]

    def inactive_s(self) -> dict[str, float]:
        """How long each group has been inactive in all of its topics."""
        # The topic in which a group was active last comes last, and stays.
        longest_first = sorted(self.groups, key=lambda one: one.inactive_s, reverse=True)
        return {one.consumer: one.inactive_s for one in longest_first}


class BusDeadLetterFilter(Filter):
    """Which dead letters of the bus; all filters have to match."""

    consumer: Text | None = Field(None, description="Of this consumer group.")
    type: Text | None = Field(None, description="Of this message type.")
    topic: Text | None = Field(None, description="Of this topic.")
    since: Time | None = Field(None, description="Failed at or after this time.")
    until: Time | None = Field(None, description="Failed before this time.")


class BusDeadLetterQuery(BusDeadLetterFilter, ListQuery):
    """A page of dead letters, newest first."""

    discarded: bool = Field(
        False,
        description="The discarded ones instead of the open ones.",
        json_schema_extra={"option": "--discarded"},
    )
    cursor: int | None = Field(  # type: ignore[assignment]
        None, ge=1, le=MAX_ID, description="`next_cursor` of the previous page."
    )


@dataclass(frozen=True, slots=True)
class BusDeadLetter:
    """A message that a consumer group could not consume.

    `retried_at`: its group is to receive it again. `discarded_at`: no group receives it any more.
    """

    id: int
    consumer: str
    event_id: UUID
    topic: str
    key: str
    type: str
    error: str
    attempts: int
    failed_at: datetime
    retried_at: datetime | None
    discarded_at: datetime | None
    discarded_by: str | None
    discard_reason: str | None


@dataclass(frozen=True, slots=True)
class BusDeadLetterCount:
    """How many dead letters were retried or discarded (dry run: would be); `more`: others match."""

    number: int
    more: bool
    dry_run: bool
