"""API keys as administrators see them."""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID


@dataclass(frozen=True, slots=True)
class KeyView:
    """An API key without its secret part."""

    id: UUID
    name: str
    hint: str
    scope: str
    created_at: datetime
    last_used_at: datetime | None
    revoked_at: datetime | None


@dataclass(frozen=True, slots=True)
class NewKeyView:
    """A new API key; `key` is shown only once."""

    id: UUID
    name: str
    scope: str
    key: str
