"""`wallet`: what somebody has, what is set aside of it, and whether it all adds up."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final
from uuid import UUID

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from paidonce.cli.choosing import MAX_LISTED, time_of
from paidonce.cli.terminal import Config, Json, operate, operator, show, show_one, shown, told

if TYPE_CHECKING:
    from paidonce.operations import Operations
    from paidonce.operations.ledger import Tell
    from paidonce.views import ReservationView, WalletFlaw, WalletView

commands = typer.Typer(help="Wallets, and what is reserved in them.", no_args_is_help=True)

PaymentId = Annotated[str, typer.Argument(help="The payment that it is, or was, reserved for.")]

WALLETS: Final[Mapping[str, Callable[[Any], object]]] = {
    "currency": lambda wallet: wallet.currency,
    "balance": lambda wallet: wallet.balance,
    "reserved": lambda wallet: wallet.reserved,
    "available": lambda wallet: wallet.available,
    "owed": lambda wallet: wallet.receivable,
    "id": lambda wallet: wallet.id,
}
ENTRIES: Final[Mapping[str, Callable[[Any], object]]] = {
    "at": lambda entry: entry.at,
    "account": lambda entry: entry.account,
    "amount": lambda entry: f"{entry.amount} {entry.currency}",
    "for": lambda entry: entry.reservation or entry.payment,
    "movement": lambda entry: entry.movement_id,
}
FLAWS: Final[Mapping[str, Callable[[Any], object]]] = {
    "what": lambda flaw: flaw.what,
    "recorded": lambda flaw: f"{flaw.recorded} {flaw.currency}",
    "explained": lambda flaw: f"{flaw.explained} {flaw.currency}",
    "id": lambda flaw: flaw.id,
}


def add_to(app: typer.Typer) -> None:
    """Make these commands of the program."""
    app.add_typer(commands, name="wallet")


@commands.command("create")
def create_wallet(
    owner: Annotated[str, typer.Option(help="Whose it is: a name of your own.")],
    currency: Annotated[str, typer.Option(help="One wallet is in one currency.")],
    config: Config = None,
    json: Json = False,
) -> None:
    """Create a wallet. A repeat shows the one that is there."""

    async def created(verbs: "Operations") -> "WalletView":
        wallet, _ = await verbs.create_wallet(owner, currency, operator())
        return wallet

    show_one(operate(config, created), json)


@commands.command("show")
def show_wallet(
    wallet_id: UUID,
    at: Annotated[str | None, typer.Option(help="At this time: ISO 8601, or 7d, 12h ago.")] = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Show what is in a wallet, or what was in it at a time."""
    time = time_of("--at", at)

    async def found(verbs: "Operations") -> "WalletView":
        if time is None:
            return await verbs.wallet(wallet_id)
        return await verbs.wallet_at(wallet_id, time)

    show_one(operate(config, found), json)


@commands.command("list")
def list_wallets(
    owner: Annotated[str, typer.Option(help="Whose they are.")],
    config: Config = None,
    json: Json = False,
) -> None:
    """List an owner's wallets, one for each currency."""
    show(operate(config, lambda verbs: verbs.wallets_of(owner)), WALLETS, json)


@commands.command("reserve")
def reserve(
    wallet_id: UUID,
    payment_id: PaymentId,
    amount: Annotated[str, typer.Argument(help="In the wallet's currency, such as 9.90.")],
    expires_in: Annotated[
        int | None, typer.Option(min=0, help="Seconds until it is let go; 0 is never.")
    ] = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Set money aside for a payment. A repeat shows what was reserved."""

    async def reserved(verbs: "Operations") -> "ReservationView":
        reservation, _ = await verbs.reserve(
            wallet_id, payment_id, amount, expires_in_s=expires_in, actor=operator()
        )
        return reservation

    show_one(operate(config, reserved), json)


@commands.command("commit")
def commit(
    payment_id: PaymentId,
    amount: Annotated[str | None, typer.Option(help="A part of it; the rest is free.")] = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Take what was set aside."""
    taken = operate(config, lambda verbs: verbs.commit_reservation(payment_id, amount, operator()))
    show_one(taken, json)


@commands.command("release")
def release(payment_id: PaymentId, config: Config = None, json: Json = False) -> None:
    """Let go of what was set aside."""
    show_one(operate(config, lambda verbs: verbs.release_reservation(payment_id, operator())), json)


@commands.command("entries")
def list_entries(
    wallet_id: UUID,
    limit: Annotated[int, typer.Option(min=1, max=MAX_LISTED, help="How many at most.")] = 50,
    config: Config = None,
    json: Json = False,
) -> None:
    """List what moved a wallet, the newest first."""
    from paidonce.operations.paging import all_of

    found = operate(
        config, lambda verbs: all_of(verbs.wallet_entries, limit=limit, wallet_id=wallet_id)
    )
    show(found, ENTRIES, json)


@commands.command("verify")
def verify(config: Config = None, json: Json = False) -> None:
    """Add up every wallet and every movement of the ledger again; exit code 1 if one is off."""

    async def verified(verbs: "Operations") -> "list[WalletFlaw]":
        with _progress() as tell:
            return await verbs.verify_wallets(tell)

    flaws = operate(config, verified)
    if flaws or json:
        show(flaws, FLAWS, json)
    if flaws:
        told.print(f"{len(flaws)} are not explained by the ledger.")
        raise typer.Exit(1)
    if not json:
        shown.print("Every wallet is explained by the ledger, and every movement sums to zero.")


@contextmanager
def _progress() -> "Iterator[Tell]":
    """Tells on standard error how far the work has come."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=told, transient=True, redirect_stdout=False) as progress:
        bar = progress.add_task("", total=None)

        def tell(what: str, done: int, total: int) -> None:
            progress.update(bar, description=what, completed=done, total=max(done, total))

        yield tell
