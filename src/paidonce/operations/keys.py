"""The operators' keys."""

import hashlib
import hmac
import secrets
from datetime import UTC, datetime, timedelta
from uuid import UUID

from uuid_utils.compat import uuid7

from paidonce.errors import InvalidRequestError, NotFoundError
from paidonce.operations.desk import HOST, Actor, Desk, Found, Scope, first_of
from paidonce.store import keys, listings
from paidonce.store.keys import HashedBy
from paidonce.views import KeyView, NewKeyView


class KeyVerbs(Desk):
    """Who may ask."""

    async def create_key(self, name: str, scope: Scope, actor: Actor = HOST) -> NewKeyView:
        """Make a key. It is shown this once; only its hash is kept."""
        key = f"po_{secrets.token_urlsafe(32)}"
        key_id = await self._add(key, name, scope, actor)
        assert key_id is not None  # it is new
        return NewKeyView(key_id, name, scope, key)

    async def accept_key(self, key: str, name: str, scope: Scope, actor: Actor = HOST) -> None:
        """Make this very key valid. Raises InvalidRequestError for one that can be guessed.

        One that is there already, or was and is revoked, stays as it is.
        """
        if not key.startswith("po_") or len(key) < 20:
            raise InvalidRequestError("an API key is po_ and at least 17 more characters")
        await self._add(key, name, scope, actor)

    async def authenticate(self, key: str) -> Actor | None:
        """Who holds this key, if it is valid."""
        digests = self._digests(key)
        async with self._database.connection() as connection:
            rows = await keys.find_keys(connection, list(digests.values()))
            valid = [row for row in rows if row["revoked_at"] is None and _fits(row, digests)]
            if not valid:
                return None
            row = valid[0]
            used = row["last_used_at"]
            if used is None or datetime.now(UTC) - used > timedelta(minutes=1):
                await keys.touch_key(connection, row["id"])
        return Actor(row["name"], Scope(row["scope"]))

    async def keys(self, *, limit: int, cursor: UUID | None = None) -> Found[KeyView]:
        """A page of all keys, the oldest first, without what would open anything."""
        async with self._database.connection() as connection:
            rows = await keys.list_keys(connection, cursor, limit + 1)
        return first_of([KeyView(**dict(row)) for row in rows], limit, lambda key: key.id)

    async def revoke_key(self, key_id: UUID, actor: Actor = HOST) -> None:
        """Raises NotFoundError when there is no such valid key."""
        async with self._database.transaction() as connection:
            if not await keys.revoke_key(connection, key_id):
                raise NotFoundError(f"there is no valid key {key_id}")
            await listings.record_action(connection, actor.name, "key_revoked", key_id=str(key_id))

    async def has_keys(self) -> bool:
        """Whether any key was ever made."""
        async with self._database.connection() as connection:
            return await keys.has_keys(connection)

    async def _add(self, key: str, name: str, scope: Scope, actor: Actor) -> UUID | None:
        """Keep a key's hash; returns its id, or None if the key is there already."""
        digests = self._digests(key)
        hashed_by = list(digests)[-1]
        async with self._database.transaction() as connection:
            if await keys.find_keys(connection, list(digests.values())):
                return None
            key_id = uuid7()
            await keys.add_key(
                connection,
                key_id=key_id,
                name=name,
                hint=key[:7],
                digest=digests[hashed_by],
                hashed_by=hashed_by,
                scope=scope,
            )
            await listings.record_action(
                connection, actor.name, "key_created", key_id=str(key_id), name=name, scope=scope
            )
        return key_id

    def _digests(self, key: str) -> dict[HashedBy, bytes]:
        """The key's hashes by how they are made, that of new keys last.

        Keys are long and random, so that even a plain hash cannot be turned back; with a pepper,
        whoever can write to the database can still make none of his own.
        """
        plain = {HashedBy.SHA256: hashlib.sha256(key.encode()).digest()}
        if self._pepper is None:
            return plain
        peppered = hmac.digest(self._pepper, key.encode(), "sha256")
        return {**plain, HashedBy.HMAC_SHA256: peppered}


def _fits(row: keys.Row, digests: dict[HashedBy, bytes]) -> bool:
    """Whether the row is this key's, hashed as the row says."""
    expected = digests.get(HashedBy(row["hashed_by"]))
    return expected is not None and hmac.compare_digest(row["hash"], expected)
