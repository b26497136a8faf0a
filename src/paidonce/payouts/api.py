"""HTTP routes of payments out of a wallet, their views, and gateway callbacks."""

from uuid import UUID

from fastapi import FastAPI, Response

from paidonce.api.requests import FromQuery, Operator, Reader
from paidonce.core.input import Reference
from paidonce.db.paging import ListQuery, Page
from paidonce.payouts import model
from paidonce.payouts.model import WalletPaymentView
from paidonce.payouts.service import PayoutService
from paidonce.payouts.views import PayoutView


def add_to(api: FastAPI, payouts: PayoutService) -> None:
    @api.post(
        "/api/v1/wallet-payments",
        status_code=202,
        responses={200: {"model": WalletPaymentView, "description": "It was started before."}},
        tags=["wallet payments"],
    )
    async def start_wallet_payment(
        body: model.WalletPaymentRequest, actor: Operator, answer: Response
    ) -> WalletPaymentView:
        """Start a payment out of a wallet. A repeat returns its current state, with 200.

        Other content under the same payment id is 409 `IDEMPOTENCY_CONFLICT`. Without a configured
        gateway it is 409 `NO_GATEWAY`.
        """
        payment, is_new = await payouts.start(
            body.payment_id, body.wallet_id, body.amount, currency=body.currency, actor=actor
        )
        answer.status_code = 202 if is_new else 200
        return payment

    @api.get("/api/v1/wallet-payments", tags=["wallet payments"])
    async def list_wallet_payments(
        query: FromQuery[model.WalletPaymentQuery], actor: Reader
    ) -> Page[WalletPaymentView]:
        """Payments out of wallets, in the order of their ids."""
        return await payouts.search(query)

    # Before the routes that show a payment: its id may contain slashes.

    @api.post("/api/v1/wallet-payments/{payment_id:path}/capture", tags=["wallet payments"])
    async def capture_wallet_payment(payment_id: Reference, actor: Operator) -> WalletPaymentView:
        """Capture the amount of a payment that succeeded at the gateway and needs a review."""
        return await payouts.capture(payment_id, actor)

    @api.post("/api/v1/wallet-payments/{payment_id:path}/fail", tags=["wallet payments"])
    async def fail_wallet_payment(payment_id: Reference, actor: Operator) -> WalletPaymentView:
        """Fail a payment that needs a review, and release its amount.

        409: it needs no review, or is `COMPLETED`.
        """
        return await payouts.fail(payment_id, actor)

    @api.get("/api/v1/wallet-payments/{payment_id:path}", tags=["wallet payments"])
    async def get_wallet_payment(payment_id: Reference, actor: Reader) -> WalletPaymentView:
        """One payment out of a wallet."""
        return await payouts.get(payment_id)

    @api.get("/api/v1/payment-views/{payment_id:path}", tags=["wallet payments"])
    async def get_payment_view(payment_id: Reference, actor: Reader) -> PayoutView:
        """A payment in the read model of the query service; it may be a moment behind."""
        return await payouts.get_view(payment_id)

    @api.get("/api/v1/gateway-callbacks", tags=["wallet payments"])
    async def list_dead_callbacks(
        query: FromQuery[ListQuery], actor: Reader
    ) -> Page[model.DeadCallback]:
        """Callbacks without a payment that are not tried any more, newest first."""
        return await payouts.dead_callbacks(query)

    @api.post(
        "/api/v1/gateway-callbacks/{callback_id}/retry",
        status_code=204,
        tags=["wallet payments"],
    )
    async def retry_callback(callback_id: UUID, actor: Operator) -> None:
        """Try a callback again."""
        await payouts.retry_callback(callback_id, actor)
