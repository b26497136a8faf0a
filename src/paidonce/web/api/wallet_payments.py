"""Payments out of a wallet, and what the query service shows of them."""

from typing import Annotated
from uuid import UUID

from fastapi import FastAPI, Query, Response, status
from pydantic import BaseModel, ConfigDict

from paidonce.views.wallet_payments import CallbackView, PaymentStateView, WalletPaymentView
from paidonce.web.api.shapes import Limit, Page, Reference, Text, page
from paidonce.web.auth import Operator, Reader, Verbs

Cursor = Annotated[Reference, Query()]


class NewWalletPayment(BaseModel):
    """What is to be paid, and out of which wallet. The currency is the wallet's."""

    model_config = ConfigDict(extra="forbid")
    payment_id: Reference
    wallet_id: UUID
    amount: Text
    currency: Text | None = None


def add_to(api: FastAPI) -> None:
    """Add these calls."""
    _add_payments(api)
    _add_decisions(api)
    _add_what_is_shown(api)
    _add_callbacks(api)


def _add_payments(api: FastAPI) -> None:
    @api.post(
        "/api/v1/wallet-payments",
        status_code=status.HTTP_202_ACCEPTED,
        responses={200: {"model": WalletPaymentView, "description": "It was started before."}},
        tags=["wallet payments"],
    )
    async def start_wallet_payment(
        body: NewWalletPayment, verbs: Verbs, actor: Operator, answer: Response
    ) -> WalletPaymentView:
        """Start a payment out of a wallet. A repeat returns it as it stands, with 200.

        Other content under the same payment id is 409 `IDEMPOTENCY_CONFLICT`; without a gateway
        that could pay it is 409 `NO_GATEWAY`.
        """
        payment, is_new = await verbs.start_wallet_payment(
            body.payment_id, body.wallet_id, body.amount, currency=body.currency, actor=actor
        )
        answer.status_code = status.HTTP_202_ACCEPTED if is_new else status.HTTP_200_OK
        return payment

    @api.get("/api/v1/wallet-payments", tags=["wallet payments"])
    async def list_wallet_payments(
        verbs: Verbs,
        actor: Reader,
        review: Text | None = None,
        limit: Limit = 50,
        cursor: Cursor | None = None,
    ) -> Page[WalletPaymentView]:
        """Payments out of wallets, in the order of their ids.

        `review` is the code for which a person should look, such as `INSUFFICIENT_FUNDS`, or `any`.
        """
        return page(await verbs.wallet_payments(limit=limit, cursor=cursor, review=review))


def _add_decisions(api: FastAPI) -> None:
    """What a person decides. Before what is shown: a payment's id may hold slashes."""

    @api.post("/api/v1/wallet-payments/{payment_id:path}/recover", tags=["wallet payments"])
    async def recover_wallet_payment(
        payment_id: Reference, verbs: Verbs, actor: Operator
    ) -> WalletPaymentView:
        """Take the money for a payment that was made, and that a person had to look at.

        The wallet could not pay for it, or the gateway had told of another sum.
        """
        return await verbs.recover_wallet_payment(payment_id, actor)

    @api.post("/api/v1/wallet-payments/{payment_id:path}/give-up", tags=["wallet payments"])
    async def give_up_wallet_payment(
        payment_id: Reference, verbs: Verbs, actor: Operator
    ) -> WalletPaymentView:
        """Let go of the money of a payment that a person had to look at: it has failed.

        409 is one that nobody has to look at, or that is `COMPLETED`.
        """
        return await verbs.give_up_wallet_payment(payment_id, actor)


def _add_what_is_shown(api: FastAPI) -> None:
    @api.get("/api/v1/wallet-payments/{payment_id:path}", tags=["wallet payments"])
    async def get_wallet_payment(
        payment_id: Reference, verbs: Verbs, actor: Reader
    ) -> WalletPaymentView:
        """One payment out of a wallet."""
        return await verbs.wallet_payment(payment_id)

    @api.get("/api/v1/payment-views/{payment_id:path}", tags=["wallet payments"])
    async def get_payment_view(
        payment_id: Reference, verbs: Verbs, actor: Reader
    ) -> PaymentStateView:
        """What the query service shows of a payment; it may be a moment behind."""
        return await verbs.payment_state(payment_id)


def _add_callbacks(api: FastAPI) -> None:
    @api.get("/api/v1/gateway-callbacks", tags=["wallet payments"])
    async def list_dead_callbacks(
        verbs: Verbs, actor: Reader, limit: Limit = 50, cursor: UUID | None = None
    ) -> Page[CallbackView]:
        """What gateways told of transactions that no payment has, and was given up."""
        return page(await verbs.dead_callbacks(limit=limit, cursor=cursor))

    @api.post(
        "/api/v1/gateway-callbacks/{callback_id}/retry",
        status_code=status.HTTP_204_NO_CONTENT,
        tags=["wallet payments"],
    )
    async def retry_callback(callback_id: UUID, verbs: Verbs, actor: Operator) -> None:
        """Look for its payment again."""
        await verbs.retry_callback(callback_id, actor)
