"""Types of input from outside: what the database can store, and times with their zone."""

from datetime import UTC, datetime
from typing import Annotated, Final

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
)

from paidonce.core.orders import MAX_REFERENCE

_NO_TIME: Final = "give a time that exists in UTC"
_FIRST: Final = datetime.min.replace(tzinfo=UTC)
_LAST: Final = datetime.max.replace(tzinfo=UTC)
"""Senders write these two for "no time". The database driver stores them as infinite times, and
reads them without a zone: nothing could be compared with them."""

Text = Annotated[str, StringConstraints(max_length=1_000, pattern=r"^[^\x00]*$")]
"""Text that PostgreSQL can store."""

Reference = Annotated[
    str, StringConstraints(min_length=1, max_length=MAX_REFERENCE, pattern=r"^[^\x00]*$")
]
"""An identifier that the merchant chose."""


def storable(text: str) -> str:
    """The text as PostgreSQL can store it: without NUL and lone surrogates."""
    return text.replace("\x00", "�").encode("utf-8", "replace").decode()


def _require_text(value: object) -> object:
    if not isinstance(value, str | datetime):
        raise ValueError("write a time as text, such as 2026-11-15T10:00:00Z")
    return value


def to_utc(value: datetime) -> datetime:
    """The time in UTC. Raises ValueError if there is none, or if it stands for no time."""
    try:
        at = value if value.tzinfo is UTC else value.astimezone(UTC)
    except OverflowError:
        raise ValueError(_NO_TIME) from None
    if not _FIRST < at < _LAST:
        raise ValueError(_NO_TIME)
    return at


Time = Annotated[AwareDatetime, BeforeValidator(_require_text), AfterValidator(to_utc)]
"""A time with its zone. A bare number is refused: it could be seconds or milliseconds."""


class Input(BaseModel):
    """What a request contains. Fields that are not known are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class OptionalReason(Input):
    """The reason of an action that may be given, for the audit log."""

    reason: Annotated[Text, StringConstraints(min_length=1)] | None = None


class Reason(Input):
    """The reason of an action, for the audit log."""

    reason: Annotated[Text, StringConstraints(min_length=1)] = Field(
        description="The reason, for the audit log."
    )
