"""Bans as operators see them."""

from dataclasses import dataclass
from datetime import datetime

from pydantic import Field

from paidonce.core.input import Text
from paidonce.db.paging import ListQuery


class BanQuery(ListQuery):
    """A page of bans, in the order of addresses."""

    cursor: Text | None = Field(None, description="`next_cursor` of the previous page.")  # type: ignore[assignment]


@dataclass(frozen=True, slots=True)
class BanView:
    address: str
    reason: str
    score: float  # of its risk, when it was banned
    times: int
    banned_at: datetime
    until: datetime
