"""Payments, and what a person says of them."""

from typing import Any
from uuid import UUID

from paidonce.domain.email import email_key
from paidonce.domain.events import PaymentId, UserId
from paidonce.engine.items import Link
from paidonce.errors import InvalidRequestError, NotFoundError
from paidonce.operations.desk import Actor, Found, below
from paidonce.operations.orders import OrderVerbs
from paidonce.store import payment_search
from paidonce.views import PaymentView, payment_view


class PaymentVerbs(OrderVerbs):
    """What can be asked of payments, and done about those that were not applied."""

    async def payments(
        self, *, limit: int, cursor: UUID | None = None, email: str | None = None, **filters: Any
    ) -> Found[PaymentView]:
        """A page of payments, the newest first. The filters are those of `store.payment_search`."""
        key = None if email is None else email_key(email)
        async with self._database.connection() as connection:
            page = await payment_search.search(
                connection, limit=limit, last_id=below(cursor), email=key, **filters
            )
        return Found([payment_view(row) for row in page.rows], page.next)

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
            user = await (self.user(user_id) if user_id else self.only_user(email or ""))
            link, told = Link(user_id=UserId(user.id)), {"user_id": str(user.id)}
        await self._linker.link(PaymentId(payment_id), link, actor.name, "payment_linked", **told)
        return await self.payment(payment_id)

    async def accept_payment(self, payment_id: UUID, actor: Actor, reason: str) -> PaymentView:
        """Take a payment of another sum, or that came too late; apply it. Raises NotFoundError."""
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
            row = await payment_search.find(connection, payment_id)
        if row is None:
            raise NotFoundError(f"there is no payment {payment_id}")
        return payment_view(row)
