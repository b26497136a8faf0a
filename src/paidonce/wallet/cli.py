"""`paidonce wallet`."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Final
from uuid import UUID

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from paidonce.db.paging import all_pages
from paidonce.terminal.output import Columns, Json, show, show_one, stderr, stdout
from paidonce.terminal.query_options import Limit, parse_time
from paidonce.terminal.session import Config, operate, operator
from paidonce.wallet.model import EntryQuery

if TYPE_CHECKING:
    from paidonce.wallet import ledger

commands = typer.Typer(help="Wallets, reservations and the ledger.", no_args_is_help=True)

PaymentId = Annotated[str, typer.Argument(help="The payment id of the reservation.")]

WALLETS: Final[Columns] = {
    "currency": lambda wallet: wallet.currency,
    "balance": lambda wallet: wallet.balance,
    "reserved": lambda wallet: wallet.reserved,
    "available": lambda wallet: wallet.available,
    "receivable": lambda wallet: wallet.receivable,
    "id": lambda wallet: wallet.id,
}
ENTRIES: Final[Columns] = {
    "at": lambda entry: entry.at,
    "account": lambda entry: entry.account,
    "amount": lambda entry: f"{entry.amount} {entry.currency}",
    "for": lambda entry: entry.reservation or entry.payment,
    "movement": lambda entry: entry.movement_id,
}
DISCREPANCIES: Final[Columns] = {
    "kind": lambda one: one.kind,
    "recorded": lambda one: f"{one.recorded} {one.currency}",
    "expected": lambda one: f"{one.expected} {one.currency}",
    "id": lambda one: one.id,
}


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(commands, name="wallet")


@commands.command("create")
def create_wallet(
    owner: Annotated[str, typer.Option(help="Your name for the owner.")],
    currency: Annotated[str, typer.Option(help="The currency of the wallet.")],
    config: Config = None,
    json: Json = False,
) -> None:
    """Create a wallet. A repeat shows the existing one."""
    wallet, _ = operate(
        config, lambda services: services.wallets.create(owner, currency, operator())
    )
    show_one(wallet, json)


@commands.command("show")
def show_wallet(
    wallet_id: UUID,
    at: Annotated[str | None, typer.Option(help="At this time: ISO 8601, or 7d, 12h ago.")] = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Show a wallet, now or as it was at a time."""
    time = parse_time("--at", at)
    show_one(operate(config, lambda services: services.wallets.get(wallet_id, time)), json)


@commands.command("list")
def list_wallets(
    owner: Annotated[str, typer.Option(help="Your name for the owner.")],
    config: Config = None,
    json: Json = False,
) -> None:
    """List an owner's wallets, one for each currency."""
    show(operate(config, lambda services: services.wallets.list_by_owner(owner)), WALLETS, json)


@commands.command("reserve")
def reserve(
    wallet_id: UUID,
    payment_id: PaymentId,
    amount: Annotated[str, typer.Argument(help="In the wallet's currency, such as 9.90.")],
    expires_in: Annotated[
        int | None, typer.Option(min=0, help="Seconds until it expires; 0 means never.")
    ] = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Reserve an amount for a payment. A repeat shows the existing reservation."""
    reservation, _ = operate(
        config,
        lambda services: services.wallets.reserve(
            wallet_id, payment_id, amount, expires_in_s=expires_in, actor=operator()
        ),
    )
    show_one(reservation, json)


@commands.command("commit")
def commit(
    payment_id: PaymentId,
    amount: Annotated[str | None, typer.Option(help="Only this part of it.")] = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Commit a reservation; the rest becomes available again."""
    committed = operate(
        config, lambda services: services.wallets.commit(payment_id, amount, operator())
    )
    show_one(committed, json)


@commands.command("release")
def release(payment_id: PaymentId, config: Config = None, json: Json = False) -> None:
    """Release a reservation."""
    show_one(
        operate(config, lambda services: services.wallets.release(payment_id, operator())), json
    )


@commands.command("entries")
def list_entries(
    wallet_id: UUID, limit: Limit = 50, config: Config = None, json: Json = False
) -> None:
    """List the ledger entries of a wallet, newest first."""
    found = operate(
        config,
        lambda services: all_pages(
            lambda query: services.wallets.entries(wallet_id, query), EntryQuery(), limit
        ),
    )
    show(found, ENTRIES, json)


@commands.command("verify")
def verify(config: Config = None, json: Json = False) -> None:
    """Verify every wallet and every movement against the ledger; exit code 1 if one is wrong."""
    with _progress() as progress:
        found = operate(config, lambda services: services.wallets.verify(progress))
    if found or json:
        show(found, DISCREPANCIES, json)
    if found:
        stderr.print(f"Amounts that differ from the ledger: {len(found)}")
        raise typer.Exit(1)
    if not json:
        stdout.print("Every wallet agrees with the ledger, and every movement sums to zero.")


@contextmanager
def _progress() -> "Iterator[ledger.Progress]":
    """A progress bar on standard error."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=stderr, transient=True, redirect_stdout=False) as bar:
        task = bar.add_task("", total=None)

        def update(what: str, done: int, total: int) -> None:
            bar.update(task, description=what, completed=done, total=max(done, total))

        yield update
