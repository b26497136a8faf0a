"""`wallet-payments` and `views`: payments out of a wallet, and what is shown of them."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final
from uuid import UUID

import typer

from paidonce.cli.choosing import MAX_LISTED
from paidonce.cli.terminal import Config, Json, operate, operator, show, show_one, shown, told

if TYPE_CHECKING:
    from paidonce.operations import Operations
    from paidonce.views.wallet_payments import CallbackView, WalletPaymentView

commands = typer.Typer(help="Payments out of a wallet.", no_args_is_help=True)
views = typer.Typer(help="What is shown of payments out of a wallet.", no_args_is_help=True)

PaymentId = Annotated[str, typer.Argument(help="The payment's id, as whoever started it chose.")]

COLUMNS: Final[Mapping[str, Callable[[Any], object]]] = {
    "created": lambda payment: payment.created_at,
    "payment": lambda payment: payment.payment_id,
    "status": lambda payment: payment.status,
    "amount": lambda payment: f"{payment.amount} {payment.currency}",
    "transaction": lambda payment: payment.transaction_id,
    "failure": lambda payment: payment.failure,
    "review": lambda payment: payment.review,
    "wallet": lambda payment: payment.wallet_id,
}
CALLBACKS: Final[Mapping[str, Callable[[Any], object]]] = {
    "received": lambda callback: callback.received_at,
    "source": lambda callback: callback.source,
    "transaction": lambda callback: callback.transaction_id,
    "says": lambda callback: callback.says,
    "attempts": lambda callback: callback.attempts,
    "id": lambda callback: callback.id,
}


def add_to(app: typer.Typer) -> None:
    """Make these commands of the program."""
    app.add_typer(commands, name="wallet-payments")
    app.add_typer(views, name="views")


@commands.command("start")
def start_payment(
    payment_id: PaymentId,
    wallet_id: Annotated[UUID, typer.Option(help="Whose money it is.")],
    amount: Annotated[str, typer.Option(help="How much, in the wallet's currency.")],
    config: Config = None,
    json: Json = False,
) -> None:
    """Start a payment. A repeat shows the one that is there."""

    async def started(verbs: "Operations") -> "WalletPaymentView":
        payment, _ = await verbs.start_wallet_payment(
            payment_id, wallet_id, amount, actor=operator()
        )
        return payment

    show_one(operate(config, started), json)


@commands.command("show")
def show_payment(payment_id: PaymentId, config: Config = None, json: Json = False) -> None:
    """Show one payment."""
    show_one(operate(config, lambda verbs: verbs.wallet_payment(payment_id)), json)


@commands.command("list")
def list_payments(
    review: Annotated[
        str | None, typer.Option(help="To be looked at for this code, or `any`.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=MAX_LISTED, help="How many at most.")] = 50,
    config: Config = None,
    json: Json = False,
) -> None:
    """List payments in the order of their ids."""
    from paidonce.operations.paging import all_of

    found = operate(config, lambda verbs: all_of(verbs.wallet_payments, limit=limit, review=review))
    show(found, COLUMNS, json)


@commands.command("recover")
def recover_payment(payment_id: PaymentId, config: Config = None, json: Json = False) -> None:
    """Take the money for a payment that was made, and that a person had to look at."""
    recovered = operate(config, lambda verbs: verbs.recover_wallet_payment(payment_id, operator()))
    show_one(recovered, json)


@commands.command("give-up")
def give_up_payment(payment_id: PaymentId, config: Config = None, json: Json = False) -> None:
    """Let go of the money of a payment that a person had to look at: it has failed."""
    failed = operate(config, lambda verbs: verbs.give_up_wallet_payment(payment_id, operator()))
    show_one(failed, json)


@commands.command("callbacks")
def list_callbacks(
    limit: Annotated[int, typer.Option(min=1, max=MAX_LISTED, help="How many at most.")] = 50,
    config: Config = None,
    json: Json = False,
) -> None:
    """List what gateways told of transactions that no payment has, and was given up."""
    from paidonce.operations.paging import all_of

    async def listed(verbs: "Operations") -> "list[CallbackView]":
        return await all_of(verbs.dead_callbacks, limit=limit)

    show(operate(config, listed), CALLBACKS, json)


@commands.command("retry-callback")
def retry_callback(callback_id: UUID, config: Config = None) -> None:
    """Look for the payment of a callback that was given up again."""
    operate(config, lambda verbs: verbs.retry_callback(callback_id, operator()))
    told.print("It is tried again.")


@views.command("show")
def show_view(payment_id: PaymentId, config: Config = None, json: Json = False) -> None:
    """Show what the query service knows of a payment."""
    show_one(operate(config, lambda verbs: verbs.payment_state(payment_id)), json)


@views.command("rebuild")
def rebuild_views(config: Config = None) -> None:
    """Make what is shown again, from the log of events; the service may run meanwhile."""

    async def rebuilt(verbs: "Operations") -> int:
        done = 0
        async for number in verbs.rebuild_payment_states():
            done += number
            told.print(f"{done} payments")
        return done

    shown.print(operate(config, rebuilt))
