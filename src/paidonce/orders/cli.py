"""`paidonce orders`."""

from typing import Annotated, Final
from uuid import UUID

import typer

from paidonce.audit.cli import print_trail
from paidonce.core.orders import Kind
from paidonce.db.paging import all_pages
from paidonce.orders.model import OrderQuery, OrderRequest, OrderView
from paidonce.terminal.commands import (
    Commands,
    Limit,
    OptionalReason,
    Result,
    parse_time,
    validated,
)
from paidonce.terminal.output import columns, print_fields, print_table
from paidonce.terminal.session import Services, Use, operator

commands = Commands("orders", "Orders: list, show, create, cancel.")

Reference = Annotated[str, typer.Argument(help="The merchant's own id of the order.")]

_COLUMNS: Final = columns(
    "created_at as created, reference, kind, status, amount, paid_at as paid, user_id as user, id",
    amount=lambda order: f"{order.amount} {order.currency}",
)
_PAYMENTS: Final = columns(
    "source, external_payment_id as payment, status, amount, applied, review, id",
    amount=lambda payment: f"{payment.captured} {payment.currency or ''}",
    applied=lambda payment: payment.applied_at is not None,
)


@commands.operation("list", _COLUMNS, use=Use.STORED)
def list_orders(services: Services, query: OrderQuery, limit: Limit = 50) -> Result:
    """List orders, newest first."""
    return all_pages(services.orders.search, query, limit)


def _print_order(order: OrderView) -> None:
    print_fields(order)
    print_table(order.payments, _PAYMENTS)
    print_trail(order.trail)


@commands.operation("show", _print_order, use=Use.STORED)
def show_order(services: Services, reference: Reference) -> Result:
    """Show an order with its payments, and its trail: what operators did."""
    return services.orders.get(reference)


@commands.operation("create", _print_order)
def create_order(
    services: Services,
    reference: Reference,
    amount: Annotated[str, typer.Option(help="What is to be paid, such as 990.00.")],
    currency: Annotated[str, typer.Option(help="The currency, such as EUR.")],
    kind: Annotated[Kind, typer.Option(help="What the order fulfils.")] = Kind.ORDER,
    user_id: Annotated[UUID | None, typer.Option(help="The user it is for.")] = None,
    email: Annotated[str | None, typer.Option(help="The e-mail address it is for.")] = None,
    plan_id: Annotated[str | None, typer.Option(help="The plan of a subscription.")] = None,
    wallet_id: Annotated[UUID | None, typer.Option(help="The wallet to top up.")] = None,
    source: Annotated[
        list[str] | None, typer.Option(help="A source that may pay it; any, if none is named.")
    ] = None,
    expires_at: Annotated[
        str | None, typer.Option(help="What is paid later is not applied; a time in ISO 8601.")
    ] = None,
) -> Result:
    """Create an order; a repeat shows the existing one. Payments that wait for it are applied."""
    request = validated(
        OrderRequest,
        reference=reference,
        amount=amount,
        currency=currency,
        kind=kind,
        user_id=user_id,
        email=email,
        plan_id=plan_id,
        wallet_id=wallet_id,
        sources=tuple(source) if source else None,
        expires_at=parse_time("--expires-at", expires_at),
    )
    return _created(services, request)


async def _created(services: Services, request: OrderRequest) -> OrderView:
    order, _ = await services.orders.create(request, operator())
    return order


@commands.operation("cancel", _print_order)
def cancel_order(services: Services, reference: Reference, reason: OptionalReason = None) -> Result:
    """Cancel an unpaid order. Later payments are kept and not applied."""
    return services.orders.cancel(reference, operator(), reason)
