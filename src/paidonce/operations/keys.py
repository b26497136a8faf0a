"""The operators' keys."""

import hashlib
import secrets
from datetime import UTC, datetime, timedelta
from uuid import UUID

from uuid_utils.compat import uuid7

from paidonce.errors import InvalidRequestError, NotFoundError
from paidonce.operations.desk import Actor, Desk, Scope
from paidonce.store import keys
from paidonce.views import KeyView


class KeyVerbs(Desk):
    """Who may ask."""

    async def create_key(self, name: str, scope: Scope) -> str:
        """Make a key. It is shown this once; only its hash is kept."""
        key = f"po_{secrets.token_urlsafe(32)}"
        await self.accept_key(key, name, scope)
        return key

    async def accept_key(self, key: str, name: str, scope: Scope) -> None:
        """Make this very key valid. Raises InvalidRequestError for one that can be guessed."""
        if not key.startswith("po_") or len(key) < 20:
            raise InvalidRequestError("an API key is po_ and at least 17 more characters")
        async with self._database.transaction() as connection:
            await keys.add_key(
                connection,
                key_id=uuid7(),
                name=name,
                hint=key[:7],
                digest=_hashed(key),
                scope=scope,
            )

    async def authenticate(self, key: str) -> Actor | None:
        """Who holds this key, if it is valid."""
        async with self._database.connection() as connection:
            row = await keys.find_key(connection, _hashed(key))
            if row is None:
                return None
            used = row["last_used_at"]
            if used is None or datetime.now(UTC) - used > timedelta(minutes=1):
                await keys.touch_key(connection, row["id"])
        return Actor(row["name"], Scope(row["scope"]))

    async def keys(self) -> list[KeyView]:
        """All keys, without what would open anything."""
        async with self._database.connection() as connection:
            return [KeyView(**dict(row)) for row in await keys.list_keys(connection)]

    async def revoke_key(self, key_id: UUID) -> None:
        """Raises NotFoundError when there is no such valid key."""
        async with self._database.transaction() as connection:
            if not await keys.revoke_key(connection, key_id):
                raise NotFoundError(f"there is no valid key {key_id}")

    async def has_keys(self) -> bool:
        """Whether any key was ever made."""
        async with self._database.connection() as connection:
            return await keys.has_keys(connection)


def _hashed(key: str) -> bytes:
    """Keys are long and random, so that a plain hash cannot be turned back."""
    return hashlib.sha256(key.encode()).digest()
