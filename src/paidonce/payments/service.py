"""What operators can ask about payments, and do with those that are not applied."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final
from uuid import UUID

from paidonce.audit import store as audit_store
from paidonce.clock import CLOCK
from paidonce.core.accept import AcceptRequest
from paidonce.core.actors import Actor
from paidonce.core.events import PaymentId, UserId
from paidonce.core.money import Money, money
from paidonce.core.operator_refunds import OperatorRefund, nothing_captured
from paidonce.db.paging import MAX_PAGE, Page
from paidonce.db.pool import Database
from paidonce.db.queries import Row
from paidonce.errors import (
    ConflictError,
    InvalidMoneyError,
    InvalidRequestError,
    NotFoundError,
)
from paidonce.linking import store as linking_store
from paidonce.linking.linker import Linker
from paidonce.payments import store
from paidonce.payments.model import (
    PaymentDetail,
    PaymentQuery,
    PaymentView,
    RefundRequest,
    payment_detail,
    payment_view,
)
from paidonce.processing.items import Link
from paidonce.users.service import UserService

MAX_CHOICES: Final = 20
"""How many payments are listed when a name fits several."""


class PaymentService:
    """Searches payments; links, accepts or marks for refund those that are not applied."""

    def __init__(self, database: Database, linker: Linker, users: UserService) -> None:
        self._database = database
        self._linker = linker
        self._users = users

    async def search(self, query: PaymentQuery) -> Page[PaymentView]:
        """Payments, newest first."""
        async with self._database.connection() as connection:
            return (await store.search(connection, query)).map(payment_view)

    async def link(
        self,
        payment_id: UUID,
        actor: Actor,
        *,
        user_id: UUID | None = None,
        email: str | None = None,
        order: str | None = None,
        reason: str | None = None,
    ) -> PaymentDetail:
        """Link a payment to a user or an order, and apply it if possible.

        A payment that is not applied may be linked again. Raises NotFoundError,
        InvalidRequestError, or ConflictError if it is applied.
        """
        if [user_id, email, order].count(None) != 2:
            raise InvalidRequestError("give one of user_id, email and order")
        if order is not None:
            async with self._database.connection() as connection:
                await linking_store.require_order(connection, order)
            link = Link(order=order)
        else:
            user = await (
                self._users.get(user_id) if user_id else self._users.get_by_email(email or "")
            )
            link = Link(user_id=UserId(user.id))
        return await self._link(payment_id, link, actor, "payment_linked", reason)

    async def accept(self, payment_id: UUID, actor: Actor, reason: str) -> PaymentDetail:
        """Accept the captured sum of a payment for its order or plan.

        It is applied despite its amount, or its excess is. Of an expired payment only the expiry is
        lifted. Raises NotFoundError, or ConflictError (`NOT_ACCEPTABLE`) with what fits instead.
        """
        link = Link(accept=AcceptRequest(actor.name, reason))
        return await self._link(payment_id, link, actor, "payment_accepted", reason)

    async def mark_for_refund(self, payment_id: UUID, actor: Actor, reason: str) -> PaymentDetail:
        """Mark a payment for refund: it will not be applied. Raises NotFoundError.

        Raises ConflictError if it is applied: then the gateway reports the refund itself.
        """
        link = Link(is_for_refund=True)
        return await self._link(payment_id, link, actor, "marked_for_refund", reason)

    async def unmark_for_refund(self, payment_id: UUID, actor: Actor, reason: str) -> PaymentDetail:
        """Remove the mark for refund, and apply the payment if possible. Raises NotFoundError."""
        link = Link(is_for_refund=False)
        return await self._link(payment_id, link, actor, "unmarked_for_refund", reason)

    async def record_refund(
        self, payment_id: UUID, actor: Actor, refund: RefundRequest
    ) -> tuple[PaymentDetail, bool]:
        """Record a refund that was made elsewhere; returns whether it is new.

        What the gateway reports later counts once. Raises NotFoundError, InvalidRequestError,
        ConflictError (`IDEMPOTENCY_CONFLICT`), or UnprocessableRequestError if it is too much.
        """
        payment = await self.get(payment_id)
        if payment.currency is None:
            raise nothing_captured(payment_id)
        amount = _refund_amount(refund.amount, payment.currency)
        at = refund.occurred_at or CLOCK.now()
        recorded = OperatorRefund(refund.refund_id, amount, at, refund.outside_gateway)
        is_new = await self._linker.link(
            PaymentId(payment_id),
            Link(refund=recorded),
            actor.name,
            "refund_recorded",
            reason=refund.reason,
            refund_id=refund.refund_id,
            amount=str(amount),
            outside_gateway=refund.outside_gateway,
        )
        return await self.get(payment_id), is_new

    async def _link(
        self, payment_id: UUID, link: Link, actor: Actor, action: str, reason: str | None = None
    ) -> PaymentDetail:
        await self._linker.link(PaymentId(payment_id), link, actor.name, action, reason)
        return await self.get(payment_id)

    async def get(self, payment_id: UUID) -> PaymentDetail:
        """One payment with its trail. Raises NotFoundError."""
        async with self._database.snapshot() as connection:
            row = await store.PAYMENTS.find(connection, payment_id)
            if row is None:
                raise NotFoundError(f"there is no payment {payment_id}")
            trail = await audit_store.trail(connection, payment=payment_id)
        return payment_detail(row, trail)

    async def find(self, name: str) -> PaymentDetail:
        """The payment with this id: ours, or a gateway's of any kind, or its order's reference.

        Raises NotFoundError, or ConflictError with all that match.
        """
        found = {one.id: one for one in await self._named(name)}
        if not found:
            raise NotFoundError(f"no payment has the id or the order {name}")
        if len(found) > 1:
            raise ConflictError(_choices(name, list(found.values())))
        return await self.get(next(iter(found)))

    async def _named(self, name: str) -> list[PaymentView]:
        async with self._database.snapshot() as connection:
            rows: list[Row | None] = []
            with suppress(ValueError):
                rows.append(await store.PAYMENTS.find(connection, UUID(name)))
            search = partial(store.PAYMENTS.page, connection, limit=MAX_PAGE)
            rows += (await search(external_payment_id=name)).items
            rows += (await search(order=name)).items
        return [payment_view(row) for row in rows if row is not None]

    async def unapplied_money(self) -> list[Mapping[str, Any]]:
        """Money received and not applied, by currency: number, sum and age of the oldest."""
        async with self._database.connection() as connection:
            return await store.unapplied_money(connection)

    async def to_review(self) -> list[Mapping[str, Any]]:
        """Payments that a person should look at, by reason: number and age of the oldest."""
        async with self._database.connection() as connection:
            return await store.to_review(connection)

    async def open_disputes(self) -> int:
        """The number of payments with a dispute that was not won."""
        async with self._database.connection() as connection:
            return await store.open_disputes(connection)


def _refund_amount(amount: str, currency: str) -> Money:
    """The amount of a refund. Raises InvalidRequestError."""
    try:
        refunded = money(amount, currency)
    except InvalidMoneyError as error:
        raise InvalidRequestError(f"amount: {error}") from None
    if refunded.amount_minor == 0:
        raise InvalidRequestError("amount: give one above zero")
    return refunded


def _choices(name: str, payments: Sequence[PaymentView]) -> str:
    """The payments that a name fits, the newest first, and how to choose one."""
    lines = [
        f"  {one.id}  {one.source}  {one.external_payment_id or '-'}  {one.order or '-'}"
        f"  {one.status}  {one.captured} {one.currency or ''}"
        for one in payments[:MAX_CHOICES]
    ]
    if len(payments) > MAX_CHOICES:
        lines.append("  …")
    title = f"{len(payments)} payments match {name}; choose one by the id in the first column:"
    return "\n".join([title, *lines])
