"""Payments out of a wallet: started here, carried out by the payment service."""

from collections.abc import AsyncIterator
from datetime import datetime
from uuid import UUID

from paidonce.domain.events import WalletId
from paidonce.domain.money import Money, money
from paidonce.domain.wallet_payments import (
    MAX_PAYMENT_ID,
    RECOVERABLE,
    FactType,
    Initiation,
    WalletPayment,
    WalletPaymentStatus,
    is_payment_id,
)
from paidonce.engine.items import Source
from paidonce.errors import (
    InvalidMoneyError,
    InvalidRequestError,
    NotFoundError,
    PaymentRefusedError,
)
from paidonce.operations.desk import HOST, Actor, Found, below, first_of
from paidonce.operations.wallets import WalletVerbs
from paidonce.services import query
from paidonce.services.facts import fact_of
from paidonce.services.payments import PaymentService, Terms
from paidonce.store import gateway_callbacks, listings, outbox, payment_views, wallet_payments
from paidonce.store.planning import read_in_order
from paidonce.store.queries import Connection
from paidonce.views.wallet_payments import (
    CallbackView,
    PaymentStateView,
    WalletPaymentView,
    payment_state_view,
    wallet_payment_view,
)


class WalletPaymentVerbs(WalletVerbs):
    """What can be asked of payments out of a wallet, and done with them."""

    async def start_wallet_payment(
        self,
        payment_id: str,
        wallet_id: UUID,
        amount: str,
        *,
        currency: str | None = None,
        actor: Actor = HOST,
    ) -> tuple[WalletPaymentView, bool]:
        """Start a payment, and return it as it stands, and whether it is new.

        The payment service sets the money aside and lets the gateway pay. Raises
        InvalidRequestError, NotFoundError for a wallet that is not there, and PaymentRefusedError:
        NO_GATEWAY, or IDEMPOTENCY_CONFLICT when there is another payment with this id.
        """
        source = self._paying_source()
        if not is_payment_id(payment_id):
            raise InvalidRequestError(
                f"payment_id: give 1 to {MAX_PAYMENT_ID} printable characters"
            )
        paid = await self._payable(wallet_id, amount, currency)
        asked = Initiation(payment_id, WalletId(wallet_id), paid, source.id)
        async with self._database.transaction() as connection:
            is_new = await _initiated(connection, asked, source.name)
            row = await wallet_payments.find(connection, payment_id)
            assert row is not None
            if is_new:
                await listings.record_action(
                    connection, actor.name, "wallet_payment_started", wallet_payment=payment_id
                )
        if row["request_hash"] != asked.request_hash:
            raise PaymentRefusedError(
                "IDEMPOTENCY_CONFLICT", "there is another payment with this payment_id"
            )
        return wallet_payment_view(dict(row)), is_new

    async def wallet_payment(self, payment_id: str) -> WalletPaymentView:
        """One payment. Raises NotFoundError."""
        async with self._database.connection() as connection:
            row = await wallet_payments.find(connection, payment_id)
        if row is None:
            raise NotFoundError("there is no payment out of a wallet with this id")
        return wallet_payment_view(dict(row))

    async def wallet_payments(
        self, *, limit: int, cursor: str | None = None, review: str | None = None
    ) -> Found[WalletPaymentView]:
        """A page of payments in the order of their ids; `review`: to be looked at, for this.

        `any` is for whatever reason.
        """
        async with self._database.connection() as connection:
            rows = await wallet_payments.listed(
                connection, after=cursor or "", limit=limit + 1, review=review
            )
        found = [wallet_payment_view(dict(row)) for row in rows]
        return first_of(found, limit, lambda one: one.payment_id)

    async def recover_wallet_payment(self, payment_id: str, actor: Actor) -> WalletPaymentView:
        """Take the money for a payment that was made and is not paid for yet, all of it.

        The wallet could not pay for it, or the gateway had told of another sum. Raises
        NotFoundError, and PaymentRefusedError when there is nothing to recover, or the wallet
        still cannot pay.
        """
        async with self._database.transaction() as connection:
            payment, now = await _locked(connection, payment_id)
            if payment.review not in RECOVERABLE:
                raise PaymentRefusedError("CONFLICT", "this payment does not wait for money")
            after = await self._service_of(payment).recover(connection, payment, now)
            if after.status is not WalletPaymentStatus.COMPLETED:
                raise PaymentRefusedError("INSUFFICIENT_FUNDS", "the wallet cannot pay for it yet")
            await listings.record_action(
                connection, actor.name, "wallet_payment_recovered", wallet_payment=payment_id
            )
        return await self.wallet_payment(payment_id)

    async def give_up_wallet_payment(self, payment_id: str, actor: Actor) -> WalletPaymentView:
        """Let go of the money of a payment that a person had to look at: it has failed.

        If the gateway says later that it was made, the money is taken after all. Raises
        NotFoundError, and PaymentRefusedError for one that nobody has to look at, or that is
        COMPLETED.
        """
        async with self._database.transaction() as connection:
            payment, now = await _locked(connection, payment_id)
            if payment.review is None or payment.status is WalletPaymentStatus.COMPLETED:
                raise PaymentRefusedError("CONFLICT", "this payment cannot be given up")
            await self._service_of(payment).give_up(connection, payment, now)
            await listings.record_action(
                connection, actor.name, "wallet_payment_given_up", wallet_payment=payment_id
            )
        return await self.wallet_payment(payment_id)

    async def payment_state(self, payment_id: str) -> PaymentStateView:
        """What the query service shows. Raises NotFoundError, also for what it has not heard of."""
        async with self._database.connection() as connection:
            row = await payment_views.find(connection, payment_id)
        if row is None:
            raise NotFoundError("nothing is known of a payment with this id")
        return payment_state_view(dict(row))

    def rebuild_payment_states(self) -> AsyncIterator[int]:
        """Make what is shown again from the log; yields how many payments each page had."""
        return query.rebuild(self._database)

    async def dead_callbacks(
        self, *, limit: int, cursor: UUID | None = None
    ) -> Found[CallbackView]:
        """A page of what gateways told of transactions that no payment has, the newest first."""
        async with self._database.connection() as connection:
            rows = await gateway_callbacks.dead(connection, last_id=below(cursor), limit=limit + 1)
        return first_of([CallbackView(**dict(row)) for row in rows], limit, lambda one: one.id)

    async def wallet_payments_to_review(self) -> dict[str, int]:
        """How many a person should look at, by reason."""
        async with self._database.connection() as connection, read_in_order(connection):
            return await wallet_payments.to_review(connection)

    async def number_of_dead_callbacks(self) -> int:
        """How many callbacks found no payment and were given up."""
        async with self._database.connection() as connection, read_in_order(connection):
            return await gateway_callbacks.number_dead(connection)

    async def retry_callback(self, callback_id: UUID, actor: Actor) -> None:
        """Look for its payment again, from the beginning. Raises NotFoundError."""
        async with self._database.transaction() as connection:
            if not await gateway_callbacks.wake(connection, callback_id):
                raise NotFoundError(f"there is no dead callback {callback_id}")
            await listings.record_action(
                connection, actor.name, "callback_retried", callback_id=str(callback_id)
            )

    def _paying_source(self) -> Source:
        for source in self._rules.sources.values():
            if source.is_calling_back:
                return source
        raise PaymentRefusedError(
            "NO_GATEWAY", "no gateway for payments out of a wallet is configured"
        )

    def _service_of(self, payment: WalletPayment) -> PaymentService:
        source = self._name_of(payment.source_id)
        return PaymentService(Terms(payment.source_id, source, self._rules.told_to))

    def _name_of(self, source_id: int) -> str:
        named = {source.id: source.name for source in self._rules.sources.values()}
        return next((name for one, name in named.items() if one == source_id), "")

    async def _payable(self, wallet_id: UUID, amount: str, currency: str | None) -> Money:
        wallet = await self.wallet(wallet_id)
        try:
            paid = money(amount, currency or wallet.currency)
        except InvalidMoneyError as error:
            raise InvalidRequestError(f"amount: {error}") from None
        if paid.amount_minor == 0:
            raise InvalidRequestError("amount: give one above zero")
        if paid.currency != wallet.currency:
            raise InvalidRequestError(f"currency: the wallet is in {wallet.currency}")
        return paid


async def _locked(connection: Connection, payment_id: str) -> tuple[WalletPayment, datetime]:
    """The payment, which nobody else can change now, and the time. Raises NotFoundError."""
    locked = await wallet_payments.lock(connection, [payment_id])
    payment = locked.payments.get(payment_id)
    if payment is None or locked.now is None:
        raise NotFoundError("there is no payment out of a wallet with this id")
    return payment, locked.now


async def _initiated(connection: Connection, asked: Initiation, source: str) -> bool:
    """Add the payment and let the payment service know, unless it is there already."""
    new = await wallet_payments.open_payments(connection, [(asked, wallet_payments.NO_TIME)])
    if not new:
        return False
    locked = await wallet_payments.lock(connection, [asked.payment_id])
    payment = locked.payments[asked.payment_id]
    await outbox.add(connection, [fact_of(payment, FactType.INITIATED, source)])
    return True
