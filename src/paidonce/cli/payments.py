"""`payments`: what was paid, and what a person says of it."""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final
from uuid import UUID

import typer

from paidonce.cli.terminal import Config, Json, operate, operator, show, show_one
from paidonce.domain.payments import PaymentStatus

commands = typer.Typer(help="Payments, and those that were not applied.", no_args_is_help=True)

MAX_LISTED: Final = 100_000

Reason = Annotated[str, typer.Option(help="Why; it stands in the audit log.")]

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
    """Make these commands of the program."""
    app.add_typer(commands, name="payments")


@commands.command("list")
def list_payments(
    source: Annotated[str | None, typer.Option(help="Of this source only.")] = None,
    status: Annotated[PaymentStatus | None, typer.Option(help="With this status only.")] = None,
    applied: Annotated[
        bool | None,
        typer.Option("--applied/--not-applied", help="Applied; or money that was not."),
    ] = None,
    email: Annotated[str | None, typer.Option(help="Paid under this address.")] = None,
    order: Annotated[str | None, typer.Option(help="For the order with this reference.")] = None,
    review: Annotated[str | None, typer.Option(help="To be looked at for this code.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=MAX_LISTED, help="How many at most.")] = 50,
    config: Config = None,
    json: Json = False,
) -> None:
    """List payments, the newest first."""
    from paidonce.operations.paging import all_of

    filters: dict[str, Any] = {
        "source": source,
        "status": status,
        "applied": applied,
        "email": email,
        "order": order,
        "review": review,
    }
    found = operate(config, lambda verbs: all_of(verbs.payments, limit=limit, **filters))
    show(found, COLUMNS, json)


@commands.command("show")
def show_payment(payment_id: UUID, config: Config = None, json: Json = False) -> None:
    """Show one payment."""
    show_one(operate(config, lambda verbs: verbs.payment(payment_id)), json)


@commands.command("link")
def link_payment(
    payment_id: UUID,
    user_id: Annotated[UUID | None, typer.Option(help="Whose it is.")] = None,
    email: Annotated[str | None, typer.Option(help="Whose it is.")] = None,
    order: Annotated[str | None, typer.Option(help="Which order's it is.")] = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Say whose payment it is, or which order's; it is applied at once if it can be."""
    linked = operate(
        config,
        lambda verbs: verbs.link_payment(
            payment_id, operator(), user_id=user_id, email=email, order=order
        ),
    )
    show_one(linked, json)


@commands.command("accept")
def accept_payment(
    payment_id: UUID, reason: Reason, config: Config = None, json: Json = False
) -> None:
    """Take a payment of another sum, or that came too late; it is applied if it can be."""
    show_one(
        operate(config, lambda verbs: verbs.accept_payment(payment_id, operator(), reason)), json
    )


@commands.command("want-refund")
def want_refund(
    payment_id: UUID, reason: Reason, config: Config = None, json: Json = False
) -> None:
    """Mark a payment that is not applied for refund: it never will be."""
    show_one(operate(config, lambda verbs: verbs.want_refund(payment_id, operator(), reason)), json)
