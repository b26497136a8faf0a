"""`paidonce wallet-payments` and `paidonce views`."""

from typing import Annotated, Final
from uuid import UUID

import typer

from paidonce.db.paging import ListQuery, all_pages
from paidonce.payouts.model import WalletPaymentQuery
from paidonce.terminal.output import Columns, Json, show, show_one, stderr, stdout
from paidonce.terminal.query_options import Limit, query_options
from paidonce.terminal.session import Config, operate, operator

commands = typer.Typer(help="Payments out of a wallet.", no_args_is_help=True)
views = typer.Typer(help="The read model of payments out of a wallet.", no_args_is_help=True)

PaymentId = Annotated[str, typer.Argument(help="The id of the payment.")]

COLUMNS: Final[Columns] = {
    "created": lambda payment: payment.created_at,
    "payment": lambda payment: payment.payment_id,
    "status": lambda payment: payment.status,
    "amount": lambda payment: f"{payment.amount} {payment.currency}",
    "transaction": lambda payment: payment.transaction_id,
    "failure": lambda payment: payment.failure,
    "review": lambda payment: payment.review,
    "wallet": lambda payment: payment.wallet_id,
}
CALLBACKS: Final[Columns] = {
    "received": lambda callback: callback.received_at,
    "source": lambda callback: callback.source,
    "transaction": lambda callback: callback.transaction_id,
    "gateway_status": lambda callback: callback.gateway_status,
    "attempts": lambda callback: callback.attempts,
    "id": lambda callback: callback.id,
}


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(commands, name="wallet-payments")
    app.add_typer(views, name="views")


@commands.command("start")
def start_payment(
    payment_id: PaymentId,
    wallet_id: Annotated[UUID, typer.Option(help="The wallet that pays.")],
    amount: Annotated[str, typer.Option(help="The amount, in the wallet's currency.")],
    config: Config = None,
    json: Json = False,
) -> None:
    """Start a payment. A repeat shows the existing one."""
    payment, _ = operate(
        config,
        lambda services: services.payouts.start(payment_id, wallet_id, amount, actor=operator()),
    )
    show_one(payment, json)


@commands.command("show")
def show_payment(payment_id: PaymentId, config: Config = None, json: Json = False) -> None:
    """Show one payment."""
    show_one(operate(config, lambda services: services.payouts.get(payment_id)), json)


@commands.command("list")
@query_options
def list_payments(
    query: WalletPaymentQuery, limit: Limit = 50, config: Config = None, json: Json = False
) -> None:
    """List payments in the order of their ids."""
    found = operate(config, lambda services: all_pages(services.payouts.search, query, limit))
    show(found, COLUMNS, json)


@commands.command("capture")
def capture_payment(payment_id: PaymentId, config: Config = None, json: Json = False) -> None:
    """Capture the amount of a payment that succeeded at the gateway and needs a review."""
    show_one(
        operate(config, lambda services: services.payouts.capture(payment_id, operator())), json
    )


@commands.command("fail")
def fail_payment(payment_id: PaymentId, config: Config = None, json: Json = False) -> None:
    """Fail a payment that needs a review, and release its amount."""
    show_one(operate(config, lambda services: services.payouts.fail(payment_id, operator())), json)


@commands.command("callbacks")
def list_callbacks(limit: Limit = 50, config: Config = None, json: Json = False) -> None:
    """List callbacks without a payment that are not tried any more, newest first."""
    found = operate(
        config, lambda services: all_pages(services.payouts.dead_callbacks, ListQuery(), limit)
    )
    show(found, CALLBACKS, json)


@commands.command("retry-callback")
def retry_callback(callback_id: UUID, config: Config = None) -> None:
    """Try a callback again."""
    operate(config, lambda services: services.payouts.retry_callback(callback_id, operator()))
    stderr.print("The callback will be tried again.")


@views.command("show")
def show_view(payment_id: PaymentId, config: Config = None, json: Json = False) -> None:
    """Show a payment in the read model."""
    show_one(operate(config, lambda services: services.payouts.get_view(payment_id)), json)


@views.command("rebuild")
def rebuild_views(config: Config = None) -> None:
    """Rebuild the read model from the outbox; the service may run meanwhile."""
    done = operate(
        config,
        lambda services: services.payouts.rebuild_views(
            lambda number: stderr.print(f"{number} payments")
        ),
    )
    stdout.print(done)
