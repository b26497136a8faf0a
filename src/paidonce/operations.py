"""What an operator can ask or do. HTTP, the command line and the dashboard are thin over this."""

import hashlib
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Final
from uuid import UUID

import orjson
from uuid_utils.compat import uuid7

from paidonce.domain.email import email_key, is_email
from paidonce.domain.events import EventStatus, PaymentId, UserId
from paidonce.domain.money import format_minor
from paidonce.domain.payments import PaymentStatus
from paidonce.engine.items import Rules
from paidonce.engine.linking import Linker, User
from paidonce.errors import InvalidRequestError, NotFoundError
from paidonce.store import keys, listings, people
from paidonce.store.db import Database

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


@dataclass(frozen=True, slots=True)
class SubscriptionView:
    id: UUID
    user_id: UUID
    product: str
    status: str
    current_period_end: datetime | None
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class ExternalIdView:
    kind: str
    id: str


@dataclass(frozen=True, slots=True)
class PaymentView:
    """A payment. `review` is the code for which a person should look, or null."""

    id: UUID
    source: str
    external_payment_id: str | None
    ids: list[ExternalIdView]
    order: str | None
    user_id: UUID | None
    email: str | None
    plan_id: str | None
    status: PaymentStatus
    amount: str
    captured: str
    refunded: str
    currency: str | None
    paid_at: datetime | None
    applied_at: datetime | None
    subscription_id: UUID | None
    review: str | None
    created_at: datetime


@dataclass(frozen=True, slots=True)
class EventView:
    """A delivery that was kept, and what became of it."""

    id: UUID
    source: str
    provider: str
    key: str | None
    type: str | None
    status: EventStatus
    error_code: str | None
    error_message: str | None
    payment: str | None
    order: str | None
    attempts: int
    next_attempt_at: datetime | None
    received_at: datetime
    processed_at: datetime | None
    occurred_at: datetime | None
    signature_valid: bool
    signature_method: str
    conflicts_with: UUID | None
    remote_address: str | None
    request_id: str
    test: bool


@dataclass(frozen=True, slots=True)
class TrailItem:
    at: datetime
    action: str
    success: bool
    details: dict[str, Any]


@dataclass(frozen=True, slots=True)
class EventDetail(EventView):
    """An event with all that happened to it."""

    trail: list[TrailItem]


@dataclass(frozen=True, slots=True)
class KeyView:
    id: UUID
    name: str
    hint: str
    scope: str
    created_at: datetime
    last_used_at: datetime | None
    revoked_at: datetime | None


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
        return [_payment_view(row) for row in rows]

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
        return _payment_view(rows[0])

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
        return [_event_view(row) for row in rows]

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
        trail = [*_happy_trail(_event_view(rows[0])), *recorded]
        by_time = sorted(trail, key=lambda item: item.at)
        return EventDetail(**_event_fields(rows[0]), trail=by_time)

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


def _payment_view(row: Mapping[str, Any]) -> PaymentView:
    ids = [ExternalIdView(kind, external_id) for kind, external_id in row["ids"]]
    captured = _amount(row["captured_minor"], row["currency"])
    return PaymentView(
        id=row["id"],
        source=row["source"],
        external_payment_id=next((one.id for one in ids if one.kind == "payment"), None),
        ids=ids,
        order=row["order_reference"],
        user_id=row["user_id"],
        email=row["email"],
        plan_id=row["plan_id"],
        status=PaymentStatus(row["status"]),
        amount=captured,
        captured=captured,
        refunded=_amount(row["refunded_minor"], row["currency"]),
        currency=row["currency"],
        paid_at=row["paid_at"],
        applied_at=row["applied_at"],
        subscription_id=row["subscription_id"],
        review=row["review"],
        created_at=row["created_at"],
    )


def _amount(amount_minor: int, currency: str | None) -> str:
    return format_minor(amount_minor, currency) if currency else str(amount_minor)


def _event_view(row: Mapping[str, Any]) -> EventView:
    return EventView(**_event_fields(row))


def _event_fields(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row under the names that the outside knows."""
    fields = dict(row)
    fields["status"] = EventStatus(fields["status"])
    fields["payment"] = fields.pop("external_payment_id")
    fields["order"] = fields.pop("order_reference")
    fields["test"] = fields.pop("is_test")
    return fields


def _happy_trail(event: EventView) -> Iterator[TrailItem]:
    """What every event of its kind goes through, read off its own columns."""
    received: dict[str, Any] = {
        "remote_address": event.remote_address,
        "request_id": event.request_id,
        "signature_valid": event.signature_valid,
    }
    is_evidence = event.key is None or event.conflicts_with is not None
    if not is_evidence:
        yield TrailItem(event.received_at, "event_received", True, received)
        yield TrailItem(event.received_at, "event_inserted", True, {"key": event.key})
    elif event.conflicts_with is None:
        refused = {**received, "error_code": event.error_code}
        yield TrailItem(event.received_at, "event_received", False, refused)
    else:
        yield TrailItem(event.received_at, "event_received", True, received)
        first = {"first_event_id": str(event.conflicts_with)}
        yield TrailItem(event.received_at, "conflict_detected", False, first)
    if event.attempts == 1 and event.processed_at and event.status in ("PROCESSED", "IGNORED"):
        attempt = {"attempt": 1}
        reason = {"reason": event.error_code} if event.error_code else {}
        yield TrailItem(event.processed_at, "processing_attempt_started", True, attempt)
        yield TrailItem(event.processed_at, "processing_succeeded", True, attempt | reason)


def _hashed(key: str) -> bytes:
    """Keys are long and random, so that a plain hash cannot be turned back."""
    return hashlib.sha256(key.encode()).digest()
