"""`paidonce wallet-payments` and `paidonce views`."""

from typing import Annotated, Final
from uuid import UUID

import typer

from paidonce.db.paging import ListQuery, all_pages
from paidonce.payouts.model import WalletPaymentQuery
from paidonce.terminal.commands import Commands, Limit, Result
from paidonce.terminal.output import columns, stderr, stdout
from paidonce.terminal.session import Config, Services, Use, operate, operator

commands = Commands("wallet-payments", "Payments out of a wallet.")
views = Commands("views", "The read model of payments out of a wallet.")

PaymentId = Annotated[str, typer.Argument(help="The id of the payment.")]

COLUMNS: Final = columns(
    "created_at as created, payment_id as payment, status, amount, transaction_id as transaction, "
    "failure, review, wallet_id as wallet",
    amount=lambda payment: f"{payment.amount} {payment.currency}",
)
CALLBACKS: Final = columns(
    "received_at as received, source, transaction_id as transaction, gateway_status, attempts, id"
)


@commands.operation("start")
async def start_payment(
    services: Services,
    payment_id: PaymentId,
    wallet_id: Annotated[UUID, typer.Option(help="The wallet that pays.")],
    amount: Annotated[str, typer.Option(help="The amount, in the wallet's currency.")],
) -> object:
    """Start a payment. A repeat shows the existing one."""
    payment, _ = await services.payouts.start(payment_id, wallet_id, amount, actor=operator())
    return payment


@commands.operation("show", use=Use.STORED)
def show_payment(services: Services, payment_id: PaymentId) -> Result:
    """Show one payment."""
    return services.payouts.get(payment_id)


@commands.operation("list", COLUMNS, use=Use.STORED)
def list_payments(services: Services, query: WalletPaymentQuery, limit: Limit = 50) -> Result:
    """List payments in the order of their ids."""
    return all_pages(services.payouts.search, query, limit)


@commands.operation("capture")
def capture_payment(services: Services, payment_id: PaymentId) -> Result:
    """Capture the amount of a payment that succeeded at the gateway and needs a review."""
    return services.payouts.capture(payment_id, operator())


@commands.operation("fail")
def fail_payment(services: Services, payment_id: PaymentId) -> Result:
    """Fail a payment that needs a review, and release its amount."""
    return services.payouts.fail(payment_id, operator())


@commands.operation("callbacks", CALLBACKS, use=Use.STORED)
def list_callbacks(services: Services, limit: Limit = 50) -> Result:
    """List callbacks without a payment that are not tried any more, newest first."""
    return all_pages(services.payouts.dead_callbacks, ListQuery(), limit)


@commands.command("retry-callback")
def retry_callback(callback_id: UUID, config: Config = None) -> None:
    """Try a callback again."""
    operate(config, lambda services: services.payouts.retry_callback(callback_id, operator()))
    stderr.print("The callback will be tried again.")


@views.operation("show", use=Use.STORED)
def show_view(services: Services, payment_id: PaymentId) -> Result:
    """Show a payment in the read model."""
    return services.payouts.get_view(payment_id)


@views.command("rebuild")
def rebuild_views(config: Config = None) -> None:
    """Rebuild the read model from the outbox; the service may run meanwhile."""
    done = operate(
        config,
        lambda services: services.payouts.rebuild_views(
            lambda number: stderr.print(f"{number} payments")
        ),
    )
    stdout.print(str(done))
