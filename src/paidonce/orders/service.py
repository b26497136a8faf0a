"""What operators and merchants can ask about orders, and do with them."""

from collections.abc import Sequence

from paidonce.audit import store as audit_store
from paidonce.core.actors import HOST, Actor
from paidonce.core.email import is_email
from paidonce.core.events import OrderId, SourceId, UserId, WalletId
from paidonce.core.money import Money, money
from paidonce.core.orders import Kind, Order
from paidonce.db.paging import MAX_PAGE, Page
from paidonce.db.pool import Database
from paidonce.errors import InvalidMoneyError, InvalidRequestError, NotFoundError
from paidonce.ids import new_id
from paidonce.linking import store as linking_store
from paidonce.linking.linker import Linker
from paidonce.orders import model, store
from paidonce.payments import store as payments_store
from paidonce.payments.model import PaymentQuery, payment_view
from paidonce.processing.items import Rules
from paidonce.users.service import UserService
from paidonce.wallet.service import WalletService, currency_code


class OrderService:
    """Creates, shows, searches and cancels orders."""

    def __init__(
        self,
        database: Database,
        rules: Rules,
        linker: Linker,
        users: UserService,
        wallets: WalletService,
    ) -> None:
        self._database = database
        self._rules = rules
        self._linker = linker
        self._users = users
        self._wallets = wallets

    async def create(
        self, order: model.OrderRequest, actor: Actor = HOST
    ) -> tuple[model.OrderView, bool]:
        """The order, and whether it is new. Payments that were waiting for it are applied.

        Raises InvalidRequestError, NotFoundError if the user or wallet does not exist, and
        ConflictError if another order has this reference.
        """
        amount = _order_amount(order)
        request_hash = order.digest(amount)
        async with self._database.connection() as connection:
            exists = await linking_store.exists(connection, order.reference, request_hash)
        if exists:
            return await self.get(order.reference), False
        new_order = await self._new_order(order, amount, actor)
        is_new = await self._linker.create_order(new_order, request_hash, actor.name)
        return await self.get(order.reference), is_new

    async def get(self, reference: str) -> model.OrderView:
        """Raises NotFoundError."""
        async with self._database.snapshot() as connection:
            row = await store.find(connection, reference)
            if row is None:
                raise NotFoundError(f"there is no order {reference}")
            paid = await payments_store.search(
                connection, PaymentQuery(order=reference, limit=MAX_PAGE)
            )
            trail = await audit_store.trail_of_order(connection, reference)
        return model.order_view(row, map(payment_view, paid.items), self._rules.plans, trail)

    async def search(self, query: model.OrderQuery) -> Page[model.OrderSummary]:
        """Orders, newest first."""
        async with self._database.connection() as connection:
            return (await store.search(connection, query)).map(model.order_summary)

    def currency_of_plan(self, plan_id: str | None) -> str | None:
        """The currency of a plan, or of the default plan; None if there is none."""
        plan = self._rules.plans.on_sale(plan_id)
        return None if plan is None else plan.price.currency

    async def booking(self, reference: str) -> model.BookingView:
        """Raises NotFoundError."""
        order = await self.get(reference)
        if order.kind is not Kind.BOOKING:
            raise NotFoundError(f"there is no booking {reference}")
        return model.booking_view(order)

    async def cancel(
        self, reference: str, actor: Actor, reason: str | None = None
    ) -> model.OrderView:
        """Cancel an unpaid order: later payments are not applied.

        Raises NotFoundError, or ConflictError if it is paid.
        """
        await self._linker.close_order(reference, actor.name, reason)
        return await self.get(reference)

    async def _new_order(self, asked: model.OrderRequest, amount: Money, actor: Actor) -> Order:
        if asked.plan_id is not None and asked.kind is not Kind.SUBSCRIPTION:
            raise InvalidRequestError("plan_id: only a subscription has one")
        if asked.wallet_id is not None and asked.kind is not Kind.WALLET:
            raise InvalidRequestError("wallet_id: only a top-up has one")
        user = None if asked.user_id is None else await self._users.get(asked.user_id)
        if asked.kind is Kind.SUBSCRIPTION:
            self._check_subscription(asked)
            if amount.amount_minor == 0 and user is None:
                user = await self._users.get_by_email(asked.email or "")
        wallet_id = await self._wallet_of(asked, actor) if asked.kind is Kind.WALLET else None
        return Order(
            id=OrderId(new_id()),
            reference=asked.reference,
            kind=asked.kind,
            amount=amount,
            user_id=None if user is None else UserId(user.id),
            email=asked.email,
            plan_id=asked.plan_id,
            wallet_id=wallet_id,
            sources=self._source_ids(asked.sources),
            expires_at=asked.expires_at,
        )

    def _check_subscription(self, asked: model.OrderRequest) -> None:
        if asked.user_id is None and asked.email is None:
            raise InvalidRequestError("a subscription needs user_id or email")
        if self._rules.plans.on_sale(asked.plan_id) is None:
            named = f"there is no plan {asked.plan_id!r}" if asked.plan_id else "give a plan_id"
            raise InvalidRequestError(f"plan_id: {named}")

    async def _wallet_of(self, asked: model.OrderRequest, actor: Actor) -> WalletId:
        """The wallet to top up: the given one, or the user's own."""
        if asked.wallet_id is not None:
            wallet = await self._wallets.get(asked.wallet_id)
        elif asked.user_id is not None:
            wallet, _ = await self._wallets.create(str(asked.user_id), asked.currency, actor)
        else:
            raise InvalidRequestError("a top-up needs wallet_id or user_id")
        if wallet.currency != currency_code(asked.currency):
            raise InvalidRequestError(f"currency: the wallet is in {wallet.currency}")
        return WalletId(wallet.id)

    def _source_ids(self, names: Sequence[str] | None) -> tuple[SourceId, ...] | None:
        if names is None:
            return None
        if not names:
            raise InvalidRequestError("sources: name at least one, or leave it out")
        known = {source.name: source.id for source in self._rules.sources.values()}
        for name in names:
            if name not in known:
                raise InvalidRequestError(f"sources: there is no source {name!r}")
        return tuple(known[name] for name in names)


def _order_amount(asked: model.OrderRequest) -> Money:
    """The amount of a request. Raises InvalidRequestError."""
    if asked.email is not None and not is_email(asked.email):
        raise InvalidRequestError("email is not an e-mail address")
    try:
        amount = money(asked.amount, asked.currency)
    except InvalidMoneyError as error:
        raise InvalidRequestError(f"amount: {error}") from None
    return amount
