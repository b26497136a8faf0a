"""What an operator can ask or do. HTTP, the command line and the dashboard are thin over this."""

import hashlib
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Final
from uuid import UUID

import orjson
from uuid_utils.compat import uuid7

from paidonce.domain.email import email_key, is_email
from paidonce.domain.events import PaymentId, UserId
from paidonce.engine.items import Rules
from paidonce.engine.linking import Linker, User
from paidonce.errors import InvalidRequestError, NotFoundError
from paidonce.store import keys, listings, people
from paidonce.store.db import Database
from paidonce.views import (
    EventDetail,
    EventView,
    KeyView,
    PaymentView,
    SubscriptionView,
    TrailItem,
    event_fields,
    event_view,
    happy_trail,
    payment_view,
)

MAX_PAGE: Final = 500


class Scope(StrEnum):
    """What a key may do; each includes the one before it."""

    READ = "read"
    OPERATE = "operate"
    ADMIN = "admin"

    def includes(self, other: "Scope") -> bool:
        order = list(Scope)
        return order.index(self) >= order.index(other)


@dataclass(frozen=True, slots=True)
class Actor:
    """Who asks."""

    name: str
    scope: Scope


class Operations:
    """The verbs. Each opens its own transactions."""

    def __init__(self, database: Database, rules: Rules) -> None:
        self._database = database
        self._linker = Linker(database, rules)

    # Users and subscriptions

    async def create_user(self, email: str) -> tuple[User, bool]:
        """The user with this verified address, and whether it is new.

        What the user has paid for before is applied when this returns. Raises
        InvalidRequestError when the text is no address.
        """
        if not is_email(email):
            raise InvalidRequestError("email is not an e-mail address")
        return await self._linker.create_user(email)

    async def user(self, user_id: UUID) -> User:
        """Raises NotFoundError."""
        async with self._database.connection() as connection:
            row = await people.user_by_id(connection, user_id)
        if row is None:
            raise NotFoundError(f"there is no user {user_id}")
        return User(row["id"], row["email"], row["created_at"])

    async def users_by_email(self, email: str) -> list[User]:
        """The user with this address, if there is one."""
        async with self._database.connection() as connection:
            row = await people.user_by_email(connection, email)
        return [] if row is None else [User(row["id"], row["email"], row["created_at"])]

    async def subscriptions(
        self, *, user_id: UUID | None = None, email: str | None = None
    ) -> list[SubscriptionView]:
        """The subscriptions of one user, found by id or address."""
        if (user_id is None) == (email is None):
            raise InvalidRequestError("give either user_id or email")
        if email is not None:
            users = await self.users_by_email(email)
            user_id = users[0].id if users else None
        if user_id is None:
            return []
        async with self._database.connection() as connection:
            rows = await people.subscriptions(connection, user_id)
        return [SubscriptionView(**dict(row)) for row in rows]

    # Payments

    async def payments(
        self, *, limit: int, cursor: UUID | None = None, email: str | None = None, **filters: Any
    ) -> list[PaymentView]:
        """A page of payments, the newest first."""
        key = None if email is None else email_key(email)
        async with self._database.connection() as connection:
            rows = await listings.payments(
                connection, limit=limit, before=cursor, email_key=key, **filters
            )
        return [payment_view(row) for row in rows]

    async def link_payment(
        self,
        payment_id: UUID,
        actor: Actor,
        *,
        user_id: UUID | None = None,
        email: str | None = None,
    ) -> PaymentView:
        """Say whose payment it is, and apply it at once if it can be.

        Raises NotFoundError, InvalidRequestError, or ConflictError when it is another's already.
        """
        if (user_id is None) == (email is None):
            raise InvalidRequestError("give either user_id or email")
        user = await (self.user(user_id) if user_id else self._only_user(email or ""))
        await self._linker.link(PaymentId(payment_id), UserId(user.id), actor.name)
        return await self.payment(payment_id)

    async def payment(self, payment_id: UUID) -> PaymentView:
        """Raises NotFoundError."""
        async with self._database.connection() as connection:
            rows = await listings.payments(connection, limit=1, payment_id=payment_id)
        if not rows:
            raise NotFoundError(f"there is no payment {payment_id}")
        return payment_view(rows[0])

    async def _only_user(self, email: str) -> User:
        users = await self.users_by_email(email)
        if not users:
            raise NotFoundError("there is no user with this e-mail address")
        return users[0]

    # Events

    async def events(
        self,
        *,
        limit: int,
        cursor: UUID | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        **filters: Any,
    ) -> list[EventView]:
        """A page of events, the newest first."""
        last = min(
            listings.LAST_ID if cursor is None else UUID(int=max(cursor.int - 1, 0)),
            listings.LAST_ID if until is None else listings.first_id_at(until),
        )
        first = listings.FIRST_ID if since is None else listings.first_id_at(since)
        async with self._database.connection() as connection:
            rows = await listings.events(
                connection, limit=limit, first_id=first, last_id=last, **filters
            )
        return [event_view(row) for row in rows]

    async def event(self, event_id: UUID) -> EventDetail:
        """One event and its whole trail. Raises NotFoundError."""
        async with self._database.connection() as connection:
            rows = await listings.events(connection, limit=1, first_id=event_id, last_id=event_id)
            if not rows:
                raise NotFoundError(f"there is no event {event_id}")
            audit = await listings.audit_of_event(connection, event_id)
        recorded = [
            TrailItem(row["at"], row["action"], row["success"], orjson.loads(row["details"]))
            for row in audit
        ]
        trail = [*happy_trail(event_view(rows[0])), *recorded]
        by_time = sorted(trail, key=lambda item: item.at)
        return EventDetail(**event_fields(rows[0]), trail=by_time)

    # What waits

    async def backlog(self) -> list[Mapping[str, Any]]:
        """Events that wait, by status: number and age of the oldest."""
        async with self._database.connection() as connection:
            return await listings.backlog(connection)

    async def unapplied_money(self) -> list[Mapping[str, Any]]:
        """Money received and not applied, by currency: number, sum and age of the oldest."""
        async with self._database.connection() as connection:
            return await listings.unapplied_money(connection)

    async def ping(self) -> None:
        """Raises DatabaseAwayError unless the database answers."""
        async with self._database.connection() as connection:
            await listings.ping(connection)

    # Keys

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
