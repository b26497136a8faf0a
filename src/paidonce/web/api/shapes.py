"""What calls share: texts that the database can hold, pages, and errors."""

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Annotated, Any, Final, Generic, TypeVar

from fastapi import Query
from pydantic import BaseModel, ConfigDict, StringConstraints

from paidonce.domain.orders import MAX_REFERENCE
from paidonce.operations import MAX_PAGE

T = TypeVar("T")

Text = Annotated[str, StringConstraints(max_length=1_000, pattern=r"^[^\x00]*$")]
"""Text that the database can hold."""


Reference = Annotated[
    str, StringConstraints(min_length=1, max_length=MAX_REFERENCE, pattern=r"^[^\x00]*$")
]
"""A name that the merchant gave."""


class Page(BaseModel, Generic[T]):
    """Part of a list. `next_cursor` asks for what follows; null at the end."""

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


def page(
    items: Sequence[T], limit: int, cursor: Callable[[T], object] = attrgetter("id")
) -> Page[T]:
    """One more than the limit was asked for, to know whether something follows."""
    shown = list(items[:limit])
    follows = len(items) > limit
    return Page(items=shown, next_cursor=str(cursor(shown[-1])) if follows else None)


ERRORS: Final[dict[int | str, dict[str, Any]]] = {
    code: {"model": ProblemBody, "content": {"application/problem+json": {}}}
    for code in (400, 401, 403, 404, 409, 429, 503)
}
