"""Who may ask, and who may not come in."""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID


@dataclass(frozen=True, slots=True)
class KeyView:
    id: UUID
    name: str
    hint: str
    scope: str
    created_at: datetime
    last_used_at: datetime | None
    revoked_at: datetime | None


@dataclass(frozen=True, slots=True)
class NewKeyView:
    id: UUID
    name: str
    scope: str
    key: str


@dataclass(frozen=True, slots=True)
class BanView:
    address: str
    reason: str
    score: float  # of its risk, when it was banned
    times: int
    banned_at: datetime
    until: datetime
