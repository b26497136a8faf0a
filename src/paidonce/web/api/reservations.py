"""Money that is set aside in a wallet for a payment, then taken or let go."""

from typing import Annotated, Final
from uuid import UUID

from fastapi import FastAPI, Response, status
from pydantic import BaseModel, ConfigDict, Field

from paidonce.settings import LONGEST_RESERVATION_S
from paidonce.views import ReservationView
from paidonce.web.api.shapes import Reference, Text
from paidonce.web.auth import Operator, Reader, Verbs


class NewReservation(BaseModel):
    """How much is set aside, in the wallet's currency, and for which payment.

    `expires_in_s` is that of the settings unless it is given; 0 is never.
    """

    model_config = ConfigDict(extra="forbid")
    payment_id: Reference
    amount: Text
    expires_in_s: Annotated[int, Field(ge=0, le=LONGEST_RESERVATION_S, strict=True)] | None = None


class Taken(BaseModel):
    """How much of it is taken: all of it unless an amount is given."""

    model_config = ConfigDict(extra="forbid")
    amount: Text | None = None


ALL_OF_IT: Final = Taken()


def add_to(api: FastAPI) -> None:
    """Add these calls."""

    @api.post(
        "/api/v1/wallets/{wallet_id}/reservations",
        status_code=status.HTTP_201_CREATED,
        tags=["reservations"],
    )
    async def reserve(
        wallet_id: UUID, body: NewReservation, verbs: Verbs, actor: Operator, answer: Response
    ) -> ReservationView:
        """Set money aside. A repeat returns what was reserved, with 200.

        409 `INSUFFICIENT_FUNDS` is remembered for this payment id: ask again under another one.
        Another wallet or amount under the same payment id is 409 `IDEMPOTENCY_CONFLICT`.
        """
        reservation, is_new = await verbs.reserve(
            wallet_id, body.payment_id, body.amount, expires_in_s=body.expires_in_s, actor=actor
        )
        answer.status_code = status.HTTP_201_CREATED if is_new else status.HTTP_200_OK
        return reservation

    @api.post("/api/v1/reservations/{payment_id:path}/commit", tags=["reservations"])
    async def commit_reservation(
        payment_id: Reference, verbs: Verbs, actor: Operator, body: Taken = ALL_OF_IT
    ) -> ReservationView:
        """Take what was set aside, or a part of it; the rest is free again. A repeat does nothing.

        409 is `ALREADY_COMMITTED` (another amount), `ALREADY_RELEASED`, `EXPIRED`,
        `AMOUNT_TOO_LARGE`, or `INSUFFICIENT_FUNDS` where nothing was ever set aside.
        """
        return await verbs.commit_reservation(payment_id, body.amount, actor)

    @api.post("/api/v1/reservations/{payment_id:path}/release", tags=["reservations"])
    async def release_reservation(
        payment_id: Reference, verbs: Verbs, actor: Operator
    ) -> ReservationView:
        """Let go of what was set aside. A repeat does nothing.

        409 is `ALREADY_COMMITTED`, `EXPIRED`, or `INSUFFICIENT_FUNDS`.
        """
        return await verbs.release_reservation(payment_id, actor)

    @api.get("/api/v1/reservations/{payment_id:path}", tags=["reservations"])
    async def get_reservation(
        payment_id: Reference, verbs: Verbs, actor: Reader
    ) -> ReservationView:
        """What is set aside for a payment, or was."""
        return await verbs.reservation(payment_id)
