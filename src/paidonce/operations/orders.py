"""Orders, and the bookings that they are for."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import orjson
from uuid_utils.compat import uuid7

from paidonce.domain.email import email_key, is_email
from paidonce.domain.events import SourceId, UserId, WalletId
from paidonce.domain.money import Money, money
from paidonce.domain.orders import MAX_REFERENCE, Kind
from paidonce.errors import InvalidMoneyError, InvalidRequestError, NotFoundError
from paidonce.operations.desk import HOST, MAX_PAGE, Actor, Found, below
from paidonce.operations.people import PeopleVerbs
from paidonce.operations.wallets import WalletVerbs, currency_code
from paidonce.store import orders, payment_search
from paidonce.store.orders import NewOrder
from paidonce.views import (
    BookingView,
    OrderSummary,
    OrderView,
    booking_view,
    order_summary,
    order_view,
    payment_view,
)


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


class OrderVerbs(PeopleVerbs, WalletVerbs):
    """What can be asked of orders, and done with them."""

    async def create_order(
        self, order: OrderRequest, actor: Actor = HOST
    ) -> tuple[OrderView, bool]:
        """The order, and whether it is new; what was paid for it before is applied.

        Raises InvalidRequestError, NotFoundError for a user or wallet that is not there, and
        ConflictError when there is another order with this reference.
        """
        amount = _order_amount(order)
        async with self._database.connection() as connection:
            is_known = await orders.is_known(connection, order.reference, order.digest(amount))
        if is_known:
            return await self.order(order.reference), False
        new_order = await self._new_order(order, amount, actor)
        is_new = await self._linker.create_order(new_order, actor.name)
        return await self.order(order.reference), is_new

    async def order(self, reference: str) -> OrderView:
        """Raises NotFoundError."""
        async with self._database.connection() as connection:
            row = await orders.find_order(connection, reference)
            if row is None:
                raise NotFoundError(f"there is no order {reference}")
            paid = await payment_search.search(connection, limit=MAX_PAGE, order=reference)
        return order_view(dict(row), map(payment_view, paid.rows))

    async def orders(
        self, *, limit: int, cursor: UUID | None = None, email: str | None = None, **filters: Any
    ) -> Found[OrderSummary]:
        """A page of orders, the newest first. The filters are user_id, status and kind."""
        given = {name: value for name, value in filters.items() if value is not None}
        if email is not None:
            given["email"] = email_key(email)
        async with self._database.connection() as connection:
            page = await orders.ORDERS.page(connection, limit=limit, last_id=below(cursor), **given)
        return Found([order_summary(row) for row in page.rows], page.next)

    def currency_of_plan(self, plan_id: str | None) -> str | None:
        """In what a plan, or else the default one, is priced; None if there is none."""
        plan = self._rules.plans.find(plan_id, datetime.now(UTC))
        return None if plan is None else plan.price.currency

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

    async def _new_order(self, asked: OrderRequest, amount: Money, actor: Actor) -> NewOrder:
        if asked.plan_id is not None and asked.kind is not Kind.SUBSCRIPTION:
            raise InvalidRequestError("plan_id: only a subscription has one")
        if asked.wallet_id is not None and asked.kind is not Kind.WALLET:
            raise InvalidRequestError("wallet_id: only a top-up has one")
        if asked.user_id is not None:
            await self.user(asked.user_id)
        if asked.kind is Kind.SUBSCRIPTION:
            self._refuse_unfit_subscription(asked)
        wallet_id = await self._wallet_of(asked, actor) if asked.kind is Kind.WALLET else None
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

    async def _wallet_of(self, asked: OrderRequest, actor: Actor) -> WalletId:
        """The wallet to be topped up: the one that is named, or the user's own."""
        if asked.wallet_id is not None:
            wallet = await self.wallet(asked.wallet_id)
        elif asked.user_id is not None:
            wallet, _ = await self.create_wallet(str(asked.user_id), asked.currency, actor)
        else:
            raise InvalidRequestError("a top-up needs wallet_id or user_id")
        if wallet.currency != currency_code(asked.currency):
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
