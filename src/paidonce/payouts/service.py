"""Payments out of a wallet: what operators and programs can ask for."""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from uuid import UUID

from paidonce.audit.store import record_action
from paidonce.bus import outbox
from paidonce.core.actors import HOST, Actor
from paidonce.core.callbacks import GatewayStatus
from paidonce.core.events import WalletId
from paidonce.core.money import format_minor
from paidonce.db.paging import ListQuery, Page, page_of
from paidonce.db.pool import Database
from paidonce.db.queries import Connection, from_row
from paidonce.db.search import count_rows
from paidonce.errors import ConflictError, InvalidRequestError, NotFoundError
from paidonce.payouts import model, store, views
from paidonce.payouts.messages import new_message
from paidonce.payouts.model import WalletPayment, WalletPaymentStatus, WalletPaymentView
from paidonce.payouts.processor import PayoutOptions, PayoutProcessor
from paidonce.processing.items import Rules, Source
from paidonce.wallet.service import WalletService, currency_code, positive_minor, require_payment_id


class PayoutService:
    """Payments out of a wallet, their read model, and callbacks without a payment."""

    def __init__(self, database: Database, rules: Rules, wallets: WalletService) -> None:
        self._database = database
        self._rules = rules
        self._wallets = wallets

    async def start(
        self,
        payment_id: str,
        wallet_id: UUID,
        amount: str,
        *,
        currency: str | None = None,
        actor: Actor = HOST,
    ) -> tuple[WalletPaymentView, bool]:
        """Start a payment; returns it, and whether it is new.

        Raises InvalidRequestError, NotFoundError for the wallet, and ConflictError:
        NO_GATEWAY, or IDEMPOTENCY_CONFLICT if another payment has this id.
        """
        source = self._payout_source()
        require_payment_id(payment_id)
        wallet = await self._wallets.get(wallet_id)
        if currency is not None and currency_code(currency) != wallet.currency:
            raise InvalidRequestError(f"currency: the wallet is in {wallet.currency}")
        minor = positive_minor(amount, wallet.currency)
        initiation = model.Initiation(
            payment_id, WalletId(wallet_id), minor, wallet.currency, source.id
        )
        async with self._database.transaction() as connection:
            is_new = bool(await store.add(connection, [initiation]))
            payment = await store.find(connection, payment_id)
            assert payment is not None
            if is_new:
                message = new_message(payment, model.MessageType.INITIATED)
                await outbox.add(connection, [message])
                await _audit(connection, actor, "wallet_payment_started", payment_id)
        if payment.request_hash != initiation.request_hash:
            raise ConflictError(
                "there is another payment with this payment_id", "IDEMPOTENCY_CONFLICT"
            )
        return model.wallet_payment_view(payment), is_new

    async def get(self, payment_id: str) -> WalletPaymentView:
        """A payment. Raises NotFoundError."""
        async with self._database.connection() as connection:
            payment = await store.find(connection, payment_id)
        if payment is None:
            raise _no_payment()
        return model.wallet_payment_view(payment)

    async def search(self, query: model.WalletPaymentQuery) -> Page[WalletPaymentView]:
        """A page of payments, in the order of their ids."""
        async with self._database.connection() as connection:
            payments = await store.search(connection, query)
        found = [model.wallet_payment_view(one) for one in payments]
        return page_of(found, query.limit, lambda one: one.payment_id)

    async def capture(self, payment_id: str, actor: Actor) -> WalletPaymentView:
        """Capture the whole amount of a payment that succeeded at the gateway and needs a review.

        Raises NotFoundError, and ConflictError: CONFLICT, or INSUFFICIENT_FUNDS.
        """
        async with self._database.transaction() as connection:
            payment, now = await _lock(connection, payment_id)
            if payment.review not in model.CAPTURABLE:
                raise ConflictError("this payment has nothing to capture")
            report = model.GatewayReport(GatewayStatus.SUCCEEDED)
            after = await self._conclude(connection, payment, report, now)
            if after.status is not WalletPaymentStatus.COMPLETED:
                raise ConflictError("the wallet cannot pay for it yet", "INSUFFICIENT_FUNDS")
            await _audit(connection, actor, "wallet_payment_captured", payment_id)
        return model.wallet_payment_view(after)

    async def fail(self, payment_id: str, actor: Actor) -> WalletPaymentView:
        """Fail a payment that needs a review, and release its amount.

        If the gateway reports a success later, the amount is captured. Raises NotFoundError, and
        ConflictError for a payment that needs no review or is COMPLETED.
        """
        async with self._database.transaction() as connection:
            payment, now = await _lock(connection, payment_id)
            if payment.review is None or payment.status is WalletPaymentStatus.COMPLETED:
                raise ConflictError("this payment cannot be failed")
            reason = model.FailureReason.FAILED_BY_OPERATOR
            report = model.GatewayReport(GatewayStatus.FAILED, failure=reason)
            after = await self._conclude(connection, payment, report, now)
            await _audit(connection, actor, "wallet_payment_failed", payment_id)
        return model.wallet_payment_view(after)

    async def count_reviews(self) -> dict[str, int]:
        """The number of payments to review, by reason."""
        async with self._database.connection() as connection:
            rows = await count_rows(connection, store.QUERIES["count_reviews"])
        return {row["reason"]: row["number"] for row in rows}

    async def get_view(self, payment_id: str) -> views.PayoutView:
        """The view of a payment in the read model. Raises NotFoundError."""
        async with self._database.connection() as connection:
            row = await store.QUERIES["find_view"].row(connection, payment_id=payment_id)
        if row is None:
            raise NotFoundError("there is no view of a payment with this id")
        status = WalletPaymentStatus(row["status"])
        amount = format_minor(row["amount_minor"], row["currency"])
        return from_row(views.PayoutView, row, status=status, amount=amount)

    async def rebuild_views(self, progress: Callable[[int], None]) -> int:
        """Rebuild the read model from the outbox; returns the number of payments."""
        return await views.rebuild(self._database, progress)

    async def dead_callbacks(self, query: ListQuery) -> Page[model.DeadCallback]:
        """A page of callbacks without a payment that are not tried any more, newest first."""
        async with self._database.connection() as connection:
            found = await store.dead_callbacks(connection, query)
        return page_of(found, query.limit, lambda one: one.id)

    async def count_dead_callbacks(self) -> int:
        """The number of callbacks without a payment that are not tried any more."""
        async with self._database.connection() as connection:
            (row,) = await count_rows(connection, store.QUERIES["count_dead_callbacks"])
        return int(row["number"])

    async def retry_callback(self, callback_id: UUID, actor: Actor) -> None:
        """Try a dead callback again, with all attempts. Raises NotFoundError."""
        async with self._database.transaction() as connection:
            if await store.QUERIES["retry_callback"].row(connection, id=callback_id) is None:
                raise NotFoundError(f"there is no dead callback {callback_id}")
            await record_action(
                connection, actor.name, "callback_retried", callback_id=str(callback_id)
            )

    def _payout_source(self) -> Source:
        for source in self._rules.sources.values():
            if source.is_payout_source:
                return source
        raise ConflictError("no gateway for payments out of a wallet is configured", "NO_GATEWAY")

    async def _conclude(
        self,
        connection: Connection,
        payment: WalletPayment,
        report: model.GatewayReport,
        now: datetime,
    ) -> WalletPayment:
        """The payment after its review."""
        options = PayoutOptions(payment.source_id, payment.source, self._rules.routes)
        reviewed = replace(payment, review=None)
        return await PayoutProcessor(options).conclude(connection, reviewed, report, now)


async def _lock(connection: Connection, payment_id: str) -> tuple[WalletPayment, datetime]:
    """The locked payment, and the time. Raises NotFoundError."""
    locked = await store.lock(connection, [payment_id])
    payment = locked.payments.get(payment_id)
    if payment is None or locked.now is None:
        raise _no_payment()
    return payment, locked.now


async def _audit(connection: Connection, actor: Actor, action: str, payment_id: str) -> None:
    await record_action(connection, actor.name, action, wallet_payment=payment_id)


def _no_payment() -> NotFoundError:
    return NotFoundError("there is no payment out of a wallet with this id")
