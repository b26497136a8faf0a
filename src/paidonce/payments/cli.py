"""`paidonce payments`."""

from typing import Annotated, Final
from uuid import UUID

import typer

from paidonce.audit.cli import print_trail
from paidonce.db.paging import all_pages
from paidonce.payments.model import PaymentDetail, PaymentQuery, RefundRequest
from paidonce.terminal.commands import Commands, Limit, OptionalReason, Reason, Result
from paidonce.terminal.output import columns, print_fields, print_table
from paidonce.terminal.session import Services, Use, operator

commands = Commands("payments", "Payments: list, link, accept, mark for refund.")

COLUMNS: Final = columns(
    "created_at as created, source, external_payment_id as payment, order, status, amount, "
    "applied, review, id",
    amount=lambda payment: f"{payment.captured} {payment.currency or ''}",
    applied=lambda payment: payment.applied_at is not None,
)


@commands.operation("list", COLUMNS, use=Use.STORED)
def list_payments(services: Services, query: PaymentQuery, limit: Limit = 50) -> Result:
    """List payments, newest first."""
    return all_pages(services.payments.search, query, limit)


def _print_payment(payment: PaymentDetail) -> None:
    print_fields(payment)
    print_table(payment.ids, columns("kind, id"))
    print_trail(payment.trail)


@commands.operation("show", _print_payment, use=Use.STORED)
def show_payment(
    services: Services,
    name: Annotated[
        str,
        typer.Argument(
            metavar="ID", help="Our id, a gateway's id of any kind, or the reference of the order."
        ),
    ],
) -> Result:
    """Show one payment with its trail: what operators did with it."""
    return services.payments.find(name)


@commands.operation("link")
def link_payment(
    services: Services,
    payment_id: UUID,
    user_id: Annotated[UUID | None, typer.Option(help="The user that it belongs to.")] = None,
    email: Annotated[str | None, typer.Option(help="The e-mail address of that user.")] = None,
    order: Annotated[str | None, typer.Option(help="The order that it pays.")] = None,
    reason: OptionalReason = None,
) -> Result:
    """Link a payment to a user or an order; it is applied if possible."""
    return services.payments.link(
        payment_id, operator(), user_id=user_id, email=email, order=order, reason=reason
    )


@commands.operation("accept")
def accept_payment(services: Services, payment_id: UUID, reason: Reason) -> Result:
    """Accept a payment despite its amount, its excess or its expired delivery."""
    return services.payments.accept(payment_id, operator(), reason)


@commands.operation("mark-for-refund")
def mark_for_refund(services: Services, payment_id: UUID, reason: Reason) -> Result:
    """Mark a payment that is not applied for refund: it will not be applied."""
    return services.payments.mark_for_refund(payment_id, operator(), reason)


@commands.operation("unmark-for-refund")
def unmark_for_refund(services: Services, payment_id: UUID, reason: Reason) -> Result:
    """Remove the mark for refund; the payment is applied if possible."""
    return services.payments.unmark_for_refund(payment_id, operator(), reason)


@commands.operation("refund")
def record_refund(services: Services, payment_id: UUID, refund: RefundRequest) -> Result:
    """Record a refund that was made elsewhere; what it pays for is taken back."""
    return _recorded(services, payment_id, refund)


async def _recorded(services: Services, payment_id: UUID, refund: RefundRequest) -> PaymentDetail:
    payment, _ = await services.payments.record_refund(payment_id, operator(), refund)
    return payment
