"""What calls share: texts that the database can hold, pages, and errors."""

from datetime import UTC, datetime
from typing import Annotated, Generic, TypeVar

from fastapi import Query
from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    StringConstraints,
)

from paidonce.domain.orders import MAX_REFERENCE
from paidonce.operations import MAX_PAGE, Found

T = TypeVar("T")

Text = Annotated[str, StringConstraints(max_length=1_000, pattern=r"^[^\x00]*$")]
"""Text that the database can hold."""


Reference = Annotated[
    str, StringConstraints(min_length=1, max_length=MAX_REFERENCE, pattern=r"^[^\x00]*$")
]
"""A name that the merchant gave."""


def _written(value: object) -> object:
    if not isinstance(value, str):
        raise ValueError("write a time as text, such as 2026-11-15T10:00:00Z")
    return value


def _in_utc(value: datetime) -> datetime:
    try:
        return value.astimezone(UTC)
    except OverflowError:
        raise ValueError("give a time that is in the calendar in UTC too") from None


Time = Annotated[AwareDatetime, BeforeValidator(_written), AfterValidator(_in_utc)]
"""A time with its zone. A bare number might be seconds, or thousandths of them."""


class Page(BaseModel, Generic[T]):
    """Part of a list. `next_cursor` asks for what follows; null at the end.

    So many rows are looked at for a page. Where few of them match the filters, it is shorter than
    `limit`, or empty, and `next_cursor` goes on from where it stopped looking.
    """

    items: list[T]
    next_cursor: str | None = None


class ProblemBody(BaseModel):
    """RFC 9457."""

    type: str
    title: str
    status: int
    code: str
    detail: str
    request_id: str


class Reason(BaseModel):
    """Why; it stands in the audit log."""

    model_config = ConfigDict(extra="forbid")
    reason: Annotated[Text, StringConstraints(min_length=1)]


Limit = Annotated[int, Query(ge=1, le=MAX_PAGE)]


def page(found: Found[T]) -> Page[T]:
    """What was found, as it is answered."""
    cursor = None if found.next_cursor is None else str(found.next_cursor)
    return Page(items=found.items, next_cursor=cursor)
