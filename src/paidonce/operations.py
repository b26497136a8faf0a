"""What an operator can ask or do. HTTP, the command line and the dashboard are thin over this."""

import hashlib
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Final
from uuid import UUID

import orjson
from uuid_utils.compat import uuid7

from paidonce.domain.email import email_key, is_email
from paidonce.domain.events import PaymentId, SourceId, UserId, WalletId
from paidonce.domain.money import Money, known_currency, money
from paidonce.domain.orders import MAX_REFERENCE, Kind
from paidonce.engine.items import Link, Rules
from paidonce.engine.linking import Linker, User
from paidonce.errors import InvalidMoneyError, InvalidRequestError, NotFoundError
from paidonce.store import keys, listings, orders, people, wallets
from paidonce.store.db import Database
from paidonce.store.orders import NewOrder
from paidonce.views import (
    BookingView,
    EventDetail,
    EventView,
    KeyView,
    OrderView,
    PaymentView,
    SubscriptionView,
    TrailItem,
    WalletView,
    booking_view,
    event_fields,
    event_view,
    happy_trail,
    order_view,
    payment_view,
    wallet_view,
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


@dataclass(frozen=True, slots=True)
class OrderRequest:
    """What a merchant asks for. The same again under one reference is the same order."""

    reference: str
    amount: str
    currency: str
    kind: Kind = Kind.ORDER
    user_id: UUID | None = None
    email: str | None = None
    plan_id: str | None = None
    wallet_id: UUID | None = None
    sources: tuple[str, ...] | None = None

    def digest(self, amount: Money) -> bytes:
        """What tells it from another one: its content, in one spelling."""
        email = None if self.email is None else email_key(self.email)
        whom = (self.user_id, email, self.plan_id, self.wallet_id)
        sources = None if self.sources is None else sorted(self.sources)
        said = (self.kind, amount.amount_minor, amount.currency, *whom, sources)
        return hashlib.sha256(orjson.dumps(said, default=str)).digest()


class Operations:
    """The verbs. Each opens its own transactions."""

    def __init__(self, database: Database, rules: Rules) -> None:
        self._database = database
        self._rules = rules
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
        order: str | None = None,
    ) -> PaymentView:
        """Say whose payment it is, or which order's, and apply it at once if it can be.

        A payment that is not applied may be linked to something else than before. Raises
        NotFoundError, InvalidRequestError, or ConflictError when it was applied already.
        """
        if [user_id, email, order].count(None) != 2:
            raise InvalidRequestError("give one of user_id, email and order")
        if order is not None:
            link, told = Link(order=(await self.order(order)).reference), {"order": order}
        else:
            user = await (self.user(user_id) if user_id else self._only_user(email or ""))
            link, told = Link(user_id=UserId(user.id)), {"user_id": str(user.id)}
        await self._linker.link(PaymentId(payment_id), link, actor.name, "payment_linked", **told)
        return await self.payment(payment_id)

    async def accept_payment(self, payment_id: UUID, actor: Actor, reason: str) -> PaymentView:
        """Take a payment whose sum is not the price, and apply it. Raises NotFoundError."""
        link = Link(is_accepted=True)
        await self._linker.link(
            PaymentId(payment_id), link, actor.name, "payment_accepted", reason=reason
        )
        return await self.payment(payment_id)

    async def want_refund(self, payment_id: UUID, actor: Actor, reason: str) -> PaymentView:
        """Mark a payment for refund: it is not applied any more. Raises NotFoundError.

        Raises ConflictError when it was applied already: then the refund itself will be heard of.
        """
        link = Link(is_for_refund=True)
        await self._linker.link(
            PaymentId(payment_id), link, actor.name, "refund_wanted", reason=reason
        )
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

    # Orders and wallets

    async def create_order(self, order: OrderRequest) -> tuple[OrderView, bool]:
        """The order, and whether it is new; what was paid for it before is applied.

        Raises InvalidRequestError, NotFoundError for a user or wallet that is not there, and
        ConflictError when there is another order with this reference.
        """
        amount = _order_amount(order)
        async with self._database.connection() as connection:
            is_known = await orders.is_known(connection, order.reference, order.digest(amount))
        if is_known:
            return await self.order(order.reference), False
        is_new = await self._linker.create_order(await self._new_order(order, amount))
        return await self.order(order.reference), is_new

    async def order(self, reference: str) -> OrderView:
        """Raises NotFoundError."""
        async with self._database.connection() as connection:
            row = await orders.find_order(connection, reference)
            if row is None:
                raise NotFoundError(f"there is no order {reference}")
            paid = await listings.payments(
                connection, limit=MAX_PAGE, order_reference=row["reference"]
            )
        return order_view(dict(row), map(payment_view, paid))

    async def booking(self, reference: str) -> BookingView:
        """Raises NotFoundError."""
        order = await self.order(reference)
        if order.kind is not Kind.BOOKING:
            raise NotFoundError(f"there is no booking {reference}")
        return booking_view(order)

    async def close_order(self, reference: str, actor: Actor) -> OrderView:
        """Let no money pay it any more. Raises NotFoundError, or ConflictError when it is paid."""
        await self._linker.close_order(reference, actor.name)
        return await self.order(reference)

    async def create_wallet(self, owner: str, currency: str) -> tuple[WalletView, bool]:
        """The owner's wallet in this currency, and whether it is new."""
        code = _currency(currency)
        async with self._database.transaction() as connection:
            row, is_new = await wallets.create_wallet(connection, uuid7(), owner, code)
        return wallet_view(dict(row)), is_new

    async def wallet(self, wallet_id: UUID) -> WalletView:
        """Raises NotFoundError."""
        async with self._database.connection() as connection:
            row = await wallets.wallet_by_id(connection, wallet_id)
        if row is None:
            raise NotFoundError(f"there is no wallet {wallet_id}")
        return wallet_view(dict(row))

    async def _new_order(self, asked: OrderRequest, amount: Money) -> NewOrder:
        if asked.plan_id is not None and asked.kind is not Kind.SUBSCRIPTION:
            raise InvalidRequestError("plan_id: only a subscription has one")
        if asked.wallet_id is not None and asked.kind is not Kind.WALLET:
            raise InvalidRequestError("wallet_id: only a top-up has one")
        if asked.user_id is not None:
            await self.user(asked.user_id)
        if asked.kind is Kind.SUBSCRIPTION:
            self._refuse_unfit_subscription(asked)
        wallet_id = await self._wallet_of(asked) if asked.kind is Kind.WALLET else None
        return NewOrder(
            id=uuid7(),
            reference=asked.reference,
            kind=asked.kind,
            amount=amount,
            request_hash=asked.digest(amount),
            user_id=None if asked.user_id is None else UserId(asked.user_id),
            email=asked.email,
            plan_id=asked.plan_id,
            wallet_id=wallet_id,
            sources=self._source_ids(asked.sources),
        )

    def _refuse_unfit_subscription(self, asked: OrderRequest) -> None:
        if asked.user_id is None and asked.email is None:
            raise InvalidRequestError("a subscription needs user_id or email")
        if self._rules.plans.find(asked.plan_id, datetime.now(UTC)) is None:
            named = f"there is no plan {asked.plan_id!r}" if asked.plan_id else "give a plan_id"
            raise InvalidRequestError(f"plan_id: {named}")

    async def _wallet_of(self, asked: OrderRequest) -> WalletId:
        """The wallet to be topped up: the one that is named, or the user's own."""
        if asked.wallet_id is not None:
            wallet = await self.wallet(asked.wallet_id)
        elif asked.user_id is not None:
            wallet, _ = await self.create_wallet(str(asked.user_id), asked.currency)
        else:
            raise InvalidRequestError("a top-up needs wallet_id or user_id")
        if wallet.currency != _currency(asked.currency):
            raise InvalidRequestError(f"currency: the wallet is in {wallet.currency}")
        return WalletId(wallet.id)

    def _source_ids(self, names: Sequence[str] | None) -> list[SourceId] | None:
        if names is None:
            return None
        if not names:
            raise InvalidRequestError("sources: name at least one, or leave it out")
        known = {source.name: source.id for source in self._rules.sources.values()}
        for name in names:
            if name not in known:
                raise InvalidRequestError(f"sources: there is no source {name!r}")
        return [known[name] for name in names]

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

    async def missing_payments(self) -> Mapping[str, Any]:
        """Refunds whose payment has not come within a day: how many, and since when."""
        async with self._database.connection() as connection:
            return await listings.missing_payments(connection)

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


def _order_amount(asked: OrderRequest) -> Money:
    """Raises InvalidRequestError when it is none that can be paid, or something is out of form."""
    if not asked.reference or len(asked.reference) > MAX_REFERENCE:
        raise InvalidRequestError(f"reference: give 1 to {MAX_REFERENCE} characters")
    if asked.email is not None and not is_email(asked.email):
        raise InvalidRequestError("email is not an e-mail address")
    try:
        amount = money(asked.amount, asked.currency)
    except InvalidMoneyError as error:
        raise InvalidRequestError(f"amount: {error}") from None
    if amount.amount_minor == 0:
        raise InvalidRequestError("amount: give one above zero")
    return amount


def _currency(code: str) -> str:
    try:
        return known_currency(code)
    except InvalidMoneyError as error:
        raise InvalidRequestError(f"currency: {error}") from None


def _hashed(key: str) -> bytes:
    """Keys are long and random, so that a plain hash cannot be turned back."""
    return hashlib.sha256(key.encode()).digest()
