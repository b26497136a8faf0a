"""What administrators can do with API keys, and how a key is checked."""

import hashlib
import hmac
import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final
from uuid import UUID

import asyncpg

from paidonce.audit.model import OURSELVES
from paidonce.audit.store import record_action
from paidonce.clock import CLOCK
from paidonce.core.actors import COMMAND_LINE, HOST, Actor, Scope
from paidonce.db.paging import ListQuery, Page, page_of
from paidonce.db.pool import Database
from paidonce.db.queries import from_row, load_queries
from paidonce.errors import InvalidRequestError, NotFoundError
from paidonce.ids import new_id


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


class HashMethod(StrEnum):
    """The method of a hash."""

    SHA256 = "sha256"
    HMAC_SHA256 = "hmac-sha256"  # with the pepper


QUERIES: Final = load_queries(__file__)
_NAMES_OF_OTHERS: Final = (OURSELVES, HOST.name)


class KeyService:
    """Creates, checks, lists and revokes API keys."""

    def __init__(self, database: Database, pepper: bytes | None) -> None:
        self._database = database
        self._pepper = pepper

    async def create(self, name: str, scope: Scope, actor: Actor = HOST) -> NewKeyView:
        """Create a key. It is shown only once; only its hash is stored.

        Raises InvalidRequestError for a name that others have in the audit log.
        """
        if name.strip().lower() in _NAMES_OF_OTHERS or name.startswith(COMMAND_LINE):
            raise InvalidRequestError(f"name: {name!r} stands for somebody else in the audit log")
        key = f"po_{secrets.token_urlsafe(32)}"
        key_id = await self._add(key, name, scope, actor)
        assert key_id is not None  # a random key is new
        return NewKeyView(key_id, name, scope, key)

    async def ensure(self, key: str, name: str, scope: Scope, actor: Actor = HOST) -> None:
        """Make this key valid, unless it exists or was revoked.

        Raises InvalidRequestError for a key that can be guessed.
        """
        if not key.startswith("po_") or len(key) < 20:
            raise InvalidRequestError("an API key is po_ and at least 17 more characters")
        await self._add(key, name, scope, actor)

    async def authenticate(self, key: str) -> Actor | None:
        """The owner of the key, or None if it is not valid."""
        digests = self._digests(key)
        async with self._database.connection() as connection:
            rows = await QUERIES["find_keys"].rows(connection, hashes=[*digests.values()])
            valid = [row for row in rows if row["revoked_at"] is None and _matches(row, digests)]
            if not valid:
                return None
            row = valid[0]
            used = row["last_used_at"]
            if used is None or CLOCK.now() - used > timedelta(minutes=1):
                await QUERIES["touch_key"].run(connection, id=row["id"])
        return Actor(row["name"], Scope(row["scope"]))

    async def search(self, query: ListQuery) -> Page[KeyView]:
        """Keys, oldest first, without the secret part."""
        async with self._database.connection() as connection:
            rows = await QUERIES["list_keys"].rows(
                connection, after=query.cursor, limit=query.limit + 1
            )
        return page_of([from_row(KeyView, row) for row in rows], query.limit, lambda key: key.id)

    async def revoke(self, key_id: UUID, actor: Actor = HOST) -> None:
        """Make a key invalid. Raises NotFoundError if there is no such valid key."""
        async with self._database.transaction() as connection:
            if await QUERIES["revoke_key"].row(connection, id=key_id) is None:
                raise NotFoundError(f"there is no valid key {key_id}")
            await record_action(connection, actor.name, "key_revoked", key_id=str(key_id))

    async def any_exist(self) -> bool:
        """Whether any key was ever created."""
        async with self._database.connection() as connection:
            return bool(await QUERIES["has_keys"].value(connection))

    async def _add(self, key: str, name: str, scope: Scope, actor: Actor) -> UUID | None:
        """Store the hash of a key; returns its id, or None if the key exists."""
        digests = self._digests(key)
        hash_method = list(digests)[-1]
        async with self._database.transaction() as connection:
            if await QUERIES["find_keys"].rows(connection, hashes=[*digests.values()]):
                return None
            key_id = new_id()
            row = {"name": name, "scope": scope, "hint": key[:7], "hash_method": hash_method}
            digest = digests[hash_method]
            if not await QUERIES["add_key"].rows(connection, id=key_id, hash=digest, **row):
                return None  # another process was first
            await record_action(
                connection, actor.name, "key_created", key_id=str(key_id), name=name, scope=scope
            )
        return key_id

    def _digests(self, key: str) -> dict[HashMethod, bytes]:
        """The hashes of a key by method; the last one is used for new keys.

        Keys are long and random, so even a plain hash cannot be reversed. With a pepper, somebody
        who can write to the database cannot add a key of their own.
        """
        plain = {HashMethod.SHA256: hashlib.sha256(key.encode()).digest()}
        if self._pepper is None:
            return plain
        peppered = hmac.digest(self._pepper, key.encode(), "sha256")
        return {**plain, HashMethod.HMAC_SHA256: peppered}


def _matches(row: asyncpg.Record, digests: dict[HashMethod, bytes]) -> bool:
    """Whether the row has the hash of this key."""
    expected = digests.get(HashMethod(row["hash_method"]))
    return expected is not None and hmac.compare_digest(row["hash"], expected)
