"""`paidonce payments`."""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final
from uuid import UUID

import typer

from paidonce.db.paging import all_pages
from paidonce.payments.model import PaymentQuery
from paidonce.terminal.output import Json, show, show_one
from paidonce.terminal.query_options import Limit, query_options
from paidonce.terminal.session import Config, operate, operator

commands = typer.Typer(help="Payments: list, link, accept, mark for refund.", no_args_is_help=True)

Reason = Annotated[str, typer.Option(help="The reason, for the audit log.")]

COLUMNS: Final[Mapping[str, Callable[[Any], object]]] = {
    "created": lambda payment: payment.created_at,
    "source": lambda payment: payment.source,
    "payment": lambda payment: payment.external_payment_id,
    "order": lambda payment: payment.order,
    "status": lambda payment: payment.status,
    "amount": lambda payment: f"{payment.captured} {payment.currency or ''}",
    "applied": lambda payment: "yes" if payment.applied_at else "no",
    "review": lambda payment: payment.review,
    "id": lambda payment: payment.id,
}


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(commands, name="payments")


@commands.command("list")
@query_options
def list_payments(
    query: PaymentQuery, limit: Limit = 50, config: Config = None, json: Json = False
) -> None:
    """List payments, newest first."""
    found = operate(config, lambda services: all_pages(services.payments.search, query, limit))
    show(found, COLUMNS, json)


@commands.command("show")
def show_payment(payment_id: UUID, config: Config = None, json: Json = False) -> None:
    """Show one payment."""
    show_one(operate(config, lambda services: services.payments.get(payment_id)), json)


@commands.command("link")
def link_payment(
    payment_id: UUID,
    user_id: Annotated[UUID | None, typer.Option(help="The user that it belongs to.")] = None,
    email: Annotated[str | None, typer.Option(help="The e-mail address of that user.")] = None,
    order: Annotated[str | None, typer.Option(help="The order that it pays.")] = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Link a payment to a user or an order; it is applied if possible."""
    linked = operate(
        config,
        lambda services: services.payments.link(
            payment_id, operator(), user_id=user_id, email=email, order=order
        ),
    )
    show_one(linked, json)


@commands.command("accept")
def accept_payment(
    payment_id: UUID, reason: Reason, config: Config = None, json: Json = False
) -> None:
    """Apply a payment despite its amount or its expired delivery."""
    show_one(
        operate(config, lambda services: services.payments.accept(payment_id, operator(), reason)),
        json,
    )


@commands.command("mark-for-refund")
def mark_for_refund(
    payment_id: UUID, reason: Reason, config: Config = None, json: Json = False
) -> None:
    """Mark a payment that is not applied for refund: it will not be applied."""
    show_one(
        operate(
            config,
            lambda services: services.payments.mark_for_refund(payment_id, operator(), reason),
        ),
        json,
    )
